"""Audit of opponent sampling: target against realised shares of a sampler's buckets.

The target of a draw is recomputed from the standings and the configuration at the draw's place in the history. Realised
shares count every seat of every draw; among many draws, targets are computed for an evenly spaced selection.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf, pi, sqrt
from typing import NamedTuple, Protocol

import msgspec

from league.log.base import EventReader
from league.matchmaking.pool import free_slots
from league.matchmaking.roles import sampler_of
from league.samplers import make_sampler
from league.state import LeagueState
from schemas.errors import ReplayError, UsageError
from schemas.events import GradientStepTaken, OpponentsSampled
from schemas.ids import SESSION_PREFIX, policy_of


class EventHistory(EventReader, Protocol):
    """An ``EventReader`` with the sequence of its newest event."""

    async def last_sequence(self) -> int:
        """Sequence of the newest event."""


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


_WeightedDraws = list[tuple[OpponentsSampled, float]]
"""Draws with a recomputed target, and the number of draws that each represents."""

_StandingsKey = tuple[int, str]
"""Sequence of the standings, and the hero, whose policy determines the sampler."""

Targets = Mapping[_StandingsKey, _Target | str]
"""Targets by standings and hero, or the reason why there is none."""


async def audit_sampling(
    history: EventHistory, window: int, most: int = 1000, policy: str | None = None, until: int | None = None
) -> SamplingAudit:
    """Compare realised with target shares.

    A window is so many gradient steps; about ``most`` draws are recomputed, at least one per window. Without ``policy``
    all policies count, each with its own sampler.

    Raises:
        UsageError: there are no draws yet, or ``window`` or ``most`` is below 1.
    """
    if window < 1 or most < 1:
        raise UsageError(f"audit: windows of {window} gradient steps, {most} draws; expected 1 or more of both")
    draws_by_window = await _draws_by_window(history, window, policy, until)
    if not draws_by_window:
        suffix = "" if policy is None else f" for {policy!r}"
        raise UsageError(f"matchmaking: no opponents were drawn yet{suffix}; expected a league with training matches")
    share = -(-most // len(draws_by_window))
    checked: dict[int, _WeightedDraws] = {}
    for number, draws in sorted(draws_by_window.items()):
        count = min(share, len(draws))
        checked[number] = [(draws[at * len(draws) // count], len(draws) / count) for at in range(count)]
    every = list(chain.from_iterable(checked.values()))
    targets = await _compute_targets(history, {_standings_key(draw) for draw, _ in every})
    problems = [problem for draw, _ in every if isinstance(problem := targets[_standings_key(draw)], str)]
    last = max(draws_by_window) * window + window - 1
    return SamplingAudit(
        whole=_window_shares(0, last, list(chain.from_iterable(draws_by_window.values())), every, targets),
        windows=[
            _window_shares(number * window, number * window + window - 1, draws_by_window[number], some, targets)
            for number, some in checked.items()
        ],
        passed_over=len(problems),
        problem=problems[0] if problems else "",
    )


def _standings_key(draw: OpponentsSampled) -> _StandingsKey:
    return draw.standings_sequence, draw.hero


async def _draws_by_window(
    history: EventHistory, window: int, policy: str | None, until: int | None
) -> dict[int, list[OpponentsSampled]]:
    """Draws by number of window, each match once."""
    step = 0
    draws: dict[int, list[OpponentsSampled]] = {}
    seen: set[str] = set()
    async for recorded in history.read(1, until):
        event = recorded.event
        if isinstance(event, GradientStepTaken) and policy in (None, event.policy):
            step = max(step, event.step)
        elif isinstance(event, OpponentsSampled) and event.picks and event.match_id not in seen:
            if event.match_id.startswith(SESSION_PREFIX):
                # Its distribution is recorded, and is that of the virtual model that was asked for.
                continue
            if policy is not None and policy_of(event.hero) != policy:
                continue
            seen.add(event.match_id)
            draws.setdefault(step // window, []).append(event)
    return draws


async def _compute_targets(history: EventHistory, places: set[_StandingsKey]) -> Targets:
    """Targets for these keys, from one fold of the history."""
    pending = sorted(places, reverse=True)
    state, targets = LeagueState(), dict[_StandingsKey, _Target | str]()
    async for recorded in history.read(1, min(pending[0][0], await history.last_sequence())):
        while pending and pending[-1][0] < recorded.sequence:
            targets[pending[-1]] = _compute_target(state, pending[-1][1])
            pending.pop()
        state.apply(recorded.sequence, recorded.event)
    return targets | {place: _compute_target(state, place[1]) for place in pending}


def _compute_target(state: LeagueState, hero: str) -> _Target | str:
    try:
        if state.config is None:
            raise ReplayError(f"no configuration up to event {state.sequence}; expected LeagueOpened first")
        policy = policy_of(hero) or state.config.trainer.policy
        plugin = sampler_of(state.config, policy)
        standings = state.standings()
        shares = make_sampler(plugin).target_shares(standings, policy)
    except (ReplayError, UsageError) as error:
        # One draw that does not fit the history must not fail the audit of all others.
        return str(error)
    # Bots need no slot, so when slots are short a draw may have more distinct agents than slots.
    return _Target(shares, min(plugin.settings.get("max_distinct") or inf, max(free_slots(state.config, standings), 1)))


def _window_shares(
    first: int, last: int, draws: Sequence[OpponentsSampled], checked: _WeightedDraws, targets: Targets
) -> WindowShares:
    counts = Counter(pick.bucket for draw in draws for pick in draw.picks)
    picks = counts.total()
    sums: dict[str, float] = {}
    weights = independent = 0.0
    recomputed = 0
    for draw, weight in checked:
        target = targets[_standings_key(draw)]
        if isinstance(target, str):
            continue
        recomputed += 1
        weights += weight * len(draw.picks)
        independent += weight * min(len(draw.picks), target.distinct)
        for bucket, share in target.shares.items():
            sums[bucket] = sums.get(bucket, 0.0) + weight * len(draw.picks) * share
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
