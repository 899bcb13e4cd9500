"""Comparison of two runs: configuration, progress, strength, and their shared history and agents."""

import contextlib
import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from operator import attrgetter
from typing import Any, cast

import msgspec

from league.analysis.summary import BenchmarkRow, RatingCurve, benchmark_rows, leaderboard_rows, rating_curve
from league.log.base import EventLog, RecordedEvent
from league.state import LeagueState
from schemas.config import LeagueConfig, to_builtins
from schemas.errors import ReplayError
from schemas.events import LeagueBranched


class SettingDifference(msgspec.Struct, frozen=True):
    """A setting that differs between two runs; None where a run lacks the key."""

    key: str
    first: Any
    second: Any


class RunSummary(msgspec.Struct, frozen=True):
    """Figures of one run."""

    run: str
    league: str
    game: str
    events: int
    """Sequence of the newest event."""
    branched_from: str | None
    branched_at: int | None
    """Start of the run's own history, if it is a branch."""
    policy: str
    steps: int
    games: dict[str, int]
    """Completed matches, by purpose."""
    failed: int
    voided: int
    training_s: float
    finished: str | None
    """Reason why training ended; None while it is running."""
    best: str | None
    """Checkpoint with the best rating."""
    best_rating: float | None
    best_rank: int | None
    """Its rank on the whole leaderboard."""
    hero_rating: float | None
    """Rating of the newest version."""
    benchmarks: list[BenchmarkRow]
    curve: RatingCurve


class SharedAgent(msgspec.Struct, frozen=True):
    """An agent in both runs."""

    agent: str
    same: bool
    """Whether both are the same player: equal weights, or the same scripted agent of the same game."""
    first_rating: float
    first_rank: int
    second_rating: float
    second_rank: int


class RunComparison(msgspec.Struct, frozen=True):
    """Two runs side by side."""

    first: RunSummary
    second: RunSummary
    shared: int
    """Sequence up to which the histories are identical; 0 for none."""
    configuration: list[SettingDifference]
    agents: list[SharedAgent]
    """In the order of the first run's leaderboard; empty when the games differ."""
    notes: list[str]
    """Aspects that cannot be compared, with reasons."""


async def summarise_run(run: str, history: EventLog, state: LeagueState) -> RunSummary:
    """Summarise one run for a comparison; ReplayError if its history holds no configuration."""
    config = _require_config(state, run)
    policy = config.trainer.policy
    step, end, live = state.last_step(policy), state.training_finished(policy), state.live_version(policy)
    board = {row.agent: row for row in leaderboard_rows(state)}
    rated = [agent for agent in state.checkpoints if agent.games]
    best = max(rated, key=lambda agent: (agent.rating, agent.name), default=None)
    branched = await history.newest(LeagueBranched)
    event = branched.event if branched is not None else None
    saved = state.to_snapshot()
    return RunSummary(
        run=run,
        league=state.league,
        game=config.game.name,
        events=state.sequence,
        branched_from=event.origin if isinstance(event, LeagueBranched) else None,
        branched_at=event.at if isinstance(event, LeagueBranched) else None,
        policy=policy,
        steps=step.step if step is not None else 0,
        games={purpose: games for purpose, games in sorted(saved.games.items()) if games},
        failed=state.failed,
        voided=len(saved.voided),
        training_s=state.training_seconds(policy),
        finished=end.reason if end is not None else None,
        best=best.name if best is not None else None,
        best_rating=best.rating if best is not None else None,
        best_rank=board[best.name].rank if best is not None else None,
        hero_rating=live.rating if live is not None else None,
        benchmarks=benchmark_rows(state),
        curve=rating_curve(state, policy),
    )


def make_run_comparison(
    first: RunSummary, second: RunSummary, states: tuple[LeagueState, LeagueState], shared: int
) -> RunComparison:
    """Compare two runs, given their summaries, the states summarised, and their ``last_shared_sequence``."""
    configs = _require_config(states[0], first.run), _require_config(states[1], second.run)
    boards = [{row.agent: row for row in leaderboard_rows(state)} for state in states]
    agents = []
    for name in boards[0] if first.game == second.game else ():
        if all(name in state.agents for state in states):
            one, other = boards[0][name], boards[1][name]
            is_same = _is_same_player(*states, name)
            agents.append(SharedAgent(name, is_same, one.rating, one.rank, other.rating, other.rank))
    return RunComparison(
        first=first,
        second=second,
        shared=shared,
        configuration=config_differences(to_builtins(configs[0]), to_builtins(configs[1])),
        agents=agents,
        notes=_comparability_notes(*configs),
    )


def config_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[SettingDifference]:
    """Settings that differ, by their dotted keys."""
    one, other = dict(_flatten(first)), dict(_flatten(second))
    return [
        SettingDifference(key, one.get(key), other.get(key))
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key) or (key in one) != (key in other)
    ]


async def last_shared_sequence(first: EventLog, second: EventLog) -> int:
    """Sequence of the newest event up to which both histories are identical; 0 for none.

    An event in both, with the same bytes at the same nanosecond, was copied together with everything before it, so
    bisection finds the place.
    """
    low, high = 0, min(await first.last_sequence(), await second.last_sequence())
    while low < high:
        middle = (low + high + 1) // 2
        one, other = [await _first_event_from(history, middle) for history in (first, second)]
        if one is not None and other is not None and _identity(one) == _identity(other):
            low = one.sequence
        else:
            high = middle - 1
    return low


_identity = attrgetter("sequence", "time_ns", "payload")


async def _first_event_from(history: EventLog, sequence: int) -> RecordedEvent | None:
    """The first event at or after a sequence, which may itself belong to another league of the broker."""
    # The generator is left after its first batch, so it is closed explicitly: it holds a consumer on the broker.
    reading = cast(AsyncGenerator[list[RecordedEvent], None], history.batches(sequence))
    async with contextlib.aclosing(reading) as batches:
        async for batch in batches:
            return batch[0]
    return None


def _require_config(state: LeagueState, run: str) -> LeagueConfig:
    if state.config is None:
        raise ReplayError(f"{run}: its history holds no configuration that this version can read")
    return state.config


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, part in value.items():
        if isinstance(part, Mapping) and part:
            yield from _flatten(part, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", part


def _comparability_notes(first: LeagueConfig, second: LeagueConfig) -> list[str]:
    if first.game.name != second.game.name:
        return [
            f"the runs play different games ({first.game.name}, {second.game.name}): ratings, shares and curves stand "
            "side by side but do not compare, and agents of one name are not the same players"
        ]
    notes = []
    if first.game.settings != second.game.settings:
        notes.append("the game's settings differ: scores and ratings compare with care")
    if first.ratings != second.ratings:
        notes.append("ratings are made by different rules, so they are not on one scale")
    if {name: agent.rating for name, agent in first.agents.items()} != {
        name: agent.rating for name, agent in second.agents.items()
    }:
        notes.append("the leagues began with other agents or other ratings, so their scales may be apart")
    return notes


def _is_same_player(first: LeagueState, second: LeagueState, agent: str) -> bool:
    one, other = first.agents[agent], second.agents[agent]
    # The version that a searching agent plays changes.
    if one.kind != other.kind or one.kind == "search":
        return False
    if one.kind == "base":
        return first.model == second.model
    if one.kind == "remote":
        return _remote_settings(first, agent) == _remote_settings(second, agent)
    return one.adapter == other.adapter and (one.kind == "bot" or first.model == second.model)


def _remote_settings(state: LeagueState, agent: str) -> dict[str, Any] | None:
    settings = state.config.agents.get(agent) if state.config is not None else None
    return settings.remote.play_settings if settings is not None and settings.remote is not None else None


def align_curves(first: RatingCurve, second: RatingCurve) -> list[tuple[int, float | None, float | None]]:
    """Pair two curves by gradient step: the hero's rating in each run, None where it was not evaluated."""
    one, other = (
        {step: rating for step, rating in zip(curve.steps, curve.hero, strict=True) if math.isfinite(rating)}
        for curve in (first, second)
    )
    return [(step, one.get(step), other.get(step)) for step in sorted({*first.steps, *second.steps})]
