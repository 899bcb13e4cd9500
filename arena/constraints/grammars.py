"""Constraints on text: regular expressions and JSON schemas, over any vocabulary.

llguidance (https://github.com/guidance-ai/llguidance; the extra ``grammars``) provides the matcher, which computes the
set of next tokens and can be copied. Its prefixes can always be completed to a text of the language. Where the text is
forced, it allows only the token that the tokenizer would have written there. A vocabulary with every single byte can
write any text; with any other one (a list of words) a walk can reach a state that cannot continue, which raises.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from arena.constraints.token_walk import Constraint
from arena.constraints.vocabulary import ALL_BYTES, Vocabulary
from schemas.errors import ConfigError, ModelError

MAX_MESSAGE_LENGTH = 200
"""Most characters of the library's messages, or of a schema, in an error message."""


@dataclass(slots=True, eq=False)
class GrammarState:
    """A state in a text of the language. Made by ``GrammarCompiler``."""

    _grammars: "GrammarCompiler"
    _matcher: Any
    _allowed: tuple[int, ...] | None = None

    def allowed(self) -> Sequence[int]:
        """Token ids by the grammar's matcher, computed once."""
        if self._allowed is None:
            self._allowed = self._grammars.allowed_tokens(self._matcher)
        return self._allowed

    def advance(self, token: int) -> Constraint:
        """The state after ``token``, with a copy of the matcher; ``ModelError`` if it is not allowed."""
        allowed = self.allowed()
        matcher = self._matcher.deep_copy()
        at = bisect_left(allowed, token)
        if allowed[at : at + 1] != (token,) or not matcher.consume_token(token):
            raise ModelError(
                f"constraint: token {token} is not allowed here; expected one of {_format_tokens(allowed)}"
            )
        return GrammarState(self._grammars, matcher)


class GrammarCompiler:
    """Compiles constraints over one vocabulary, which the constructor reads as a whole: keep the compiler."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare a vocabulary; ``ConfigError`` unless the extra ``grammars`` is installed."""
        try:
            import llguidance
        except ImportError as error:
            raise ConfigError(
                "constraints on text need llguidance: pip install 'event-sourced-league[grammars]'"
            ) from error
        self.vocabulary = vocabulary
        self._library = llguidance
        self._tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_TokenizerAdapter(vocabulary)))

    def compile_regex(self, pattern: str, closing: str = "") -> Constraint:
        r"""Completions that match a regular expression as a whole, followed by the literal text ``closing``.

        The syntax is Rust's `regex` (no look-around, no back-references; ``\d`` and ``\w`` hold the digits and
        letters of all scripts). Where a match can end or go on, ``closing`` replaces an end token. ``ModelError`` for
        another text, or an expression that matches only the empty text.
        """
        of_regex = self._library.LLMatcher.grammar_from_regex
        # The pattern is compiled alone first: the text around it must not balance its brackets.
        place = self._start_state(f"the regular expression {pattern!r}", of_regex(pattern), may_be_empty=bool(closing))
        if not closing:
            return place
        return self._start_state(f"{pattern!r}", of_regex(f"(?:{pattern}){escape_literal(closing)}"))

    def compile_json_schema(self, schema: Mapping[str, Any], closing: str = "") -> Constraint:
        """Completions that are JSON of a schema, without white space between its parts, followed by ``closing``.

        ``ModelError`` if it is no schema, has unsupported keywords, or no valid values.
        """
        rules = {**schema, "x-guidance": {"whitespace_flexible": False}}
        text = msgspec.json.encode(rules).decode()
        ending = f" {msgspec.json.encode(closing).decode()}" if closing else ""
        grammar = self._library.LLMatcher.grammar_from_lark(f"start: json{ending}\njson: %json {text}\n")
        return self._start_state(f"the JSON schema {_shorten(msgspec.json.encode(schema).decode())}", grammar)

    def allowed_tokens(self, matcher: Any) -> tuple[int, ...]:
        """The tokens that a matcher allows next, ascending; none at its end. ``ModelError`` where none goes on."""
        if matcher.is_stopped() and not matcher.is_error():
            return ()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise ModelError(f"constraint: nothing can come next ({_shorten(matcher.get_error())})")
        texts, end = self.vocabulary.texts, self.vocabulary.end
        may_end = matcher.is_accepting()
        known = _set_bits(mask, len(texts))
        if not known:
            # The mask contains only bytes without a token: the matcher is asked for one token after the other.
            known = tuple(at for at, text in enumerate(texts) if text and matcher.validate_tokens([at]))
        going_on = known and known != (end,)
        if not may_end and not going_on:
            raise ModelError(
                f"constraint: the text is not complete, and none of the vocabulary's {len(texts)} tokens "
                f"goes on with it; it has no token for {len(self.vocabulary.missing_bytes)} of the 256 bytes"
            )
        if may_end and going_on and end is None:
            raise ModelError(
                f"constraint: the text can end where it can also go on with tokens {_format_tokens(known)}, which "
                "needs an end token or a closing text"
            )
        return known if going_on else ()

    def _start_state(self, what: str, grammar: str, may_be_empty: bool = False) -> GrammarState:
        matcher = self._library.LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise ModelError(f"constraint: {what} cannot be kept: {_shorten(matcher.get_error())}")
        place = GrammarState(self, matcher)
        if may_be_empty and matcher.is_accepting():
            return place
        try:
            allowed = place.allowed()
        except ModelError as error:
            raise ModelError(f"constraint: {what} allows nothing ({error})") from error
        if not allowed:
            raise ModelError(f"constraint: {what} allows nothing but the empty text")
        return place


def encode_along(place: Constraint, vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Encode a text along a constraint, with its end token where it needs one; ``ModelError`` if it is not allowed.

    Each token is the longest allowed one: where nothing is forced, the tokenizer might choose others.
    """
    ids: list[int] = []
    rest = text
    while allowed := place.allowed():
        fits = [token for token in allowed if (token_text := vocabulary.texts[token]) and rest.startswith(token_text)]
        if not rest and vocabulary.end is not None and vocabulary.end in allowed:
            fits = [vocabulary.end]
        if not fits:
            raise ModelError(f"constraint: {_shorten(repr(text))} is not allowed from {_shorten(repr(rest))} on")
        ids.append(max(fits, key=lambda token: len(vocabulary.texts[token] or b"")))
        rest = rest[len(vocabulary.texts[ids[-1]] or b"") :]
        place = place.advance(ids[-1])
    if rest:
        raise ModelError(f"constraint: {_shorten(repr(text))} is too long by {_shorten(repr(rest))}")
    return ids


class _TokenizerAdapter:
    """A vocabulary in the library's form; bytes without a token, and an end token, get ids after its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        size, missing, end = len(vocabulary), vocabulary.missing_bytes, vocabulary.end
        added = {byte: size + place for place, byte in enumerate(missing)}
        self._bytes = [added[byte] if byte in added else vocabulary.encode(byte)[0] for byte in ALL_BYTES]
        self.tokens = [text or b"" for text in vocabulary.texts] + [*missing, *([] if end is not None else [b""])]
        self.eos_token_id = size + len(missing) if end is None else end
        self.tokens[self.eos_token_id] = b"<end>"
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a forced text, byte by byte if the vocabulary cannot encode it."""
        try:
            return list(self._vocabulary.encode(text))
        except ModelError:
            return [self._bytes[value] for value in text]


def _set_bits(mask: NDArray[np.uint8], below: int) -> tuple[int, ...]:
    """Indices of the set bits. Few of many are set, so that only non-zero bytes are unpacked."""
    bytes_at = np.flatnonzero(mask)
    at = np.flatnonzero(np.unpackbits(mask[bytes_at], bitorder="little"))
    bits = bytes_at[at >> 3] * 8 + (at & 7)
    return tuple(bits[: np.searchsorted(bits, below)].tolist())


def escape_literal(text: str) -> str:
    """A regular expression that matches only this text."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)


def _shorten(message: str) -> str:
    """The first line of a message, cut to ``MAX_MESSAGE_LENGTH``."""
    first = message.strip().partition("\n")[0]
    return first if len(first) <= MAX_MESSAGE_LENGTH else f"{first[:MAX_MESSAGE_LENGTH]}…"


def _format_tokens(tokens: Sequence[int]) -> str:
    return f"{tuple(tokens[:16])}" + (f" and {len(tokens) - 16} more" if len(tokens) > 16 else "")
