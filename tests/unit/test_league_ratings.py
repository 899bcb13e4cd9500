"""Ratings: the specification's formula, where unrated agents stand, and which matches count."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.ratings.base import make_rating_system
from league.ratings.fold import RatingFold
from league.simulation import Simulation
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, plain
from schemas.errors import ConfigError
from schemas.events import (
    AgentRegistered,
    LeagueConfigured,
    MatchFailed,
    MatchFinished,
    RatingChange,
    RatingUpdated,
    SeatResult,
)

ELO = make_rating_system(Plugin(name="elo"))
SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))


def match(
    *seats: tuple[str, float], match_id: str = "e-0", purpose: str = "evaluation", game: str = "diplomacy"
) -> MatchFinished:
    results = [SeatResult(seat, f"S{seat}", agent, score, 1) for seat, (agent, score) in enumerate(seats)]
    return MatchFinished(
        match_id=match_id,
        game=game,
        purpose=purpose,
        worker="w",
        seed=0,
        seats=results,
        winner=None,
        reason="",
        length=1,
        seconds=0.0,
    )


def registered(agent: str, rating: float, kind: str = "bot") -> AgentRegistered:
    return AgentRegistered(agent=agent, kind=kind, baseline=True, rating=rating)


def fold_with_agents() -> RatingFold:
    fold = RatingFold(LeagueConfig())
    fold.apply(1, registered("base_model", 1000.0, "base"))
    fold.apply(2, registered("random_bot", 800.0))
    return fold


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
    changes = ELO.rate(match(*results.items()), table)
    assert {change.agent: change.after for change in changes} == seed_formula(results, table)


@given(
    seats=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=2, max_size=9),
    ratings=st.lists(st.floats(0, 3_000), min_size=4, max_size=4),
)
def test_elo_gives_what_it_takes(seats: list[tuple[str, int]], ratings: list[float]) -> None:
    changes = ELO.rate(match(*((a, float(s)) for a, s in seats)), dict(zip("abcd", ratings, strict=True)))
    assert sum(change.after - change.before for change in changes) == pytest.approx(0.0, abs=1e-9)


def test_an_agent_in_several_seats_gains_their_sum_and_nothing_from_itself() -> None:
    ratings = {"hero": 1000.0, "bot": 1000.0}
    hero, bot = ELO.rate(match(("hero", 2.0), ("bot", 1.0), ("bot", 3.0), ("bot", 1.0)), ratings)
    assert hero.after - 1000.0 == pytest.approx(32 / 3 * (0.5 - 0.5 + 0.5))
    assert bot.after - 1000.0 == pytest.approx(-(hero.after - 1000.0))


@pytest.mark.parametrize("k", [0, -1, math.inf])
def test_a_step_that_is_not_positive_is_refused(k: float) -> None:
    with pytest.raises(ConfigError, match=r"ratings\.system\.settings\.k: .*expected more than 0"):
        make_rating_system(Plugin(name="elo", settings={"k": float(k)}))


def test_unrated_versions_stand_at_the_nearest_lower_rated_one_else_at_the_base() -> None:
    fold = fold_with_agents()
    assert fold.rating("diplomacy", "main@10") == 1000.0
    update = fold.apply(3, match(("main@10", 1.0), ("random_bot", 0.0)))
    assert update is not None
    assert update.changes[0].before == 1000.0
    after = update.changes[0].after
    assert fold.rating("diplomacy", "main@12") == after
    assert fold.rating("diplomacy", "main@9") == 1000.0
    assert fold.rating("diplomacy", "other@12") == 1000.0
    assert fold.rating("nim", "main@12") == 1000.0
    assert fold.rating("diplomacy", "random_bot") == update.changes[1].after


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
    assert fold_with_agents().apply(3, ignored) is None


def test_the_first_outcome_of_a_match_holds() -> None:
    fold = fold_with_agents()
    first = match(("main@1", 1.0), ("random_bot", 0.0))
    assert fold.apply(3, first) is not None
    assert fold.apply(3, first) is None
    assert fold.apply(4, first) is None
    assert fold.apply(5, MatchFailed(match_id="e-1", purpose="evaluation", worker="w", error="x")) is None
    assert fold.apply(6, msgspec.structs.replace(first, match_id="e-1")) is None


def test_a_changed_configuration_holds_from_its_place_on() -> None:
    config = LeagueConfig(ratings=RatingsConfig(purposes=("training",)))
    change = LeagueConfigured(config=plain(config), config_digest="", after=1)
    unreadable = LeagueConfigured(config={"from_the_future": 1}, config_digest="", after=1)
    training = match(("main@1", 1.0), ("random_bot", 0.0), purpose="training")
    fold = fold_with_agents()
    assert fold.apply(3, training) is None
    fold.apply(4, change)
    fold.apply(5, unreadable)
    assert fold.apply(6, msgspec.structs.replace(training, match_id="e-1")) is not None
    pinned = RatingFold(LeagueConfig(), follow=False)
    pinned.apply(1, change)
    assert pinned.apply(2, training) is None


def test_a_fold_that_adopts_what_was_recorded_goes_on_like_one_that_computed_it() -> None:
    records = Simulation(SMALL).run(10, 1)
    half = len(records) // 2
    computed, adopted = RatingFold(SMALL), RatingFold(SMALL)
    updates = [computed.apply(r.sequence, r.event) for r in records]
    recorded = [r.event for r in records if isinstance(r.event, RatingUpdated) and r.event.match_sequence <= half]
    for event in recorded:
        adopted.adopt(event)
    again = [adopted.apply(r.sequence, r.event) for r in records]
    assert [u for u in again if u] == [u for u in updates if u and u.match_sequence > half]


def test_adopting_what_was_already_rated_changes_nothing() -> None:
    fold = fold_with_agents()
    update = fold.apply(3, match(("main@1", 1.0), ("random_bot", 0.0)))
    assert update is not None
    before = fold.rating("diplomacy", "main@1")
    fold.adopt(msgspec.structs.replace(update, changes=[RatingChange("main@1", 1.0, 2.0)]))
    assert fold.rating("diplomacy", "main@1") == before


HISTORY = Simulation(SMALL).run(6, 1)


@given(st.lists(st.tuples(st.integers(0, len(HISTORY)), st.integers(0, 20)), max_size=5))
def test_redelivery_gives_the_same_ratings(again: list[tuple[int, int]]) -> None:
    once, twice = RatingFold(SMALL), RatingFold(SMALL)
    expected = [once.apply(r.sequence, r.event) for r in HISTORY]
    found, place = [], 0
    for until, back in [*sorted(again), (len(HISTORY), 0)]:
        found += [twice.apply(r.sequence, r.event) for r in HISTORY[place:until]]
        place = max(0, until - back)
    assert [u for u in found if u is not None] == [u for u in expected if u is not None]
