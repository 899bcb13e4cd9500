"""The fold that workers decide from: total, idempotent, the same bit for bit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.fold_primitives import SeenIds
from league.state import LeagueState, LeagueStateSnapshot
from schemas import events as e
from schemas.config import EvaluationConfig, LeagueConfig, to_builtins
from schemas.standings import WinLoss
from tests.builders import (
    checkpoint_added,
    fold_events,
    gradient_step,
    match_finished,
    opening_events,
    opponents_sampled,
    policy_published,
)
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(SMALL).run(25, 2)


def opened(config: LeagueConfig = SMALL) -> list[e.Event]:
    return opening_events(config)


def match(match_id: str, *seats: tuple[str, float], purpose: str = "training") -> e.MatchFinished:
    return match_finished(*seats, match_id=match_id, game="diplomacy", purpose=purpose)


def step(number: int, seconds: float = 1.0) -> e.GradientStepTaken:
    return gradient_step(number, metrics={"wall_s": seconds})


def test_the_same_history_gives_the_same_state_bit_for_bit() -> None:
    first, second = LeagueState(), LeagueState()
    for recorded in HISTORY:
        first.apply(recorded.sequence, recorded.event)
        second.apply(recorded.sequence, recorded.event)
        second.standings()
    assert first.digest() == second.digest()
    assert first.standings() == second.standings()


@given(st.lists(st.tuples(st.integers(0, len(HISTORY)), st.integers(0, 50)), max_size=5))
def test_redelivery_changes_nothing(again: list[tuple[int, int]]) -> None:
    once, twice = LeagueState(), LeagueState()
    for recorded in HISTORY:
        once.apply(recorded.sequence, recorded.event)
    place = 0
    for until, back in [*sorted(again), (len(HISTORY), 0)]:
        for recorded in HISTORY[place:until]:
            twice.apply(recorded.sequence, recorded.event)
        place = max(0, until - back)
    assert once.digest() == twice.digest()


@given(st.sets(st.integers(0, len(HISTORY) - 1), max_size=30))
def test_copies_at_later_sequences_change_nothing_but_the_sequence(copied: set[int]) -> None:
    state, plain_state, sequence = LeagueState(), LeagueState(), 0
    for place, recorded in enumerate(HISTORY):
        plain_state.apply(recorded.sequence, recorded.event)
        for _ in range(2 if place in copied else 1):
            sequence += 1
            state.apply(sequence, recorded.event)
    assert state.standings().agents == plain_state.standings().agents
    assert state.standings().records == plain_state.standings().records
    assert state.finished_matches() == plain_state.finished_matches()
    assert list(state.evaluations.values()) == list(plain_state.evaluations.values())
    assert state.training_seconds("main") == plain_state.training_seconds("main")


def test_unknown_events_advance_the_sequence_only() -> None:
    state = fold_events(*opened())
    before = state.standings()
    state.apply(90, None)
    assert state.sequence == 90
    assert state.standings() is before


def test_a_configuration_that_cannot_be_read_leaves_the_last_one_in_force() -> None:
    newer = e.LeagueConfigured(config={**to_builtins(SMALL), "from_the_future": 1}, config_digest="", after=1)
    state = fold_events(*opened(), newer)
    assert state.config == SMALL
    assert state.config_sequence == 1


def test_changed_configuration_holds_from_its_event_on() -> None:
    changed = msgspec.structs.replace(SMALL, seed=99)
    state = fold_events(*opened(), e.LeagueConfigured(config=to_builtins(changed), config_digest="", after=1))
    assert state.config == changed
    assert state.config_sequence == 5


def test_the_live_version_is_the_newest_and_rated_as_the_last_evaluated() -> None:
    update = e.RatingUpdated(
        match_id="x-0",
        match_sequence=1,
        game="diplomacy",
        system="elo",
        changes=[e.RatingChange("main@2", 1000.0, 1100.0)],
    )
    state = fold_events(*opened(), policy_published(0), policy_published(3), policy_published(2), update)
    live = state.live_version("main")
    assert live is not None
    assert (live.version, live.rating, live.adapter) == (3, 1100.0, f"{3:064d}")
    assert state.live_version("second") is None
    assert state.policies == ["main"]


def test_head_to_head_pools_versions_on_their_own_side_only() -> None:
    state = fold_events(
        *opened(),
        match("w-0", ("main@9", 3.0), ("main@9", 1.0), ("main@5", 2.0), ("random_bot", 1.0)),
        match("w-1", ("main@8", 1.0), ("main@5", 2.0)),
        match("w-2", ("main@8", float("nan")), ("main@5", 2.0)),
    )
    records = state.standings().records
    assert set(records) == {"main"}
    assert records["main"]["main@5"] == WinLoss(wins=1, losses=2)
    assert records["main"]["random_bot"] == WinLoss(wins=2, draws=1)
    assert records["main"]["main@9"] == WinLoss(wins=1, losses=1)
    assert records["main"]["main@8"] == WinLoss(wins=1)


def test_games_and_failures_are_counted_once_per_match() -> None:
    failed = e.MatchFailed(match_id="w-1", purpose="training", worker="w", error="x")
    late = match("w-1", ("a", 1.0), ("b", 2.0))
    state = fold_events(match("w-0", ("a", 1.0)), match("w-0", ("a", 1.0)), failed, failed, late)
    assert (
        state.finished_matches("training"),
        state.finished_matches("evaluation"),
        state.finished_matches(),
        state.failed,
    ) == (1, 0, 1, 1)


def drawn(match_id: str) -> e.OpponentsSampled:
    return opponents_sampled(match_id, hero="main@1", standings_sequence=1)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], 0), (["w-0"], 1), (["w-0", "w-7", "w-3"], 8), (["v-5", "w-x", "w-²", "w"], 0), (["w-1-4"], 0)],
)
def test_the_next_match_index_follows_the_highest_drawn(ids: list[str], expected: int) -> None:
    assert fold_events(*map(drawn, ids)).next_match_index("w") == expected


def test_draws_that_are_recorded_in_another_order_are_in_play_and_unfinished_once() -> None:
    left = e.WorkerLeft(worker="w", incarnation="i", reason="ended")
    joined = e.WorkerJoined("w", "rollout", "i", "host", 1, "0", 1)
    state = fold_events(joined, *map(drawn, ["w-2", "w-0", "w-1"]), match("w-0", ("a", 1.0)), drawn("w-0"))
    assert state.in_play.matches_ahead("main") == 2
    state.apply(50, left)
    state.apply(51, drawn("w-1"))
    assert (state.in_play.matches_ahead("main"), set(state.in_play.unfinished)) == (0, {"w-1", "w-2"})
    # Under way when its worker left.
    state.apply(52, drawn("w-3"))
    assert (state.in_play.matches_ahead("main"), set(state.in_play.unfinished)) == (0, {"w-1", "w-2", "w-3"})


def test_steps_are_summed_once_over_restarts() -> None:
    state = fold_events(step(1), step(2), step(2, 50.0), step(1, 50.0), step(3, float("nan")))
    last = state.last_step("main")
    assert last is not None
    assert last.step == 3
    assert state.training_seconds("main") == 2.0


def test_training_goes_on_when_a_newer_version_is_published() -> None:
    end = e.TrainingFinished(policy="main", version=5, reason="steps")
    state = fold_events(policy_published(5), end)
    assert state.training_finished("main") == end
    state.apply(9, policy_published(6))
    assert state.training_finished("main") is None


def test_promotion_keeps_a_checkpoint_for_ever() -> None:
    retired = e.AgentRetired(agent="main@10", reason="old")
    promoted = e.CheckpointPromoted(agent="main@10", rating=1.0)
    state = fold_events(checkpoint_added(10), retired, promoted, retired)
    assert state.agents["main@10"].active
    assert state.agents["main@10"].reason == "elite"
    assert fold_events(checkpoint_added(10), retired).agents["main@10"].active is False
    assert fold_events(retired, promoted).agents == {}


def test_an_agents_second_registration_or_joining_is_ignored() -> None:
    bot = e.AgentRegistered(agent="x", kind="bot", baseline=False, rating=900.0)
    state = fold_events(
        bot, msgspec.structs.replace(bot, rating=1.0), checkpoint_added(10), checkpoint_added(10, "elite")
    )
    assert state.standings().agents["x"].rating == 900.0
    assert state.agents["main@10"].reason == "recent"


def test_workers_are_known_by_their_newest_process() -> None:
    def joined(incarnation: str) -> e.WorkerJoined:
        return e.WorkerJoined(worker="w", role="rollout", incarnation=incarnation, host="h", pid=1, version="0")

    state = fold_events(joined("a"), joined("b"), e.WorkerLeft(worker="w", incarnation="a", reason="killed"))
    assert state.workers["w"].left is None
    state.apply(9, e.WorkerLeft(worker="w", incarnation="b", reason="drained"))
    assert state.workers["w"].left == "drained"


@given(st.lists(st.sampled_from(["w-0", "w-1", "w-01", "w-9", "v-1", "-1", "1", "w-²", "w-99999999", "", "é-3"])))
def test_seen_is_a_set(ids: list[str]) -> None:
    seen, known = SeenIds(), set[str]()
    for name in ids:
        assert seen.add(name) == (name not in known)
        known.add(name)


def test_a_voided_match_counts_for_nothing_any_more() -> None:
    def finished(number: int) -> e.MatchFinished:
        return e.MatchFinished(
            match_id=f"w-{number}",
            game="nim",
            purpose="training",
            worker="w",
            seed=0,
            seats=[e.SeatResult(0, "a", "main@1", 1.0, 1), e.SeatResult(1, "b", "random_bot", 0.0, 2)],
            winner=0,
            reason="",
            length=1,
            seconds=0.0,
        )

    void = e.MatchVoided(match=finished(1), match_sequence=2, reason="old engine")
    state = fold_events(finished(0), finished(1), void, void)
    assert state.finished_matches("training") == 1
    assert state.standings().records["main"]["random_bot"].wins == 1
    assert state.standings().sequence == 3
    assert "w-1" in state.voided
    assert "w-0" not in state.voided
    assert fold_events(void).finished_matches() == 0, "a match that was never recorded cannot be voided"


def test_a_result_after_the_decision_of_its_test_waits_for_its_ratings() -> None:
    config = LeagueConfig()
    test = e.EvaluationRequested("p", "main@1", "promotion", ["base_model"], ["p-0", "p-1"])
    decided = e.PromotionDecided("p", "main@1", "base_model", config.promotion.test, [], [], 0.0, -1.0, 1.0, "keep")
    events = [*opened(config), test, decided]
    assert not fold_events(*events).has_unrated_matches
    assert not fold_events(*events, match("w-1", ("main@1", 1.0), ("a", 0.0))).has_unrated_matches, (
        "not one that counts"
    )
    late = match("p-1", ("main@1", 1.0), ("base_model", 0.0), purpose="evaluation")
    waiting = fold_events(*events, late)
    assert waiting.has_unrated_matches
    assert LeagueState.from_snapshot(waiting.to_snapshot()).has_unrated_matches
    place, system = len(events) + 1, config.ratings.system.name
    rated = e.RatingUpdated(match_id="p-1", match_sequence=place, game="diplomacy", system=system, changes=[])
    assert not fold_events(*events, late, rated).has_unrated_matches


def test_a_correction_replaces_the_ratings_of_its_game() -> None:
    update = e.RatingUpdated(
        match_id="w-0", match_sequence=1, game="diplomacy", system="elo", changes=[e.RatingChange("x", 1000.0, 1016.0)]
    )
    correction = e.RatingsCorrected(
        game="diplomacy", system="elo", through=3, waited=[], ratings=[e.AgentRating("y", 990.0, 4)]
    )
    state = fold_events(update, update, correction)
    assert state.rating("y") == 990.0
    assert state.rating("x") == 1000.0
    assert state.rating_table.games == {"y": 4}


def test_a_branch_leaves_the_workers_of_the_other_run_behind() -> None:
    sampled = opponents_sampled()
    joined = e.WorkerJoined(worker="w", role="rollout", incarnation="a", host="h", pid=1, version="0")
    state = fold_events(joined, sampled)
    assert state.in_play.matches_ahead("main") == 1
    state.apply(3, e.LeagueBranched(origin="runs/one", at=2, digest=""))
    assert state.in_play.matches_ahead("main") == 0
    assert state.workers["w"].left == "stayed with runs/one"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_a_saved_state_goes_on_like_the_one_that_was_saved(share: float) -> None:
    first = LeagueState()
    cut = int(len(HISTORY) * share)
    for recorded in HISTORY[:cut]:
        first.apply(recorded.sequence, recorded.event)
    data = msgspec.msgpack.encode(first.to_snapshot())
    second = LeagueState.from_snapshot(msgspec.msgpack.decode(data, type=LeagueStateSnapshot))
    assert second.digest() == first.digest()
    assert second.standings() == first.standings()
    for recorded in HISTORY[cut:]:
        first.apply(recorded.sequence, recorded.event)
        second.apply(recorded.sequence, recorded.event)
    assert second.digest() == first.digest()
