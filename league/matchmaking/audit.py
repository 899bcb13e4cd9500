"""Recorded decisions, recomputed from the history: why a match was what it was, and whether draws keep their target.

A draw is recomputed from the standings and the configuration at its place in the history, by the same distribution that
it was made from. The audit compares the shares of all draws by bucket with the mean of their targets, which is not the
configured mix: an empty bucket's share goes to the others.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf, pi, sqrt
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from league.evaluation.plan import evaluation_jobs
from league.integrity.snapshots import BlobReader, load_state_at
from league.log.base import EventReader
from league.matchmaking.matchmaker import RecomputedDraw, recompute_draw, recorded_differences
from league.matchmaking.pool import free_slots
from league.matchmaking.roles import sampler_of
from league.matchmaking.sessions import draw_session, session_distribution
from league.samplers import bucket_shares, make_sampler
from league.state import LeagueState
from schemas.config import LeagueConfig
from schemas.errors import ReplayError, UsageError
from schemas.events import EvaluationRequested, GradientStepTaken, MatchFinished, OpponentsSampled, SessionOpened
from schemas.ids import SESSION_PREFIX, policy_of
from schemas.jobs import SESSION_PURPOSE, PlayMatch, SeatCounts


class EventHistory(EventReader, Protocol):
    """An ``EventReader`` with the sequence of its newest event."""

    async def last_sequence(self) -> int:
        """Sequence of the newest event."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A match with what led to it, recomputed."""

    kind: ClassVar[str]

    differences: list[str]
    """Differences of what was recorded and played from what was recomputed."""

    @property
    def agrees(self) -> bool:
        """Whether the match follows from standings or request, configuration and seed."""
        return not self.differences

    def to_builtins(self) -> dict[str, Any]:
        """Convert to plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class DrawExplanation(Explanation, frozen=True, kw_only=True):
    """A training match, or a session of the opponent pool, with its draw recomputed."""

    kind: ClassVar[str] = "draw"

    sampled: OpponentsSampled
    """The draw as recorded."""
    hero_rating: float
    """Rating in the standings of the draw."""
    ratings: dict[str, float]
    """Ratings of all eligible agents there."""
    explanation: RecomputedDraw

    def to_builtins(self) -> dict[str, Any]:
        """Convert to plain values, with probabilities next to the weights of each bucket."""
        plain = super().to_builtins()
        for name, bucket in self.explanation.distribution.items():
            plain["explanation"]["distribution"][name]["probabilities"] = bucket.probabilities()
        return plain


class EvaluationExplanation(Explanation, frozen=True, kw_only=True):
    """An evaluation match: its request, with line-up and seed recomputed."""

    kind: ClassVar[str] = "evaluation"

    requested: EvaluationRequested
    requested_sequence: int
    index: int
    """Index of the match in the request, from 0: line-ups rotate with it."""
    match: PlayMatch


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
    config = _require_config(state, sampled.standings_sequence)
    standings = state.standings()
    if sampled.match_id.startswith(SESSION_PREFIX):
        draw = await _recompute_session(history, sampled, state)
        hero_rating = standings.agents[sampled.hero].rating
    else:
        draw = recompute_draw(sampled, standings, config)
        hero_rating = standings.live[policy_of(sampled.hero) or config.trainer.policy].rating
    eligible = {agent for bucket in draw.distribution.values() for agent in bucket.weights}
    return DrawExplanation(
        sampled=sampled,
        hero_rating=hero_rating,
        ratings={agent: state.rating(agent) for agent in sorted(eligible)},
        explanation=draw,
        differences=[*draw.differences, *_differences(draw.match, played)],
    )


async def explain_evaluation(
    history: EventReader,
    artifacts: BlobReader,
    match_id: str,
    played: MatchFinished | None,
    count_seats: Callable[[LeagueConfig], int | SeatCounts],
) -> EvaluationExplanation | None:
    """Explain an evaluation match; None when no evaluation requested it.

    ``artifacts`` and ``played`` are as in ``explain_draw``; ``count_seats`` counts the seats of a configuration's game.
    """
    async for sequence, event in history.read_events(EvaluationRequested):
        if match_id in event.matches:
            # Right after the request none of its matches has ended, so all of its jobs can be computed.
            state = await load_state_at(history, artifacts, sequence)
            seats = count_seats(state.config_or_default)
            match = next(job for job in evaluation_jobs(state, event, seats) if job.match_id == match_id)
            index = event.matches.index(match_id)
            return EvaluationExplanation(
                requested=event,
                requested_sequence=sequence,
                index=index,
                match=match,
                differences=_differences(match, played),
            )
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


async def _recompute_session(history: EventReader, sampled: OpponentsSampled, state: LeagueState) -> RecomputedDraw:
    """Recompute the draw of a session, under the standings, configuration and models that it was made under."""
    async for _, opened in history.read_events(SessionOpened):
        if opened.match_id == sampled.match_id:
            break
    else:
        raise ReplayError(f"match {sampled.match_id!r}: no SessionOpened; expected one with its OpponentsSampled")
    standings, config = state.standings(), state.config_or_default
    distribution = session_distribution(
        standings, config, opened.model, opened.agent, lambda name: name in opened.eligible or state.is_model(name)
    )
    again, reopened = draw_session(opened, standings, config, distribution)
    seats = [opened.agent if seat == opened.seat else reopened.opponent for seat in range(len(opened.roles))]
    return RecomputedDraw(
        match=PlayMatch(match_id=opened.match_id, purpose=SESSION_PURPOSE, seats=seats, seed=0),
        picks=again.picks,
        distribution=distribution,
        differences=[*recorded_differences(sampled, again), *recorded_differences(opened, reopened)],
    )


class WindowShares(msgspec.Struct, frozen=True):
    """Draws in a window of gradient steps."""

    first_step: int
    """Smallest number of gradient steps before a draw."""
    last_step: int
    """Largest number of gradient steps before a draw."""
    draws: int
    picks: int
    """Number of seats drawn for."""
    recomputed: int
    """Draws with a recomputed target."""
    target: dict[str, float]
    """Mean probability of each bucket for one seat; empty without a target."""
    realised: dict[str, float]
    """Share of the picks that came from each bucket."""
    distance: float | None
    """Total variation between the two, 0 to 1; None without a target."""
    by_chance: float | None
    """Expected distance if every pick follows the target: fewer picks scatter more."""


class SamplingAudit(msgspec.Struct, frozen=True):
    """A league's opponent sampling, in total and by windows of gradient steps."""

    whole: WindowShares
    windows: list[WindowShares]
    passed_over: int
    """Draws without a computable target, such as one before any version was published."""
    problem: str
    """Reason for the first of them."""


class _Target(NamedTuple):
    shares: Mapping[str, float]
    distinct: float
    """Largest number of checkpoints drawn for one match, to be cloned over the seats."""


class _CheckedDraw(NamedTuple):
    sampled: OpponentsSampled
    weight: float
    """Number of draws that this one represents."""
    target: _Target | str
    """Target, or the reason why there is none."""


async def audit_sampling(
    history: EventHistory, window: int, most: int = 1000, policy: str | None = None, until: int | None = None
) -> SamplingAudit:
    """Compare realised with target shares.

    A window is so many gradient steps; about ``most`` evenly spaced draws are recomputed, at least one per window.
    Without ``policy`` all policies count, each with its own sampler.

    Raises:
        UsageError: there are no draws yet, or ``window`` or ``most`` is below 1.
    """
    if window < 1 or most < 1:
        raise UsageError(f"audit: windows of {window} gradient steps, {most} draws; expected 1 or more of both")
    windows = await _draws_by_window(history, window, policy, until)
    if not windows:
        suffix = "" if policy is None else f" for {policy!r}"
        raise UsageError(f"matchmaking: no opponents were drawn yet{suffix}; expected a league with training matches")
    per_window = -(-most // len(windows))
    chosen = {
        number: [draws[index * len(draws) // count] for index in range(count)]
        for number, draws in sorted(windows.items())
        if (count := min(per_window, len(draws)))
    }
    targets = await _compute_targets(history, [draw for draws in chosen.values() for draw in draws])
    checked = {
        number: [_CheckedDraw(draw, len(windows[number]) / len(draws), targets[draw.match_id]) for draw in draws]
        for number, draws in chosen.items()
    }
    every_draw = [draw for draws in windows.values() for draw in draws]
    every_check = [check for checks in checked.values() for check in checks]
    problems = [check.target for check in every_check if isinstance(check.target, str)]
    return SamplingAudit(
        whole=_window_shares(0, max(windows) * window + window - 1, every_draw, every_check),
        windows=[
            _window_shares(number * window, number * window + window - 1, windows[number], checks)
            for number, checks in checked.items()
        ],
        passed_over=len(problems),
        problem=problems[0] if problems else "",
    )


async def _draws_by_window(
    history: EventHistory, window: int, policy: str | None, until: int | None
) -> dict[int, list[OpponentsSampled]]:
    """Draws by number of window, each match once; sessions are left out, since their distribution is recorded."""
    step = 0
    draws: dict[int, list[OpponentsSampled]] = {}
    seen: set[str] = set()
    async for recorded in history.read(1, until):
        event = recorded.event
        if isinstance(event, GradientStepTaken) and policy in (None, event.policy):
            step = max(step, event.step)
        elif isinstance(event, OpponentsSampled) and event.picks and event.match_id not in seen:
            is_counted = policy is None or policy_of(event.hero) == policy
            if is_counted and not event.match_id.startswith(SESSION_PREFIX):
                seen.add(event.match_id)
                draws.setdefault(step // window, []).append(event)
    return draws


async def _compute_targets(history: EventHistory, draws: Sequence[OpponentsSampled]) -> dict[str, _Target | str]:
    """Targets by match, or the reason why there is none, from one fold of the history."""
    pending = sorted(draws, key=lambda draw: draw.standings_sequence, reverse=True)
    state, targets = LeagueState(), dict[str, _Target | str]()
    async for recorded in history.read(1, min(pending[0].standings_sequence, await history.last_sequence())):
        while pending and pending[-1].standings_sequence < recorded.sequence:
            draw = pending.pop()
            targets[draw.match_id] = _compute_target(state, draw)
        state.apply(recorded.sequence, recorded.event)
    return targets | {draw.match_id: _compute_target(state, draw) for draw in pending}


def _compute_target(state: LeagueState, draw: OpponentsSampled) -> _Target | str:
    try:
        config = _require_config(state, state.sequence)
        policy = policy_of(draw.hero) or config.trainer.policy
        plugin = sampler_of(config, policy)
        standings = state.standings()
        shares = bucket_shares(make_sampler(plugin).distribution(standings, policy))
    except (ReplayError, UsageError) as error:
        # One draw that does not fit the history must not fail the audit of all others.
        return str(error)
    # Bots need no slot, so when slots are short a draw may have more distinct agents than slots.
    return _Target(shares, min(plugin.settings.get("max_distinct") or inf, max(free_slots(config, standings), 1)))


def _require_config(state: LeagueState, sequence: int) -> LeagueConfig:
    if state.config is None:
        raise ReplayError(f"no configuration up to event {sequence}; expected LeagueOpened first")
    return state.config


def _window_shares(
    first: int, last: int, draws: Sequence[OpponentsSampled], checked: Sequence[_CheckedDraw]
) -> WindowShares:
    counts = Counter(pick.bucket for draw in draws for pick in draw.picks)
    picks = counts.total()
    sums: dict[str, float] = {}
    weights = independent = 0.0
    recomputed = 0
    for sampled, weight, target in checked:
        if isinstance(target, str):
            continue
        recomputed += 1
        weights += weight * len(sampled.picks)
        independent += weight * min(len(sampled.picks), target.distinct)
        for bucket, share in target.shares.items():
            sums[bucket] = sums.get(bucket, 0.0) + weight * len(sampled.picks) * share
    mean = {bucket: total / weights for bucket, total in sums.items()} if weights else {}
    realised = {bucket: counts[bucket] / picks for bucket in sorted(mean.keys() | counts.keys())}
    # Mean total variation of shares realised in this many trials, by the normal approximation of each.
    trials = picks * independent / weights if weights else 0.0
    spreads = (sqrt(2 * share * max(0.0, 1 - share) / (pi * trials)) for share in mean.values())
    return WindowShares(
        first_step=first,
        last_step=last,
        draws=len(draws),
        picks=picks,
        recomputed=recomputed,
        target=mean,
        realised=realised,
        distance=total_variation(mean, realised) if mean else None,
        by_chance=min(1.0, 0.5 * sum(spreads)) if mean else None,
    )


def total_variation(left: Mapping[str, float], right: Mapping[str, float]) -> float:
    """Half the sum of absolute differences: the largest difference in probability over all sets of buckets."""
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in left.keys() | right.keys())
