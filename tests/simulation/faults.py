"""Faults: what may happen to a league on real machines, drawn by the seed before the run; commands of its operator too.

Every fault is permitted by the contracts of its part: TCP may delay and reset but not reorder, the broker may lose what
it has not acknowledged but nothing that is flushed, a queue may deliver twice, clocks may be wrong, messages between
two servers of a cluster may be lost. A seed turns on a random subset of the kinds (swarm testing: Groce et al., 2012),
since some faults hide others.
"""

from collections.abc import Callable, Sequence
from random import Random
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from schemas.events import (
    HistoryArchived,
    LeagueConfigured,
    LeagueOpened,
    LeaguePaused,
    MatchFinished,
    RatingUpdated,
    SnapshotTaken,
    WorkerJoined,
)
from schemas.subjects import (
    BLOB_BUCKET,
    blob_subject,
    experience_subject,
    match_end_subject,
    metrics_subject,
    work_subject,
    worker_event_subject,
)
from tests.simulation.broker.cluster import SERVERS

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

HORIZON_S_PER_STEP = 6.0
"""Virtual time of the last fault, by gradient steps. Afterwards everything works, and the league must finish."""
_STEPS = 20
"""Steps of a league that the intervals of the kinds are meant for; shorter ones have as many faults in less time."""
WORKERS = ("rollout-1", "evaluator-1", "trainer-1", "rater-1", "archivist-1")
SECOND_WORKERS = ("rollout-2", "evaluator-2", "trainer-2", "rater-2", "archivist-2", "rollout-1", "trainer-1")
"""Workers that somebody starts beside those of the league; two of them under the names of running ones."""
_LEAGUE = "sim"
_CONDITIONED = (LeagueOpened, LeagueConfigured, LeaguePaused, RatingUpdated, HistoryArchived, SnapshotTaken)
"""Events that are appended on the condition that no other one came before."""
FOREIGN_SUBJECTS = (
    *(worker_event_subject(_LEAGUE, WorkerJoined, worker) for worker in WORKERS),
    *(worker_event_subject(_LEAGUE, kind, "") for kind in _CONDITIONED),
    match_end_subject(_LEAGUE, "training", MatchFinished, "rollout-1"),
    f"league.{_LEAGUE}.history.sealed",
    work_subject(_LEAGUE, "play_match"),
    experience_subject(_LEAGUE, "main"),
    metrics_subject(_LEAGUE, "rollout-1"),
    blob_subject(BLOB_BUCKET, "M", _LEAGUE, "archive", "archivist-1", "0" * 64),
)
"""Subjects of all streams on which bytes may be that are not what belongs there."""
LONGEST_CONDITION_S = 30.0
"""Length of the longest change of the broker's or the network's conditions."""
LONGER_THAN_EVERY_WINDOW_S = 700.0
"""Above the deduplication window of ten minutes, the longest there is."""


class Fault(msgspec.Struct, frozen=True):
    """One fault."""

    number: int
    kind: str
    at_s: float
    """Virtual time at which it begins."""
    target: str = ""
    """Process that it hits; empty for the broker."""
    seconds: float = 0.0
    """How long it lasts."""
    amount: float = 0.0
    """Probability, factor, offset or number, by kind."""

    def describe(self) -> str:
        """One line."""
        where = f" {self.target}" if self.target else ""
        return f"#{self.number} {self.at_s:.3f} s {self.kind}{where} ({self.seconds:.3g} s, {self.amount:.3g})"


class FaultKind(NamedTuple):
    """A kind of fault: how often it comes, what is drawn, and what happens."""

    name: str
    mean_interval_s: float
    draw: Callable[[Random], tuple[str, float, float]]
    """Target, seconds and amount."""
    apply: Callable[["Simulation", Fault], None]


def _anyone(rng: Random) -> str:
    return rng.choice(WORKERS)


def _kill(simulation: "Simulation", fault: Fault) -> None:
    if (process := simulation.find(fault.target)) is not None:
        process.kill_at_step = process.steps + int(fault.amount)


def _kill_supervisor(simulation: "Simulation", fault: Fault) -> None:
    _kill(simulation, msgspec.structs.replace(fault, target="supervisor"))


def _terminate(simulation: "Simulation", fault: Fault) -> None:
    if (process := simulation.find(fault.target)) is not None:
        simulation.loop.signal(process, 15)


def _crash_broker(simulation: "Simulation", fault: Fault) -> None:
    simulation.crash_broker(fault.seconds)


def _partition(simulation: "Simulation", fault: Fault) -> None:
    simulation.network.partition(fault.target, fault.seconds)


def _reset(simulation: "Simulation", fault: Fault) -> None:
    if (process := simulation.find(fault.target)) is not None:
        simulation.network.reset_all(process)


def _reload(simulation: "Simulation", fault: Fault) -> None:
    simulation.conditions.refusals.setdefault(fault.target, int(fault.amount))
    _reset(simulation, fault)


def _pause(simulation: "Simulation", fault: Fault) -> None:
    if (process := simulation.find(fault.target)) is not None:
        simulation.loop.pause(process, fault.seconds)


def _skew(simulation: "Simulation", fault: Fault) -> None:
    simulation.skews[fault.target] = fault.amount
    if (process := simulation.find(fault.target)) is not None:
        process.skew_s = fault.amount


def _redeliver(simulation: "Simulation", fault: Fault) -> None:
    for consumer in simulation.disk.consumers.values():
        consumer.redeliver(int(fault.amount))


def _condition(name: str) -> Callable[["Simulation", Fault], None]:
    """A condition of the broker that holds for a while."""

    def apply(simulation: "Simulation", fault: Fault) -> None:
        simulation.set_condition(name, fault.amount, fault.seconds)

    return apply


def _no_leader(simulation: "Simulation", fault: Fault) -> None:
    simulation.set_condition("has_leader", False, fault.seconds)


def _full_disk(simulation: "Simulation", fault: Fault) -> None:
    simulation.set_condition("is_full", True, fault.seconds)


def _false_duplicate(simulation: "Simulation", fault: Fault) -> None:
    simulation.answer_duplicates(fault.amount, fault.seconds)


def _slow_network(simulation: "Simulation", fault: Fault) -> None:
    simulation.set_latency(fault.amount, fault.seconds)


def _disk(kind: str) -> Callable[["Simulation", Fault], None]:
    """A trouble of a worker's local disk."""

    def apply(simulation: "Simulation", fault: Fault) -> None:
        simulation.disks.disturb(fault.target, kind, fault.seconds, fault.amount)

    return apply


def _lose_server(is_crash: bool) -> Callable[["Simulation", Fault], None]:
    """A server of a cluster crashes, or is cut off from the others."""

    def apply(simulation: "Simulation", fault: Fault) -> None:
        simulation.broker.lose_server(fault.target, fault.seconds, is_crash)

    return apply


def _slow_replica(simulation: "Simulation", fault: Fault) -> None:
    if (cluster := simulation.broker.cluster) is not None:
        cluster.delay(fault.target, fault.amount)
        simulation.later(fault.seconds, cluster.delay, fault.target, 0.0)


def _lost_deliveries(simulation: "Simulation", fault: Fault) -> None:
    if (cluster := simulation.broker.cluster) is not None:
        cluster.lost_deliveries = fault.amount
        simulation.later(fault.seconds, setattr, cluster, "lost_deliveries", 0.0)


def _upgrade(simulation: "Simulation", fault: Fault) -> None:
    simulation.upgrade(int(fault.amount))


def _command(name: str) -> Callable[["Simulation", Fault], None]:
    """A command of the operator."""

    def apply(simulation: "Simulation", fault: Fault) -> None:
        simulation.run_command(name, fault.seconds, fault.amount)

    return apply


def _foreign_bytes(simulation: "Simulation", fault: Fault) -> None:
    simulation.leave_foreign_bytes(fault.target, int(fault.amount))


def _taken_job_ids(simulation: "Simulation", fault: Fault) -> None:
    simulation.take_job_ids(fault.seconds)


def _no_consumers(simulation: "Simulation", fault: Fault) -> None:
    simulation.set_condition("has_consumers", False, fault.seconds)


def _second_worker(simulation: "Simulation", fault: Fault) -> None:
    simulation.start_second(fault.target, fault.seconds)


def _pause_length(rng: Random) -> float:
    if rng.random() < 0.05:
        return LONGER_THAN_EVERY_WINDOW_S
    return float(rng.choice([0.5, 3.0, 12.0, 35.0, 90.0])) * rng.uniform(0.5, 1.5)


KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("kill", 12.0, lambda rng: (_anyone(rng), 0.0, rng.randint(0, 400)), _kill),
        FaultKind("kill_supervisor", 60.0, lambda rng: ("", 0.0, rng.randint(0, 400)), _kill_supervisor),
        FaultKind("terminate", 60.0, lambda rng: (_anyone(rng), 0.0, 0.0), _terminate),
        FaultKind("crash_broker", 30.0, lambda rng: ("", rng.choice([0.1, 1.0, 8.0, 30.0]), 0.0), _crash_broker),
        FaultKind("partition", 25.0, lambda rng: (_anyone(rng), _pause_length(rng), 0.0), _partition),
        FaultKind("reset", 10.0, lambda rng: (_anyone(rng), 0.0, 0.0), _reset),
        FaultKind("reload", 20.0, lambda rng: (_anyone(rng), 0.0, rng.randint(1, 2)), _reload),
        FaultKind("pause", 25.0, lambda rng: (_anyone(rng), _pause_length(rng), 0.0), _pause),
        FaultKind("skew", 30.0, lambda rng: (_anyone(rng), 0.0, rng.choice([-1, 1]) * 10 ** rng.uniform(0, 5)), _skew),
        FaultKind("redeliver", 15.0, lambda rng: ("", 0.0, rng.randint(1, 8)), _redeliver),
        FaultKind(
            "lost_replies",
            30.0,
            lambda rng: ("", rng.uniform(1, 15), rng.choice([0.05, 0.3])),
            _condition("lost_replies"),
        ),
        FaultKind(
            "late_replies",
            30.0,
            lambda rng: ("", rng.uniform(1, 15), rng.choice([0.05, 0.3])),
            _condition("late_replies"),
        ),
        FaultKind("doubled_replies", 30.0, lambda rng: ("", rng.uniform(1, 30), 0.3), _condition("doubled_replies")),
        FaultKind(
            "slow_disk", 40.0, lambda rng: ("", rng.uniform(1, 20), rng.choice([0.1, 2.0])), _condition("flush_s")
        ),
        FaultKind("slow_network", 40.0, lambda rng: ("", rng.uniform(1, 20), rng.choice([0.05, 1.0])), _slow_network),
        FaultKind("false_duplicate", 40.0, lambda rng: ("", rng.uniform(1, 10), 0.1), _false_duplicate),
        FaultKind("no_leader", 40.0, lambda rng: ("", rng.uniform(0.1, 30), 0.0), _no_leader),
        FaultKind("full_disk", 90.0, lambda rng: ("", rng.uniform(0.5, 20), 0.0), _full_disk),
        FaultKind("worker_disk_full", 60.0, lambda rng: (_anyone(rng), rng.uniform(0.5, 20), 0.0), _disk("full")),
        FaultKind(
            "worker_disk_failing",
            60.0,
            lambda rng: (_anyone(rng), rng.uniform(0.5, 20), rng.choice([0.1, 1.0])),
            _disk("failing"),
        ),
        FaultKind(
            "worker_disk_slow",
            60.0,
            lambda rng: (_anyone(rng), rng.uniform(1, 20), 10 ** rng.uniform(-1, 1)),
            _disk("slow"),
        ),
        FaultKind(
            "reordered", 40.0, lambda rng: ("", rng.uniform(1, 20), rng.choice([0.05, 1.0])), _condition("reordering_s")
        ),
        FaultKind(
            "crash_server",
            20.0,
            lambda rng: (rng.choice(SERVERS), rng.choice([1.0, 8.0, 30.0]), 0.0),
            _lose_server(is_crash=True),
        ),
        FaultKind(
            "cut_server",
            30.0,
            lambda rng: (rng.choice(SERVERS), rng.choice([1.0, 12.0, LONGEST_CONDITION_S]), 0.0),
            _lose_server(is_crash=False),
        ),
        FaultKind(
            "slow_replica",
            30.0,
            lambda rng: (rng.choice(SERVERS), rng.uniform(1, 30), rng.choice([0.1, 1.0, 5.0])),
            _slow_replica,
        ),
        FaultKind("lost_deliveries", 30.0, lambda rng: ("", rng.uniform(0.1, 10), 0.1), _lost_deliveries),
        FaultKind(
            "foreign_bytes", 10.0, lambda rng: (rng.choice(FOREIGN_SUBJECTS), 0.0, rng.randint(1, 5)), _foreign_bytes
        ),
        FaultKind("taken_job_ids", 40.0, lambda rng: ("", rng.uniform(10, 60), 0.0), _taken_job_ids),
        FaultKind(
            "no_consumers", 40.0, lambda rng: ("", rng.choice([0.5, 5.0, LONGEST_CONDITION_S]), 0.0), _no_consumers
        ),
        FaultKind("upgrade", 60.0, lambda rng: ("", 0.0, rng.choice([SIGTERM, SIGKILL])), _upgrade),
        FaultKind("void", 25.0, lambda rng: ("", 0.0, rng.random()), _command("void")),
        FaultKind("pause_league", 40.0, lambda rng: ("", rng.uniform(1, 20), 0.0), _command("pause")),
        FaultKind("configure", 40.0, lambda rng: ("", 0.0, rng.random()), _command("configure")),
        FaultKind("huge_event", 40.0, lambda rng: ("", 0.0, rng.random()), _command("huge_event")),
        FaultKind("retire", 60.0, lambda rng: ("", rng.uniform(1, 20), 0.0), _command("retire")),
        FaultKind(
            "second_worker", 40.0, lambda rng: (rng.choice(SECOND_WORKERS), rng.uniform(5, 60), 0.0), _second_worker
        ),
    )
}


_OF_CLUSTERS = {"crash_server", "cut_server", "slow_replica", "lost_deliveries"}


def has_cluster(seed: int, faults: Sequence[Fault]) -> bool:
    """Whether a seed's broker is three servers: where faults need it, and in a third of the others."""
    return any(fault.kind in _OF_CLUSTERS for fault in faults) or Random(f"cluster:{seed}").random() < 1 / 3


def draw_faults(seed: int, steps: int = _STEPS, kinds: tuple[str, ...] | None = None) -> list[Fault]:
    """The faults of a seed, by time: a fifth of the seeds with a single kind, a fifth with more than half of all."""
    kinds = tuple(KINDS) if kinds is None else kinds
    rng = Random(f"faults:{seed}")
    half, share = max(len(kinds) // 2, 1), rng.random()
    count = 1 if share < 0.2 else rng.randint(half, len(kinds)) if share > 0.8 else rng.randint(1, half)
    drawn: list[Fault] = []
    for name in sorted(rng.sample(kinds, min(count, len(kinds)))):
        kind, at_s = KINDS[name], 0.0
        mean_s = kind.mean_interval_s * steps / _STEPS
        while (at_s := at_s + rng.expovariate(1.0) * mean_s) < HORIZON_S_PER_STEP * steps:
            target, seconds, amount = kind.draw(rng)
            drawn.append(Fault(0, name, round(at_s, 6), target, round(seconds, 6), round(amount, 6)))
    drawn.sort(key=lambda fault: fault.at_s)
    return [msgspec.structs.replace(fault, number=number) for number, fault in enumerate(drawn, 1)]
