"""What samplers share: urns, empty buckets, and what is kept between draws."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.samplers import Bucket, WeightedChoice, make_sampler
from league.samplers.mix import StandingsCache, by_weight, normalise_mix
from schemas.config import Plugin
from schemas.standings import Agent, LivePolicy, Standings

SEATS = [1, 2, 3, 4, 5, 6]
HERO = "main@200"


def league(*bots: str) -> Standings:
    agents = {name: Agent(name, "bot", 1000.0, 9, baseline=True) for name in bots}
    return Standings(7, agents, {"main": LivePolicy("main", 200, "1" * 64, 1200.0)}, {})


def test_an_empty_buckets_share_goes_to_the_others_in_proportion() -> None:
    found = normalise_mix({"a": 0.5, "b": 0.3, "c": 0.2}, {"a": False, "b": True, "c": True})
    assert found == pytest.approx({"a": 0.0, "b": 0.6, "c": 0.4})
    nobody = normalise_mix({"a": 1.0, "b": 0.0, "c": 0.0}, {"a": False, "b": False, "c": True})
    assert nobody == {"a": 0.0, "b": 0.0, "c": 1.0}


def test_a_pool_whose_weights_are_all_0_leaves_the_mirror() -> None:
    assert by_weight({"a": {"x": 0.0}, "b": {}}, HERO) == {
        "a": Bucket(0.0, {}),
        "b": Bucket(0.0, {}),
        "mirror": Bucket(1.0, {HERO: 1.0}),
    }


def test_what_is_kept_holds_for_the_same_standings_and_policy_only() -> None:
    made: list[tuple[Standings, str]] = []
    kept = StandingsCache(lambda standings, policy: made.append((standings, policy)) or len(made))
    first, second = league(), league()
    assert [kept(first, "main"), kept(first, "main"), kept(first, "second"), kept(second, "second")] == [1, 1, 2, 3]
    assert first == second
    assert kept(first, "second") == 4


def test_a_sampler_notices_new_standings() -> None:
    sampler = make_sampler(Plugin(name="pfsp"))
    old, new = league("a"), league("b")
    for table, name in ((old, "a"), (new, "b"), (old, "a")):
        assert {pick.agent for pick in sampler.sample(table, "main", SEATS, Random(0))} == {name}


def by_definition(weights: dict[str, float], number: float) -> str:
    """A draw as it is defined: the weights are taken off in the order of their names until nothing is left."""
    names = sorted(name for name, weight in weights.items() if weight > 0)
    total = 0.0
    for name in names:
        total += weights[name]
    place = number * total
    for name in names:
        place -= weights[name]
        if place < 0:
            return name
    return names[-1]


class Given(Random):
    """Draws a number that was chosen."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.text("abc", min_size=1), st.floats(0.0, 1e9), min_size=1).filter(lambda w: any(w.values())),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_an_urn_draws_what_the_definition_draws(weights: dict[str, float], number: float) -> None:
    drawn = WeightedChoice(weights).draw(Given(number))
    assert drawn.key == by_definition(weights, number)
    assert drawn.number == number
    assert drawn.low <= drawn.high


def test_an_urn_draws_what_the_definition_draws_at_the_very_ends_of_intervals() -> None:
    rng = Random(1)
    for _ in range(100):
        weights = {f"{n:03}": rng.random() * 10.0 ** rng.randrange(-6, 6) for n in range(rng.randrange(1, 60))}
        urn = WeightedChoice(weights)
        ends = [urn.draw(rng).high for _ in range(20)]
        near = [x for end in ends for x in (math.nextafter(end, 0), end, math.nextafter(end, 1)) if 0 <= x < 1]
        assert [urn.draw(Given(x)).key for x in near] == [by_definition(weights, x) for x in near]


def test_the_largest_number_that_can_be_drawn_falls_on_the_last_name() -> None:
    for weights in ({"a": 0.1, "b": 0.2, "c": 0.3}, {f"{n:04}": 1.0 for n in range(9_999)}, {"a": 1e-300}):
        assert WeightedChoice(weights).draw(Given(math.nextafter(1.0, 0.0))).key == max(weights)


def test_nothing_can_be_drawn_from_an_urn_without_weight() -> None:
    with pytest.raises(ValueError, match="no weight above 0"):
        WeightedChoice({"a": 0.0}).draw(Random(1))
