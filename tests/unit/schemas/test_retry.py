"""Backoff doubles, stays in its bounds, and starts over."""

import pytest

from schemas.retry import Backoff


def test_pauses_double_up_to_the_bound_and_start_over():
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert [backoff.next_s() for _ in range(2)] == [0.5, 1.0]


def test_a_first_pause_above_the_bound_is_cut():
    assert Backoff(5.0, 2.0).next_s() == 2.0


def test_what_the_other_side_asks_for_is_kept_and_does_not_grow_later_pauses():
    backoff = Backoff(1.0, 8.0)
    assert [backoff.next_s(at_least_s=7.0), backoff.next_s()] == [7.0, 2.0]


def test_later_pauses_double_from_the_bound_of_one():
    backoff = Backoff(8.0, 30.0)
    assert [backoff.next_s(at_most_s=2.0), backoff.next_s()] == [2.0, 4.0]


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_jitter_scales_each_pause(draw):
    backoff = Backoff(1.0, 4.0, (0.5, 1.5), lambda low, high: low + draw * (high - low))
    assert [backoff.next_s() for _ in range(3)] == [(0.5 + draw) * pause for pause in (1.0, 2.0, 4.0)]
