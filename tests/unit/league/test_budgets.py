"""What remote agents cost is a sum over the history, and an agent whose budget is spent pauses until it is raised."""

from math import inf, nan

import msgspec
import pytest

from league.evaluation.plan import plan_evaluations
from league.integrity.snapshots import decode_snapshot, encode_snapshot
from league.matchmaking.pool import budget_changes
from league.ratings.fold import RatingFold
from league.samplers import make_sampler
from league.state import LeagueState
from league.state.saved_state import RemoteSpending
from lifecycle.control import resolve_agent
from schemas import events as e
from schemas.config import AgentConfig, EvaluationConfig, LeagueConfig, Plugin, RemoteAgentConfig, to_builtins
from schemas.errors import UsageError
from tests.builders import apply_events


def league(budget: float | None = 2.0, training: bool = False) -> LeagueConfig:
    remote = RemoteAgentConfig(
        url="https://host/v1", model="m", prompt_price=1.0, completion_price=2.0, budget=budget, training=training
    )
    evaluation = EvaluationConfig(every=5, gatekeepers=("gpt", "random_bot"), benchmark_opponents=("gpt",))
    base = LeagueConfig(evaluation=evaluation)
    return msgspec.structs.replace(
        base, agents={**base.agents, "gpt": AgentConfig(kind="remote", rating=900.0, remote=remote)}
    )


def asked(number: int, cost: float, **other: object) -> e.RemoteAsked:
    fields = {"agent": "gpt", "match_id": f"m-{number}", "worker": "evaluator-0", "since": 4, "number": number}
    counts = {"requests": 3, "prompt_tokens": 100, "completion_tokens": 10, "tokens": 115, "uncounted": 1}
    # Made, not decoded: a decoder would refuse what makes no sense.
    return e.RemoteAsked(**{**fields, **counts, "cost": cost, **other})


def opened(config: LeagueConfig) -> LeagueState:
    state = LeagueState()
    apply_events(state, e.LeagueOpened(league="league", config=to_builtins(config), model="m"))
    for name, agent in config.agents.items():
        apply_events(
            state, e.AgentRegistered(agent=name, kind=agent.kind, baseline=agent.baseline, rating=agent.rating)
        )
        if agent.remote is not None and not agent.remote.training:
            apply_events(state, e.AgentRetired(agent=name, reason="met in evaluation only"))
    return apply_events(state, e.PolicyPublished(policy="main", version=5, adapter="a" * 64, parent="base_model"))


def configured(state: LeagueState, config: LeagueConfig) -> LeagueState:
    return apply_events(state, e.LeagueConfigured(config=to_builtins(config), config_digest="d", after=state.sequence))


def test_what_was_asked_is_summed_by_agent_and_copies_change_nothing() -> None:
    state = opened(league())
    once = [asked(0, 0.5), asked(1, 0.25), asked(0, 0.125, worker="evaluator-1"), asked(0, 0.0625, since=90)]
    apply_events(state, *once, *once)
    assert state.spending == {"gpt": RemoteSpending(12, 400, 40, 460, 4, 0.9375)}
    assert state.budget_left("gpt") == 1.0625
    assert state.budget_left("random_bot") == state.budget_left("nobody") == inf


def test_an_agent_whose_budget_is_spent_is_not_benchmarked() -> None:
    state = opened(league(budget=2.0))
    assert resolve_agent(state, "gpt", "--agent") == "gpt"
    with pytest.raises(UsageError, match=r"--agent: the budget of 'gpt' is spent"):
        resolve_agent(apply_events(state, asked(0, 2.0)), "gpt", "--agent")


def test_what_was_spent_is_in_snapshots() -> None:
    state, ratings = apply_events(opened(league()), asked(0, 0.5)), RatingFold()
    ratings.sequence = state.sequence
    restored, _ = decode_snapshot(encode_snapshot(state, ratings))
    assert restored.spending == state.spending
    assert restored.digest() == state.digest() != opened(league()).digest()
    assert apply_events(restored, asked(0, 0.5)).remote_cost("gpt") == 0.5


@pytest.mark.parametrize("cost", [-1.0, inf, -inf, nan])
def test_a_report_that_makes_no_sense_spoils_no_sum(cost: float) -> None:
    state, ratings = apply_events(opened(league()), asked(0, 0.5)), RatingFold()
    most = (1 << 63) - 1
    apply_events(state, asked(1, cost, requests=-4, tokens=most), asked(2, 1e308, tokens=most), asked(3, 1.7e308))
    assert state.spending["gpt"].requests == 9
    assert 0.5 < state.remote_cost("gpt") < inf
    ratings.sequence = state.sequence
    assert decode_snapshot(encode_snapshot(state, ratings))[0].spending == state.spending


def test_an_agent_pauses_when_its_budget_is_spent_and_comes_back_when_it_is_raised() -> None:
    state = apply_events(opened(league(training=True)), asked(0, 1.5))
    fixed = make_sampler(Plugin(name="fixed"))
    assert budget_changes(state) == []
    assert "gpt" in fixed.distribution(state.standings(), "main")["fixed"].weights
    (paused,) = budget_changes(apply_events(state, asked(1, 0.5)))
    assert isinstance(paused, e.AgentRetired)
    assert (paused.agent, paused.reason) == ("gpt", "pauses: it has cost 2 of its budget of 2")
    assert budget_changes(apply_events(state, paused, paused)) == []
    assert "gpt" not in fixed.distribution(state.standings(), "main")["fixed"].weights
    assert budget_changes(configured(state, league(2.0, training=True))) == []
    (back,) = budget_changes(configured(state, league(2.5, training=True)))
    assert back == e.AgentActivated(agent="gpt", reason="its budget is not spent", after=paused_at(state))
    assert budget_changes(apply_events(state, back, back)) == []
    assert "gpt" in fixed.distribution(state.standings(), "main")["fixed"].weights
    (again,) = budget_changes(apply_events(state, asked(2, 0.5)))
    assert again.key != paused.key


def paused_at(state: LeagueState) -> int:
    assert not state.agents["gpt"].active
    return state.activity("gpt").sequence


def test_an_agent_of_evaluations_alone_is_never_drawn_however_its_budget_changes() -> None:
    state = apply_events(opened(league()), asked(0, 2.5))
    for config in (league(), league(None), league(1.0), league(9.0)):
        configured(state, config)
        for change in budget_changes(state):
            assert isinstance(change, e.AgentRetired)
            apply_events(state, change)
        assert budget_changes(state) == []
        assert not state.agents["gpt"].active
        assert (state.budget_left("gpt") <= 0) == state.activity("gpt").resting == (config in (league(), league(1.0)))


def test_evaluations_leave_out_who_pauses_and_its_benchmarks_wait() -> None:
    state = opened(league())
    assert [(r.agent, r.suite, r.opponents) for r in plan_evaluations(state, 7)] == [
        ("base_model", "benchmark", ["gpt"]),
        ("main@5", "gatekeepers", ["gpt", "random_bot"]),
    ]
    apply_events(state, asked(0, 2.0))
    assert [(r.suite, r.opponents) for r in plan_evaluations(state, 7)] == [("gatekeepers", ["random_bot"])]
    apply_events(state, *plan_evaluations(state, 7))
    assert plan_evaluations(state, 7) == []
    assert [(r.suite, r.opponents) for r in plan_evaluations(configured(state, league(3.0)), 7)] == [
        ("benchmark", ["gpt"])
    ]


def test_without_a_budget_nobody_pauses() -> None:
    state = apply_events(opened(league(None)), asked(0, 1e9))
    assert budget_changes(state) == []
    assert state.budget_left("gpt") > 0
