"""What is measured, against whom, and what came of it: pure functions of the state.

Two suites. ``gatekeepers`` places a version among bots and checkpoints; ``benchmark`` puts the agent in one seat and
the same opponent in all others, before and after training, for the share of games it wins. Both have the purpose
``evaluation``, so by default both move the ratings: it is the benchmark that rates the base model.
"""

from collections.abc import Iterator

from league.analytics import wilson
from league.state import LeagueState
from schemas.config import LeagueConfig
from schemas.events import EvaluationFinished, EvaluationRequested
from schemas.ids import agent_name, derive_seed, split_agent
from schemas.jobs import PlayMatch
from schemas.standings import Agent

PURPOSE = "evaluation"
GATEKEEPERS, BENCHMARK = "gatekeepers", "benchmark"


def plan(state: LeagueState) -> list[EvaluationRequested]:
    """Evaluations that should have been requested by now and have not been.

    The base agent's benchmark comes first; then, for each policy, the gatekeepers of every version that is a multiple
    of ``evaluation.every`` and of every checkpoint (with the benchmark of the stop criterion beside the former); and
    the last version's gatekeepers and benchmark once its training has finished. Nobody is evaluated twice.
    """
    config = state.config
    if config is None:
        return []
    wanted = list(_before(state, config))
    for policy in state.policies:
        wanted += _during(state, config, policy)
        wanted += _after(state, config, policy)
    return list({request.evaluation_id: request for request in wanted}.values())


def jobs(state: LeagueState, requested: EvaluationRequested, seats: int) -> list[PlayMatch]:
    """The matches of an evaluation that have neither finished nor failed.

    Match i seats the agent at ``i % seats`` and the opponents in turn in the other seats, beginning one further in
    each round of seats, so that every seat and every opponent comes up equally often. Seeds derive from match ids.

    Args:
        state: Knows the master seed and which matches have ended.
        requested: The evaluation, whether folded yet or not.
        seats: Number of seats of the game.
    """
    known = state.evaluations.get(requested.evaluation_id)
    waiting = set(requested.matches) if known is None else known.waiting
    master = state.config.seed if state.config is not None else 0
    return [
        PlayMatch(
            match_id=match_id,
            purpose=PURPOSE,
            seats=_line_up(requested, index, seats),
            seed=derive_seed(master, "match", match_id),
            evaluation_id=requested.evaluation_id,
        )
        for index, match_id in enumerate(requested.matches)
        if match_id in waiting
    ]


def finished(state: LeagueState) -> list[EvaluationFinished]:
    """Results of evaluations whose matches have all ended and whose result is not recorded."""
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
        )
        for evaluation in state.evaluations.values()
        if evaluation.finished is None and not evaluation.waiting
    ]


def criterion_met(state: LeagueState) -> str | None:
    """Why training may stop: a finished benchmark of the trained policy is surely above ``stop.criterion``.

    "Surely" is the lower end of the 95 % Wilson interval of the share of games won.
    """
    criterion = state.config.stop.criterion if state.config is not None else None
    if state.config is None or criterion is None:
        return None
    for evaluation in state.evaluations.values():
        result, named = evaluation.finished, split_agent(evaluation.agent)
        if result is None or evaluation.suite != BENCHMARK or result.opponents != [criterion.opponent]:
            continue
        if named is not None and named[0] == state.config.trainer.policy:
            low, _ = wilson(result.wins, result.games)
            if low > criterion.win_rate:
                return (
                    f"{result.agent} won {result.wins} of {result.games} games against {criterion.opponent}: "
                    f"surely above {criterion.win_rate:g} (95 % interval from {low:.3f})"
                )
    return None


def _before(state: LeagueState, config: LeagueConfig) -> Iterator[EvaluationRequested]:
    if config.base_agent in state.agents:
        for opponent in config.evaluation.benchmark_opponents:
            yield from _benchmark(state, config, config.base_agent, opponent)


def _during(state: LeagueState, config: LeagueConfig, policy: str) -> Iterator[EvaluationRequested]:
    for version in sorted(state.published[policy]):
        agent = agent_name(policy, version)
        due = version > 0 and version % config.evaluation.every == 0
        if due or agent in state.agents:
            yield from _gatekeepers(state, config, agent)
        if due and config.stop.criterion is not None:
            yield from _benchmark(state, config, agent, config.stop.criterion.opponent)


def _after(state: LeagueState, config: LeagueConfig, policy: str) -> Iterator[EvaluationRequested]:
    end = state.training_finished(policy)
    if end is not None and end.version in state.published[policy]:
        agent = agent_name(policy, end.version)
        yield from _gatekeepers(state, config, agent)
        for opponent in config.evaluation.benchmark_opponents:
            yield from _benchmark(state, config, agent, opponent)


def _gatekeepers(state: LeagueState, config: LeagueConfig, agent: str) -> Iterator[EvaluationRequested]:
    slug = _slug(agent, GATEKEEPERS)
    if slug not in state.evaluations:
        resolved = (_resolve(state, rule, agent) for rule in config.evaluation.gatekeepers)
        opponents = [name for name in resolved if name is not None]
        yield from _request(agent, GATEKEEPERS, slug, opponents, config.evaluation.gatekeeper_games)


def _benchmark(state: LeagueState, config: LeagueConfig, agent: str, opponent: str) -> Iterator[EvaluationRequested]:
    slug = _slug(agent, BENCHMARK, opponent)
    if slug not in state.evaluations and opponent in state.agents and opponent != agent:
        yield from _request(agent, BENCHMARK, slug, [opponent], config.evaluation.benchmark_games)


def _request(agent: str, suite: str, slug: str, opponents: list[str], games: int) -> Iterator[EvaluationRequested]:
    if opponents and games > 0:
        matches = [f"eval-{slug}-{index}" for index in range(games)]
        yield EvaluationRequested(evaluation_id=slug, agent=agent, suite=suite, opponents=opponents, matches=matches)


def _slug(*parts: str) -> str:
    return "-".join(parts).replace("@", "-")


def _resolve(state: LeagueState, rule: str, agent: str) -> str | None:
    """The agent that a rule of ``evaluation.gatekeepers`` means for ``agent``; None when there is none."""
    others = [other for other in state.checkpoints if other.active and other.name != agent]
    if rule == "previous_best":
        return max(others, key=_strength).name if others else None
    if rule == "recent":
        return others[-1].name if others else None
    return rule if rule in state.agents and rule != agent else None


def _strength(agent: Agent) -> tuple[float, bool, int, str]:
    # An unrated checkpoint stands at an older one's rating: that one goes first.
    return agent.rating, agent.games > 0, agent.version, agent.name


def _line_up(requested: EvaluationRequested, index: int, seats: int) -> list[str]:
    turn, own_seat = divmod(index, seats)
    opponents = requested.opponents
    line_up = [opponents[(turn + place) % len(opponents)] for place in range(seats - 1)]
    line_up.insert(own_seat, requested.agent)
    return line_up
