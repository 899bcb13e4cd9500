"""Plan and results of evaluations: pure functions of the state.

Four suites. ``gatekeepers`` places a version among bots and checkpoints; ``benchmark`` puts the agent in one seat and
the same opponent in all others, before and after training, for the share of games it wins; ``newest`` keeps a number of
matches of the newest version in play; ``promotion`` is the test of a candidate against the incumbent
(``league.evaluation.promotion``). All have the purpose ``evaluation``, so by default all affect the ratings: the
benchmark rates the base model.

Matches are paired by their seeds. In a tournament the games of one round, as many as there are seats, share a seed
while the agent goes through all seats, and the seeds don't depend on the agent: two versions meet the same luck (common
random numbers), which cancels when they are compared. Games of one round are therefore not quite independent of each
other. In a promotion test the two matches of a pair share a seed, and the agents exchange their seats. In a game of
several environments the seed of a round or pair chooses its environment, and with it the number of seats.

One file, since the suites share these seeds: what one of them draws decides what the others are compared with.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec

from league.evaluation.promotion import candidates_to_test
from league.state import LeagueState
from league.state.evaluation_table import BENCHMARK, GATEKEEPERS, NEWEST, PROMOTION, Evaluation
from schemas.config import LeagueConfig
from schemas.events import EvaluationFinished, EvaluationRequested
from schemas.ids import agent_name, derive_seed
from schemas.jobs import PlayMatch, SeatCounts

PURPOSE = "evaluation"


def plan_evaluations(state: LeagueState, seats: int | SeatCounts) -> list[EvaluationRequested]:
    """Plan the evaluations that are due and not requested yet.

    The base agent's benchmark comes first; then, for each policy, the gatekeepers of every version that is a multiple
    of ``evaluation.every`` and of every checkpoint (with the benchmark of the stop criterion beside the former); the
    last version's gatekeepers and benchmark once its training has finished; at most one promotion test at a time; and
    further matches of each newest version while fewer than ``evaluation.newest_games`` are unfinished. In no other
    suite is an agent evaluated twice. A remote agent whose budget is spent is not used: gatekeepers proceed without it,
    and its benchmarks wait until the budget is raised.

    ``seats`` is the number of seats of the evaluated game, or of each of its environments.
    """
    if state.config is None:
        return []
    allowance = _Allowance(state, state.config, _seat_counts(seats))
    distinct = {request.evaluation_id: request for request in _routine_requests(state, state.config)}.values()
    planned = [allowance.cut(request) for request in distinct]
    # With one seat there is no opponent: a test would compare nothing.
    for request in _promotion_requests(state, state.config) if allowance.counts.most > 1 else ():
        planned.append(allowance.cut(request, 2 * state.config.promotion.test.least_pairs))
        if planned[-1].matches:
            break
    if state.config.evaluation.newest_games:
        newest = [_newest_request(state, state.config, policy, allowance) for policy in state.policies]
        planned += [request for request in newest if request is not None]
    return [request for request in planned if request.matches]


def _has_cap(config: LeagueConfig) -> bool:
    return (config.evaluation.max_games, config.evaluation.max_games_per_environment) != (None, None)


def evaluation_jobs(state: LeagueState, requested: EvaluationRequested, seats: int | SeatCounts) -> list[PlayMatch]:
    """The matches of an evaluation, folded yet or not, that have neither finished nor failed.

    Match i of a round seats the agent at i and the opponents in turn in the other seats, beginning one further in each
    round, so that every seat and every opponent comes up equally often. In pair p of a promotion test the candidate
    sits at p, p + 2, p + 4 … (modulo the seats), half of them rounded up, and in its second match in the others.
    """
    evaluation = state.evaluations.get(requested.evaluation_id)
    waiting = set(requested.matches) if evaluation is None else evaluation.waiting
    return [
        PlayMatch(
            match_id=match_id,
            purpose=PURPOSE,
            seats=_line_up(requested, unit, index - unit.first),
            seed=unit.seed,
            evaluation_id=requested.evaluation_id,
        )
        for match_id, index, unit in _locate_matches(state.config_or_default.seed, requested, seats)
        if match_id in waiting
    ]


def finished_evaluations(state: LeagueState) -> list[EvaluationFinished]:
    """Results of complete evaluations whose result is not recorded yet.

    A test is complete when its verdict is recorded: matches that had not ended by then are dropped. Those in play count
    for ratings, but not for its result.
    """
    return [
        EvaluationFinished(
            evaluation_id=evaluation.requested.evaluation_id,
            agent=evaluation.agent,
            suite=evaluation.suite,
            opponents=evaluation.requested.opponents,
            games=evaluation.games,
            failed=evaluation.failed,
            wins=evaluation.wins,
            mean_score=evaluation.mean_score(),
            mean_rank=evaluation.mean_rank(),
            decided=_decision_summary(evaluation),
        )
        for evaluation in state.evaluations.values()
        if evaluation.finished is None and evaluation.is_complete
    ]


def _decision_summary(evaluation: Evaluation) -> str:
    decision = evaluation.decision
    if decision is None or not evaluation.dropped:
        return ""
    return f"{decision.verdict} after {len(decision.scores)} pairs"


class _Allowance:
    """Remaining matches of every agent, in all and in each environment."""

    def __init__(self, state: LeagueState, config: LeagueConfig, counts: SeatCounts) -> None:
        self.counts = counts
        self._state = state
        self._config = config
        self._used: dict[str, Counter[str]] = {}
        """Matches by agent and environment."""

    def cut(self, request: EvaluationRequested, least: int = 0) -> EvaluationRequested:
        """Reduce a request to the matches left: whole rounds or pairs, and none if fewer than ``least``."""
        if not _has_cap(self._config):
            return request
        kept: list[tuple[str, int, _Unit]] = []
        looked_at = 0
        for unit, group in groupby(_locate_matches(self._config.seed, request, self.counts), key=itemgetter(2)):
            located = list(group)
            is_whole = len(located) == unit.size or len(kept) == looked_at
            looked_at += len(located)
            if is_whole and self.take(request.agent, unit.environment, len(located)):
                kept += located
        if len(kept) < min(least, looked_at):
            self._matches_of(request.agent).subtract(unit.environment for _, _, unit in kept)
            kept = []
        return _with_matches(request, {index: match_id for match_id, index, _ in kept})

    def take(self, agent: str, environment: str, games: int) -> bool:
        """Deduct matches from the allowance; False, and none deducted, where fewer are left."""
        if not self._has_room(agent, environment, games):
            return False
        self._matches_of(agent)[environment] += games
        return True

    def is_spent(self, agent: str) -> bool:
        """Whether no round is left to the agent in any environment."""
        return not any(self._has_room(agent, *environment) for environment in self.counts.environments)

    def _has_room(self, agent: str, environment: str, games: int) -> bool:
        used = self._matches_of(agent)
        terms = self._config.evaluation
        limits = ((used.total(), terms.max_games), (used[environment], terms.max_games_per_environment))
        return all(most is None or taken + games <= most for taken, most in limits)

    def _matches_of(self, agent: str) -> Counter[str]:
        if agent not in self._used:
            requests = [
                evaluation.requested for evaluation in self._state.evaluations.values() if evaluation.agent == agent
            ]
            self._used[agent] = Counter(
                unit.environment
                for request in requests
                for _, _, unit in _locate_matches(self._config.seed, request, self.counts)
            )
        return self._used[agent]


def _routine_requests(state: LeagueState, config: LeagueConfig) -> Iterator[EvaluationRequested]:
    """Gatekeepers and benchmarks that are due; the same one may come twice."""
    terms, criterion = config.evaluation, config.stop.criterion

    def gatekeepers(agent: str) -> Iterator[EvaluationRequested]:
        slug = _slug(agent, GATEKEEPERS)
        if slug not in state.evaluations:
            resolved = (_resolve_gatekeeper(state, rule, agent) for rule in terms.gatekeepers)
            opponents = [name for name in resolved if name is not None]
            yield from _make_request(agent, GATEKEEPERS, slug, opponents, terms.gatekeeper_games)

    def benchmarks(agent: str, *opponents: str) -> Iterator[EvaluationRequested]:
        for opponent in opponents:
            slug = _slug(agent, BENCHMARK, opponent)
            if slug not in state.evaluations and _is_available(state, opponent) and opponent != agent:
                yield from _make_request(agent, BENCHMARK, slug, [opponent], terms.benchmark_games)

    if config.base_agent in state.agents:
        yield from benchmarks(config.base_agent, *terms.benchmark_opponents)
    for policy in state.policies:
        for version in sorted(state.published[policy]):
            agent = agent_name(policy, version)
            due = version > 0 and version % terms.every == 0
            if due or agent in state.agents:
                yield from gatekeepers(agent)
            if due and criterion is not None:
                yield from benchmarks(agent, criterion.opponent)
        end = state.training_finished(policy)
        if end is not None and end.version in state.published[policy]:
            agent = agent_name(policy, end.version)
            yield from gatekeepers(agent)
            yield from benchmarks(agent, *terms.benchmark_opponents)


def _promotion_requests(state: LeagueState, config: LeagueConfig) -> Iterator[EvaluationRequested]:
    for agent, incumbent in candidates_to_test(state):
        slug, games = _slug(agent, PROMOTION), 2 * config.promotion.test.most_pairs
        if slug not in state.evaluations:
            yield from _make_request(agent, PROMOTION, slug, [incumbent], games)


def _newest_request(
    state: LeagueState, config: LeagueConfig, policy: str, allowance: _Allowance
) -> EvaluationRequested | None:
    """Whole rounds that bring a policy's unfinished matches of this suite to ``evaluation.newest_games``."""
    live = state.live_version(policy)
    if live is None or not live.version or state.training_finished(policy) is not None:
        return None
    agent = agent_name(policy, live.version)
    newest = [
        evaluation
        for evaluation in state.evaluations.values()
        if (evaluation.suite, evaluation.agent.rpartition("@")[0]) == (NEWEST, policy)
    ]
    missing = config.evaluation.newest_games - sum(len(evaluation.waiting) for evaluation in newest)
    earlier = [evaluation.requested for evaluation in newest if evaluation.agent == agent]
    first = max((index + 1 for request in earlier for index in _indices(request)), default=0)
    opponents = [name for name in config.evaluation.benchmark_opponents if _is_available(state, name) and name != agent]
    matches: list[int] = []
    for unit in _units(config.seed, NEWEST, "", allowance.counts) if opponents else ():
        if len(matches) >= missing or allowance.is_spent(agent):
            break
        if unit.first >= first and allowance.take(agent, unit.environment, unit.size):
            matches += range(unit.first, unit.first + unit.size)
    slug = _slug(agent, NEWEST, str(len(earlier)))
    request = EvaluationRequested(evaluation_id=slug, agent=agent, suite=NEWEST, opponents=opponents, matches=[])
    return _with_matches(request, {index: f"eval-{slug}-{index}" for index in matches}) if matches else None


def _make_request(agent: str, suite: str, slug: str, opponents: list[str], games: int) -> Iterator[EvaluationRequested]:
    if opponents and games > 0:
        matches = [f"eval-{slug}-{index}" for index in range(games)]
        yield EvaluationRequested(evaluation_id=slug, agent=agent, suite=suite, opponents=opponents, matches=matches)


def _with_matches(request: EvaluationRequested, matches: dict[int, str]) -> EvaluationRequested:
    """A request for other matches, given by their indices."""
    indices = [] if list(matches) == list(range(len(matches))) else list(matches)
    return msgspec.structs.replace(request, matches=list(matches.values()), indices=indices)


def _slug(*parts: str) -> str:
    return "-".join(parts).replace("@", "-")


def _resolve_gatekeeper(state: LeagueState, rule: str, agent: str) -> str | None:
    """Resolve a rule of ``evaluation.gatekeepers`` for ``agent``; None if no agent fits."""
    others = [other for other in state.checkpoints if other.active and other.name != agent]
    if rule == "previous_best":
        # An unrated checkpoint has an older one's rating: the older one is preferred.
        others.sort(key=lambda other: (other.rating, other.games > 0, other.version, other.name))
        return others[-1].name if others else None
    if rule == "recent":
        return others[-1].name if others else None
    return rule if rule != agent and _is_available(state, rule) else None


def _is_available(state: LeagueState, agent: str) -> bool:
    return agent in state.agents and state.budget_left(agent) > 0


class _Unit(NamedTuple):
    """A round, or in a promotion test a pair: matches with the same seed."""

    number: int
    first: int
    """Index of its first match."""
    size: int
    seed: int
    environment: str
    seats: int


def _units(master: int, suite: str, evaluation_id: str, counts: SeatCounts) -> Iterator[_Unit]:
    first = 0
    for number in count():
        is_pair = suite == PROMOTION
        purpose = ("pair", evaluation_id) if is_pair else ("round", suite)
        seed = derive_seed(master, *purpose, number)
        environment, seats = counts.choose(seed)
        unit = _Unit(number, first, 2 if is_pair else seats, seed, environment, seats)
        yield unit
        first += unit.size


def _locate_matches(
    master: int, requested: EvaluationRequested, seats: int | SeatCounts
) -> Iterator[tuple[str, int, _Unit]]:
    """The matches of a request, each with its index and the round or pair that it is in."""
    units = _units(master, requested.suite, requested.evaluation_id, _seat_counts(seats))
    unit = next(units)
    for match_id, index in zip(requested.matches, _indices(requested), strict=False):
        while index >= unit.first + unit.size:
            unit = next(units)
        yield match_id, index, unit


def _indices(requested: EvaluationRequested) -> Sequence[int]:
    return requested.indices or range(len(requested.matches))


def _seat_counts(seats: int | SeatCounts) -> SeatCounts:
    return SeatCounts.constant(seats) if isinstance(seats, int) else seats


def _line_up(requested: EvaluationRequested, unit: _Unit, position: int) -> list[str]:
    """Agents of the match at a place in its round or pair."""
    if requested.suite == PROMOTION:
        own = {(unit.number + 2 * step) % unit.seats for step in range((unit.seats + 1) // 2)}
        agent, opponent = requested.agent, requested.opponents[0]
        return [agent if (seat in own) != bool(position) else opponent for seat in range(unit.seats)]
    opponents = requested.opponents
    line_up = [opponents[(unit.number + other) % len(opponents)] for other in range(unit.seats - 1)]
    line_up.insert(position, requested.agent)
    return line_up
