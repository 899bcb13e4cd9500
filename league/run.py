"""A run's folder and the connection to its broker.

What connects is imported on use: a command that finds the tables up to date needs no broker, and importing the client
takes as long as reading them.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from schemas.errors import DiskError, LeagueError, LogError, NoLeagueError, UsageError
from schemas.plugins import add_folders
from schemas.subjects import LEAGUE_STREAM

if TYPE_CHECKING:
    from nats.aio.client import Client

    from league.blobs import CachedBlobStore
    from league.log.access import BrokerCredentials
    from league.log.jetstream import JetStreamLog
    from league.log.server import EmbeddedServer

DEFAULT_RUN = Path(".league")
BROKER_FILE = "broker.json"
"""File of a run's folder with the broker that its league is on, unless that is the run's own."""
TOKEN_FILE = "inference.token"
"""File of a run's folder with the token of its inference servers."""
_POLL_INTERVAL_S = 0.5


def access_from_environment() -> "BrokerCredentials":
    """Credentials from ``LEAGUE_CREDS`` and ``LEAGUE_CA``, which ``--creds`` and ``--ca`` set for workers too."""
    from league.log.access import BrokerCredentials

    creds, ca = os.environ.get("LEAGUE_CREDS"), os.environ.get("LEAGUE_CA")
    return BrokerCredentials(Path(creds) if creds else None, Path(ca) if ca else None)


class _Broker(msgspec.Struct, frozen=True):
    """An external broker, and how a run is reached there."""

    nats: str
    league: str
    creds: str | None = None
    ca: str | None = None


class Run:
    """The files of a run on this machine, and its broker: the one at ``nats``, or an embedded one of its own.

    Without ``nats`` it is the broker that the folder's league was opened on (``record_broker``).

    An embedded one listens on ``port``, 0 for a free one, and stores at most ``max_store_mb``. Without ``name`` the
    league is the broker's only one; without ``access`` the credentials are those of the environment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nats: str | None = None,
        port: int = 0,
        name: str | None = None,
        max_store_mb: int | None = None,
        access: "BrokerCredentials | None" = None,
    ) -> None:
        self._use_folder(folder.resolve())
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._broker = self._recorded_broker()
        if self._broker is not None and nats is None:
            nats, name = self._broker.nats, name or self._broker.league
        self.nats = nats
        self.port = port
        self.name = name
        self._access = access
        self.max_store_bytes = max_store_mb * 1024 * 1024 if max_store_mb is not None else None
        self._server: EmbeddedServer | None = None
        self._plugins = self.folder / "plugins.json"
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            add_folders(msgspec.json.decode(self._plugins.read_bytes(), type=list[str]))

    def _use_folder(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.model = folder / "model"
        self.projection = folder / "projection.duckdb"
        self.plot = folder / "elo.png"

    def record_plugins(self, folders: Sequence[str]) -> None:
        """Remember the league's plugin folders, for processes of this run that do not read its settings file."""
        if folders or self._plugins.exists():
            self._plugins.write_bytes(msgspec.json.encode(folders))

    def _recorded_broker(self) -> _Broker | None:
        if not self.exists():
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                return msgspec.json.decode((self.folder / BROKER_FILE).read_bytes(), type=_Broker)
        return None

    def record_broker(self, league: str) -> None:
        """Remember the external broker that the league is on, for commands that get the folder only."""
        if self.nats is not None:
            paths = (str(path.resolve()) if path else None for path in (self.access.creds, self.access.ca))
            broker = _Broker(self.nats, league, *paths)
            (self.folder / BROKER_FILE).write_bytes(msgspec.json.encode(broker))

    @property
    def access(self) -> "BrokerCredentials":
        """Credentials for the broker, from the environment, or else the ones the folder's league was opened with."""
        if self._access is None:
            from league.log.access import BrokerCredentials

            found, broker = access_from_environment(), self._broker
            if broker is not None and broker.nats == self.nats:
                creds, ca = (Path(path) if path else None for path in (broker.creds, broker.ca))
                found = BrokerCredentials(found.creds or creds, found.ca or ca)
            self._access = found
        return self._access

    def make_folder(self) -> None:
        """Make the run's folder, unless it is there; UsageError if it cannot be made."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--run {self.folder}: cannot be made ({error.strerror}); expected a folder that this user can write to"
            ) from None

    def read_inference_token(self) -> str:
        """The token of the run's inference servers on this machine; made at first use, for this user only."""
        self.make_folder()
        with os.fdopen(os.open(self.folder / TOKEN_FILE, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            # Workers that start at the same time get the same one.
            fcntl.flock(file, fcntl.LOCK_EX)
            token = file.read().strip()
            if not token:
                token = secrets.token_urlsafe(24)
                file.write(token)
            return token

    def exists(self) -> bool:
        """Whether the folder holds the store of an embedded broker."""
        return (self.folder / "nats" / "store").exists()

    @contextlib.contextmanager
    def _start_broker(self) -> Iterator[str]:
        if self.nats is not None:
            yield self.nats
            return
        from league.log.server import EmbeddedServer

        with EmbeddedServer(self.folder / "nats", self.port, self.max_store_bytes) as server:
            self._server = server
            try:
                yield server.url
            finally:
                self._server = None

    def check_store(self) -> None:
        """Raise StoreFullError if the disk of the run's own broker is full; external brokers are not checked."""
        if self._server is not None:
            self._server.check_disk_space()

    def check_for_lost_history(self) -> None:
        """Raise LogError if the run's own broker, which knows of no league, has the files of a history on its disk."""
        if self.nats is not None:
            return
        lost = next((self.folder / "nats" / "store").glob(f"jetstream/*/streams/{LEAGUE_STREAM}/msgs/*.blk"), None)
        if lost is not None:
            raise LogError(
                f"{lost.parents[1]}: the broker has lost the history's stream, whose metadata (meta.inf, meta.sum) is "
                "missing or damaged; its messages are still there. Begin anew from the archive with `league restore`, "
                "or put the two files back from a copy of this folder"
            )

    @contextlib.asynccontextmanager
    async def connect(self, name: str) -> "AsyncIterator[Client]":
        """Connect to the run's broker; an embedded one is started on demand and stopped by its last user."""
        from league.log.connection import connect
        from league.log.jetstream import flush_and_close

        with self._start_broker() as url:
            client = await connect(url, name, self.access)
            watchdog = asyncio.create_task(_keep_broker_alive(self._server)) if self._server is not None else None
            try:
                yield client
            finally:
                if watchdog is not None:
                    watchdog.cancel()
                await flush_and_close(client)

    @contextlib.asynccontextmanager
    async def open_log(self, name: str = "command") -> "AsyncIterator[JetStreamLog]":
        """Open the league's log for reading; NoLeagueError if there is none here.

        A run on a read-only disk is read from a copy.
        """
        if self.nats is None and not self.exists():
            raise NoLeagueError(
                f"{self.folder}: no league here; expected the --run folder of a `league up` "
                "(to begin one: `league config init`)"
            )
        from league.log.jetstream import JetStreamLog, find_league

        if self.nats is None and not os.access(self.folder, os.W_OK):
            self._read_copy()
        async with self.connect(name) as client:
            league = self.name or await find_league(client)
            if league is None:
                self.check_for_lost_history()
                raise NoLeagueError(
                    f"{self.nats or self.folder}: no league was opened here; start one with `league up`"
                )
            self.name = league
            history = JetStreamLog(client, league, name)
            history.is_copy = self._copy is not None
            yield history

    def _read_copy(self) -> None:
        """Go on with a copy of a run that cannot be written, since a broker and DuckDB write where they read.

        It lasts as long as this process. DiskError if there is no room for it.
        """
        self._copy = tempfile.TemporaryDirectory(prefix="league-")
        place = Path(self._copy.name)
        print(f"{self.folder}: cannot be written; reading a copy in {place}", file=sys.stderr)
        try:
            shutil.copytree(self.folder / "nats" / "store", place / "nats" / "store")
            for folder in (place / "nats").rglob("*"):
                folder.chmod(0o700)
            if self.projection.exists():
                shutil.copyfile(self.projection, place / self.projection.name)
        except OSError as error:
            why = error.args[0] if isinstance(error, shutil.Error) else error
            raise DiskError.of(error, place) or UsageError(
                f"{self.folder}: cannot be copied to be read: {why}"
            ) from None
        self._use_folder(place)

    def open_blob_store(self, client: "Client", league: str | None = None, area: str = "") -> "CachedBlobStore":
        """The blobs of a league, by default the run's or, read-only, all on the broker; cached in the folder."""
        from league.blobs import BLOB_AREA, CachedBlobStore, FolderBlobStore, open_blobs

        store = open_blobs(client, league or self.name or "*", area or BLOB_AREA)
        return CachedBlobStore(store, FolderBlobStore(self.folder / "artifacts"))


async def _keep_broker_alive(server: "EmbeddedServer") -> None:
    """Restart the broker whenever it dies, until cancelled. Clients wait for it meanwhile."""
    while True:
        await asyncio.sleep(_POLL_INTERVAL_S)
        if server.has_died:
            # Another process may be restarting it, or the disk may be full: try again in the next round.
            with contextlib.suppress(LeagueError, OSError):
                await asyncio.to_thread(server.restart_if_dead)
