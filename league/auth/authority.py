"""The folder from which a league's credentials are issued, and the brokers' configuration.

    authority.json    secret keys of the operator and of the accounts; never leaves this folder
    users.json        users with role, expiry and revocation: no secrets
    broker.conf       for the brokers: public keys and revocations
    creds/NAME.creds  a user's token and secret key, for that user's machine

Nothing here goes through the broker or into the history.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from league.auth.permissions import IMPORTS, ROLES, permissions
from league.auth.tokens import KeyKind, format_credentials, new_seed, public_key, sign_token
from schemas.errors import AccessError, UsageError, format_choices
from schemas.files import fsync_path
from schemas.subjects import check_name

DAY_S = 86_400
_MAX_DAYS = 1_000_000
_UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
_STORAGE_LIMITS = ("mem_storage", "disk_storage", "streams", "consumer", "max_ack_pending")
_UNLIMITED_STORAGE = dict.fromkeys((*_STORAGE_LIMITS, "mem_max_stream_bytes", "disk_max_stream_bytes"), -1)
_MAX_TOKEN_BYTES = 65_536
_HEARTBEATS = {"name": "heartbeats", "subject": "metrics.>", "type": "stream"}
"""Export of what operators' processes publish, for the users who listen to heartbeats."""


class User(msgspec.Struct, frozen=True):
    """A user with credentials."""

    name: str
    role: str
    public: str
    issued: int
    """Time of issue in seconds since 1970, like all times here."""
    expires: int
    revoked: int | None = None
    league: str = ""
    """League to which it is confined; ``*`` for all on the broker, as for every operator."""

    def status(self, now: float) -> str:
        """``good``, ``expired`` or ``revoked``."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if now >= self.expires else "good"


class _Secrets(msgspec.Struct, frozen=True):
    operator: str
    system: str
    account: str
    """Account of the streams and of operators."""
    users: str
    """Account of all other users."""
    league: str
    """League in the users' subjects; ``*`` for all on the broker."""
    begun: int
    """Time at which the keys were made; fixed, since a broker accepts a changed operator token only after a restart."""


class Authority:
    """Issues and revokes credentials, with the keys of a folder that ``Authority.create`` made; else UsageError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._secrets = msgspec.json.decode((folder / "authority.json").read_bytes(), type=_Secrets)
            self.users = msgspec.json.decode((folder / "users.json").read_bytes(), type=list[User])
        except FileNotFoundError:
            raise UsageError(f"{folder}: no authority for credentials here; begin with `league auth init`") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise AccessError(f"{folder}: cannot be read ({error})") from None

    @classmethod
    def create(cls, folder: Path, league: str = "*") -> "Authority":
        """Make the keys of an operator and of a league's account; UsageError if the folder holds keys already."""
        if league != "*":
            check_name("--league", league)
        if (folder / "authority.json").exists():
            raise UsageError(f"{folder}: holds keys already; expected an empty folder, or `league auth add`")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        system, account, users = (new_seed("account") for _ in range(3))
        secrets = _Secrets(new_seed("operator"), system, account, users, league, int(time.time()))
        _write_private_file(folder / "users.json", b"[]")
        _write_private_file(folder / "authority.json", msgspec.json.encode(secrets))
        authority = cls(folder)
        authority._save()
        return authority

    @property
    def broker_config_path(self) -> Path:
        """The file that every broker's configuration includes."""
        return self.folder / "broker.conf"

    def credentials_path(self, name: str) -> Path:
        """Path of a user's credentials file."""
        return self.folder / "creds" / f"{name}.creds"

    def free_names(self, name: str, count: int) -> list[str]:
        """The first ``count`` of ``name-1``, ``name-2``, … that were never used."""
        used = {user.name for user in self.users}
        numbered = (f"{name}-{number}" for number in itertools.count(1))
        return list(itertools.islice((one for one in numbered if one not in used), count))

    def add(
        self,
        role: str,
        names: Sequence[str],
        days: float,
        *,
        folder: Path | None = None,
        now: float | None = None,
        league: str | None = None,
    ) -> list[Path]:
        """Issue credentials to users: to all of them or, after an error, to none. Returns their files.

        They are valid for so many days from ``now``, in seconds since 1970, and confined to ``league``, by default that
        of the keys; an operator's open all. Workers have the workers' names. The files go to ``folder``, by default
        ``creds``.

        Raises:
            UsageError: no such role, name or time, another league than the keys', or a user who has good credentials.
        """
        now = time.time() if now is None else now
        own = self._secrets.league
        if league is not None and check_name("--league", league) != own != "*":
            raise UsageError(f"--league {league}: these keys belong to {own}; expected that, or no --league")
        if league is not None and role == "operator":
            raise UsageError(
                f"--league {league}: an operator's credentials open every league of the broker; expected no --league"
            )
        opened = "*" if role == "operator" else league or own
        for name in names:
            check_name("NAME", name)
            if role not in ROLES:
                raise UsageError(f"role {role!r}: no such role; expected {format_choices(ROLES)}")
            if not 0 < days <= _MAX_DAYS:
                raise UsageError(f"--days {days:g}: expected more than 0, at most {_MAX_DAYS:,}")
            if any(user.name == name and user.status(now) == "good" for user in self.users):
                raise UsageError(
                    f"{name}: has valid credentials; expected another name, or `league auth revoke {name}`"
                )
        issued, expires = int(now), int(now + days * DAY_S)
        folder = self.folder / "creds" if folder is None else folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = [folder / f"{name}.creds" for name in names]
        before = self.users
        try:
            for name, path in zip(names, paths, strict=True):
                seed = new_seed("user")
                may = permissions(role, name, opened)
                claims = {
                    "pub": {"allow": may.publish},
                    "sub": {"allow": may.subscribe},
                    "tags": [f"role:{role}"],
                    **dict.fromkeys(("subs", "data", "payload"), -1),
                }
                user = User(name, role, public_key(seed), issued, expires, league=opened)
                token = sign_token(
                    "user", self._account_of(role), user.public, name, claims, issued=issued, expires=expires
                )
                _write_private_file(path, format_credentials(token, seed).encode())
                self.users = [*self.users, user]
            self._save()
        except BaseException:  # raised again; credentials that no list names could not be revoked
            self.users = before
            for path in paths:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return paths

    def revoke(self, name: str) -> int:
        """Revoke all credentials of a user; return their number. UsageError for an unknown name."""
        users = [user for user in self.users if user.name == name and user.revoked is None]
        if not users:
            raise UsageError(f"{name}: unknown user; `league auth list` lists all")
        now = int(time.time())
        self.users = [msgspec.structs.replace(u, revoked=now) if u in users else u for u in self.users]
        self._save()
        return len(users)

    def _account_of(self, role: str) -> str:
        return self._secrets.account if role == "operator" else self._secrets.users

    def _save(self) -> None:
        """Write the list of users and the brokers' configuration."""
        _write_private_file(self.folder / "users.json", msgspec.json.format(msgspec.json.encode(self.users), indent=2))
        keys = self._secrets
        operator, system, account, users = map(public_key, (keys.operator, keys.system, keys.account, keys.users))

        def sign(kind: KeyKind, subject: str, name: str, claims: Mapping[str, Any]) -> str:
            return sign_token(kind, keys.operator, subject, name, claims, issued=keys.begun)

        system_token = sign("account", system, "SYSTEM", {"limits": _UNLIMITED})
        exports = [_service(subject) | {"response_type": answers} for subject, answers in IMPORTS.items()]
        imports = [_service(subject) | {"account": account} for subject in IMPORTS]
        streams = self._account_claims(keys.account) | {"exports": [*exports, _HEARTBEATS]}
        members = self._account_claims(keys.users) | {"imports": [*imports, _HEARTBEATS | {"account": account}]}
        streams["limits"] |= _UNLIMITED_STORAGE
        config = f"""\
# Written by `league auth`. No secrets. A broker reads it again on SIGHUP.
# A user's token, with its permissions, is one line.
max_control_line: {_MAX_TOKEN_BYTES}
operator: "{sign("operator", operator, "league", {"system_account": system})}"
system_account: "{system}"
resolver: MEMORY
resolver_preload: {{
  {system}: "{system_token}"
  {account}: "{sign("account", account, "LEAGUE", streams)}"
  {users}: "{sign("account", users, "USERS", members)}"
}}
"""
        _write_private_file(self.broker_config_path, config.encode())

    def _account_claims(self, account: str) -> dict[str, Any]:
        # A broker compares it with the time in the user's token; one issued in the same second is revoked too.
        revoked = {
            user.public: user.revoked + 1
            for user in self.users
            if user.revoked is not None and self._account_of(user.role) == account
        }
        claims = {"limits": dict(_UNLIMITED), "default_permissions": {"pub": {}, "sub": {}}}
        return claims | ({"revocations": revoked} if revoked else {})


def _service(subject: str) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "type": "service"}


def _write_private_file(path: Path, data: bytes) -> None:
    """Write a file atomically and durably, readable by its owner only."""
    draft = path.with_suffix(".draft")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    fsync_path(draft)
    draft.replace(path)
    fsync_path(path.parent)
