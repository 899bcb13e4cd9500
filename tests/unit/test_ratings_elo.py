"""Elo under a schedule of k: who moves by how much, and what holds without one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.log.base import RecordedEvent
from league.ratings.arrays import MatchArrays, RatingRule, fold_arrays
from league.ratings.base import RatingSystem, make_rating_system, rate_match
from league.ratings.fold import RatingFold
from league.ratings.load import MatchArrayBuilder
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig
from schemas.errors import ConfigError
from schemas.events import MatchFinished, RatingChange
from tests.builders import match_finished
from tests.simulated_history import Simulation

STAGES = [[30, 40.0], [100, 24.0]]


def system(**settings: object) -> RatingSystem:
    return make_rating_system(Plugin(name="elo", settings=settings))


def rated(elo: RatingSystem, played: MatchFinished, games: dict[str, int]) -> dict[str, RatingChange]:
    states = {seat.agent: (1000.0,) for seat in played.seats}
    return {change.agent: change for change in rate_match(elo, played, states, games)}


def gain(change: RatingChange) -> float:
    return change.after - change.before


@pytest.mark.parametrize(("games", "k"), [(0, 40.0), (29, 40.0), (30, 24.0), (99, 24.0), (100, 16.0), (10**6, 16.0)])
def test_k_is_that_of_the_stage_an_agent_is_in(games: int, k: float) -> None:
    changes = rated(system(k=16.0, schedule=STAGES), match_finished(("a", 1.0), ("b", 0.0)), {"a": games, "b": 500})
    assert gain(changes["a"]) == k / 2
    assert gain(changes["b"]) == -8.0


def test_each_seat_moves_by_its_own_agents_k_and_a_match_counts_once() -> None:
    elo = system(k=10.0, schedule=[[1, 30.0]])
    changes = rated(elo, match_finished(("new", 2.0), ("old", 1.0), ("new", 1.0)), {"old": 7})
    # Its two seats won and tied: half a point more than expected, of k / 2 a pair.
    assert gain(changes["new"]) == pytest.approx(0.5 * 30 / 2)
    assert gain(changes["old"]) == pytest.approx(-0.5 * 10 / 2)
    again = rated(elo, match_finished(("new", 2.0), ("old", 1.0), ("new", 1.0)), {"new": 1, "old": 8})
    assert gain(again["new"]) == -gain(again["old"]) == pytest.approx(0.5 * 10 / 2)


@given(
    seats=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=2, max_size=9),
    games=st.integers(0, 29),
)
def test_agents_in_one_stage_give_what_they_take(seats: list[tuple[str, int]], games: int) -> None:
    played = match_finished(*((agent, float(score)) for agent, score in seats))
    changes = rated(system(schedule=STAGES), played, dict.fromkeys("abcd", games))
    assert sum(map(gain, changes.values())) == pytest.approx(0.0, abs=1e-9)


def test_a_newcomer_settles_sooner_under_a_schedule() -> None:
    plain, quick = 1000.0, 1000.0
    steady, scheduled = system(k=16.0), system(k=16.0, schedule=STAGES)
    for game in range(25):
        played = match_finished(("new", 1.0), ("old", 0.0))
        plain = rate_match(steady, played, {"new": (plain,), "old": (1400.0,)}, {"new": game, "old": 900})[0].after
        quick = rate_match(scheduled, played, {"new": (quick,), "old": (1400.0,)}, {"new": game, "old": 900})[0].after
    assert quick - 1000 > 1.8 * (plain - 1000)


def test_events_and_arrays_count_the_same_matches_for_the_schedule() -> None:
    plugin = Plugin(name="elo", settings={"k": 12.0, "schedule": [[5, 50.0], [20, 31.0]]})
    config = LeagueConfig(
        seed=4,
        evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7),
        ratings=RatingsConfig(system=plugin),
    )
    records = Simulation(config).run(15, 1)
    fold = RatingFold(config)
    for record in records:
        fold.apply(record.sequence, record.event)
    found = fold.rated_agents("diplomacy")
    assert max(rated.games for rated in found) > 20
    assert fold_arrays(history(records)) == {("diplomacy", "elo"): found}
    flat = fold_arrays(
        history(records), [RatingRule(0, RatingsConfig(system=Plugin(name="elo", settings={"k": 12.0})))]
    )
    assert flat["diplomacy", "elo"] != found


def history(records: list[RecordedEvent]) -> MatchArrays:
    gatherer = MatchArrayBuilder([])
    for record in records:
        gatherer.apply(record.sequence, record.event)
    return gatherer.build()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([[0, 40.0]], r"schedule: \[0, 40.0\] after match 0; expected a later match"),
        ([[30, 40.0], [30, 20.0]], r"schedule: \[30, 20.0\] after match 30"),
        ([[30, 0.0]], r"schedule\[0\]\[1\]: 0.0; expected more than 0"),
        ([[30, math.nan]], r"schedule\[0\]\[1\]: nan"),
        ([[30, math.inf]], r"schedule\[0\]\[1\]: inf"),
        ([[30]], "schedule"),
        ([["soon", 4.0]], "schedule"),
    ],
)
def test_a_schedule_that_does_not_go_forward_is_refused(schedule: list, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"ratings\.system\.settings\.{message}"):
        system(schedule=schedule)
