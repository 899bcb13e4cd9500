"""Explanations of matches: the candidates and random numbers of a draw, or the evaluation request.

Everything is recomputed from the history up to the decision, under the configuration in force there, and compared with
the record.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from league.evaluation.plan import evaluation_jobs
from league.integrity.snapshots import BlobReader, load_state_at
from league.log.base import EventReader
from league.matchmaking.matchmaker import RecomputedDraw, recompute_draw, recorded_differences
from league.matchmaking.sessions import SessionDraws, draw_session, draw_steps
from league.samplers import SeatDraw
from schemas.config import LeagueConfig
from schemas.errors import ReplayError
from schemas.events import EvaluationRequested, MatchFinished, OpponentsSampled, SessionOpened
from schemas.ids import SESSION_PREFIX, policy_of
from schemas.jobs import SESSION_PURPOSE, PlayMatch, SeatCounts
from schemas.standings import Standings


class DrawExplanation(msgspec.Struct, frozen=True):
    """A training match, or a session of the opponent pool, with its draw recomputed."""

    kind: ClassVar[str] = "draw"

    sampled: OpponentsSampled
    """As recorded."""
    hero_rating: float
    """Rating in the standings of the draw."""
    ratings: dict[str, float]
    """Ratings of all eligible agents there."""
    explanation: RecomputedDraw
    differences: list[str]
    """Differences of the recorded draw and the played match from the recomputed ones."""

    @property
    def agrees(self) -> bool:
        """Whether draw and match follow from standings, configuration and seed."""
        return not self.differences

    def to_builtins(self) -> dict[str, Any]:
        """Returns the explanation as plain values, with probabilities next to the weights of each bucket."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for name, bucket in self.explanation.distribution.items():
            plain["explanation"]["distribution"][name]["probabilities"] = bucket.probabilities()
        return plain


class EvaluationExplanation(msgspec.Struct, frozen=True):
    """An evaluation match: its request, with line-up and seed recomputed."""

    kind: ClassVar[str] = "evaluation"

    requested: EvaluationRequested
    requested_sequence: int
    index: int
    """Index of the match in the request, from 0: line-ups rotate with it."""
    match: PlayMatch
    differences: list[str]

    @property
    def agrees(self) -> bool:
        """Whether line-up and seed follow from the request."""
        return not self.differences

    def to_builtins(self) -> dict[str, Any]:
        """Returns the explanation as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


async def explain_draw(
    history: EventReader, artifacts: BlobReader, sampled: OpponentsSampled, played: MatchFinished | None
) -> DrawExplanation:
    """Explain a training match, or a session.

    ``artifacts`` hold the snapshots; ``played`` is None while the match is in play, or when it failed.

    Raises:
        ReplayError: the history holds no configuration up to the draw's standings, or no session of the draw.
        UsageError: the match id does not have matchmaking's form.
    """
    state = await load_state_at(history, artifacts, sampled.standings_sequence)
    if state.config is None:
        raise ReplayError(f"no configuration up to event {sampled.standings_sequence}; expected LeagueOpened first")
    standings = state.standings()
    if sampled.match_id.startswith(SESSION_PREFIX):
        explanation = await _recompute_session(history, sampled, standings, state.config, state.is_model)
        hero_rating = standings.agents[sampled.hero].rating
    else:
        explanation = recompute_draw(sampled, standings, state.config)
        hero_rating = standings.live[policy_of(sampled.hero) or state.config.trainer.policy].rating
    eligible = {agent for bucket in explanation.distribution.values() for agent in bucket.weights}
    return DrawExplanation(
        sampled=sampled,
        hero_rating=hero_rating,
        ratings={agent: state.rating(agent) for agent in sorted(eligible)},
        explanation=explanation,
        differences=[*explanation.differences, *_differences(explanation.match, played)],
    )


async def explain_evaluation(
    history: EventReader,
    artifacts: BlobReader,
    match_id: str,
    played: MatchFinished | None,
    count_seats: Callable[[LeagueConfig], int | SeatCounts],
) -> EvaluationExplanation | None:
    """Explain an evaluation match; None when no evaluation requested it.

    ``artifacts`` and ``played`` are as in ``explain_draw``; ``count_seats`` counts those of a configuration's game.
    """
    async for sequence, event in history.read_events(EvaluationRequested):
        if match_id in event.matches:
            # Right after the request none of its matches has ended, so all of its jobs can be computed.
            state = await load_state_at(history, artifacts, sequence)
            seats = count_seats(state.config_or_default)
            match = next(job for job in evaluation_jobs(state, event, seats) if job.match_id == match_id)
            index = event.matches.index(match_id)
            return EvaluationExplanation(event, sequence, index, match, _differences(match, played))
    return None


def _differences(match: PlayMatch, played: MatchFinished | None) -> list[str]:
    if played is None:
        return []
    pairs = {
        "seed of the match": (played.seed, match.seed),
        "line-up of the match": ([seat.agent for seat in played.seats], match.seats),
        "purpose of the match": (played.purpose, match.purpose),
    }
    return [f"{what}: recorded {old}, recomputed {new}" for what, (old, new) in pairs.items() if old != new]


async def _recompute_session(
    history: EventReader,
    sampled: OpponentsSampled,
    standings: Standings,
    config: LeagueConfig,
    is_model: Callable[[str], bool],
) -> RecomputedDraw:
    """Recompute the draw of a session, under the standings, configuration and models that it was made under."""
    async for _, opened in history.read_events(SessionOpened):
        if opened.match_id == sampled.match_id:
            break
    else:
        raise ReplayError(f"match {sampled.match_id!r}: no SessionOpened; expected one with its OpponentsSampled")
    distribution = SessionDraws(is_model).distribution(
        standings, config, opened.model, opened.agent, frozenset(opened.eligible)
    )
    again, reopened = draw_session(opened, standings, config, distribution)
    seats = [opened.agent if seat == opened.seat else reopened.opponent for seat in range(len(opened.roles))]
    steps = draw_steps(distribution, again.draw)
    return RecomputedDraw(
        match=PlayMatch(match_id=opened.match_id, purpose=SESSION_PURPOSE, seats=seats, seed=0),
        picks=again.picks,
        distribution=dict(distribution),
        draws=[SeatDraw(pick, steps) for pick in again.picks],
        differences=[*recorded_differences(sampled, again), *recorded_differences(opened, reopened)],
    )
