"""Evaluations: what is asked for and when, who sits where, what is reported, when training may stop."""

from collections import Counter
from itertools import groupby

import msgspec
import pytest

from league.evaluation.plan import evaluation_jobs, finished_evaluations, plan_evaluations
from league.matchmaking.schedule import met_stop_criterion
from league.state import LeagueState
from schemas import events as e
from schemas.codec import decode_event, encode_event
from schemas.config import EvaluationConfig, LeagueConfig, StopConfig, StopCriterion, convert, to_builtins
from schemas.errors import ConfigError
from schemas.ids import derive_seed
from schemas.jobs import EnvironmentSeats, PlayMatch, SeatCounts
from tests.builders import apply_events, checkpoint_added, league_state, policy_published
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=14, benchmark_games=21))


def state_with(*events: e.Event, config: LeagueConfig = CONFIG) -> LeagueState:
    return league_state(config, *events)


def rated(agent: str, rating: float, sequence: int) -> e.RatingUpdated:
    changes = [e.RatingChange(agent, 0.0, rating)]
    return e.RatingUpdated(
        match_id=f"x-{sequence}", match_sequence=sequence, game="diplomacy", system="elo", changes=changes
    )


def planned(state: LeagueState) -> list[tuple[str, str, list[str]]]:
    return [(request.agent, request.suite, request.opponents) for request in plan_evaluations(state, 7)]


def test_a_league_begins_with_the_base_models_benchmark() -> None:
    state = state_with()
    assert planned(LeagueState()) == []
    assert planned(state) == [("base_model", "benchmark", ["random_bot"])]
    assert planned(apply_events(state, *plan_evaluations(state, 7))) == []


def test_versions_on_the_cadence_and_all_checkpoints_are_evaluated_once() -> None:
    history = [policy_published(v) for v in range(8)] + [checkpoint_added(1, "first"), checkpoint_added(7)]
    state = state_with(*history)
    assert [agent for agent, suite, _ in planned(state) if suite == "gatekeepers"] == ["main@1", "main@5", "main@7"]
    apply_events(state, *plan_evaluations(state, 7))
    assert planned(state) == []
    assert [agent for agent, _, _ in planned(apply_events(state, policy_published(10)))] == ["main@10"]


def test_gatekeepers_are_resolved_to_names_from_the_state() -> None:
    state = state_with(policy_published(5))
    assert ("main@5", "gatekeepers", ["random_bot"]) in planned(state)
    apply_events(
        state, checkpoint_added(1, "first"), checkpoint_added(2), checkpoint_added(3), rated("main@2", 1300.0, 4)
    )
    assert ("main@5", "gatekeepers", ["random_bot", "main@2", "main@3"]) in planned(state)
    apply_events(state, e.AgentRetired(agent="main@2", reason="old"), e.AgentRetired(agent="main@3", reason="old"))
    assert ("main@5", "gatekeepers", ["random_bot", "main@1", "main@1"]) in planned(state)


def test_unknown_gatekeepers_are_left_out_and_without_any_there_is_no_evaluation() -> None:
    def config(*gatekeepers: str) -> LeagueConfig:
        return LeagueConfig(evaluation=EvaluationConfig(every=5, gatekeepers=gatekeepers))

    some = state_with(policy_published(5), config=config("nobody", "chaos_bot", "main@5", "recent"))
    none = state_with(policy_published(5), config=config("nobody", "previous_best"))
    assert ("main@5", "gatekeepers", ["chaos_bot"]) in planned(some)
    assert [suite for _, suite, _ in planned(none)] == ["benchmark"]


def test_a_remote_agent_is_a_gatekeeper_by_its_name() -> None:
    config = LeagueConfig(evaluation=EvaluationConfig(every=5, gatekeepers=("hosted", "recent")))
    hosted = e.AgentRegistered(agent="hosted", kind="remote", baseline=False, rating=1200.0)
    state = state_with(hosted, policy_published(5), checkpoint_added(1, "first"), config=config)
    assert ("main@5", "gatekeepers", ["hosted", "main@1"]) in planned(state)
    request = next(request for request in plan_evaluations(state, 7) if request.agent == "main@5")
    assert all("hosted" in job.seats for job in evaluation_jobs(state, request, 7))


def test_after_training_the_last_version_is_measured_like_the_base_model() -> None:
    state = state_with(
        policy_published(1), policy_published(3), e.TrainingFinished(policy="main", version=3, reason="steps")
    )
    assert planned(state)[1:] == [("main@3", "gatekeepers", ["random_bot"]), ("main@3", "benchmark", ["random_bot"])]
    assert planned(apply_events(state, *plan_evaluations(state, 7))) == []


def test_a_criterion_is_measured_on_the_cadence_too() -> None:
    stop = StopConfig(criterion=StopCriterion(opponent="chaos_bot", win_rate=0.8))
    state = state_with(policy_published(4), policy_published(5), config=msgspec.structs.replace(CONFIG, stop=stop))
    assert ("main@5", "benchmark", ["chaos_bot"]) in planned(state)
    assert ("main@4", "benchmark", ["chaos_bot"]) not in planned(state)


@pytest.mark.parametrize(("seats", "rounds"), [(7, 2), (2, 7)])
def test_every_seat_and_every_opponent_come_up_equally_often(seats: int, rounds: int) -> None:
    request = e.EvaluationRequested(
        evaluation_id="x",
        agent="main@5",
        suite="gatekeepers",
        opponents=["a", "b", "c"],
        matches=[f"eval-x-{i}" for i in range(seats * 3)],
    )
    matches = evaluation_jobs(state_with(), request, seats)
    own = Counter(job.seats.index("main@5") for job in matches)
    others = Counter(agent for job in matches for agent in job.seats if agent != "main@5")
    assert set(own.values()) == {3}
    assert len(set(others.values())) == 1
    assert all(len(job.seats) == seats and job.seats.count("main@5") == 1 for job in matches)


def test_a_benchmark_puts_one_opponent_in_all_other_seats() -> None:
    state = state_with()
    request = plan_evaluations(state, 7)[0]
    matches = evaluation_jobs(state, request, 7)
    assert [job.match_id for job in matches[:2]] == [
        "eval-base_model-benchmark-random_bot-0",
        "eval-base_model-benchmark-random_bot-1",
    ]
    assert matches[1].seats == ["random_bot", "base_model", *["random_bot"] * 5]
    assert matches[1].seed == derive_seed(4, "round", "benchmark", 0)
    assert {job.evaluation_id for job in matches} == {request.evaluation_id}
    assert len(matches) == 21


def request_of(agent: str, suite: str, opponents: list[str], games: int) -> e.EvaluationRequested:
    slug = f"{agent}-{suite}".replace("@", "-")
    return e.EvaluationRequested(
        evaluation_id=slug,
        agent=agent,
        suite=suite,
        opponents=opponents,
        matches=[f"eval-{slug}-{i}" for i in range(games)],
    )


@pytest.mark.parametrize("seats", [2, 3, 7])
def test_the_games_of_a_round_share_a_seed_while_the_agent_goes_through_all_seats(seats: int) -> None:
    matches = evaluation_jobs(state_with(), request_of("main@5", "gatekeepers", ["a", "b"], 3 * seats), seats)
    rounds = [matches[first : first + seats] for first in range(0, 3 * seats, seats)]
    assert [len({job.seed for job in each}) for each in rounds] == [1, 1, 1]
    assert len({job.seed for job in matches}) == 3
    assert [[job.seats.index("main@5") for job in each] for each in rounds] == [list(range(seats))] * 3


def test_two_agents_meet_the_same_luck_and_two_suites_do_not() -> None:
    def seeds(agent: str, suite: str) -> list[int]:
        return [job.seed for job in evaluation_jobs(state_with(), request_of(agent, suite, ["random_bot"], 14), 7)]

    assert seeds("main@5", "gatekeepers") == seeds("main@50", "gatekeepers")
    assert set(seeds("main@5", "gatekeepers")).isdisjoint(seeds("main@5", "benchmark"))


def capped(most: int, **settings: int) -> LeagueConfig:
    settings = {"gatekeeper_games": 10, "benchmark_games": 21} | settings
    return LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, max_games=most, **settings))


@pytest.mark.parametrize(
    ("most", "gatekeepers", "benchmark"), [(31, 10, 21), (30, 10, 14), (17, 10, 7), (16, 10, 0), (9, 7, 0), (6, 0, 0)]
)
def test_a_cap_cuts_an_agents_suites_to_whole_rounds(most: int, gatekeepers: int, benchmark: int) -> None:
    end = e.TrainingFinished(policy="main", version=5, reason="steps")
    state = state_with(policy_published(5), end, config=capped(most))
    found = {(r.agent, r.suite): len(r.matches) for r in plan_evaluations(state, 7)}
    assert found.get(("main@5", "gatekeepers"), 0) == gatekeepers
    assert found.get(("main@5", "benchmark"), 0) == benchmark


def test_what_was_played_counts_towards_the_cap_and_asking_again_gives_nothing_more() -> None:
    state = state_with(policy_published(5), config=capped(17))
    apply_events(state, *plan_evaluations(state, 7))
    apply_events(state, e.TrainingFinished(policy="main", version=5, reason="steps"))
    assert [(r.suite, len(r.matches)) for r in plan_evaluations(state, 7)] == [("benchmark", 7)]
    apply_events(state, *plan_evaluations(state, 7))
    assert plan_evaluations(state, 7) == []


@pytest.mark.parametrize(("most", "games"), [(200, 80), (49, 38), (27, 16), (26, 0), (10, 0)])
def test_a_cap_leaves_whole_pairs_and_enough_of_them_or_no_promotion_test(most: int, games: int) -> None:
    state = state_with(
        policy_published(5),
        checkpoint_added(1, "first"),
        rated("main@1", 1000.0, 900),
        e.CheckpointPromoted(agent="main@1", rating=1000.0),
        request_of("main@5", "gatekeepers", ["main@1"], 11),
        *[
            e.MatchFailed(match_id=f"eval-main-5-gatekeepers-{i}", purpose="evaluation", worker="w", error="")
            for i in range(11)
        ],
        rated("main@5", 1100.0, 901),
        config=capped(most),
    )
    apply_events(state, *finished_evaluations(state))
    assert [len(r.matches) for r in plan_evaluations(state, 7) if r.suite == "promotion"] == ([games] if games else [])


SEVERAL = SeatCounts((EnvironmentSeats("two", 2), EnvironmentSeats("three", 3)))


def test_rounds_of_several_environments_have_the_seats_of_the_one_that_their_seed_chooses() -> None:
    jobs = evaluation_jobs(state_with(), request_of("main@5", "gatekeepers", ["a", "b"], 40), SEVERAL)
    assert {len(job.seats) for job in jobs} == {2, 3}
    rounds = [list(group) for _, group in groupby(jobs, key=lambda job: job.seed)][:-1]
    for played in rounds:
        assert {len(job.seats) for job in played} == {len(played)} == {SEVERAL.choose(played[0].seed).seats}
        assert [job.seats.index("main@5") for job in played] == list(range(len(played)))
    pairs = evaluation_jobs(state_with(), request_of("main@5", "promotion", ["main@1"], 40), SEVERAL)
    for first, second in zip(pairs[::2], pairs[1::2], strict=True):
        assert first.seed == second.seed
        exchanged = {"main@5": "main@1", "main@1": "main@5"}
        assert [exchanged[agent] for agent in first.seats] == second.seats


def test_a_cap_of_each_environment_leaves_out_its_further_rounds() -> None:
    config = LeagueConfig(
        seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=60, max_games_per_environment=9)
    )
    state = state_with(policy_published(5), config=config)
    (request,) = [each for each in plan_evaluations(state, SEVERAL) if each.agent == "main@5"]
    jobs = evaluation_jobs(state, request, SEVERAL)
    assert Counter(SEVERAL.choose(job.seed).name for job in jobs) == {"two": 8, "three": 9}
    all_jobs = {
        job.match_id: job
        for job in evaluation_jobs(state, request_of("main@5", "gatekeepers", ["random_bot"], 60), SEVERAL)
    }
    assert all(
        all_jobs[job.match_id] == msgspec.structs.replace(job, evaluation_id="main-5-gatekeepers") for job in jobs
    )
    apply_events(state, decode_event(encode_event(request)))
    assert evaluation_jobs(state, request, SEVERAL) == jobs
    apply_events(state, e.TrainingFinished(policy="main", version=5, reason="steps"))
    assert [each.agent for each in plan_evaluations(state, SEVERAL)] == ["base_model"], "nothing is left of main@5"


def test_matches_of_the_newest_version_are_kept_in_play_up_to_its_cap_until_training_ends() -> None:
    config = LeagueConfig(
        seed=4,
        evaluation=EvaluationConfig(newest_games=8, max_games=20, gatekeepers=(), benchmark_opponents=("random_bot",)),
    )
    state, seen = state_with(policy_published(0), policy_published(3), config=config), list[PlayMatch]()

    def ask() -> list[PlayMatch]:
        requests = [each for each in plan_evaluations(state, 2) if each.suite == "newest"]
        apply_events(state, *requests)
        return [job for request in requests for job in evaluation_jobs(state, request, 2)]

    def fail(*jobs: PlayMatch) -> None:
        apply_events(
            state, *(e.MatchFailed(match_id=j.match_id, purpose="evaluation", worker="w", error="") for j in jobs)
        )

    seen += ask()
    assert (len(seen), ask()) == (8, [])
    assert {frozenset(job.seats) for job in seen} == {frozenset(("main@3", "random_bot"))}
    fail(seen[0])
    more = ask()
    assert len(more) == 2, "whole rounds"
    assert {job.seed for job in more}.isdisjoint(job.seed for job in seen)
    fail(*seen[1:], *more)
    assert [len(ask()) for _ in range(2)] == [8, 0]
    fail(*(job for one in state.evaluations.values() for job in evaluation_jobs(state, one.requested, 2)))
    assert [len(ask()) for _ in range(2)] == [2, 0], "18 of the 20 were asked for before"
    apply_events(state, policy_published(4))
    assert len(ask()) == 6, "two of the version before still wait"
    fail(*(job for one in state.evaluations.values() for job in evaluation_jobs(state, one.requested, 2)))
    apply_events(state, e.TrainingFinished(policy="main", version=4, reason="steps"))
    assert ask() == []


def test_matches_of_the_newest_version_need_a_cap() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.newest_games: 8 without a cap; expected max_games or"):
        EvaluationConfig(newest_games=8)


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.max_games: -1; expected 0 or more"):
        convert({"max_games": -1}, EvaluationConfig, "evaluation")


def test_only_matches_that_have_not_ended_are_jobs_and_the_result_comes_when_none_is_left() -> None:
    simulation = Simulation(CONFIG)
    state = simulation.state
    for event in [e.LeagueOpened(league="league", config=to_builtins(CONFIG), model="m")]:
        simulation.append(event)
    for name, agent in CONFIG.agents.items():
        simulation.append(e.AgentRegistered(agent=name, kind=agent.kind, baseline=agent.baseline, rating=agent.rating))
    request = plan_evaluations(state, 7)[0]
    assert len(evaluation_jobs(state, request, 7)) == 21
    simulation.append(request)
    first, second, *rest = evaluation_jobs(state, request, 7)
    simulation.append(simulation.simulate_match(first, "w"))
    simulation.append(e.MatchFailed(match_id=second.match_id, purpose="evaluation", worker="w", error="x"))
    assert evaluation_jobs(state, request, 7) == rest
    assert finished_evaluations(state) == []
    results = [simulation.simulate_match(job, "w") for job in rest]
    for result in results:
        simulation.append(result)
    (end,) = finished_evaluations(state)
    played = [simulation.simulate_match(first, "w"), *results]
    own = [next(seat for seat in m.seats if seat.agent == "base_model") for m in played]
    assert (end.games, end.failed) == (20, 1)
    assert end.wins == sum(seat.rank == 1 for seat in own)
    assert end.mean_rank == pytest.approx(sum(seat.rank for seat in own) / 20)
    assert end.mean_score == pytest.approx(sum(seat.score for seat in own) / 20)
    simulation.append(end)
    assert finished_evaluations(state) == []


def test_an_evaluation_that_only_failed_has_no_games() -> None:
    state = state_with()
    request = plan_evaluations(state, 7)[0]
    apply_events(state, request)
    for match_id in request.matches:
        apply_events(state, e.MatchFailed(match_id=match_id, purpose="evaluation", worker="w", error="x"))
    (end,) = finished_evaluations(state)
    assert (end.games, end.failed, end.mean_score, end.mean_rank) == (0, 21, 0.0, 0.0)


@pytest.mark.parametrize(
    ("agent", "opponent", "wins", "met"),
    [
        ("main@5", "random_bot", 190, True),
        ("main@5", "random_bot", 178, False),
        ("main@5", "chaos_bot", 210, False),
        ("base_model", "random_bot", 210, False),
        ("other@5", "random_bot", 210, False),
    ],
)
def test_the_criterion_needs_the_lower_end_of_the_interval(agent: str, opponent: str, wins: int, met: bool) -> None:
    stop = StopConfig(criterion=StopCriterion(opponent="random_bot", win_rate=0.8))
    request = e.EvaluationRequested(
        evaluation_id="x", agent=agent, suite="benchmark", opponents=[opponent], matches=["eval-x-0"]
    )
    end = e.EvaluationFinished(
        evaluation_id="x",
        agent=agent,
        suite="benchmark",
        opponents=[opponent],
        games=210,
        failed=0,
        wins=wins,
        mean_score=0.0,
        mean_rank=1.0,
    )
    state = state_with(request, end, config=msgspec.structs.replace(CONFIG, stop=stop))
    assert (met_stop_criterion(state) is not None) == met
    assert met_stop_criterion(state_with(request, end)) is None
