"""Shared parts of samplers: draws, and the shares of empty buckets."""

import math
from collections import Counter
from random import Random

import pytest

from league.samplers import Bucket, agent_probabilities, bucket_shares, draw_agents, mix_buckets, pool_buckets

HERO = "main@200"


def test_an_empty_buckets_share_goes_to_the_others_in_proportion() -> None:
    mix = {"a": 0.5, "b": 0.3, "c": 0.2}
    found = bucket_shares(mix_buckets(mix, {"a": {}, "b": {"x": 1.0}, "c": {"y": 1.0}}))
    assert found == pytest.approx({"a": 0.0, "b": 0.6, "c": 0.4})
    without_weight = mix_buckets(mix, {"a": {"z": 0.0}, "b": {"x": 1.0}, "c": {"y": 1.0}})
    assert without_weight["a"] == Bucket(0.0, {})
    only_unwanted = mix_buckets({"a": 1.0, "b": 0.0, "c": 0.0}, {"a": {}, "b": {}, "c": {"y": 1.0}})
    assert bucket_shares(only_unwanted) == {"a": 0.0, "b": 0.0, "c": 1.0}


def test_a_pool_whose_weights_are_all_0_leaves_the_mirror() -> None:
    assert pool_buckets({"a": {"x": 0.0}, "b": {}}, HERO) == {
        "a": Bucket(0.0, {}),
        "b": Bucket(0.0, {}),
        "mirror": Bucket(1.0, {HERO: 1.0}),
    }


def test_an_agent_in_two_buckets_has_the_probability_of_both() -> None:
    found = agent_probabilities({"a": Bucket(0.5, {"x": 1.0, "y": 3.0}), "b": Bucket(0.5, {"x": 2.0})})
    assert found == {"x": 0.625, "y": 0.375}


class Given(Random):
    """Draws the numbers that were chosen."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def test_a_draw_uses_one_number_for_the_bucket_and_one_for_the_agent_in_the_order_of_names() -> None:
    distribution = {"b": Bucket(0.75, {"y": 1.0, "x": 3.0}), "a": Bucket(0.25, {"z": 1.0})}
    drawn = draw_agents(distribution, 3, Given(0.25, 0.75, 0.2499, 0.0, 0.9, 0.7499))
    assert drawn == [("b", "y"), ("a", "z"), ("b", "x")]


@pytest.mark.parametrize(
    "weights", [{"a": 0.1, "b": 0.2, "c": 0.3}, {f"{n:04}": 1.0 for n in range(9_999)}, {"a": 1e-300}]
)
def test_the_largest_number_that_can_be_drawn_falls_on_the_last_name(weights: dict[str, float]) -> None:
    last = math.nextafter(1.0, 0.0)
    assert draw_agents({"all": Bucket(1.0, weights)}, 1, Given(last, last)) == [("all", max(weights))]


def test_realised_shares_are_the_weights() -> None:
    rng = Random(1)
    weights = {"a": 1.0, "b": 2.0, "c": 0.0, "d": 5.0}
    counts = Counter(agent for _, agent in draw_agents({"all": Bucket(1.0, weights)}, 40_000, rng))
    assert {agent: count / 40_000 for agent, count in counts.items()} == pytest.approx(
        {"a": 0.125, "b": 0.25, "d": 0.625}, abs=0.01
    )
