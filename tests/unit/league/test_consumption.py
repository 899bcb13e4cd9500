"""Consumed trajectories, from events alone: each leaves once, and those wait that no step has named."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from league.state import LeagueState
from schemas import events as e
from schemas.numbers import expand_ranges, in_ranges, merge_ranges, range_size, ranges_above, to_ranges
from tests.builders import fold_events, gradient_step, match_finished

NUMBERS = st.sets(st.integers(0, 60))
ANYTHING = st.lists(st.lists(st.integers(0, 60), max_size=3), max_size=6)


def finished(n: int, policy: str = "main", experience: str = "digest") -> e.MatchFinished:
    seat = (f"{policy}@3", 1.0)
    return match_finished(seat, match_id=f"w-{n}", purpose="training", trainable=[0], experience=experience)


def step(number: int, first: int, last: int, **fields: object) -> e.GradientStepTaken:
    return gradient_step(number, experience_from=first, experience_to=last, **fields)


@given(NUMBERS, NUMBERS, st.integers(-1, 61))
def test_ranges_are_sets(left: set[int], right: set[int], floor: int) -> None:
    both = merge_ranges(to_ranges(left), to_ranges(right))
    assert list(expand_ranges(both)) == sorted(left | right)
    assert range_size(both) == len(left | right)
    assert list(expand_ranges(ranges_above(both, floor))) == sorted(n for n in left | right if n > floor)
    assert in_ranges(both, floor) == (floor in left | right)


def test_what_left_out_of_order_is_accounted_for_and_the_rest_waits() -> None:
    dropped = [e.DroppedTrajectories(reason="stale", sequences=[[6, 6]], matches=["w-6"])]
    taken = step(1, 1, 8, floor=1, trained=[[1, 1], [3, 4]], accepted=3, stale=1, dropped=dropped)
    state = fold_events(*(finished(n) for n in range(1, 9)), taken)
    consumed = state.consumption.position("main")
    assert [n for n in range(1, 10) if not consumed.is_accounted(n)] == [2, 5, 7, 8, 9]
    assert (consumed.floor, consumed.looked_at) == (1, 8)
    assert state.consumption.is_accounted("w-6", 0)
    assert not state.consumption.is_accounted("w-2", 0)


def test_the_floor_rises_when_the_oldest_left() -> None:
    later = step(2, 9, 8, floor=8, trained=[[2, 2], [5, 8]], accepted=5)
    state = fold_events(step(1, 1, 8, floor=1, trained=[[3, 4]], accepted=2), later)
    assert (state.consumption.position("main").floor, state.consumption.position("main").above) == (8, [])


def test_parts_of_a_rollout_add_up_until_it_leaves() -> None:
    def part(steps: list[list[int]], left: int) -> e.PartialTrajectory:
        return e.PartialTrajectory(sequence=4, match_id="w-4", steps=steps, left=left)

    first = step(1, 1, 4, floor=3, matches=["w-4"], parts=[part([[0, 1]], 3)])
    second = step(2, 5, 4, floor=3, matches=["w-4"], parts=[part([[3, 3]], 2)])
    state = fold_events(finished(4), first, second)
    assert state.consumption.position("main").steps_of(4) == [[0, 1], [3, 3]]
    assert not state.consumption.is_accounted("w-4", 0)
    third = step(3, 5, 4, floor=4, matches=["w-4"], trained=[[4, 4]], accepted=1, parts=[part([[2, 2], [4, 4]], 0)])
    state.apply(99, third)
    assert state.consumption.position("main").begun == []
    assert state.consumption.is_accounted("w-4", 0)


def test_seats_of_one_match_are_rollouts_of_their_own() -> None:
    several = msgspec.structs.replace(
        finished(1),
        seats=[
            e.SeatResult(seat=n, role="A", agent=f"{policy}@3", score=1.0, rank=1, trainable=policy != "other")
            for n, policy in enumerate(["main", "main", "other", "rogue"])
        ],
    )
    dropped = [e.DroppedTrajectories(reason="stale", sequences=[[3, 3]], matches=["w-1"], seats=[4])]
    part = e.PartialTrajectory(sequence=2, match_id="w-1", steps=[[0, 0]], left=1, seat=1)
    taken = step(
        1, 1, 3, floor=1, trained=[[1, 1]], matches=["w-1", "w-1"], seats=[0, 1], accepted=1, parts=[part],
        dropped=dropped,
    )  # fmt: skip
    state = fold_events(several, taken)
    assert [seat for seat in range(6) if state.consumption.is_accounted("w-1", seat)] == [0, 4]
    assert LeagueState.from_snapshot(state.to_snapshot()).consumption.is_accounted("w-1", 4)


def test_a_step_that_names_no_seat_speaks_of_them_all() -> None:
    state = fold_events(finished(1), step(1, 1, 2, matches=["w-1", "w-2"], seats=[3], accepted=2))
    assert [
        state.consumption.is_accounted("w-1", 3),
        state.consumption.is_accounted("w-1", 2),
        state.consumption.is_accounted("w-2", 2),
    ] == [True, False, True]


def test_copies_change_nothing() -> None:
    taken = step(1, 1, 2, floor=0, trained=[[2, 2]], accepted=1)
    once, twice = fold_events(finished(1), taken), fold_events(finished(1), finished(1), taken, taken)
    assert once.consumption.position("main") == twice.consumption.position("main")


@settings(max_examples=60)
@given(ANYTHING, ANYTHING, st.integers(-5, 60), st.integers(-5, 60))
def test_odd_ranges_never_fail_and_a_snapshot_goes_on_alike(
    trained: list[list[int]], left: list[list[int]], floor: int, last: int
) -> None:
    dropped = [e.DroppedTrajectories(reason="stale", sequences=left, matches=["w-1"])]
    parts = [e.PartialTrajectory(sequence=7, match_id="w-7", steps=trained, left=1)]
    events = [finished(1), step(1, 1, last, floor=floor, trained=trained, dropped=dropped, parts=parts)]
    state = fold_events(*events)
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=type(state.to_snapshot()))
    assert LeagueState.from_snapshot(saved).digest() == state.digest()
    assert state.consumption.position("main").floor >= 0


def test_what_groups_wait_is_known_after_a_snapshot_and_nothing_is_expected_back_after_a_branch() -> None:
    opened = e.OpenGroup(name="g-1", version=3, size=4, sequences=[[2, 3]], missing=["w-9:0"])
    first = e.BufferContents(waiting=[[1, 1]], open=[opened], over=["g-0"])
    later = e.BufferContents(waiting=[], open=[opened], over=["g-5"])
    events = [finished(n) for n in range(1, 5)]
    state = fold_events(*events, step(1, 1, 3, floor=0, gathered=first), step(2, 4, 4, floor=1, gathered=later))
    assert state.consumption.position("main").gathered == e.BufferContents([], [opened], ["g-0", "g-5"])
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=type(state.to_snapshot()))
    assert LeagueState.from_snapshot(saved).consumption.position("main") == state.consumption.position("main")
    state.apply(9, e.LeagueBranched(origin="o", at=6, digest=""))
    assert state.consumption.position("main").gathered == e.BufferContents([], [], ["g-0", "g-5"])
