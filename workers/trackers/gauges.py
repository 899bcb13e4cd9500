"""Metrics of single matches with their rolling means, and of the folded state.

``collection-<game>`` covers the trained seats of training matches, ``evaluation-<game>`` the evaluated agent's seats.
The league's main policy has no name in the path; others do: ``collection-nim/exploiter/reward``.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TypeVar

from league.matchmaking.audit import total_variation
from league.matchmaking.roles import sampler_of
from league.samplers import bucket_shares, make_sampler
from league.state import LeagueState
from schemas.errors import LeagueError
from schemas.events import GradientStepTaken, MatchFinished, OpponentsSampled, SeatResult
from schemas.ids import split_agent
from schemas.metrics import REPLY_FAULTS, REPLY_METRICS
from schemas.standings import Agent

T = TypeVar("T")

LIVE_KIND = "live"
"""Kind of an opponent that is a policy's live version, not an agent in the league."""


def path_suffix(agent: str, hero: str) -> str:
    """The path below a prefix for an agent or policy: empty for the main policy ``hero``, otherwise ``/<policy>``."""
    named = split_agent(agent)
    policy = agent if named is None else named[0]
    return "" if policy == hero else f"/{policy}"


def match_metrics(match: MatchFinished, state: LeagueState, hero: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Metrics of a training or evaluation match by prefix; none for other matches.

    ``hero`` is the league's main policy.
    """
    if match.purpose == "training":
        measured = [seat for seat in match.seats if seat.trainable]
    elif match.purpose == "evaluation" and match.evaluation_id in state.evaluations:
        agent = state.evaluations[match.evaluation_id].agent
        measured = [seat for seat in match.seats if seat.agent == agent]
    else:
        return
    stage = "collection" if match.purpose == "training" else "evaluation"
    for seat in measured:
        suffix = path_suffix(seat.agent, hero)
        yield f"{stage}-{match.environment or match.game}{suffix}", seat_metrics(match, seat)
        for other in match.seats if stage == "collection" else ():
            if seat.is_opponent(other) and isfinite(seat.score - other.score):
                # Points by the scores of the two seats, by the kind of the other agent.
                points = (seat.score > other.score) + 0.5 * (seat.score == other.score)
                opponent = state.agents.get(other.agent)
                yield f"League/Win_Rate{suffix}", {LIVE_KIND if opponent is None else opponent.kind: float(points)}


def seat_metrics(match: MatchFinished, seat: SeatResult) -> dict[str, float]:
    """Metrics of one seat; win, draw and loss are as the game decides."""
    won, drawn = match.has_won(seat), match.winner is None and seat.rank == 1
    # Of a model's replies.
    shares: dict[str, float] = {}
    replies = seat.metrics.get("reply_count", 0.0)
    if isfinite(replies) and replies > 0:
        shares["format_success"] = 1 - seat.metrics.get("reply_unformatted", 0.0) / replies
        shares["invalid_moves"] = seat.metrics.get("reply_invalid", 0.0) / replies
        shares |= {f"{fault}_replies": seat.metrics.get(REPLY_METRICS + fault, 0.0) / replies for fault in REPLY_FAULTS}
    return {
        "reward": seat.score,
        "rank": seat.rank,
        "win_rate": float(won),
        "draw_rate": float(drawn),
        "loss_rate": float(not won and not drawn),
        "game_length": match.length,
        "seconds": match.seconds,
        "tokens": match.tokens,
        **seat.metrics,
        **shares,
    }


def finite_or_none(value: float) -> float | None:
    """The value as a float; None if it is not finite or too large for a float."""
    try:
        return number if isfinite(number := float(value)) else None
    except OverflowError:
        return None


class RollingMeans:
    """Means of the newest values by name.

    A name is a path such as ``collection-nim/reward``; its first part is the prefix.
    """

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}
        self._touched: dict[str, None] = {}
        self._prefixes: set[str] = set()

    def add(self, name: str, value: float, size: int) -> None:
        """Add a value and drop those before the newest ``size``; a value that is not finite is ignored."""
        number = finite_or_none(value)
        if number is None:
            return
        _append_bounded(self._values.setdefault(name, deque()), number, size)
        self._touched[name] = None
        self._prefixes.add(name.partition("/")[0])

    def add_all(self, prefix: str, values: Mapping[str, float], size: int) -> None:
        """Add custom values: names that begin with a known prefix are kept, others get ``prefix``."""
        for name, value in values.items():
            first, slash, _ = name.partition("/")
            is_path = name.startswith(f"{prefix}/") or (slash and first in self._prefixes)
            self.add(name if is_path else f"{prefix}/{name}", value, size)

    def collect(self) -> dict[str, float]:
        """Means of the names with new values since the last call."""
        means = {name: sum(self._values[name]) / len(self._values[name]) for name in self._touched}
        self._touched.clear()
        return means


def _append_bounded(window: deque[T], value: T, size: int) -> None:
    """Append a value and drop those before the newest ``size``, which a new configuration may have changed."""
    window.append(value)
    while len(window) > size:
        window.popleft()


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
    """Totals of matches, the pool, costs and novelty."""
    agents = state.standings().agents.values()
    matches = {purpose: state.finished_matches(purpose) for purpose in ("training", "evaluation", "imported")}
    totals: dict[str, float] = {f"League/matches/{purpose}": count for purpose, count in matches.items() if count}
    totals |= {
        "League/matches/failed": state.failed,
        "League/matches/voided": len(state.voided),
        "model_pool/agents": len(agents),
        "model_pool/active": sum(agent.active for agent in agents),
        "model_pool/checkpoints": sum(agent.kind == "checkpoint" for agent in agents),
        "model_pool/elite": len(state.elite),
    }
    for policy in state.policies:
        totals[f"experience{path_suffix(policy, hero)}/ahead"] = state.in_play.matches_ahead(policy)
    for agent, spent in state.spending.items():
        prefix = f"cost/{agent}"
        totals |= {
            f"{prefix}/total": spent.cost,
            f"{prefix}/requests": spent.requests,
            f"{prefix}/tokens": spent.tokens,
        }
    if state.spending:
        totals["cost/total"] = sum(spent.cost for spent in state.spending.values())
    for agent, count in state.ngrams.by_agent.items():
        totals[f"exploration/{agent}/unique_ngrams"] = count.new
        totals[f"exploration/{agent}/novelty"] = count.novelty
    return {name: float(total) for name, total in totals.items()}


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
                prefix = f"model_pool/{agent.name}"
                metrics |= {f"{prefix}/rating": agent.rating, f"{prefix}/games": float(agent.games)}
                metrics |= {f"{prefix}/deviation": agent.deviation} if agent.deviation else {}
        return metrics


TARGET_INTERVAL = 16
"""One in so many draws has its target shares computed."""


class OpponentDrawWindow:
    """The newest opponent draws of one policy's matches."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._draws: deque[tuple[list[str], Mapping[str, float] | None]] = deque()
        """The buckets of a draw's picks, and its target shares."""
        self._count = 0
        self._changed = False

    def add(self, event: OpponentsSampled, state: LeagueState, size: int) -> None:
        """Add a draw and drop those before the newest ``size``.

        Target shares are computed from the standings at the time of recording, which may be a few events newer than
        those that the draw was made from; the page *Matchmaking* uses the latter.
        """
        target = self._compute_target(state) if self._count % TARGET_INTERVAL == 0 else None
        _append_bounded(self._draws, ([pick.bucket for pick in event.picks], target), size)
        self._count += 1
        self._changed = True

    def _compute_target(self, state: LeagueState) -> Mapping[str, float] | None:
        if state.config is None:
            return None
        try:
            sampler = make_sampler(sampler_of(state.config, self._policy))
            return bucket_shares(sampler.distribution(state.standings(), self._policy))
        except LeagueError:
            # A draw that does not fit the state must not affect other charts.
            return None

    def collect(self) -> dict[str, float]:
        """Shares of the buckets, ``realised/…`` and ``target/…``, and their ``distance``; none without a new draw."""
        if not self._changed:
            return {}
        self._changed = False
        picks = Counter(bucket for buckets, _ in self._draws for bucket in buckets)
        realised = {bucket: count / picks.total() for bucket, count in sorted(picks.items())}
        targets = [target for _, target in self._draws if target is not None]
        names = sorted({bucket for target in targets for bucket in target})
        mean = {name: sum(target.get(name, 0.0) for target in targets) / len(targets) for name in names}
        metrics = {f"realised/{bucket}": share for bucket, share in realised.items()}
        metrics |= {f"target/{bucket}": share for bucket, share in mean.items()}
        return metrics | ({"distance": total_variation(mean, realised)} if mean and realised else {})
