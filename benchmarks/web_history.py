"""A long history for the pages: 100,000 matches between 500 agents, simulated once and kept."""

import asyncio
from pathlib import Path

import msgspec

from benchmarks.sizes import size
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import CheckpointScheduleConfig, EvaluationConfig, ExperienceConfig, LeagueConfig
from tests.simulated_history import Simulation

_BATCH_SIZE = 5_000
_TRAINING, _TOURNAMENT = size(140, 20), size(40, 7)
"""Matches of a gradient step, and of a checkpoint's evaluation."""
_LATER_FILE = "later.msgpack"


class FutureEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that is still to come, as it will be recorded."""

    sequence: int
    time_ns: int
    subject: str
    producer: str
    payload: bytes


def make_simulation() -> Simulation:
    """A league of seven seats in which every version joins, is evaluated, and stays."""
    return Simulation(
        LeagueConfig(
            name="league",
            seed=4,
            schedule=CheckpointScheduleConfig(recent_every=1, recent_window=1_000_000),
            evaluation=EvaluationConfig(every=1_000_000, gatekeeper_games=_TOURNAMENT, benchmark_games=size(14, 7)),
        ),
        seats=7,
    )


def grow_history(league: Simulation, agents: int, matches: int, later: int) -> int:
    """Play until there are so many agents and matches, and so many events more; returns how long it was before them."""
    league.open()
    version, until = 0, None
    while until is None or len(league.history) < until + later:
        league.publish(version)
        ids = [league.play_training_match() for _ in range(_TRAINING)]
        league.evaluate()
        version += 1
        league.append(league._make_step(version, ids))
        enough = len(league.state.agents) >= agents and _match_count(league) >= matches
        until = len(league.history) if until is None and enough else until
    return until


def _match_count(league: Simulation) -> int:
    return league.state.finished_matches("training") + league.state.finished_matches("evaluation")


def make_history(folder: Path, agents: int, matches: int, later: int) -> None:
    """A run with such a history, and beside it the events that come next."""
    league = make_simulation()
    until = grow_history(league, agents, matches, later)
    asyncio.run(store_events(folder, league.history[:until]))
    rest = [
        FutureEvent(r.sequence, r.time_ns, r.subject, r.producer, r.payload)
        for r in league.history[until : until + later]
    ]
    (folder / _LATER_FILE).write_bytes(msgspec.msgpack.encode(rest))


async def store_events(folder: Path, records: list[RecordedEvent]) -> None:
    run = Run(folder, name="league")
    async with run.connect("fill") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, "league", "fill")
        for start in range(0, len(records), _BATCH_SIZE):
            await log.copy(records[start : start + _BATCH_SIZE])


def read_later_events(folder: Path) -> list[RecordedEvent]:
    """The events that come next."""
    rows = msgspec.msgpack.decode((folder / _LATER_FILE).read_bytes(), type=list[FutureEvent])
    return [RecordedEvent(row.sequence, row.time_ns, row.subject, row.producer, row.payload) for row in rows]
