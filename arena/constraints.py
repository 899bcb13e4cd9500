"""From pieces to tokens: the walk through legal completions that a decoder follows.

A game says which pieces may come next (``Phrases``); a tokenizer says which tokens a piece is. ``TokenWalk`` joins
the two, so that an inference backend only sees token ids. Where one token starts several pieces (a hub model's
sub-word tokenizer), the walk keeps all pieces that agree with the tokens so far.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Constraint(Protocol):
    """A place in the set of allowed completions. Immutable, so that a request can be repeated."""

    def allowed(self) -> Sequence[int]:
        """Token ids that may come next, ascending; one means forced, none means the completion is finished."""

    def advance(self, token: int) -> "Constraint":
        """The place after ``token``, which must be allowed."""


Encode = Callable[[str], tuple[int, ...]]
"""A piece's token ids: at least one, the same on every call."""

__all__ = ["Constraint", "Encode", "Mapping"]
