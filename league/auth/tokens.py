"""Keys and tokens of NATS's decentralised authorisation.

An operator signs accounts, an account signs users, and a broker that knows the operator's public key trusts that chain.
A token is ``header.claims.signature``, each in base64 for URLs without padding; the signature is Ed25519
over the text before it. Keys are written in base32 with a leading letter for their kind: ``O``, ``A``, ``U``, and
``S`` before that for a secret one (docs.nats.io, "Decentralized JWT authentication").
"""

import base64
import hashlib
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import nkeys

from schemas.errors import AccessError

KeyKind = Literal["operator", "account", "user"]

_PREFIXES: dict[KeyKind, int] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_VERSION = 2
_BEGIN, _END = "-----BEGIN {}-----", "------END {}------"
_JWT, _SEED = "NATS USER JWT", "USER NKEY SEED"


def new_seed(kind: KeyKind) -> str:
    """A new secret key."""
    return bytes(nkeys.encode_seed(os.urandom(32), _PREFIXES[kind])).decode()


def public_key(seed: str) -> str:
    """The public key of a secret one."""
    return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()


def sign_token(
    kind: KeyKind,
    issuer: str,
    subject: str,
    name: str,
    claims: Mapping[str, Any],
    *,
    issued: int,
    expires: int | None = None,
) -> str:
    """Sign a token about a public key, ``subject``, with the secret key of the issuer.

    ``claims`` are those besides type and version. Times are in seconds since 1970; ``expires`` is None for never.
    """
    body: dict[str, Any] = {"iat": issued, "iss": public_key(issuer), "name": name, "sub": subject}
    if expires is not None:
        body["exp"] = expires
    body["nats"] = {**claims, "type": kind, "version": _VERSION}
    # The token's id: a digest of the rest.
    body["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).decode().rstrip("=")
    text = f"{_base64url(msgspec.json.encode(_HEADER))}.{_base64url(msgspec.json.encode(body))}"
    return f"{text}.{_base64url(nkeys.from_seed(bytearray(issuer.encode())).sign(text.encode()))}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class UserIdentity(msgspec.Struct, frozen=True):
    """The identity in a user's token, unverified: the broker verifies it."""

    name: str
    public: str
    expires: int | None
    role: str | None = None
    """Role of the user; None if the token names none."""


class _Claims(msgspec.Struct):
    tags: list[str] = []


class _Body(msgspec.Struct):
    name: str
    sub: str
    exp: int | None = None
    nats: _Claims = msgspec.field(default_factory=_Claims)


def format_credentials(user_token: str, seed: str) -> str:
    """Text of a credentials file: a user's token and secret key."""
    token = f"{_BEGIN.format(_JWT)}\n{user_token}\n{_END.format(_JWT)}\n"
    key = f"{_BEGIN.format(_SEED)}\n{seed}\n{_END.format(_SEED)}\n"
    return f"{token}\nThe key below authenticates as this user. Keep it secret.\n\n{key}"


def parse_credentials(text: str, where: str) -> tuple[UserIdentity, str]:
    """The user of a credentials file, ``where``, and its secret key; AccessError if ``text`` is of another kind."""
    lines = [line.strip() for line in text.splitlines()]
    try:
        body = lines[lines.index(_BEGIN.format(_JWT)) + 1].split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Body)
        seed = lines[lines.index(_BEGIN.format(_SEED)) + 1]
        public_key(seed)
    except (ValueError, IndexError, msgspec.MsgspecError, nkeys.NkeysError):
        raise AccessError(f"{where}: no credentials; expected a file that `league auth add` wrote") from None
    tags = dict(tag.split(":", 1) for tag in claims.nats.tags if ":" in tag)
    return UserIdentity(claims.name, claims.sub, claims.exp, tags.get("role")), seed
