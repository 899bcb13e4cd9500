"""A completion out of several replies is one completion; a reply that leaves what was asked for is refused."""

from typing import Any

import msgspec
import pytest

from arena.constraints.constraint_slices import state_after
from arena.constraints.token_walk import Constraint, ListConstraint
from inference.base import Generation, Request, SamplingParameters, Timing
from inference.remote import GenerateReply
from inference.servers import ResumedCompletion
from schemas.errors import ModelError

PLANS = ListConstraint([(1, 2, 3, 9, 9, 9), (1, 2, 4, 5), (1, 7, 8)])


def stitched(constraint: Constraint | None = PLANS, places: int = 2, max_tokens: int = 20) -> ResumedCompletion:
    return ResumedCompletion(Request([50, 51], "a", constraint, SamplingParameters(0.7, 11, max_tokens)), places)


def reply(ids: list[int], branches: list[int], is_truncated: bool = True, **changes: Any) -> GenerateReply:
    allowed = [[2, 7] if ids[branch] in (2, 7) else [3, 4] for branch in branches]
    generation = Generation(ids, branches, [-0.5] * len(branches), allowed, "stop", Timing(0.1, 0.2, 2))
    return GenerateReply(msgspec.structs.replace(generation, **changes), is_truncated)


def test_stretches_are_joined_and_what_is_forced_behind_the_rim_is_not_asked_for() -> None:
    one = stitched()
    first = one.next_call()
    assert first.prompt_ids == [50, 51]
    assert first.constraint_slice is not None
    assert state_after(first.constraint_slice, [1, 2]).is_truncated
    one.add_reply(reply([1, 2], [1]), 0.4)
    second = one.next_call()
    assert (second.prompt_ids, second.sampling.max_tokens) == ([50, 51, 1, 2], 18)
    assert second.sampling.seed != first.sampling.seed
    one.add_reply(reply([3], [0], timing=Timing(0.3, 0.4, 4)), 0.9)
    done = one.make_generation(seconds=1.0)
    assert one.finished == done.finish_reason == "stop"
    assert done.completion_ids == [1, 2, 3, 9, 9, 9]
    assert (done.branches, done.allowed, done.logprobs) == ([1, 2], [[2, 7], [3, 4]], [-0.5, -0.5])
    assert done.timing == Timing(0.4, 1.0, 2)


def test_the_first_token_is_dated_by_the_first_reply_that_has_one_and_the_servers_own_times() -> None:
    one = stitched()
    one.add_reply(reply([1, 2], [1], timing=Timing(0.0, 0.2, 0, first_s=0.05)), 0.5)
    one.add_reply(reply([3], [0], timing=Timing(0.0, 0.2, 0, first_s=0.05)), 0.9)
    timing = one.make_generation(seconds=1.0).timing
    assert timing is not None
    assert timing.first_s == pytest.approx(0.35)


def test_the_limit_holds_over_all_stretches() -> None:
    one = stitched(max_tokens=4)
    one.add_reply(reply([1, 2], [1]), 1.0)
    one.add_reply(reply([3], [0]), 1.0)
    assert (one.make_generation(1.0).completion_ids, one.finished) == ([1, 2, 3, 9], "length")


def test_an_end_that_is_not_the_rim_ends_the_completion() -> None:
    one = stitched()
    one.add_reply(reply([1, 7, 8], [1], is_truncated=False), 1.0)
    assert one.finished == "stop"


def test_without_a_constraint_one_exchange_is_all() -> None:
    one = stitched(None)
    assert one.next_call().constraint_slice is None
    one.add_reply(reply([9, 8], [], finish_reason="length", is_truncated=False), 1.0)
    assert one.finished == "length"


def test_a_reply_that_leaves_the_constraint_is_refused() -> None:
    with pytest.raises(ModelError, match="stopped before"):
        stitched().add_reply(reply([], []), 1.0)
    with pytest.raises(ModelError):
        stitched(PLANS_STRICT).add_reply(reply([1, 6], []), 1.0)


class Strict:
    def allowed(self) -> list[int]:
        return [1]

    def advance(self, token: int) -> "Strict":
        if token != 1:
            raise ModelError(f"constraint: token {token} is not allowed here")
        return self


PLANS_STRICT = Strict()


def test_a_constraint_that_allows_nothing_is_not_sent() -> None:
    with pytest.raises(ModelError, match="allows no token"):
        stitched(ListConstraint([]))
