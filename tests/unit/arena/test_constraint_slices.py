"""Constraints as plain data: a slice allows what the constraint allows, up to its end, where the walk goes on."""

from random import Random

import msgspec
import pytest

from arena.constraints.constraint_slices import ConstraintSlice, FreeSpan, SliceState, slice_constraint, state_after
from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import ANY_TOKEN, Constraint, ListConstraint
from arena.constraints.vocabulary import ALL_BYTES, Vocabulary
from schemas.errors import ModelError

VOCABULARY = Vocabulary([*ALL_BYTES, b"<or", b"ders", None], end=258)
SIZE = 259
ORDERS = ListConstraint([VOCABULARY.encode(text) for text in (b"A PAR H", b"A PAR - BUR", b"F BRE H", b"WAIVE")])


class Lattice:
    """Two tokens at each of some levels, all of whose ways to a level meet in one place."""

    def __init__(self, levels: int) -> None:
        self.level = levels
        self._next = Lattice(levels - 1) if levels else None

    def allowed(self) -> list[int]:
        return [1, 2] if self._next else []

    def advance(self, token: int) -> "Lattice":
        assert self._next is not None
        return self._next


class Wide:
    """Many tokens, each to a place of its own; counts how often it is asked to move."""

    moves = 0

    def __init__(self, depth: int = 3, width: int = 50_000) -> None:
        self._depth, self._width = depth, width

    def allowed(self) -> range:
        return range(self._width if self._depth else 0)

    def advance(self, token: int) -> "Wide":
        Wide.moves += 1
        return Wide(self._depth - 1, self._width)


class Trapped:
    """Token 2 leads to a place that raises."""

    def allowed(self) -> list[int]:
        return [1, 2]

    def advance(self, token: int) -> Constraint:
        if token == 2:
            raise ModelError("constraint: a dead end")
        return ListConstraint([(3, 4), (5, 6)])


def over_the_wire(place: Constraint, limit: int) -> ConstraintSlice:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(slice_constraint(place, limit)), type=ConstraintSlice)


def wander(place: Constraint, limit: int, seed: int) -> tuple[list[int], int]:
    """A random completion sampled from slices alone, checked against the constraint, and how many it took."""
    rng, ids, slices, real = Random(seed), list[int](), 1, place
    there: SliceState = SliceState(over_the_wire(place, limit))
    while True:
        allowed = there.allowed()
        if there.is_truncated and real.allowed():
            there, slices = SliceState(over_the_wire(real, limit)), slices + 1
            continue
        assert list(allowed) == list(real.allowed())
        assert (allowed is ANY_TOKEN) == (real.allowed() is ANY_TOKEN)
        if not allowed:
            return ids, slices
        ids.append(rng.randrange(SIZE) if allowed is ANY_TOKEN else rng.choice(allowed))
        there, real = there.advance(ids[-1]), real.advance(ids[-1])


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("place", [ORDERS, Lattice(12), TaggedConstraints(VOCABULARY, free_tokens=12)(ORDERS)])
def test_walks_along_slices_are_those_of_the_constraint(place: Constraint, limit: int) -> None:
    for seed in range(30):
        _, slices = wander(place, limit, seed)
        assert slices == 1 or limit < 1000 or isinstance(place, type(TaggedConstraints(VOCABULARY)(ORDERS)))


def test_places_that_many_ways_lead_to_are_sent_once() -> None:
    constraint_slice = slice_constraint(Lattice(40), 1000)
    assert len(constraint_slice.allowed) == 41
    assert state_after(constraint_slice, [1, 2] * 20).allowed() == []
    assert not state_after(constraint_slice, [1, 2] * 20).is_truncated


def test_the_constrained_part_behind_a_tag_is_shared_like_the_part_itself() -> None:
    tagged = TaggedConstraints(VOCABULARY, free_tokens=0)
    forced = len(VOCABULARY.encode(b"<orders>")) + len(VOCABULARY.encode(b"</orders>"))
    assert len(slice_constraint(tagged(Lattice(30)), 1000).allowed) <= forced + 31


def test_no_more_places_than_the_limit_and_the_nearest_first() -> None:
    constraint_slice = slice_constraint(Lattice(40), 10)
    assert len(constraint_slice.allowed) == 10
    assert not state_after(constraint_slice, [1] * 9).is_truncated
    assert state_after(constraint_slice, [1] * 10).is_truncated
    assert state_after(constraint_slice, [1] * 10).allowed() == ()


def test_a_long_forced_run_is_cut_at_the_limit_and_goes_on() -> None:
    forced = ListConstraint([list(range(100))])
    assert wander(forced, 30, 0) == (list(range(100)), 4)


def test_a_wide_place_is_sent_whole_without_looking_behind_every_token() -> None:
    Wide.moves = 0
    constraint_slice = slice_constraint(Wide(), 100)
    assert constraint_slice.allowed == [list(range(50_000))]
    assert Wide.moves == 0
    assert state_after(constraint_slice, [49_999]).is_truncated
    slice_constraint(Wide(width=1000), 100)
    assert Wide.moves <= 1600


def test_what_a_place_raises_is_left_to_whoever_gets_there() -> None:
    constraint_slice = slice_constraint(Trapped(), 100)
    assert state_after(constraint_slice, [2]).is_truncated
    assert not state_after(constraint_slice, [1, 5, 6]).is_truncated


def test_free_text_is_one_stretch_until_the_tag_begins() -> None:
    place = TaggedConstraints(VOCABULARY, free_tokens=100)(ORDERS)
    constraint_slice = slice_constraint(place, 1000)
    free = state_after(constraint_slice, VOCABULARY.encode(b"hold the north"))
    assert free.allowed() is ANY_TOKEN
    for breaks in (b"<", b"<or"):
        assert free.advance(VOCABULARY.encode(breaks)[0]).is_truncated
    assert free.advance(258).is_truncated
    assert not state_after(constraint_slice, [65] * 99).is_truncated
    assert state_after(constraint_slice, [65] * 100).is_truncated


def test_a_constraint_that_does_not_say_how_long_it_stays_free_is_asked_after_every_token() -> None:
    class Free2:
        def allowed(self) -> tuple[int, ...]:
            return ANY_TOKEN

        def advance(self, token: int) -> Constraint:
            return ListConstraint([(1,), (2,)])

    assert state_after(slice_constraint(Free2(), 10), [7]).is_truncated


@pytest.mark.parametrize("place", [ListConstraint([]), ListConstraint([()])])
def test_a_place_that_allows_nothing_has_no_slice(place: Constraint) -> None:
    with pytest.raises(ModelError, match="allows no token"):
        slice_constraint(place, 10)


def test_a_token_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(ModelError, match="token 3 is not allowed at place 0"):
        SliceState(slice_constraint(Lattice(2), 10)).advance(3)
    with pytest.raises(ModelError, match="not allowed at place -1"):
        state_after(slice_constraint(Lattice(3), 1), [1, 1])


BAD = {
    "no place": {"allowed": [], "next": []},
    "lists of different lengths": {"allowed": [[1]], "next": []},
    "fewer places than tokens": {"allowed": [[1, 2]], "next": [[0]]},
    "descending tokens": {"allowed": [[2, 1]], "next": [[0, 0]]},
    "equal tokens": {"allowed": [[1, 1]], "next": [[0, 0]]},
    "a place that is not there": {"allowed": [[1]], "next": [[1]]},
    "a negative place": {"allowed": [[1]], "next": [[-2]]},
    "free where there is a list": {"allowed": [[1]], "next": [[-1]], "free": {0: [[], 1]}},
    "free where there is no place": {"allowed": [[1]], "next": [[-1]], "free": {1: [[], 1]}},
    "no room": {"allowed": [[]], "next": [[]], "free": {0: [[], 0]}},
}


@pytest.mark.parametrize("fault", BAD)
def test_what_a_stranger_sends_is_checked(fault: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="constraint slice: "):
        msgspec.msgpack.decode(msgspec.msgpack.encode(BAD[fault]), type=ConstraintSlice)


def test_free_place_of_plain_data() -> None:
    place = SliceState(ConstraintSlice([[]], [[]], {0: FreeSpan([7], 3)}))
    assert place.allowed() is ANY_TOKEN
    assert [
        place.advance(7).is_truncated,
        place.advance(1).is_truncated,
        place.advance(1).advance(1).advance(1).is_truncated,
    ] == [True, False, True]
