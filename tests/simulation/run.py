"""One seed: a league is opened, disturbed, left alone, and checked."""

import asyncio
import gc
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from signal import SIGTERM
from typing import Any

import msgspec
import structlog

from league.log.base import publication_digest
from league.run import Run
from schemas.codec import decode_event
from schemas.errors import DecodeError, LeagueError, UsageError, VersionError
from schemas.events import WorkerJoined
from schemas.subjects import LEAGUE_STREAM, WORK_STREAM, worker_event_subject
from tests.simulation import league, upgrade
from tests.simulation.broker.roles import Role
from tests.simulation.broker.server import URL
from tests.simulation.broker.stream import Incoming, Stored, Stream
from tests.simulation.disks import LocalDisks
from tests.simulation.faults import (
    HORIZON_S_PER_STEP,
    KINDS,
    LONGER_THAN_EVERY_WINDOW_S,
    LONGEST_CONDITION_S,
    SECOND_WORKERS,
    WORKERS,
    Fault,
    draw_faults,
    has_cluster,
)
from tests.simulation.invariants import check_league
from tests.simulation.loop import Process, SimulatedLoop, SimulationStuckError, run_simulated
from tests.simulation.operator import COMMANDS
from tests.simulation.seams import simulated_machine
from tests.simulation.standalone import World
from tests.simulation.trace import Trace

FOREIGN = (b'{"type":"io.nats.jetstream.api.v1.stream_info_response"}', b"", b"junk", b"\xff\x00", b"[" * 500)
LIMIT_S = 3600.0
"""Virtual time by which every league must be done."""
_OPERATOR_WAITS_S = 5.0
"""Time after which the operator starts a league again that has ended early."""
_COMMAND_STEPS = 600
"""Callbacks within which a command of the operator is killed, if it is."""
_ORPHANS_END_WITHIN_S = LONGER_THAN_EVERY_WINDOW_S + 300.0
"""Time in which a worker notices that its supervisor is gone, finishes its matches and ends, pauses included."""
_SUPERVISOR, _OPERATOR = "supervisor", "operator"
_CREDENTIALS = tuple(dict.fromkeys((*WORKERS, *SECOND_WORKERS)))
"""Workers that have credentials of their own."""


class Outcome(msgspec.Struct):
    """What became of a seed."""

    seed: int
    violations: list[str]
    """Broken invariants; empty if all hold."""
    digest: str
    """Of the trace: equal for equal seeds, on every machine."""
    virtual_s: float = 0.0
    events: int = 0
    steps: int = 0
    """Callbacks that ran."""
    faults: list[Fault] = []
    kinds: list[str] = []
    lines: list[str] = []
    """The log with virtual times, if it was asked for."""

    @property
    def is_sound(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations


class Simulation(World):
    """A world with a league in it.

    Args:
        seed: Of everything.
        faults: What happens to it.
        folder: The run's folder; its model is there.
        steps: Gradient steps of the league.
        is_verbose: Whether to keep the log.
    """

    def __init__(self, seed: int, faults: Sequence[Fault], folder: Path, steps: int, is_verbose: bool = False) -> None:
        super().__init__(seed, LIMIT_S, has_cluster(seed, faults))
        self.faults = faults
        self._quiet_from_s = HORIZON_S_PER_STEP * steps + 2 * LONGEST_CONDITION_S
        self.config = league.make_config(seed, steps)
        self.folder = folder
        self.skews: dict[str, float] = {}
        self.trace = Trace(self.loop, is_verbose)
        self._has_credentials = Random(f"credentials:{seed}").random() < 0.5
        """Whether workers have credentials, which confine them to their roles; half the seeds have."""
        self.disks = LocalDisks(self.loop, str(folder.parent), seed)
        self.schema = upgrade.NEW
        self.network.observe = self.trace.observe_data
        self.trace.observe_error = self._check_lost_name
        self.loop.programs = partial(league.run_program, folder)
        self.loop.set_exception_handler(self._unhandled)
        self.loop.on_spawn = self._spawned
        self._draw_speeds(Random(f"speeds:{seed}"))
        self._conditions: dict[str, tuple[float, Any]] = {}
        self._commands: list[Process] = []
        """Of the operator."""

    def _draw_speeds(self, rng: Random) -> None:
        """How fast this seed's machine is: leagues of a second and of minutes."""
        self.loop.step_s = 10 ** rng.uniform(-3.3, -2)
        self.loop.thread_mean_s = 10 ** rng.uniform(-1, 0.5)
        self.network.mean_latency_s = 10 ** rng.uniform(-4, -1.5)
        self.conditions.flush_s = 10 ** rng.uniform(-3.5, -1.5)

    def _spawned(self, process: Process) -> None:
        process.skew_s = self.skews.get(process.name, 0.0)
        process.schema = self.schema
        self.trace.note(f"{process.name} starts as process {process.pid}")
        process.on_end.append(lambda code: self.trace.note(f"{process.name} ({process.pid}) ends with code {code}"))

    def _check_lost_name(self, process: Process, error: str) -> None:
        """A worker ends because its name was taken over only if another process has joined under it."""
        if "has taken over this name" not in error:
            return
        stream = self.disk.streams[LEAGUE_STREAM]
        joined = None
        for sequence in stream.subjects.get(worker_event_subject(league.NAME, WorkerJoined, process.name), ()):
            with suppress(DecodeError):
                joined = decode_event(stream.messages[sequence].data)
        if isinstance(joined, WorkerJoined) and joined.pid == process.pid:
            self.trace.unexpected.append(f"{process.name} ({process.pid}) ended, and nobody has joined since: {error}")

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError):
            self.trace.unexpected.append(f"{context.get('message')}: {error!r}")

    def patches(self) -> dict[tuple[Any, str], Callable[..., Any]]:
        """Replacements for the time of the run: local disks and, in a seed with an upgrade, two versions of events."""
        found = self.disks.patches()
        if any(fault.kind == "upgrade" for fault in self.faults):
            self.schema, self.loop.on_switch = upgrade.OLD, lambda process: upgrade.switch_to(process.schema)
            upgrade.install()
            found |= upgrade.patches()
        return found

    # ── What faults do

    def find(self, name: str) -> Process | None:
        """The running process of a name."""
        return next((process for process in self.loop.processes if process.name == name), None)

    def crash_broker(self, seconds: float) -> None:
        """Crash the broker; it starts again after a while."""
        if self.broker.process.is_alive:
            self.broker.crash()
            self.later(seconds, self.start_broker)

    def upgrade(self, sig: int) -> None:
        """Install the newer version, and replace the supervisor: with SIGTERM in order, with SIGKILL at once."""
        self.schema = upgrade.NEW
        if (process := self.find(_SUPERVISOR)) is not None:
            self.loop.signal(process, sig) if sig == SIGTERM else self.loop.kill(process)

    def run_command(self, name: str, seconds: float, share: float, is_killed: bool = False) -> None:
        """Run a command of the operator in a process of its own, again and again until it succeeds or is refused.

        Half of the commands are killed at some await, and started again.
        """
        process, rng = self.loop.spawn(_OPERATOR), Random(f"operator:{self.seed}:{self.loop.time()}")
        if not is_killed and rng.random() < 0.5:
            process.kill_at_step = rng.randint(1, _COMMAND_STEPS)
            again = partial(self.later, _OPERATOR_WAITS_S, self.run_command, name, seconds, share, True)
            process.on_end.append(lambda code: again() if code else None)
        self._commands.append(process)
        self.loop.start(process, self._run_command(process, name, seconds, share))

    async def _run_command(self, process: Process, name: str, seconds: float, share: float) -> None:
        run, is_done = Run(self.folder, nats=URL, name=league.NAME), False
        while not is_done:
            try:
                async with run.open_log(_OPERATOR) as history:
                    await COMMANDS[name](run, history, seconds, share)
                is_done = True
            except (UsageError, VersionError):
                is_done = True
            except LeagueError:
                await asyncio.sleep(_OPERATOR_WAITS_S)
        self.loop.call_soon(self.loop.kill, process, 0, context=self.loop.root.context)

    def start_second(self, name: str, seconds: float) -> None:
        """Start a worker beside those of the league, as on another terminal, and stop it after a while."""
        role = name.partition("-")[0]
        process = self.loop.start_program(["worker", role, "--name", name])
        self.later(seconds, self.loop.signal, process, SIGTERM)

    def set_condition(self, name: str, value: Any, seconds: float) -> None:
        """Change a condition of the broker for a while."""
        normal = self._conditions.setdefault(name, (0.0, getattr(self.conditions, name)))[1]
        until = max(self.loop.time() + seconds, self._conditions[name][0])
        self._conditions[name] = until, normal
        setattr(self.conditions, name, value)
        self.later(seconds, self._restore_condition, name)

    def _restore_condition(self, name: str) -> None:
        until, normal = self._conditions[name]
        if self.loop.time() >= until - 1e-9:
            setattr(self.conditions, name, normal)

    def answer_duplicates(self, share: float, seconds: float) -> None:
        """Answer a share of the events as duplicates of an earlier one, as if their ids had been taken."""
        rng = Random(f"duplicates:{self.seed}:{self.loop.time()}")

        def answer(stream: Stream, message: Incoming) -> Stored | None:
            is_single = "Nats-Msg-Id" in (headers := message.parsed()) and "Nats-Batch-Id" not in headers
            is_new = stream.name == LEAGUE_STREAM and is_single and stream.known(headers) is None
            if not is_new or rng.random() >= share:
                return None
            return Stored(rng.randint(1, stream.last), is_duplicate=True)

        self.set_condition("on_publish", answer, seconds)

    def leave_foreign_bytes(self, subject: str, count: int) -> None:
        """Store messages on a subject that are not what belongs there: nothing, junk, an answer of the broker."""
        for data in FOREIGN[:count]:
            self.broker.store(subject, data)

    def take_job_ids(self, seconds: float) -> None:
        """Store another message under the id of each job that is requested, just before it; on a single server."""

        def take(stream: Stream, message: Incoming) -> Stored | None:
            headers = message.parsed()
            is_common = headers.get("Nats-Msg-Id") == publication_digest([(message.subject, message.data)])
            if (
                stream.name == WORK_STREAM
                and is_common
                and stream.known(headers) is None
                and self.broker.cluster is None
            ):
                stream.publish(message._replace(data=b"not that job"))
            return None

        self.set_condition("on_publish", take, seconds)

    def set_latency(self, mean_s: float, seconds: float) -> None:
        """Slow the network down for a while."""
        normal = self.network.mean_latency_s
        if mean_s > normal:
            self.network.mean_latency_s = mean_s
            self.later(seconds, setattr, self.network, "mean_latency_s", normal)

    def later(self, seconds: float, callback: Any, *args: Any) -> None:
        """Call a function after some seconds."""
        self.loop.call_later(seconds, callback, *args, context=self.loop.root.context)

    def _strike(self, fault: Fault) -> None:
        self.trace.note(f"fault {fault.describe()}")
        KINDS[fault.kind].apply(self, fault)

    # ── The run

    async def run(self) -> list[str]:
        """Run the league to its end; return the violations."""
        for fault in self.faults:
            self.loop.call_at(fault.at_s, self._strike, fault, context=self.loop.root.context)
        if self._has_credentials:
            league.issue_credentials(self.folder, _CREDENTIALS)
            self.conditions.role_of = self._role_of
        await self._run_league()
        # Faults that are still to come hit a league that is done; the checks need a broker without them.
        await asyncio.sleep(max(self._quiet_from_s - self.loop.time(), 0.0))
        left, violations = [*self._workers(), *self._commands], []
        if left:
            # Results of workers that outlive their supervisor are rated when the league is started again, and what a
            # command has changed after its end is taken into account then.
            violations = await self._wait_for_end(left)
            await self._run_league()
        return violations + await check_league(self.config, self.disk, self.acknowledged, self.folder)

    def _role_of(self, process: str) -> Role | None:
        return Role(process, league.NAME, self.trace.unexpected.append) if process in _CREDENTIALS else None

    async def _run_league(self) -> None:
        while await self._run_supervisor() != 0:  # noqa: ASYNC110 - virtual time
            # The operator starts the same command again.
            await asyncio.sleep(_OPERATOR_WAITS_S)

    def _workers(self) -> list[Process]:
        return [process for process in self.loop.processes if process.parent is not None]

    async def _wait_for_end(self, processes: list[Process]) -> list[str]:
        """Wait for the end of processes without a supervisor; return a violation for each one that stays."""
        until = self.loop.time() + _ORPHANS_END_WITHIN_S
        while (alive := [process for process in processes if process.is_alive]) and self.loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        return [
            f"processes_end: {process.name} ({process.pid}) is still there after {_ORPHANS_END_WITHIN_S:g} s"
            for process in alive
        ]

    async def _run_supervisor(self) -> int:
        process = self.loop.spawn(_SUPERVISOR)
        ended: asyncio.Future[int] = self.loop.create_future()
        process.on_end.append(ended.set_result)

        async def main() -> None:
            code = await league.run_supervisor(self.folder, self.config)
            self.loop.call_soon(self.loop.kill, process, code, context=self.loop.root.context)

        self.loop.start(process, main())
        return await ended

    def outcome(self, violations: list[str]) -> Outcome:
        """What became of it."""
        history = self.disk.streams.get("LEAGUE")
        return Outcome(
            seed=self.seed,
            violations=violations,
            digest=self.trace.digest(),
            virtual_s=round(self.loop.time(), 3),
            events=history.last if history is not None else 0,
            steps=self.loop.handles_run,
            faults=list(self.faults),
            kinds=sorted({fault.kind for fault in self.faults}),
            lines=self.trace.lines,
        )


@contextmanager
def _quiet_logs(trace: Trace) -> Iterator[None]:
    structlog.configure(processors=[trace.log_event], cache_logger_on_first_use=False)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        structlog.reset_defaults()


def simulate(
    seed: int, model: Path, steps: int = 20, faults: Sequence[Fault] | None = None, is_verbose: bool = False
) -> Outcome:
    """Run one seed. Call in a process of its own: caches of earlier runs would change the trace.

    Args:
        seed: Of everything.
        model: Folder of the base model.
        steps: Gradient steps of the league.
        faults: Instead of those of the seed.
        is_verbose: Whether to keep the log.
    """
    chosen = draw_faults(seed, steps) if faults is None else faults
    # Errors name files, so that their paths belong to the trace: they are relative to a folder of the seed's own.
    with tempfile.TemporaryDirectory(prefix="league-simulation-") as scratch, chdir(scratch):
        folder, tempfile.tempdir = Path("simulated") / "run", "temporary"
        Path(tempfile.tempdir).mkdir()
        shutil.copytree(model, folder / "model")
        gc.disable()
        simulation = Simulation(seed, chosen, folder, steps, is_verbose)
        with _quiet_logs(simulation.trace), simulated_machine(simulation.loop, seed, simulation.patches()):
            violations = _run_to_end(simulation.loop, simulation)
        return simulation.outcome(violations + simulation.trace.unexpected)


def _run_to_end(loop: SimulatedLoop, simulation: Simulation) -> list[str]:
    try:
        violations: list[str] = run_simulated(loop, simulation.run())
    except SimulationStuckError as error:
        return [f"stuck {error}"]
    return violations
