"""Ratings: the specification's formula, where unrated agents stand, and which matches count."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.ratings.base import Side, make_rating_system
from league.ratings.fold import RatingFold
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, to_builtins
from schemas.errors import ConfigError
from schemas.events import (
    AgentRating,
    AgentRegistered,
    LeagueConfigured,
    MatchFailed,
    MatchFinished,
    MatchVoided,
    RatingsCorrected,
)
from tests.builders import match_finished
from tests.simulated_history import Simulation

ELO = make_rating_system(Plugin(name="elo"))
SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))


def match(*seats: tuple[str, float], match_id: str = "e-0", game: str = "diplomacy", **fields: Any) -> MatchFinished:
    return match_finished(*seats, match_id=match_id, game=game, **fields)


def registered(agent: str, rating: float, kind: str = "bot") -> AgentRegistered:
    return AgentRegistered(agent=agent, kind=kind, baseline=True, rating=rating)


PLACE = ("diplomacy", "elo")
REGISTERED = [registered("base_model", 1000.0, "base"), registered("random_bot", 800.0)]


def fold_with_agents() -> RatingFold:
    fold = RatingFold()
    for sequence, event in enumerate(REGISTERED, start=1):
        fold.apply(sequence, event)
    return fold


def elo(seats: Iterable[tuple[str, float]], ratings: dict[str, float]) -> dict[str, float]:
    """Ratings after a match."""
    after = ELO.update(
        {agent: (rating,) for agent, rating in ratings.items()}, [Side((agent,), score) for agent, score in seats]
    )
    return {agent: rating for agent, (rating,) in after.items()}


def seed_formula(results: dict[str, float], ratings: dict[str, float], k: float = 32) -> dict[str, float]:
    """The specification's update_elo_multiplayer, for seven agents in seven seats."""
    new = dict(ratings)
    agents = list(results)
    for i, a in enumerate(agents):
        for b in agents[i + 1 :]:
            expected = 1 / (1 + 10 ** ((ratings[b] - ratings[a]) / 400))
            actual = 1.0 if results[a] > results[b] else 0.5 if results[a] == results[b] else 0.0
            delta = (k / 6) * (actual - expected)
            new[a] += delta
            new[b] -= delta
    return new


@given(
    scores=st.lists(st.integers(0, 5), min_size=7, max_size=7),
    ratings=st.lists(st.floats(0, 3_000), min_size=7, max_size=7),
)
def test_elo_is_the_specifications_formula_bit_for_bit(scores: list[int], ratings: list[float]) -> None:
    agents = [f"agent{seat}" for seat in range(7)]
    table = dict(zip(agents, ratings, strict=True))
    results = dict(zip(agents, map(float, scores), strict=True))
    assert elo(results.items(), table) == seed_formula(results, table)


@given(
    seats=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=2, max_size=9),
    ratings=st.lists(st.floats(0, 3_000), min_size=4, max_size=4),
)
def test_elo_gives_what_it_takes(seats: list[tuple[str, int]], ratings: list[float]) -> None:
    before = dict(zip("abcd", ratings, strict=True))
    after = elo([(agent, float(score)) for agent, score in seats], before)
    assert sum(after[agent] - before[agent] for agent in before) == pytest.approx(0.0, abs=1e-9)


def test_an_agent_in_several_seats_gains_their_sum_and_nothing_from_itself() -> None:
    after = elo([("hero", 2.0), ("bot", 1.0), ("bot", 3.0), ("bot", 1.0)], {"hero": 1000.0, "bot": 1000.0})
    assert after["hero"] - 1000.0 == pytest.approx(32 / 3 * (0.5 - 0.5 + 0.5))
    assert after["bot"] - 1000.0 == pytest.approx(-(after["hero"] - 1000.0))


@pytest.mark.parametrize("k", [0, -1, math.inf])
def test_a_step_that_is_not_positive_is_refused(k: float) -> None:
    with pytest.raises(ConfigError, match=r"ratings\.system\.settings\.k: .*expected (more than 0|a finite number)"):
        make_rating_system(Plugin(name="elo", settings={"k": float(k)}))


def rating_before(fold: RatingFold, agent: str, game: str = "diplomacy") -> float:
    """The rating with which an agent would go into a match now."""
    copy = RatingFold.from_snapshot(fold.to_snapshot())
    [update] = copy.apply(99, match((agent, 1.0), ("chaos_bot", 0.0), match_id="next", game=game))
    return update.changes[0].before


def test_unrated_versions_stand_at_the_nearest_lower_rated_one_else_at_the_base() -> None:
    fold = fold_with_agents()
    assert rating_before(fold, "main@10") == 1000.0
    [update] = fold.apply(3, match(("main@10", 1.0), ("random_bot", 0.0)))
    assert update.changes[0].before == 1000.0
    after = update.changes[0].after
    assert rating_before(fold, "main@12") == after
    assert rating_before(fold, "main@9") == 1000.0
    assert rating_before(fold, "other@12") == 1000.0
    assert rating_before(fold, "main@12", "nim") == 1000.0
    assert rating_before(fold, "random_bot") == update.changes[1].after


@pytest.mark.parametrize(
    "ignored",
    [
        match(("main@1", 1.0), ("random_bot", 0.0), purpose="training"),
        match(("main@1", 1.0), ("main@1", 0.0)),
        match(("main@1", math.nan), ("random_bot", 0.0)),
        match(("main@1", math.inf), ("random_bot", 0.0), ("base_model", 0.0)),
        match(),
    ],
    ids=["other purpose", "one agent", "not a number", "infinite", "no seats"],
)
def test_matches_that_do_not_count_move_nothing(ignored: MatchFinished) -> None:
    assert fold_with_agents().apply(3, ignored) == []


def test_the_first_outcome_of_a_match_holds() -> None:
    fold = fold_with_agents()
    first = match(("main@1", 1.0), ("random_bot", 0.0))
    assert fold.apply(3, first) != []
    assert fold.apply(3, first) == []
    assert fold.apply(4, first) == []
    assert fold.apply(5, MatchFailed(match_id="e-1", purpose="evaluation", worker="w", error="x")) == []
    assert fold.apply(6, msgspec.structs.replace(first, match_id="e-1")) == []


def test_a_changed_configuration_holds_from_its_place_on() -> None:
    config = LeagueConfig(ratings=RatingsConfig(purposes=("training",)))
    change = LeagueConfigured(config=to_builtins(config), config_digest="", after=1)
    unreadable = LeagueConfigured(config={"from_the_future": 1}, config_digest="", after=1)
    training = match(("main@1", 1.0), ("random_bot", 0.0), purpose="training")
    fold = fold_with_agents()
    assert fold.apply(3, training) == []
    fold.apply(4, change)
    fold.apply(5, unreadable)
    assert fold.apply(6, msgspec.structs.replace(training, match_id="e-1")) != []


def test_amended_rules_hold_for_every_configuration_of_the_history() -> None:
    fold = RatingFold(amend=lambda ratings: RatingsConfig(purposes=("training",), system=ratings.system))
    fold.apply(1, LeagueConfigured(config=to_builtins(LeagueConfig()), config_digest="", after=0))
    assert fold.apply(2, match(("main@1", 1.0), ("random_bot", 0.0))) == []
    assert fold.apply(3, match(("main@1", 1.0), ("random_bot", 0.0), match_id="w-1", purpose="training")) != []


def voided(finished: MatchFinished, sequence: int) -> MatchVoided:
    return MatchVoided(match=finished, match_sequence=sequence, reason="wrong engine")


def game(number: int, *seats: tuple[str, float]) -> MatchFinished:
    return msgspec.structs.replace(match(*seats), match_id=f"e-{number}")


def test_after_a_void_nothing_is_rated_until_the_correction_and_then_what_came_between() -> None:
    one, two, three = (game(n, ("main@1", 1.0), ("random_bot", float(n % 2))) for n in range(3))
    fold = fold_with_agents()
    fold.apply(3, one)
    fold.apply(4, two)
    assert fold.apply(5, voided(one, 3)) == []
    assert fold.due_corrections == {PLACE: 5}
    assert fold.apply(6, three) == []
    clean = fold.begin_refold(5)
    for sequence, event in enumerate((*REGISTERED, one, two, voided(one, 3)), start=1):
        clean.apply(sequence, event)
    correction = fold.make_correction(PLACE, 5, clean)
    assert correction.ratings == clean.rated_agents("diplomacy")
    [deferred] = fold.apply(7, correction)
    assert [deferred] == clean.apply(6, three)
    assert fold.due_corrections == {}
    assert fold.apply(8, voided(two, 4)) == []
    assert fold.due_corrections == {PLACE: 8}
    assert list(fold.voided) == ["e-0", "e-1"]


def test_a_second_void_before_the_correction_asks_for_another_one() -> None:
    one, two, three = (game(n, ("main@1", 1.0), ("random_bot", 0.0)) for n in range(3))
    fold = fold_with_agents()
    for sequence, event in ((3, one), (4, two), (5, voided(one, 3)), (6, three), (7, voided(two, 4))):
        fold.apply(sequence, event)
    stale = RatingsCorrected(game="diplomacy", system="elo", through=5, waited=[], ratings=[])
    assert fold.apply(8, stale) == []
    assert fold.due_corrections[PLACE] == 7
    assert fold.apply(9, msgspec.structs.replace(stale, through=7)) == []
    assert fold.due_corrections == {}


def test_voids_of_unknown_and_of_unrated_matches_ask_for_nothing() -> None:
    fold = fold_with_agents()
    training = match(("main@1", 1.0), ("random_bot", 0.0), purpose="training")
    fold.apply(3, training)
    fold.apply(4, voided(training, 3))
    fold.apply(5, voided(game(9, ("main@1", 1.0), ("random_bot", 0.0)), 3))
    assert fold.due_corrections == {}


def test_a_saved_fold_goes_on_like_the_one_that_was_saved() -> None:
    records = Simulation(SMALL).run(10, 1)
    half = len(records) // 2
    first = RatingFold(SMALL)
    for recorded in records[:half]:
        first.apply(recorded.sequence, recorded.event)
    second = RatingFold.from_snapshot(first.to_snapshot())
    rest = [[fold.apply(r.sequence, r.event) for r in records[half:]] for fold in (first, second)]
    assert rest[0] == rest[1]
    assert any(rest[0])
    assert first.to_snapshot() == second.to_snapshot()


HISTORY = Simulation(SMALL).run(6, 1)


@given(st.lists(st.tuples(st.integers(0, len(HISTORY)), st.integers(0, 20)), max_size=5))
def test_redelivery_gives_the_same_ratings(again: list[tuple[int, int]]) -> None:
    once, twice = RatingFold(SMALL), RatingFold(SMALL)
    expected = [once.apply(r.sequence, r.event) for r in HISTORY]
    found, place = [], 0
    for until, back in [*sorted(again), (len(HISTORY), 0)]:
        found += [twice.apply(r.sequence, r.event) for r in HISTORY[place:until]]
        place = max(0, until - back)
    assert [u for u in found if u] == [u for u in expected if u]


def test_a_correction_that_lacks_what_a_system_keeps_does_not_stop_the_fold() -> None:
    fold = RatingFold(LeagueConfig(ratings=RatingsConfig(system=Plugin(name="trueskill"))))
    first = match(("main@1", 1.0), ("random_bot", 0.0))
    fold.apply(1, first)
    fold.apply(2, MatchVoided(match=first, match_sequence=1, reason=""))
    wrong = [AgentRating("main@1", 1200.0, 3), AgentRating("random_bot", 900.0, 3, [50.0])]
    correction = RatingsCorrected(game="diplomacy", system="trueskill", through=2, waited=[], ratings=wrong)
    fold.apply(3, correction)
    [update] = fold.apply(4, match(("main@1", 1.0), ("main@2", 0.0), ("random_bot", 0.0), match_id="w-1"))
    assert [change.before for change in update.changes] == [1200.0, 1200.0, 900.0]
