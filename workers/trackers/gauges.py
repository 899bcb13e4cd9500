"""Metrics of the folded state: ratings, the pool, matches, trajectories, costs and opponent draws."""

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from league.matchmaking.audit import total_variation
from league.matchmaking.roles import sampler_of
from league.samplers.base import OpponentSampler, make_sampler
from league.state import LeagueState
from schemas.config import Plugin
from schemas.errors import LeagueError
from schemas.events import GradientStepTaken, OpponentsSampled
from schemas.standings import Agent
from workers.trackers.match_values import path_suffix

_PURPOSES = ("training", "evaluation", "imported")


def elo_metrics(state: LeagueState, hero: str) -> dict[str, float]:
    """``League/Elo_Rating/…``: the main policy, its best checkpoint, the strongest baseline, and other policies.

    A policy has the rating of its last rated version.
    """
    metrics = {f"{policy}_Elo": live.rating for policy, live in state.standings().live.items() if policy != hero}
    if (live := state.live_version(hero)) is not None:
        metrics["Hero_Elo"] = live.rating
    agents = state.standings().agents.values()
    baselines = [agent.rating for agent in agents if agent.baseline]
    past = [agent.rating for agent in agents if agent.kind == "checkpoint" and agent.policy == hero]
    metrics |= {"Baseline_Elo": max(baselines)} if baselines else {}
    metrics |= {"Past_Best_Elo": max(past)} if past else {}
    return {f"League/Elo_Rating/{name}": rating for name, rating in metrics.items()}


def step_metrics(step: GradientStepTaken, hero: str) -> dict[str, float]:
    """Metrics of a gradient step, ``learner/…``, except those whose names are paths."""
    prefix = f"learner{path_suffix(step.policy, hero)}"
    own = {name: value for name, value in step.metrics.items() if "/" not in name}
    counted = {
        name: getattr(step, name) for name in ("step", "accepted", "stale", "refused", "voided", "filtered", "skipped")
    }
    wall_s, waited_s = own.get("wall_s", 0.0), own.get("wait_s", 0.0)
    share = {"wait_share": min(max(waited_s / wall_s, 0.0), 1.0)} if wall_s > 0 else {}
    return {f"{prefix}/{name}": value for name, value in (own | counted | share).items()}


def league_totals(state: LeagueState, hero: str) -> dict[str, float]:
    """Totals of matches, trajectories, the pool, costs and novelty."""
    agents = state.standings().agents.values()
    counts = {
        f"League/matches/{purpose}": state.finished_matches(purpose)
        for purpose in _PURPOSES
        if state.finished_matches(purpose)
    }
    counts |= {"League/matches/failed": state.failed, "League/matches/voided": state.voided_count}
    counts |= {
        "model_pool/agents": len(agents),
        "model_pool/active": sum(agent.active for agent in agents),
        "model_pool/checkpoints": sum(agent.kind == "checkpoint" for agent in agents),
        "model_pool/elite": len(state.elite),
    }
    rest = itertools.chain(_experience_metrics(state, hero), _cost_metrics(state), _novelty_metrics(state, hero))
    return {name: float(count) for name, count in counts.items()} | dict(rest)


def _experience_metrics(state: LeagueState, hero: str) -> Iterator[tuple[str, float]]:
    for policy in state.policies:
        accounting, prefix = state.trajectory_accounting(policy), f"experience{path_suffix(policy, hero)}"
        names = ("generated", "trained", "stale", "filtered", "voided", "refused", "given_up", "late", "pending")
        for name in names:
            yield f"{prefix}/{name}", float(getattr(accounting, name))
        yield f"{prefix}/ahead", float(state.matches_ahead(policy))


def _cost_metrics(state: LeagueState) -> Iterator[tuple[str, float]]:
    for agent, spent in state.spending.items():
        yield f"cost/{agent}/total", spent.cost
        yield f"cost/{agent}/requests", float(spent.requests)
        yield f"cost/{agent}/tokens", float(spent.tokens)
    if state.spending:
        yield "cost/total", sum(spent.cost for spent in state.spending.values())


def _novelty_metrics(state: LeagueState, hero: str) -> Iterator[tuple[str, float]]:
    """Mean over the agents that a policy met of the share of their play that is new to it."""
    for policy, row in state.standings().novelty.items():
        if row:
            yield f"exploration{path_suffix(policy, hero)}/novelty", sum(row.values()) / len(row)


class PoolRatings:
    """Ratings of the agents in the league, each reported when it changes."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[float, float, int]] = {}

    def collect_changed(self, agents: Mapping[str, Agent]) -> dict[str, float]:
        """Metrics of active agents that changed since the last call: ``model_pool/<agent>/rating`` and more."""
        metrics: dict[str, float] = {}
        for name, agent in agents.items():
            figures = agent.rating, agent.deviation, agent.games
            if agent.active and self._reported.get(name) != figures:
                self._reported[name] = figures
                metrics |= _agent_metrics(agent)
        return metrics


def _agent_metrics(agent: Agent) -> dict[str, float]:
    prefix = f"model_pool/{agent.name}"
    deviation = {f"{prefix}/deviation": agent.deviation} if agent.deviation else {}
    return {f"{prefix}/rating": agent.rating, f"{prefix}/games": float(agent.games), **deviation}


TARGET_INTERVAL = 16
"""One in so many draws has its target shares computed."""


class _OpponentDraw(NamedTuple):
    buckets: tuple[str, ...]
    """The buckets of its picks."""
    target: Mapping[str, float] | None


class OpponentDrawWindow:
    """The newest opponent draws of one policy's matches."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._draws: deque[_OpponentDraw] = deque()
        self._count = 0
        self._changed = False
        self._plugin: Plugin | None = None
        self._sampler: OpponentSampler | None = None

    def add(self, event: OpponentsSampled, state: LeagueState, size: int) -> None:
        """Add a draw and drop those before the newest ``size``.

        Target shares are computed from the standings at the time of recording, which may be a few events newer than
        those that the draw was made from; ``league matchmaking audit`` uses the latter.
        """
        target = self._compute_target(state) if self._count % TARGET_INTERVAL == 0 else None
        self._draws.append(_OpponentDraw(tuple(pick.bucket for pick in event.picks), target))
        while len(self._draws) > size:
            self._draws.popleft()
        self._count += 1
        self._changed = True

    def _compute_target(self, state: LeagueState) -> Mapping[str, float] | None:
        if state.config is None:
            return None
        try:
            plugin = sampler_of(state.config, self._policy)
            if self._sampler is None or plugin != self._plugin:
                self._sampler, self._plugin = make_sampler(plugin), plugin
            return self._sampler.target_shares(state.standings(), self._policy)
        except LeagueError:
            # A draw that does not fit the state must not affect other charts.
            return None

    def collect(self) -> dict[str, float]:
        """Shares of the buckets, ``realised/…`` and ``target/…``, and their ``distance``; none without a new draw."""
        if not self._changed:
            return {}
        self._changed = False
        picks = Counter(bucket for draw in self._draws for bucket in draw.buckets)
        realised = {bucket: count / picks.total() for bucket, count in sorted(picks.items())}
        targets = [draw.target for draw in self._draws if draw.target is not None]
        names = sorted({bucket for target in targets for bucket in target})
        mean = {name: sum(target.get(name, 0.0) for target in targets) / len(targets) for name in names}
        metrics = {f"realised/{bucket}": share for bucket, share in realised.items()}
        metrics |= {f"target/{bucket}": share for bucket, share in mean.items()}
        return metrics | ({"distance": total_variation(mean, realised)} if mean and realised else {})
