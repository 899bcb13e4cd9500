"""A NATS cluster as plain processes of this machine, its nodes on the loopback interface.

For trying things out and for tests: nodes on one machine outlive a process, not the machine. On several machines the
same configuration serves, a node on each (``docker-compose.yml``, ``docs/operations.md``).
"""

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from league.log import server
from schemas.errors import LogUnavailableError, UsageError

NODES = 3
"""Nodes of a cluster, one for each copy of the history; one of them may be lost at a time."""

_CONFIG = """\
server_name: "league-{number}"
listen: "127.0.0.1:{port}"
max_payload: 8MB
cluster {{
  name: "league"
  listen: "127.0.0.1:{peer}"
  routes: [{routes}]
}}
jetstream {{
  store_dir: "{store}"
  # Always: acknowledged means on the disks of two nodes. Else a loss of power to all loses what was not flushed.
  sync_interval: {sync}
  {batches}
}}
{access}
"""


class _Ports(msgspec.Struct, frozen=True):
    """Ports of the nodes: the same after every start, since clients and other nodes remember them."""

    clients: list[int]
    peers: list[int]


class LocalCluster:
    """Nodes of one cluster, which end with the block. Any of them can be killed and started again in between."""

    def __init__(
        self, folder: Path, nodes: int = NODES, port: int = 0, sync: str = "always", access: Path | None = None
    ) -> None:
        """Lay out a cluster in a folder, or take up the one that was there, on its own ports; nothing runs yet.

        ``nodes`` is odd, 3 or more; ``port`` is the first node's, the others follow, and 0 takes free ones. ``sync``
        says when a node flushes to its disk, for comparing what that costs. ``access`` is what the nodes have to know
        of credentials (``league/auth/authority.py``); None admits every client. UsageError for another number of nodes,
        or a port that is taken.
        """
        if nodes < NODES or nodes % 2 == 0:
            raise UsageError(f"--nodes {nodes}: expected an odd number, {NODES} or more: most of them have to agree")
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._users_file = self.folder / "users.lock"
        self._sync = sync
        self._pids: dict[int, int] = {}
        self._access = access
        self._claim: IO[Any] | None = None
        plan = self.folder / "ports.json"
        if plan.exists():
            try:
                self._ports = msgspec.json.decode(plan.read_bytes(), type=_Ports)
            except msgspec.MsgspecError as error:
                raise UsageError(
                    f"{plan}: {error}; expected the cluster's ports; without the file it takes new ones"
                ) from None
            if (before := len(self._ports.clients)) != nodes:
                raise UsageError(f"--nodes {nodes}: the cluster under {self.folder} has {before}")
            return
        clients = [port + nth for nth in range(nodes)] if port else server.free_ports(nodes)
        for chosen in clients:
            server.check_port_is_free(chosen)
        self._ports = _Ports(clients, server.free_ports(nodes, clients))
        plan.write_bytes(msgspec.json.encode(self._ports))

    @property
    def url(self) -> str:
        """Addresses of all nodes, for ``--nats``."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.clients)

    @property
    def running(self) -> list[int]:
        """Numbers of the nodes that run."""
        return [number for number, pid in sorted(self._pids.items()) if not server.has_ended(pid)]

    def __enter__(self) -> "LocalCluster":
        try:
            for number in range(len(self._ports.clients)):
                self.start(number)
        except BaseException:  # raised again; an interruption leaves no node running either
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._pids):
            self.stop(number)
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def store(self, number: int) -> Path:
        """Folder of a node's streams."""
        return self.folder / f"store-{number}"

    def start(self, number: int) -> None:
        """Start a node, with what it had on disk, as far as that is undamaged; the rest comes from the other nodes.

        LogUnavailableError, with its log's last error, if it ends at once.
        """
        config = self._write_config(number)
        log = self.folder / f"{number}.log"
        for index in self.store(number).glob("jetstream/*/streams/*/msgs/index.db"):
            # A node that trusts its index finds no damage, but returns a history that lacks what is damaged (seen
            # with nats-server 2.15.1). Without it, all messages are read and compared with their checksums.
            index.unlink()
        if self._claim is None:
            # The nodes end with this process, however it ends.
            self._claim = self._users_file.open("a")
            fcntl.flock(self._claim, fcntl.LOCK_SH)
        command = [server.find_nats_server(), "-c", str(config)]
        self._pids[number] = pid = server.spawn(command, log, self._users_file)
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            if server.has_ended(pid):
                del self._pids[number]
                why = server.last_error(log)
                raise LogUnavailableError(f"node {number} of the cluster under {self.folder} ended at once: {why}")
            time.sleep(0.02)

    def _write_config(self, number: int) -> Path:
        config = self.folder / f"{number}.conf"
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self._ports.peers)
        places = {"port": self._ports.clients[number], "peer": self._ports.peers[number], "store": self.store(number)}
        access = self._access.read_text() if self._access is not None else ""
        settings = {"sync": self._sync, "batches": server.BATCH_LIMITS, "access": access}
        config.write_text(_CONFIG.format(number=number, routes=routes, **settings, **places))
        return config

    def reload(self) -> None:
        """Make the nodes reload permissions; clients with revoked credentials are disconnected."""
        for number in self.running:
            self._write_config(number)
            os.kill(self._pids[number], signal.SIGHUP)

    def stop(self, number: int) -> None:
        """End a node in good order."""
        server.terminate(self._pids.pop(number))

    def kill(self, number: int) -> None:
        """End a node at once, as a crash would."""
        pid = self._pids.pop(number)
        os.kill(pid, signal.SIGKILL)
        while not server.has_ended(pid):
            time.sleep(0.005)
