"""Slices of constraints as plain data, for an inference process that does not know the game.

A slice has the states reached first. Sampling stops at its boundary, and the caller, which follows with the real
constraint, continues from there. In free text every state allows everything and would be a boundary: a constraint that
knows how long it stays free says so (``FreeSpan``), and one exchange then samples all of it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Protocol, runtime_checkable

import msgspec

from arena.constraints.token_walk import ANY_TOKEN, Constraint
from schemas.errors import ModelError

OMITTED = -1
"""Index of a state that is not in the slice."""

TOKENS_PER_STATE = 16
"""Average number of tokens examined per state before a slice is cut."""


class FreeSpan(msgspec.Struct, frozen=True, array_like=True):
    """Number of tokens for which a state that allows everything continues to do so."""

    breaks: list[int] = []
    """Tokens, ascending, that end the span."""
    room: int = 1
    """Number of tokens after which the span ends in any case, this state's own included."""


class ConstraintSlice(msgspec.Struct, frozen=True, rename={"free_span": "free"}):
    """States of a constraint as plain data; P is their number, state 0 the first."""

    allowed: list[list[int]]
    """P lists of token ids, ascending; an empty one ends the completion, unless the state is free."""
    next: list[list[int]]
    """P lists: for each allowed token the state after it, or -1 if omitted; an empty list omits all."""
    free_span: dict[int, FreeSpan] = {}
    """States that allow the whole vocabulary; their lists are empty."""

    def __post_init__(self) -> None:
        """Check data from another process; ``ModelError`` unless the lists describe states."""
        places = len(self.allowed)
        if not places or len(self.next) != places:
            raise ModelError(
                f"constraint slice: {places} lists of tokens and {len(self.next)} of places; expected as many"
            )
        for place, (tokens, after) in enumerate(zip(self.allowed, self.next, strict=True)):
            if len(after) not in (0, len(tokens)) or any(token >= later for token, later in pairwise(tokens)):
                raise ModelError(
                    f"constraint slice: place {place}: expected ascending tokens and a place for each or none"
                )
            if after and (min(after) < OMITTED or max(after) >= places):
                raise ModelError(
                    f"constraint slice: place {place} leads to {max(after)}; expected {OMITTED} to {places - 1}"
                )
        for place, free in self.free_span.items():
            if not 0 <= place < places or self.allowed[place] or free.room < 1:
                raise ModelError(f"constraint slice: place {place} cannot be free for {free.room} tokens")


@runtime_checkable
class SupportsFreeSpan(Protocol):
    """A constraint that knows how long it allows everything."""

    def free_span(self) -> FreeSpan:
        """The span from here; called only where everything is allowed."""


def free_span_of(place: Constraint) -> FreeSpan | None:
    """The span from a state that allows everything; None where the constraint does not know it."""
    return place.free_span() if isinstance(place, SupportsFreeSpan) else None


def slice_constraint(place: Constraint, limit: int) -> ConstraintSlice:
    """The states around a state, the nearest first; equal ones are merged, those without ``__eq__`` by identity.

    There are ``limit`` at most. After ``TOKENS_PER_STATE`` times as many tokens no further ones are examined, but state
    0, the given one, is always complete. ``ModelError`` if that allows nothing, or raises; errors of later states are
    left to the walk that reaches them.
    """
    return _SliceBuilder(limit).build(place)


class _SliceBuilder:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._remaining_tokens = TOKENS_PER_STATE * limit
        self._states: list[Constraint] = []
        self._allowed: list[Sequence[int]] = []
        self._index: dict[Constraint, int] = {}

    def build(self, place: Constraint) -> ConstraintSlice:
        if not place.allowed():
            raise ModelError("constraint: it allows no token at all")
        self._add_state(place)
        after: list[list[int]] = []
        free: dict[int, FreeSpan] = {}
        # The list grows during iteration: breadth-first search.
        for index, here in enumerate(self._states):
            allowed = self._allowed[index]
            if allowed is ANY_TOKEN:
                free[index] = free_span_of(here) or FreeSpan()
            after.append(self._successors(here, allowed))
        return ConstraintSlice([list(allowed) for allowed in self._allowed], after, free)

    def _add_state(self, place: Constraint) -> int:
        known = self._index.get(place)
        if known is not None:
            return known
        allowed = place.allowed()
        if self._states and len(allowed) > self._remaining_tokens:
            return OMITTED
        self._remaining_tokens -= len(allowed)
        self._states.append(place)
        self._allowed.append(allowed)
        self._index[place] = len(self._states) - 1
        return len(self._states) - 1

    def _successors(self, place: Constraint, allowed: Sequence[int]) -> list[int]:
        """The states after each token; an empty list if all are omitted."""
        after = [self._add_successor(place, token) for token in allowed] if self._has_room else []
        return after if any(index != OMITTED for index in after) else []

    @property
    def _has_room(self) -> bool:
        return len(self._states) < self._limit and self._remaining_tokens > 0

    def _add_successor(self, place: Constraint, token: int) -> int:
        # Counted even if it adds no state: a text may continue with any of a hundred thousand tokens.
        self._remaining_tokens -= 1
        if not self._has_room:
            return OMITTED
        try:
            return self._add_state(place.advance(token))
        except ModelError:
            # Sampling may never come here.
            return OMITTED


@dataclass(slots=True, eq=False)
class SliceState:
    """A state of a slice, as a constraint."""

    _slice: ConstraintSlice
    _index: int = 0
    """-1 is outside the slice."""
    _used: int = 0
    """Tokens of free text so far."""

    @property
    def is_truncated(self) -> bool:
        """Whether the slice ends here, rather than the completion."""
        return self._index == OMITTED

    def allowed(self) -> Sequence[int]:
        """Token ids by the slice; none outside of it either."""
        if self._index == OMITTED:
            return ()
        return ANY_TOKEN if self._index in self._slice.free_span else self._slice.allowed[self._index]

    def advance(self, token: int) -> "SliceState":
        """The state after ``token``, which may be outside of the slice; ``ModelError`` if it is not allowed."""
        if self._index != OMITTED:
            free = self._slice.free_span.get(self._index)
            if free is not None:
                if self._used + 1 >= free.room or _find(free.breaks, token) is not None:
                    return SliceState(self._slice, OMITTED)
                return SliceState(self._slice, self._index, self._used + 1)
            at = _find(self._slice.allowed[self._index], token)
            if at is not None:
                after = self._slice.next[self._index]
                return SliceState(self._slice, after[at] if after else OMITTED)
        raise ModelError(f"constraint slice: token {token} is not allowed at place {self._index}")


def _find(tokens: Sequence[int], token: int) -> int | None:
    """Index of a token among ascending ones."""
    at = bisect_left(tokens, token)
    return at if tokens[at : at + 1] == [token] else None


def state_after(constraint_slice: ConstraintSlice, ids: Sequence[int]) -> SliceState:
    """The state after a completion, or a part of one; ``ModelError`` if a token is not allowed."""
    return reduce(SliceState.advance, ids, SliceState(constraint_slice))
