"""A run with something for every page: training, evaluations, matches with records, workers, problems; and its double,
in which whatever anybody can name is named so that it would harm a page that took it for markup."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zstandard

from arena.games import make_game
from arena.games.base import Outcome
from arena.match import BotPlayer, play
from arena.records import EpisodeRecord, RecordedCall, RecordedEpisode
from league.log.base import RecordedEvent
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from league.log.streams import ensure_streams
from league.run import Run
from schemas import events as e
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.episodes import Message
from schemas.metrics import Heartbeat, MatchMetrics
from tests.builders import encode_decisions
from tests.simulated_history import Simulation

MARK = "pwned"
HOSTILE = (
    f'<img src=x onerror="{MARK}=1"><b id={MARK}>{{{{7*7}}}}</b><script>{MARK}=1</script>'
    "\u202e\u2066\x1b]0;owned\x07\x1b[2J\x9b31m\u200f'); DROP TABLE x; --%2e,/?&#"
)
"""Markup, a change of direction, a terminal's title and colours, quotes, and what addresses are made of."""
_SEED = 5
_NAMED = ("random_bot", "SEAT0", "simulated", "gatekeepers", "recent", "landmark", "uniform", "none")
"""What the double names anew."""


class Told(NamedTuple):
    """A match that a record is kept of."""

    match: e.MatchFinished
    record: bytes


def simulated() -> Simulation:
    """A league that has trained for some steps."""
    config = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=2, gatekeeper_games=3, benchmark_games=6))
    simulation = Simulation(config, seats=3)
    simulation.run(6, 4)
    return simulation


def _finished(match_id: str, game: str, outcome: Outcome, roles: list[str], agents: list[str]) -> e.MatchFinished:
    seats = [
        e.SeatResult(
            seat=seat,
            role=role,
            agent=agents[seat],
            score=outcome.scores[seat],
            rank=outcome.ranks[seat],
            trainable="@" in agents[seat],
            metrics=outcome.metrics[seat],
        )
        for seat, role in enumerate(roles)
    ]
    return e.MatchFinished(
        match_id=match_id,
        game=game,
        purpose="training",
        worker="rollout-0",
        seed=_SEED,
        seats=seats,
        winner=outcome.winner,
        reason=outcome.reason,
        length=outcome.length,
        seconds=1.0,
    )


def played(match_id: str, name: str, settings: dict[str, Any], agents: dict[int, str]) -> Told:
    """A match of random bots, some of which the history calls by other names."""
    spec = make_game(name, settings)
    game, bot = spec.new(_SEED), spec.bot("random_bot")
    outcome = asyncio.run(play(game, [BotPlayer(bot) for _ in spec.seats], _SEED))
    names = [agents.get(seat, "random_bot") for seat in range(len(spec.seats))]
    match = _finished(match_id, name, outcome, list(spec.seats), names)
    return Told(msgspec.structs.replace(match, rules=spec.rules_version), game.record())


def argued(match_id: str, word: str) -> Told:
    """A debate in which everybody says the same."""
    call = RecordedCall("pro", [Message("system", word), Message("user", word)], word)
    inner = RecordedEpisode("m.0", word, {word: 1}, None, "", False, word, {word: 1.0}, {word: 2.0}, [call])
    tree = RecordedEpisode("m", word, word, None, "", True, "", {"pro": 1.0}, {"length": 2.0}, [call], [inner])
    outcome = Outcome((1.0, 0.0), (1, 2), 0, ({word: 1.0}, {}), word, 2)
    match = _finished(match_id, "debate", outcome, [word, "con"], ["main@1", "base_model"])
    return Told(match, msgspec.json.encode(EpisodeRecord(1, "debate", tree), order="sorted"))


def troubles(simulation: Simulation, word: str) -> None:
    """What can go wrong, all of it."""
    voided = next(r for r in simulation.history if isinstance(r.event, e.MatchFinished))
    assert isinstance(voided.event, e.MatchFinished)
    simulation.append(e.WorkerJoined(worker="rollout-0", role=word, incarnation="1", host=word, pid=7, version=word))
    simulation.append(e.MatchFailed(match_id="failed-1", purpose="training", worker="rollout-0", error=word))
    simulation.append(e.MatchVoided(match=voided.event, match_sequence=voided.sequence, reason=word))
    simulation.append(e.LeaguePaused(reason=word))
    simulation.append(e.LeagueResumed(reason=word, after=len(simulation.history)))


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {_renamed(key, names): _renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    return names.get(value, value) if isinstance(value, str) else value


def doubled(records: list[RecordedEvent], names: dict[str, str]) -> Iterator[RecordedEvent]:
    """A history with other names."""
    for r in records:
        value = msgspec.json.decode(r.payload)
        kept = value if value["type"] == "LeagueOpened" else _renamed(value, names)
        yield RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer, msgspec.json.encode(kept))


def hostile_names(simulation: Simulation) -> dict[str, str]:
    """For everything that the double names anew; its training matches among them."""
    matches = [r.event.match_id for r in simulation.history if isinstance(r.event, e.OpponentsSampled)]
    return {name: f"{name}{HOSTILE}" for name in (*_NAMED, *matches[:3], "loss")}


async def store(folder: Path, records: list[RecordedEvent], told: list[Told], word: str) -> None:
    """A run of a history, matches with records, a heartbeat and a dead letter."""
    run = Run(folder, name="league")
    async with run.connect("test") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, "league", "rollout-0")
        await log.copy(records)
        for match, record in told:
            kept = await run.open_blob_store(client, "league").put(zstandard.compress(record))
            await log.append(msgspec.structs.replace(match, record=kept))
        said = {"match_id": "nim-1", "worker": "rollout-0", "prompt": word, "thoughts": word, "reply": word}
        segment = encode_decisions(said)
        name = await run.open_blob_store(client, "league").put(segment)
        await log.append(e.DecisionsStored("rollout-0", "decisions", name, 1, len(segment)))
        beat = Heartbeat("rollout-0", word, "1", word, 7, 60.0, 2**20, 0.5, 3, 1, 2, play=MatchMetrics(3, 9, 1, 1.5))
        await MetricsStream(client, "league").publish(beat)
        letter = DeadLetter("WORK", 7, word, word, 5, "m-1", payload=word.encode(), size=13)
        await DeadLetters(client, "league").publish(letter)


def make(folder: Path, word: str, *, double: bool) -> list[RecordedEvent]:
    """The run, or its double; returns its simulated part."""
    simulation = simulated()
    troubles(simulation, word)
    records = list(doubled(simulation.history, hostile_names(simulation))) if double else simulation.history
    if double:
        unread = RecordedEvent(
            len(records) + 1, records[-1].time_ns, "league.league.x", word, b'{"type": "<b id=pwned>"}'
        )
        records = [*records, unread]
    told = [
        played("dip-1", "diplomacy", {"max_year": 1901}, {2: "main@1"}),
        played("nim-1", "nim", {}, {0: "main@1"}),
        argued("debate-1", word),
    ]
    asyncio.run(store(folder, records, told, word))
    return records
