"""Free text first, then a constrained part between tags: ``I hold the north. <orders> A PAR H </orders>``.

The tag is found in the text, however it is tokenized. The constrained part begins with a new token: where some token
could complete the tag and run on beyond it (``>`` and a line break in one), the rest of the tag is forced, so that the
whole vocabulary can stay allowed everywhere else.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from arena.constraints.constraint_slices import FreeSpan
from arena.constraints.token_walk import ANY_TOKEN, Constraint
from arena.constraints.vocabulary import Vocabulary
from schemas.errors import ModelError

MAX_SPAN_TOKENS = 1 << 20
"""Room of free text that only a stop token ends: more than any model's."""


class TaggedConstraints:
    """Constraints with free text before the answer, over one vocabulary."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        tag: str = "<orders>",
        closing: str = "</orders>",
        free_tokens: int = 512,
        thought_end: int | None = None,
    ) -> None:
        """Constraints with one pair of tags; ``closing`` is empty if the constrained part contains it.

        After ``free_tokens`` of free text, the beginning of the tag included, or an end token in it, the tag is forced.
        The free text begins with a thought that ``thought_end`` ends, if that is given: no tag is found in it.
        ``ModelError`` if the vocabulary cannot encode the tags, or has a token that continues after the whole tag.
        """
        if not tag or free_tokens < 0:
            raise ModelError(f"constraint: tag {tag!r} after at most {free_tokens} tokens; expected a text and a count")
        self.free_tokens = free_tokens
        self.thought_end = thought_end
        self.vocabulary = vocabulary
        self.closing = vocabulary.encode(closing.encode()) if closing else ()
        self._tag = tag.encode()
        self._longest_first = [self._tag[:size] for size in range(len(self._tag) - 1, -1, -1)]
        """Proper beginnings of the tag."""
        self._remainders = []
        """Tokens of the rest of the tag by number of matched bytes; of the whole tag if the rest has none."""
        for matched in range(len(self._tag)):
            try:
                self._remainders.append(vocabulary.encode(self._tag[matched:]))
            except ModelError:
                self._remainders.append(vocabulary.encode(self._tag))
        texts = [text for text in vocabulary.texts if text]
        if any(self._tag in text[:-1] for text in texts):
            raise ModelError(f"constraint: a token of the vocabulary holds the tag {self._tag!r} and more")
        rests = tuple(self._tag[at:] for at in range(1, len(self._tag)))
        completing = [text for text in texts if text.startswith(rests)]
        begun = [self._tag[:at] for at in range(len(self._tag))]
        self._overrun = [any(self._tag in (before + text)[:-1] for text in completing) for before in begun]
        """Whether, by number of matched bytes, some token completes the tag before the token's last byte."""
        self._end = _ForcedState(self.closing, None)

    def __call__(self, inner: Constraint) -> Constraint:
        """Free text, the tag, a completion of ``inner``, which must allow something, and the closing tag."""
        if not inner.allowed():
            raise ModelError("constraint: the part between the tags allows nothing")
        if self.thought_end is None:
            return self._free_text(inner, 0)
        return _ThoughtState(self, inner, 0) if self.free_tokens > 1 else self._end_thought(inner)

    def read(self, inner: Constraint, ids: Sequence[int]) -> list[int]:
        """The tokens of the constrained part of a completion; ``ModelError`` unless it is whole."""
        place = self(inner)
        tokens: list[int] = []
        for token in ids:
            if isinstance(place, _InnerState):
                tokens.append(token)
            place = place.advance(token)
        if place.allowed():
            raise ModelError(f"constraint: {len(ids)} tokens are not a whole tagged completion")
        return tokens

    def advance_thought(self, inner: Constraint, used: int, token: int) -> Constraint:
        """The state after the ``used``-th token, which belongs to the thought or ends it."""
        if token == self.thought_end:
            return self._free_text(inner, used)
        if used >= self.free_tokens - 1 or token == self.vocabulary.end:
            return self._end_thought(inner)
        return _ThoughtState(self, inner, used)

    def _end_thought(self, inner: Constraint) -> Constraint:
        """The end of the thought and the tag, forced, and the constrained part."""
        assert self.thought_end is not None
        return _ForcedState((self.thought_end,), self._force_tag(0, inner))

    def _free_text(self, inner: Constraint, used: int) -> Constraint:
        return _FreeTextState(self, inner, 0, used) if used < self.free_tokens else self._force_tag(0, inner)

    def advance_free_text(self, inner: Constraint, matched: int, used: int, token: int) -> Constraint:
        """The state after the ``used``-th token, before which the text ended with ``matched`` bytes of the tag."""
        matched = self._match_length(matched, token)
        if matched == len(self._tag):
            return self.enter_inner(inner)
        if used >= self.free_tokens or token == self.vocabulary.end or self._overrun[matched]:
            return self._force_tag(matched, inner)
        return _FreeTextState(self, inner, matched, used)

    def enter_inner(self, inner: Constraint) -> Constraint:
        """A state of the constrained part, or of the closing tag when it is complete."""
        return _InnerState(self, inner) if inner.allowed() else self._end

    def _match_length(self, before: int, token: int) -> int:
        """Number of the tag's bytes that the text ends with after ``token``, given that number ``before`` it.

        A token without a text resets it.
        """
        text = self.vocabulary.texts[token] if 0 <= token < len(self.vocabulary) else None
        if text is None:
            return 0
        end = self._tag[:before] + text
        return len(self._tag if self._tag in end else next(filter(end.endswith, self._longest_first)))

    def _force_tag(self, matched: int, inner: Constraint) -> Constraint:
        """The rest of the tag, forced, and the constrained part."""
        return _ForcedState(self._remainders[matched], self.enter_inner(inner))

    @cached_property
    def break_tokens(self) -> list[int]:
        """Tokens, ascending, that end free text without a part of the tag, or begin the tag."""
        known = range(len(self.vocabulary))
        return [token for token in known if token == self.vocabulary.end or self._match_length(0, token)]


def force_tokens(tokens: Sequence[int], then: Constraint) -> Constraint:
    """These tokens, forced, and a completion of ``then``."""
    return _ForcedState(tokens, then) if tokens else then


@dataclass(slots=True, eq=False)
class UntilStopToken:
    """The same tokens at every place, by default the whole vocabulary, up to and including one of the stop tokens."""

    _stops: Collection[int]
    _tokens: Sequence[int] = ANY_TOKEN

    def allowed(self) -> Sequence[int]:
        """The same token ids everywhere; none after a stop token."""
        return self._tokens

    def advance(self, token: int) -> Constraint:
        """The same state, or the end after a stop token."""
        return UntilStopToken((), ()) if token in self._stops else self

    def free_span(self) -> FreeSpan:
        """The span up to a stop token."""
        return FreeSpan(sorted(self._stops), MAX_SPAN_TOKENS)


@dataclass(slots=True, eq=False)
class _FreeTextState:
    """A state in the free text, after some tokens of it, which ends with ``matched`` bytes of the tag."""

    tagged: TaggedConstraints
    inner: Constraint
    matched: int
    used: int

    def allowed(self) -> Sequence[int]:
        return ANY_TOKEN

    def advance(self, token: int) -> Constraint:
        return self.tagged.advance_free_text(self.inner, self.matched, self.used + 1, token)

    def free_span(self) -> FreeSpan:
        """The rest of the free text; empty within the tag, where every token counts."""
        if self.matched:
            return FreeSpan()
        return FreeSpan(self.tagged.break_tokens, self.tagged.free_tokens - self.used)


@dataclass(slots=True, eq=False)
class _ThoughtState:
    """A state in the thought, after some tokens of it."""

    tagged: TaggedConstraints
    inner: Constraint
    used: int

    def allowed(self) -> Sequence[int]:
        return ANY_TOKEN

    def advance(self, token: int) -> Constraint:
        return self.tagged.advance_thought(self.inner, self.used + 1, token)

    def free_span(self) -> FreeSpan:
        """The rest of the thought."""
        ends = (self.tagged.thought_end, self.tagged.vocabulary.end)
        return FreeSpan(sorted(token for token in ends if token is not None), self.tagged.free_tokens - 1 - self.used)


@dataclass(slots=True, eq=False)
class _InnerState:
    """A state in the constrained part before its end; equal where the inner states are identical."""

    tagged: TaggedConstraints
    inner: Constraint

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InnerState) and self.inner is other.inner and self.tagged is other.tagged

    def __hash__(self) -> int:
        return hash(id(self.inner))

    def allowed(self) -> Sequence[int]:
        return self.inner.allowed()

    def advance(self, token: int) -> Constraint:
        return self.tagged.enter_inner(self.inner.advance(token))


@dataclass(slots=True, eq=False)
class _ForcedState:
    """Forced tokens, then another state, or the end."""

    tokens: Sequence[int]
    then: Constraint | None

    def allowed(self) -> Sequence[int]:
        return tuple(self.tokens[:1])

    def advance(self, token: int) -> Constraint:
        if not self.tokens or token != self.tokens[0]:
            raise ModelError(f"constraint: token {token} is not allowed here; expected one of {self.allowed()}")
        rest = self.tokens[1:]
        return self.then if self.then is not None and not rest else _ForcedState(rest, self.then)
