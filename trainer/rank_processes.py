"""The processes of a trainer of several ranks: rank 0 is the worker itself, the others only compute.

By default rank 0 starts the others on its own machine. Under ``torchrun``, which sets a process's rank in the
environment, all of them exist already, on one node or on several.

Each step is announced in the store through which the ranks found each other, and broadcast by rank 0. The store ends
with rank 0, and the others with the store, so that a killed worker leaves no process behind. Their learners are rebuilt
from rank 0's state whenever the two differ, so resuming, a reset and an imported adapter need no messages of their own.
"""

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from schemas.config import TrainerConfig
from schemas.errors import ConfigError, ModelError
from schemas.trajectories import Trajectory
from trainer.backends import AdapterSpec, LearnerBackend, load_backend
from trainer.learner import Learner
from trainer.optimizer import STATE_FILE
from trainer.ranks import SINGLE_RANK, RankComm, make_rendezvous_store
from trainer.report import StepReport

_EXIT_TIMEOUT_S = 30.0
_POLL_S = 0.05
_IDLE_S = 60.0
_PLAN_TIMEOUT_S = 3600.0
"""Time for which the ranks of ``torchrun`` wait for rank 0, which may have a league to wait for and a model to load."""


class TorchrunRank(msgspec.Struct, frozen=True):
    """A process's place among those that ``torchrun`` started, from the environment variables that it sets."""

    rank: int
    count: int
    local_rank: int
    """Rank among the processes of this node."""
    host: str
    port: int
    agent_store: bool = False
    """Whether ``torchrun`` itself holds the store."""
    restarts: int = 0
    """How often it has started the processes again."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "TorchrunRank | None":
        """The place of this process; None where it was not started by ``torchrun``, or is its only one."""
        try:
            if (count := int(environment.get("WORLD_SIZE", "1"))) == 1:
                return None
            return cls(
                rank=int(environment["RANK"]),
                count=count,
                local_rank=int(environment["LOCAL_RANK"]),
                host=environment["MASTER_ADDR"],
                port=int(environment["MASTER_PORT"]),
                agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
                restarts=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(f"the environment: WORLD_SIZE is set, but not {error}; expected torchrun's") from error

    def open_store(self, timeout_s: float) -> Any:
        """The store of this start of the processes; raises as ``make_rendezvous_store``."""
        listens = self.rank == 0 and not self.agent_store
        store = make_rendezvous_store(self.count, self.port, self.host, timeout_s, listens)
        return dist.PrefixStore(f"start-{self.restarts}", store)  # type: ignore[attr-defined]


class RankSpec(msgspec.Struct, frozen=True):
    """Specification of a rank's learner."""

    base: Path
    adapter: AdapterSpec
    config: TrainerConfig

    def device(self, rank: int) -> str:
        """Device of a rank of this machine: the configured one; for ``cuda`` and several ranks, a GPU each."""
        if self.config.device == "cuda" and self.config.ranks > 1:
            return f"cuda:{rank % torch.cuda.device_count()}"
        return self.config.device

    def connect(self, rank: int, local_rank: int, store: Any, backend: LearnerBackend) -> RankComm:
        """Connect a rank to the others, and let it hold its part of the base model; raises as ``RankComm.connect``."""
        config, device = self.config, self.device(local_rank)
        shared = device if backend.is_sharded else "cpu"
        ranks = RankComm.connect(rank, config.ranks, store, shared, config.rank_timeout_s)
        if backend.is_sharded:
            backend.shard(device)
        return ranks


class _StepCommand(msgspec.Struct, frozen=True):
    """One step, as sent to the other ranks."""

    trajectories: list[Trajectory]
    progress: float
    state: bytes = b""
    """The learner's state to start from; empty where the rank holds it."""


class RankGroup:
    """Rank 0's view of the ranks of one trainer."""

    def __init__(self, plan: RankSpec | None = None, backend: LearnerBackend | None = None) -> None:
        """Start the other ranks, or find those of ``torchrun``, and wait until all are connected.

        Without a plan there is one rank. ``backend`` is rank 0's, which then holds its part of a sharded base model.

        Raises:
            ConfigError: ``torchrun`` started another number of processes than configured.
            ModelError: a rank ended, or did not connect in time.
        """
        self.ranks = SINGLE_RANK
        """Connections of rank 0's learner."""
        self.processes: list[SpawnProcess] = []
        """Processes of the other ranks that this process started."""
        self._count = 1 if plan is None else plan.config.ranks
        self._synced: tuple[Learner, int] | None = None
        self._store: Any = None
        self._steps = 0
        torchrun = TorchrunRank.read()
        if torchrun is not None and torchrun.count != self._count:
            raise ConfigError(
                f"trainer.ranks: {self._count}; torchrun started {torchrun.count}, expected the same number"
            )
        if plan is None or self._count == 1:
            if backend is not None and backend.is_sharded:
                raise ConfigError("trainer.backend.settings.sharded: true with trainer.ranks 1; expected 2 or more")
            return
        try:
            local_rank = 0 if torchrun is None else torchrun.local_rank
            if torchrun is None:
                self._start_ranks(plan)
            else:
                self._store = torchrun.open_store(plan.config.rank_timeout_s)
                self._store.set(_PLAN_KEY, msgspec.msgpack.encode(plan, enc_hook=str))
            with self._report_dead_rank():
                self.ranks = plan.connect(0, local_rank, self._store, backend or _load_backend(plan, local_rank))
        except BaseException:  # raised again; an interruption ends the other ranks too
            self.close()
            raise

    def _start_ranks(self, plan: RankSpec) -> None:
        """Start the others on this machine, and wait until they have loaded the base model."""
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        self._store = store = make_rendezvous_store(self._count)
        # Spawned, not forked: this process runs threads, and torch's do not survive a fork.
        spawn = get_context("spawn")
        for rank in range(1, self._count):
            process = spawn.Process(target=_run_local_rank, args=(plan, rank, store.port), name=f"rank-{rank}")
            process.start()
            self.processes.append(process)
        while not store.check([_loaded_key(rank) for rank in range(1, self._count)]):
            self.check_alive()
            time.sleep(_POLL_S)

    def step(self, learner: Learner, trajectories: Sequence[Trajectory], progress: float) -> StepReport:
        """Take a ``Learner.step`` on all ranks.

        Raises:
            ModelError: a rank ended, or holds other weights. The learner's state is of no use then.
        """
        if self._count == 1:
            return learner.step(trajectories, progress)
        is_synced = self._synced == (learner, learner.steps)
        order = msgspec.msgpack.encode(
            _StepCommand(list(trajectories), progress, b"" if is_synced else _serialise_state(learner))
        )
        with self._report_dead_rank():
            self._steps += 1
            self._store.set(_step_key(self._steps), b"now")
            self.ranks.broadcast(order)
            report = learner.step(trajectories, progress)
        self._synced = (learner, learner.steps)
        return report

    def check_alive(self) -> None:
        """Raise ``ModelError`` where a rank has ended."""
        dead = [process for process in self.processes if not process.is_alive()]
        if dead:
            ends = ", ".join(f"{process.name} with code {process.exitcode}" for process in dead)
            raise ModelError(f"of {self._count} ranks of the trainer ended: {ends}; expected all to go on")

    def close(self) -> None:
        """End the other ranks."""
        if self._store is not None and not self.processes:
            with contextlib.suppress(RuntimeError):
                # Those of torchrun end by themselves.
                self._store.set(_step_key(self._steps + 1), b"end")
        for process in self.processes:
            # They hold nothing that rank 0 does not, and torch takes seconds to leave by itself.
            process.kill()
            process.join()
        self.ranks.disconnect()
        self.ranks = SINGLE_RANK

    @contextlib.contextmanager
    def _report_dead_rank(self) -> Iterator[None]:
        """Raise an error that names the rank that ended, where connections broke."""
        try:
            yield
        except (OSError, EOFError, RuntimeError) as error:
            # A connection breaks a moment before the process that held it has ended.
            ending = wait([process.sentinel for process in self.processes], _EXIT_TIMEOUT_S) if self.processes else []
            for process in self.processes:
                if process.sentinel in ending:
                    process.join(_EXIT_TIMEOUT_S)
            self.check_alive()
            if self.processes or isinstance(error, ModelError):
                raise
            raise ModelError(f"of {self._count} ranks of the trainer one was lost: {error}") from error


def run_torchrun_rank(place: TorchrunRank, timeout_s: float = _PLAN_TIMEOUT_S) -> None:
    """A rank above 0 that ``torchrun`` started; returns when rank 0 is done.

    Raises:
        ModelError: rank 0 did not come, or was lost.
    """
    store = place.open_store(timeout_s)
    try:
        plan = msgspec.msgpack.decode(store.get(_PLAN_KEY), type=RankSpec, dec_hook=lambda _, text: Path(text))
    except RuntimeError as error:
        raise ModelError(
            f"rank {place.rank} of the trainer: rank 0 at {place.host}:{place.port} sent no configuration within "
            f"{timeout_s:g} s; expected it to run league worker trainer"
        ) from error
    if not plan.base.is_dir():
        raise ModelError(
            f"rank {place.rank} of the trainer: {plan.base}: no such folder on {socket.gethostname()}; expected the "
            "base model at rank 0's path on every node"
        )
    _serve_rank(plan, place.rank, place.local_rank, store)


_PLAN_KEY = "league/plan"


def _step_key(number: int) -> str:
    return f"league/step/{number}"


def _loaded_key(rank: int) -> str:
    return f"league/loaded/{rank}"


def _serialise_state(learner: Learner) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        learner.save_state(Path(folder))
        return (Path(folder) / STATE_FILE).read_bytes()


def _load_backend(plan: RankSpec, local_rank: int) -> LearnerBackend:
    return load_backend(plan.config.backend, plan.base, plan.device(local_rank), plan.config.dtype)


def _run_local_rank(plan: RankSpec, rank: int, port: int) -> None:
    """The process of a rank that rank 0 started."""
    # Ctrl-C at a terminal reaches all of them; the worker finishes its step first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve_rank(plan, rank, rank, make_rendezvous_store(plan.config.ranks, port))


def _serve_rank(plan: RankSpec, rank: int, local_rank: int, store: Any) -> None:
    """Compute a rank's share of one step after another, until rank 0 ends."""
    torch.set_num_threads(plan.config.threads)
    backend = _load_backend(plan, local_rank)
    store.set(_loaded_key(rank), b"")
    ranks = plan.connect(rank, local_rank, store, backend)
    learner = Learner(backend.new_adapter(plan.adapter, 0), plan.config, 0, ranks)
    number = 1
    while _await_step(store, number):
        # Passed on without a name: nothing of the batch is held while the next step is waited for.
        _execute(learner, msgspec.msgpack.decode(ranks.broadcast(b""), type=_StepCommand))
        number += 1
    ranks.disconnect()


def _await_step(store: Any, number: int) -> bool:
    """Wait for a step, however long; False where rank 0 has ended."""
    while True:
        try:
            store.wait([_step_key(number)], timedelta(seconds=_IDLE_S))
            return bool(store.get(_step_key(number)) == b"now")
        except dist.DistStoreError:
            # Nothing to do for so long.
            continue
        except RuntimeError:
            return False


def _execute(learner: Learner, order: _StepCommand) -> None:
    if order.state:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / STATE_FILE).write_bytes(order.state)
            learner.load_state(Path(folder))
    learner.step(order.trajectories, order.progress)
