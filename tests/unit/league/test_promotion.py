"""Promotion: who is a candidate, whom it meets, what the pairs decide, and who has fallen behind."""

from collections.abc import Sequence
from math import log
from random import Random
from typing import Any

import msgspec
import pytest

from league.auth.permissions import permissions
from league.evaluation.plan import evaluation_jobs, finished_evaluations, plan_evaluations
from league.evaluation.promotion import (
    candidates,
    due_decisions,
    due_promotions,
    due_verdicts,
    incumbent,
    sequential_test,
)
from league.matchmaking.schedule import retirements
from league.state import LeagueState
from league.state.evaluation_table import share_of
from schemas import events as e
from schemas.config import CheckpointScheduleConfig, EvaluationConfig, LeagueConfig, PromotionConfig, to_builtins
from schemas.events.rating import SprtConfig
from schemas.jobs import PlayMatch
from schemas.subjects import event_subject
from tests.builders import apply_events, checkpoint_added, league_state, match_finished, policy_published
from tests.simulated_history import Simulation

EVALUATION = EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7)
CONFIG = LeagueConfig(
    seed=4, evaluation=EVALUATION, promotion=PromotionConfig(test=SprtConfig(elo1=100.0, least_pairs=4, most_pairs=12))
)
HIGH_SCORE = msgspec.structs.replace(CONFIG, promotion=PromotionConfig(rule="high_score"))


def state_with(*events: e.Event, config: LeagueConfig = CONFIG) -> LeagueState:
    return league_state(config, *events)


def played(match_id: str, agents: Sequence[str], scores: Sequence[float], **fields: Any) -> e.MatchFinished:
    return match_finished(*zip(agents, scores, strict=True), match_id=match_id, game="diplomacy", **fields)


_PLACES = iter(range(1, 1_000_000))


def evaluation(agent: str, rating: float) -> list[e.Event]:
    """A gatekeeper evaluation of one match, its rating, and its end."""
    slug = f"{agent.replace('@', '-')}-gatekeepers"
    return [
        e.EvaluationRequested(
            evaluation_id=slug, agent=agent, suite="gatekeepers", opponents=["base_model"], matches=[f"eval-{slug}-0"]
        ),
        played(f"eval-{slug}-0", [agent, "base_model"], [1.0, 1.0]),
        e.EvaluationFinished(
            evaluation_id=slug,
            agent=agent,
            suite="gatekeepers",
            opponents=["base_model"],
            games=1,
            failed=0,
            wins=0,
            mean_score=1.0,
            mean_rank=1.0,
        ),
        e.RatingUpdated(
            match_id=f"eval-{slug}-0",
            match_sequence=next(_PLACES),
            game="diplomacy",
            system="elo",
            changes=[e.RatingChange(agent, 0.0, rating)],
        ),
    ]


def rivals(config: LeagueConfig = CONFIG) -> LeagueState:
    """An elite checkpoint, and a better rated one that is not."""
    first = [
        checkpoint_added(1, "first"),
        *evaluation("main@1", 1010.0),
        e.CheckpointPromoted(agent="main@1", rating=1010.0),
    ]
    second = [checkpoint_added(10, "recent"), policy_published(10), *evaluation("main@10", 1020.0)]
    return state_with(*first, *second, config=config)


def requested(state: LeagueState) -> e.EvaluationRequested:
    (request,) = [request for request in plan_evaluations(state, 7) if request.suite == "promotion"]
    return request


def under_test(config: LeagueConfig = CONFIG) -> tuple[LeagueState, list[PlayMatch]]:
    state = rivals(config)
    request = requested(state)
    return apply_events(state, request), evaluation_jobs(apply_events(state, request), request, 7)


def result(job: PlayMatch, elo: float, luck: Random) -> e.MatchFinished:
    """A match in which main@10 is so many Elo points stronger than whoever else sits there.

    Scores are strengths with Gumbel noise, so that one beats another as Elo says.
    """
    strength = [elo * log(10) / 400 if agent == "main@10" else 0.0 for agent in job.seats]
    noise = [-log(-log(max(luck.random(), 1e-300))) for _ in job.seats]
    match = played(job.match_id, job.seats, [s + n for s, n in zip(strength, noise, strict=True)], seed=job.seed)
    return msgspec.structs.replace(match, evaluation_id=job.evaluation_id)


# Candidates and promotions.


def test_a_new_high_score_promotes_a_checkpoint_once() -> None:
    state = rivals(HIGH_SCORE)
    assert due_promotions(state) == [e.CheckpointPromoted(agent="main@10", rating=1020.0)]
    apply_events(state, *due_promotions(state))
    assert due_promotions(state) == []
    assert retirements(state, "main") == []
    assert state.elite == ["main@1", "main@10"]


@pytest.mark.parametrize("config", [CONFIG, HIGH_SCORE])
def test_who_has_nobody_to_be_tested_against_is_promoted_at_once(config: LeagueConfig) -> None:
    state = state_with(checkpoint_added(1, "first"), *evaluation("main@1", 1010.0), config=config)
    (event,) = due_decisions(state)
    assert event == e.CheckpointPromoted(agent="main@1", rating=1010.0)
    apply_events(state, checkpoint_added(10, "recent"), *evaluation("main@10", 1005.0))
    assert due_promotions(state) == [event], "also when the rater looks late"
    assert [request.suite for request in plan_evaluations(state, 7) if request.suite == "promotion"] == []


def test_a_published_version_with_a_high_score_joins_as_elite() -> None:
    history = [
        policy_published(5),
        checkpoint_added(1, "first"),
        *evaluation("main@1", 990.0),
        *evaluation("main@5", 1001.0),
    ]
    event = due_promotions(state_with(*history, config=HIGH_SCORE))[-1]
    assert isinstance(event, e.CheckpointAdded)
    assert (event.reason, event.parent, event.adapter) == ("elite", "main@1", f"{5:064d}")
    assert event_subject("nim", event) in permissions("rater", "rater-1", "nim").publish, "raters record promotions"


@pytest.mark.parametrize("config", [CONFIG, HIGH_SCORE])
def test_without_a_new_high_score_nobody_is_a_candidate(config: LeagueConfig) -> None:
    history = [checkpoint_added(1, "first"), *evaluation("main@1", 1010.0), checkpoint_added(10, "recent")]
    tied = state_with(*history, *evaluation("main@10", 1010.0), config=config)
    assert candidates(tied) == ["main@1"]
    off = msgspec.structs.replace(config, schedule=CheckpointScheduleConfig(elite=False))
    better = state_with(*history, *evaluation("main@10", 1500.0), config=off)
    assert candidates(better) == []
    assert due_decisions(better) == []
    assert [request.suite for request in plan_evaluations(better, 7)] == ["benchmark"]


def test_a_high_score_waits_for_the_last_rating_and_does_not_change_afterwards() -> None:
    request, match, done, rating = evaluation("main@10", 1020.0)
    state = state_with(checkpoint_added(10, "recent"), request, match, done)
    assert candidates(state) == []
    assert candidates(apply_events(state, rating)) == ["main@10"]
    overtaken = e.RatingUpdated(
        match_id="x-1",
        match_sequence=next(_PLACES),
        game="diplomacy",
        system="elo",
        changes=[e.RatingChange("main@10", 1020.0, 500.0)],
    )
    assert candidates(apply_events(state, overtaken)) == ["main@10"]
    assert due_promotions(state) == [e.CheckpointPromoted(agent="main@10", rating=1020.0)]


@pytest.mark.parametrize("config", [CONFIG, HIGH_SCORE])
@pytest.mark.parametrize("baseline", [900.0, 1100.0])
def test_who_meets_nobody_is_neither_elite_nor_alarming(config: LeagueConfig, baseline: float) -> None:
    base = msgspec.structs.replace(config.agents["base_model"], rating=baseline)
    config = msgspec.structs.replace(config, agents={**config.agents, "base_model": base})
    request, match, done, _ = evaluation("main@1", 1010.0)
    alone = msgspec.structs.replace(match, seats=match.seats[:1])
    state = state_with(policy_published(1), checkpoint_added(1, "first"), request, alone, done, config=config)
    assert candidates(state) == due_decisions(state) == []
    assert LeagueState.from_snapshot(state.to_snapshot()).evaluations[request.evaluation_id].verdict.rated is False


def test_an_unrated_newer_checkpoint_does_not_stand_in_the_way() -> None:
    """It stands at the evaluated version's own rating, so it would tie with it."""
    state = state_with(checkpoint_added(10, "first"), checkpoint_added(20, "recent"), *evaluation("main@10", 1020.0))
    assert due_promotions(state) == [e.CheckpointPromoted(agent="main@10", rating=1020.0)]


def test_the_incumbent_is_the_newest_elite_else_the_best_rated_other_checkpoint() -> None:
    state = state_with(checkpoint_added(1, "first"), *evaluation("main@1", 1010.0), checkpoint_added(2, "recent"))
    assert incumbent(state, "main@1") is None
    assert incumbent(state, "main@2") == "main@1"
    apply_events(state, *evaluation("main@2", 1005.0), checkpoint_added(3, "recent"))
    assert incumbent(state, "main@3") == "main@1"
    apply_events(
        state, e.CheckpointPromoted(agent="main@2", rating=1005.0), e.CheckpointPromoted(agent="main@1", rating=1.0)
    )
    assert (incumbent(state, "main@3"), incumbent(state, "main@1")) == ("main@1", "main@2")


# Tests.


def test_a_candidate_is_not_promoted_before_its_test() -> None:
    state = rivals()
    assert [event.agent for event in due_promotions(state)] == []
    request = requested(state)
    assert (request.agent, request.opponents, len(request.matches)) == ("main@10", ["main@1"], 24)
    apply_events(state, request)
    assert (due_decisions(state), [r.suite for r in plan_evaluations(state, 7) if r.suite == "promotion"]) == ([], [])


@pytest.mark.parametrize("seats", [2, 3, 4, 7])
def test_the_matches_of_a_pair_share_a_seed_and_exchange_the_seats(seats: int) -> None:
    state = rivals()
    request = requested(state)
    matches = evaluation_jobs(apply_events(state, request), request, seats)
    pairs = list(zip(matches[::2], matches[1::2], strict=True))
    assert len({first.seed for first, _ in pairs}) == len(pairs)
    for number, (first, second) in enumerate(pairs):
        own = {seat for seat, agent in enumerate(first.seats) if agent == "main@10"}
        assert own == {(number + 2 * step) % seats for step in range((seats + 1) // 2)}
        assert first.seed == second.seed
        assert [{"main@10": "main@1", "main@1": "main@10"}[agent] for agent in first.seats] == second.seats
    taken = [sum(first.seats[seat] == "main@10" for first, _ in pairs[:seats]) for seat in range(seats)]
    assert len(set(taken)) == 1 or seats % 2 == 0


def test_a_test_promotes_the_stronger_and_keeps_the_equal_one_at_the_stated_rates() -> None:
    """Pair by pair through the state, as the rater asks; 7 seats, 200 Elo points or none."""
    outcomes: dict[float, list[str]] = {0.0: [], 200.0: []}
    state, matches = under_test()
    saved = msgspec.msgpack.encode(state.to_snapshot())
    kind = type(state.to_snapshot())
    for elo, found in outcomes.items():
        for seed in range(200):
            luck = Random(f"{elo} {seed}")
            fresh = LeagueState.from_snapshot(msgspec.msgpack.decode(saved, type=kind))
            for first, second in zip(matches[::2], matches[1::2], strict=True):
                apply_events(fresh, result(first, elo, luck), result(second, elo, luck))
                if decisions := due_verdicts(fresh):
                    break
            found.append(decisions[0].verdict)
    # 0.05 each, and twice the standard error of 200 tests.
    most = 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5
    assert outcomes[0.0].count("promote") / 200 <= most
    assert outcomes[200.0].count("keep") / 200 <= most


@pytest.mark.parametrize("seed", range(5))
def test_the_verdict_does_not_depend_on_who_plays_faster(seed: int) -> None:
    luck = Random(seed)
    state, matches = under_test()
    results = [result(job, 120.0, luck) for job in matches]
    in_order = next(decision for event in results for decision in due_verdicts(apply_events(state, event)))
    other, _ = under_test()
    luck.shuffle(results)
    shuffled: list[e.PromotionDecided] = []
    for event in results:
        shuffled += due_verdicts(apply_events(other, event))
    assert {msgspec.json.encode(decision) for decision in shuffled} == {msgspec.json.encode(in_order)}
    assert sequential_test(in_order.test, in_order.scores).llr == in_order.llr


def test_a_pair_waits_for_those_before_it() -> None:
    state, matches = under_test()
    for job in matches[2:]:
        apply_events(state, result(job, 300.0, Random(job.match_id)))
    assert due_verdicts(state) == []
    apply_events(state, result(matches[1], 300.0, Random(1)), result(matches[0], 300.0, Random(0)))
    assert [decision.verdict for decision in due_verdicts(state)] == ["promote"]


def test_a_pair_of_which_a_match_failed_was_voided_or_has_no_score_is_passed_over() -> None:
    state, matches = under_test()
    good = [result(job, 0.0, Random(job.match_id)) for job in matches]
    failed = e.MatchFailed(match_id=matches[0].match_id, purpose="evaluation", worker="w", error="x")
    voided = e.MatchVoided(match=good[3], match_sequence=1, reason="x")
    nan = played(matches[4].match_id, matches[4].seats, [float("nan")] * 7)
    apply_events(state, failed, *good[1:4], voided, nan, *good[5:])
    (verdict,) = due_verdicts(state)
    assert verdict.pairs[0] == [matches[6].match_id, matches[7].match_id]
    shares = [share_of(match, "main@10", ["main@1"]) for match in good[6:8]]
    assert verdict.scores[0] == (shares[0] + shares[1]) / 2


def test_without_a_verdict_after_all_matches_the_incumbent_stays() -> None:
    state, matches = under_test()
    for job in matches:
        apply_events(state, e.MatchFailed(match_id=job.match_id, purpose="evaluation", worker="w", error="x"))
    (decision,) = due_verdicts(state)
    assert (decision.verdict, decision.scores, decision.llr) == ("keep", [], 0.0)


def decided(elo: float) -> tuple[LeagueState, list[PlayMatch], e.PromotionDecided]:
    state, matches = under_test()
    for job in matches:
        apply_events(state, result(job, elo, Random(job.match_id)))
        if decisions := due_verdicts(state):
            return state, matches, decisions[0]
    raise AssertionError


def test_a_won_test_promotes_and_ends_the_evaluation_early() -> None:
    state, matches, decision = decided(400.0)
    assert (decision.verdict, decision.candidate, decision.incumbent) == ("promote", "main@10", "main@1")
    assert finished_evaluations(state) == [], "the verdict comes first"
    assert due_promotions(state) == []
    apply_events(state, decision)
    (test,) = state.evaluation_table.tests.values()
    assert not test.waiting
    assert evaluation_jobs(state, test.requested, 7) == []
    (end,) = finished_evaluations(state)
    assert end.decided == f"promote after {len(decision.scores)} pairs"
    assert end.games == 2 * len(decision.scores) < len(matches)
    assert due_decisions(state) == [e.CheckpointPromoted(agent="main@10", rating=1020.0)]
    apply_events(state, end, *due_decisions(state))
    assert (due_decisions(state), finished_evaluations(state), state.elite) == ([], [], ["main@1", "main@10"])
    late = apply_events(state, result(matches[-1], -400.0, Random(0)))
    assert (finished_evaluations(late), due_decisions(late), test.games) == ([], [], end.games)


def test_a_lost_test_keeps_the_incumbent_for_good() -> None:
    state, _, decision = decided(-400.0)
    apply_events(state, decision)
    apply_events(state, *finished_evaluations(state))
    assert decision.verdict == "keep"
    assert (due_decisions(state), candidates(state)) == ([], [])
    assert [request.suite for request in plan_evaluations(state, 7)] == ["benchmark"]


def test_asked_again_or_recorded_twice_nothing_changes() -> None:
    state, _, decision = decided(400.0)
    assert due_verdicts(state) == [decision]
    opposite = msgspec.structs.replace(decision, verdict="keep")
    apply_events(state, decision, *due_promotions(apply_events(state, decision)))
    before = msgspec.json.encode(msgspec.structs.replace(state.to_snapshot(), sequence=0))
    apply_events(state, decision, opposite, e.CheckpointPromoted(agent="main@10", rating=1020.0))
    assert msgspec.json.encode(msgspec.structs.replace(state.to_snapshot(), sequence=0)) == before
    assert due_decisions(state) == []


def test_a_void_after_the_verdict_leaves_it_standing() -> None:
    state, matches, decision = decided(400.0)
    apply_events(state, decision)
    voided = result(matches[0], 400.0, Random(matches[0].match_id))
    apply_events(state, e.MatchVoided(match=voided, match_sequence=1, reason="x"))
    (test,) = state.evaluation_table.tests.values()
    assert test.decision == decision
    assert [event.key for event in due_promotions(state)] == ["promoted:main@10"]


def test_terms_that_change_meanwhile_do_not_touch_a_test_under_way() -> None:
    state, matches = under_test()
    other = msgspec.structs.replace(CONFIG, promotion=PromotionConfig(test=SprtConfig(elo1=5.0, most_pairs=400)))
    apply_events(state, e.LeagueConfigured(config=to_builtins(other), config_digest="x", after=1))
    for job in matches:
        apply_events(state, result(job, 400.0, Random(job.match_id)))
    assert due_verdicts(state)[0].test == CONFIG.promotion.test


def test_tests_follow_each_other_and_the_next_candidate_meets_the_promoted_one() -> None:
    state, _, decision = decided(400.0)
    apply_events(state, checkpoint_added(20, "recent"), policy_published(20), *evaluation("main@20", 1030.0))
    assert [request.suite for request in plan_evaluations(state, 7) if request.suite == "promotion"] == []
    apply_events(state, decision)
    # Not before main@10 is elite.
    assert [request.suite for request in plan_evaluations(state, 7) if request.suite == "promotion"] == []
    apply_events(state, *due_promotions(state))
    request = requested(state)
    assert (request.agent, request.opponents) == ("main@20", ["main@10"])


def test_a_state_saved_in_the_middle_of_a_test_goes_on_like_the_other() -> None:
    state, matches = under_test()
    for job in matches[:5]:
        apply_events(state, result(job, 200.0, Random(job.match_id)))
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=type(state.to_snapshot()))
    other = LeagueState.from_snapshot(saved)
    for job in matches[5:]:
        event = result(job, 200.0, Random(job.match_id))
        apply_events(state, event), apply_events(other, event)
    assert due_verdicts(state) == due_verdicts(other) != []
    apply_events(state, *due_decisions(state)), apply_events(other, *due_decisions(other))
    assert state.digest() == other.digest()


def test_a_long_simulated_league_promotes_by_tests_only() -> None:
    simulation = Simulation(CONFIG, skill=lambda agent: 0.02 * float(agent.partition("@")[2] or 0))
    events = [recorded.event for recorded in simulation.run(60, 1)]
    decisions = [event for event in events if isinstance(event, e.PromotionDecided)]
    won = [event.candidate for event in decisions if event.verdict == "promote"]
    assert won
    assert simulation.state.elite == ["main@1", *won]
    ends = [event for event in events if isinstance(event, e.EvaluationFinished) and event.suite == "promotion"]
    assert len(ends) == len(decisions)
    assert any(end.decided for end in ends)
