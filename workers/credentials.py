"""Names and credentials of the workers of a connected machine; without credentials, names are generated."""

import contextlib
import secrets
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from league.log.access import BrokerCredentials
from schemas.errors import UsageError
from schemas.files import LockedError, hold_lock
from schemas.subjects import check_name
from workers.process import WorkerSpec


class WorkerIdentities:
    """Names for the workers of a role on this machine.

    Args:
        role: The role of all of them.
        policy: Their policy; None for the league's main policy.
        creds: Credentials by worker name; None where workers need none.
        token: Part of generated names, different on every machine.
    """

    def __init__(self, role: str, policy: str | None, creds: Mapping[str, Path] | None, token: str) -> None:
        self._role = role
        self._policy = policy
        self._creds = creds
        self._token = token

    @property
    def max_count(self) -> int | None:
        """The number of workers with credentials; None for no limit."""
        return None if self._creds is None else len(self._creds)

    def next_spec(self, taken: Collection[str]) -> WorkerSpec:
        """The first worker whose name is not taken.

        Raises:
            UsageError: there are no further credentials.
        """
        if self._creds is not None:
            for name, path in self._creds.items():
                if name not in taken:
                    return WorkerSpec(self._role, name, self._policy, path)
            raise UsageError(f"--creds: credentials for {len(self._creds)} workers; expected one more")
        kind = self._role if self._policy is None else f"{self._role}-{self._policy}"
        names = (f"{kind}-{self._token}-{number}" for number in range(1, len(taken) + 2))
        return WorkerSpec(self._role, next(name for name in names if name not in taken), self._policy)

    def first_specs(self, count: int) -> list[WorkerSpec]:
        """The first ``count`` workers.

        Raises:
            UsageError: there are credentials for fewer workers.
        """
        specs: list[WorkerSpec] = []
        for _ in range(count):
            specs.append(self.next_spec({process.name for process in specs}))
        return specs


def read_credentials(path: Path, role: str) -> dict[str, Path]:
    """Read credential files; returns their paths by worker name.

    Args:
        path: A file, or a folder of ``*.creds``.
        role: The role that they must be for.

    Raises:
        UsageError: there are none, or two for one name, or they are for another role.
        AccessError: a file holds no credentials.
    """
    files = sorted(path.glob("*.creds"), key=lambda file: (len(file.name), file.name)) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise UsageError(
            f"--creds {path}: found none; expected a file that `league auth add` wrote, or a folder of them"
        )
    paths: dict[str, Path] = {}
    for file in files:
        bearer = BrokerCredentials(file).identity()
        assert bearer is not None
        if bearer.role not in (None, role, "operator"):
            raise UsageError(
                f"--creds {file}: for a worker {bearer.role!r}; expected a worker {role!r}, as --role says"
            )
        if bearer.name in paths:
            raise UsageError(f"--creds {path}: {paths[bearer.name].name} and {file.name} are both for {bearer.name!r}")
        paths[check_name("--creds", bearer.name)] = file.resolve()
    return paths


@contextlib.contextmanager
def lock_folder(folder: Path, role: str) -> Iterator[None]:
    """Lock a folder, so that no other process of this machine connects workers with the same names.

    Raises:
        UsageError: the folder is locked or not writable.
    """
    with contextlib.ExitStack() as locks:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            locks.enter_context(hold_lock(folder / f"join-{role}.lock"))
        except OSError as error:
            raise UsageError(f"--folder {folder}: {error.strerror}; expected one that this user can write to") from None
        except LockedError as holder:
            raise UsageError(
                f"--folder {folder}: workers {role!r} have joined from here already ({holder}); expected another "
                "folder, or more --workers there"
            ) from None
        yield


def read_machine_token(folder: Path) -> str:
    """Read or create the folder's token for generated names: workers keep their names across restarts."""
    file = folder / "machine"
    if not file.exists():
        draft = file.with_suffix(".draft")
        draft.write_text(secrets.token_hex(3))
        draft.replace(file)
    return file.read_text().strip()
