"""Token-level constraints: the walk through a game's legal completions that a decoder follows.

A game defines the next pieces (``Phrases``), a tokenizer the tokens of a piece. ``PhraseCompiler`` combines them, so
that an inference backend only sees token ids. Where one token starts several pieces (a hub model's sub-word tokenizer),
the walk tracks every piece that matches the tokens so far, one thread for each. Completions are prefix-free in pieces
but may not be in tokens; where one could both end and go on, the ``end`` token is allowed as well and ends it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from arena.games.texts import Phrases, Pieces
from schemas.errors import ModelError


class AnyToken(tuple[int, ...]):
    """The type of ``ANY_TOKEN``: empty but true, since a state that allows it is not finished."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


ANY_TOKEN = AnyToken()
"""The value of ``Constraint.allowed`` where the whole vocabulary is allowed. As a list it is empty, which means the
whole vocabulary in ``Generation.allowed`` and ``ModelCall.allowed``."""


class Constraint(Protocol):
    """A state in the walk over allowed completions. Immutable, so that a request can be repeated."""

    def allowed(self) -> Sequence[int]:
        """Token ids that may come next, ascending; one means forced, none means the completion is finished.

        ``ANY_TOKEN`` itself (``is``) means the whole vocabulary. ``ModelError`` where no token can continue.
        """

    def advance(self, token: int) -> "Constraint":
        """The state after ``token``; ``ModelError`` if it is not allowed here."""


PieceEncoder = Callable[[str], tuple[int, ...]]
"""A piece's token ids: at least one, the same on every call."""

PartialPiece = tuple[tuple[int, ...], Phrases]
"""A piece in progress: its remaining tokens (at least one), and the state of the game's walk after it."""


def read_choices(place: Constraint, ids: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """The choices of a finished completion: positions with several allowed tokens, and those tokens."""
    branches: list[int] = []
    choices: list[list[int]] = []
    for position, token in enumerate(ids):
        allowed = place.allowed()
        if len(allowed) > 1 or allowed is ANY_TOKEN:
            branches.append(position)
            choices.append(list(allowed))
        place = place.advance(token)
    return branches, choices


class _PieceTable(NamedTuple):
    """The next pieces of a state as tokens; states with the same pieces share it."""

    allowed: tuple[int, ...]
    starts: Mapping[int, list[tuple[str, tuple[int, ...]]]]
    """Pieces, with all their tokens, by first token."""
    simple: Mapping[int, str] | None
    """The piece of each token, if every piece is a single token; otherwise None."""


@dataclass(slots=True, eq=False)
class SingleTokenState:
    """A state between pieces that are one token each: ``advance`` is a look-up. Made by ``PhraseCompiler``."""

    _walks: "PhraseCompiler"
    _options: Mapping[str, Phrases]
    _allowed: tuple[int, ...]
    _pieces: Mapping[int, str]

    def allowed(self) -> tuple[int, ...]:
        """Token ids of the pieces that may come next."""
        return self._allowed

    def advance(self, token: int) -> Constraint:
        """The state after the piece of ``token``; ``ModelError`` if it is not allowed."""
        try:
            piece = self._pieces[token]
        except KeyError:
            raise _not_allowed_error(token, self._allowed) from None
        return self._walks(self._options[piece])


class MultiTokenState:
    """A state within pieces of several tokens, one thread for each. Made by ``PhraseCompiler``."""

    __slots__ = ("_allowed", "_moves", "_threads", "_walks")

    def __init__(self, walks: "PhraseCompiler", threads: Sequence[PartialPiece], may_end: bool) -> None:
        self._walks = walks
        self._moves: dict[int, Constraint] = {}
        self._threads: dict[int, list[PartialPiece]] = {}
        for thread in threads:
            self._threads.setdefault(thread[0][0], []).append(thread)
        tokens = sorted(self._threads)
        if may_end and threads:
            tokens = sorted([*tokens, walks.end_token(tokens)])
        self._allowed = tuple(tokens)

    def allowed(self) -> tuple[int, ...]:
        """Token ids that go on with any of the threads."""
        return self._allowed

    def advance(self, token: int) -> Constraint:
        """The state of the threads that go on with ``token``; ``ModelError`` if there is none."""
        place = self._moves.get(token)
        if place is None:
            if token not in self._allowed:
                raise _not_allowed_error(token, self._allowed)
            moved = [(rest[1:], after) for rest, after in self._threads.get(token, ())]
            is_whole = len(moved) == 1 and not moved[0][0]
            place = self._moves[token] = self._walks(moved[0][1]) if is_whole else self._walks.merge(moved)
        return place


def _not_allowed_error(token: int, allowed: Sequence[int]) -> ModelError:
    return ModelError(f"constraint: token {token} is not allowed here; expected one of {tuple(allowed)}")


class _Node(NamedTuple):
    """Memo of one state of the game's walk."""

    phrases: Phrases
    """Kept alive, so that no other object can have its identity."""
    options: Mapping[str, Phrases]
    table: _PieceTable
    walk: Constraint


class PhraseCompiler:
    """Compiles ``Phrases`` to constraints for one tokenizer, with a bounded memo by the states' identity."""

    def __init__(self, encode: PieceEncoder, end: int | None = None, capacity: int = 30_000) -> None:
        """A compiler without memos; these are cleared at ``capacity`` states, while walks in progress continue.

        ``end`` ends a completion where it could also go on; only sub-word tokenizers need one.
        """
        self._encode = encode
        self._end = end
        self._capacity = capacity
        self._pieces: dict[str, tuple[int, ...]] = {}
        self._tables: dict[tuple[str, ...], _PieceTable] = {}
        self._nodes: dict[int, _Node] = {}

    def __call__(self, phrases: Phrases) -> Constraint:
        """The constraint that starts at ``phrases``."""
        node = self._nodes.get(id(phrases))
        return (node or self._make_node(phrases)).walk

    def read(self, phrases: Phrases, ids: Sequence[int]) -> Pieces:
        """The pieces of a whole completion, or ``ModelError``; of several readings, the first in the options' order."""
        stack: list[tuple[Phrases, int, tuple[str, ...]]] = [(phrases, 0, ())]
        while stack:
            place, start, pieces = stack.pop()
            node = self._nodes.get(id(place)) or self._make_node(place)
            if not node.table.starts and tuple(ids[start:]) in ((), (self._end,)):
                return pieces
            if start < len(ids):
                fits = [
                    (node.options[piece], start + len(tokens), (*pieces, piece))
                    for piece, tokens in node.table.starts.get(ids[start], ())
                    if tuple(ids[start : start + len(tokens)]) == tokens
                ]
                stack.extend(reversed(fits))
        raise ModelError(f"constraint: tokens {list(ids)} are not a whole completion")

    def encode(self, phrases: Phrases, pieces: Pieces) -> list[int]:
        """The tokens of a whole completion, or ``ModelError``; its end token included where it needs one."""
        ids = [token for piece in pieces for token in self.encode_piece(piece)]
        place = self(phrases)
        for token in ids:
            place = place.advance(token)
        if place.allowed():
            ids.append(self.end_token(()))
            place = place.advance(ids[-1])
        return ids

    def encode_piece(self, piece: str) -> tuple[int, ...]:
        """The piece's tokens, memoised; ``ModelError`` if the tokenizer returns none."""
        tokens = self._pieces.get(piece)
        if tokens is None:
            tokens = self._pieces[piece] = tuple(self._encode(piece))
            if not tokens:
                raise ModelError(f"constraint: the tokenizer gives no token for the piece {piece!r}")
        return tokens

    def end_token(self, tokens: Sequence[int]) -> int:
        """The token that ends a completion which could also go on with ``tokens``; ``ModelError`` if none is free."""
        if self._end is None or self._end in tokens:
            raise ModelError(
                f"constraint: a completion can end where it can also go on with tokens {list(tokens)}, "
                f"which needs an end token of its own; found {self._end}"
            )
        return self._end

    def merge(self, threads: Sequence[PartialPiece]) -> MultiTokenState:
        """The state of several threads; those without remaining tokens continue with their next pieces."""
        open_threads: list[PartialPiece] = []
        may_end = not threads
        for rest, after in threads:
            if rest:
                open_threads.append((rest, after))
                continue
            options = after.options()
            may_end = may_end or not options
            open_threads.extend((self.encode_piece(piece), place) for piece, place in options.items())
        return MultiTokenState(self, open_threads, may_end)

    def _make_node(self, phrases: Phrases) -> _Node:
        options = phrases.options()
        table = self._make_table(tuple(options))
        if table.simple is not None:
            walk: Constraint = SingleTokenState(self, options, table.allowed, table.simple)
        else:
            threads = [(self.encode_piece(piece), after) for piece, after in options.items()]
            walk = MultiTokenState(self, threads, may_end=False)
        if len(self._nodes) >= self._capacity:
            self._nodes.clear()
        node = self._nodes[id(phrases)] = _Node(phrases, options, table, walk)
        return node

    def _make_table(self, pieces: tuple[str, ...]) -> _PieceTable:
        table = self._tables.get(pieces)
        if table is None:
            starts: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
            for piece in pieces:
                tokens = self.encode_piece(piece)
                starts.setdefault(tokens[0], []).append((piece, tokens))
            simple = all(len(options) == 1 and len(options[0][1]) == 1 for options in starts.values())
            by_token = {token: options[0][0] for token, options in starts.items()} if simple else None
            if len(self._tables) >= self._capacity:
                self._tables.clear()
            table = self._tables[pieces] = _PieceTable(tuple(sorted(starts)), starts, by_token)
        return table


class ListConstraint:
    """A constraint to exactly these completions, of which none may be the beginning of another: for small choices."""

    def __init__(self, completions: Sequence[Sequence[int]]) -> None:
        self._completions = [tuple(completion) for completion in completions]

    def allowed(self) -> Sequence[int]:
        """First tokens of the remaining completions."""
        return sorted({completion[0] for completion in self._completions if completion})

    def advance(self, token: int) -> "ListConstraint":
        """The completions that begin with ``token``, without it."""
        return ListConstraint([rest[1:] for rest in self._completions if rest and rest[0] == token])
