"""Constraints on completions: JSON schemas, regular expressions, choices, lists of tokens; stop strings."""

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from arena.constraints.grammars import GrammarCompiler, escape_literal
from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import ANY_TOKEN, Constraint
from arena.constraints.vocabulary import Vocabulary, read_vocabulary
from arena.prompts import END_THINK, OTHER_THOUGHT_TOKENS, THINK, Template, mark_thoughts
from inference.chat_template import turn_constraint, turn_ends
from inference.http_server import RefusedError
from inference.server.openai_types import CommonRequest, Json
from models import Tokenizer
from models.model_config import read_model_shape


class TokenTexts(NamedTuple):
    """Texts of a tokenizer's tokens."""

    texts: Sequence[bytes | None]
    """Text by token; None for tokens without text."""
    between: bytes
    """The text between two tokens."""
    ends: Collection[int]
    """Tokens that end a completion without a constraint."""


@dataclass(eq=False, slots=True)
class StopStringConstraint:
    """Another constraint, or none, until the text contains a stop string.

    Sampling ends with the token that completes one, which may go beyond it; no token is sampled and discarded.
    """

    stops: Sequence[bytes]
    """None of them is empty."""
    written: TokenTexts
    inner: Constraint | None = None
    """The other constraint; None allows everything up to one of the model's end tokens."""
    tail: bytes = b""
    """End of the text so far, as long as the longest stop string."""
    ended: bool = False

    def allowed(self) -> Sequence[int]:
        """Token ids that the inner constraint allows; none after a stop string."""
        if self.ended:
            return ()
        return ANY_TOKEN if self.inner is None else self.inner.allowed()

    def advance(self, token: int) -> Constraint:
        """The state after ``token``: ended if the text contains a stop string, or a free text's end token came."""
        inner = None if self.inner is None else self.inner.advance(token)
        token_text = self.written.texts[token] if 0 <= token < len(self.written.texts) else None
        text = self.tail + (self.written.between if self.tail and token_text else b"") + (token_text or b"")
        ended = any(stop in text for stop in self.stops) or (inner is None and token in self.written.ends)
        tail = text[-max(map(len, self.stops)) :]
        return StopStringConstraint(self.stops, self.written, inner, tail, ended)


def truncate_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first stop string, and that string; all of the text where it has none."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    at, stop = min(found, default=(len(text), None))
    return text[:at], stop


class TextCodec:
    """Constraints on a tokenizer's texts, and tokens as text. Grammars are compiled on first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        file = (tokenizer.folder / "tokenizer.json").read_bytes()
        self._vocabulary = read_vocabulary(file, tokenizer.eos, tokenizer.encode_text)
        longest = max((len(text) for text in self._vocabulary.texts if text), default=1)
        self._compilers: dict[int | None, GrammarCompiler] = {}
        """Compilers of constraints by the token that ends a text."""
        self._max_chars = read_model_shape(tokenizer.folder).max_positions * (longest + 1)

    def check_length(self, chars: int, field: str) -> None:
        """Raise ``RefusedError`` for a text that has more tokens than the model takes, however it is tokenized."""
        if chars > self._max_chars:
            raise RefusedError(400, f"{field}: {chars:,} characters; the model takes {self._max_chars:,}", field)

    def read(self, ids: Sequence[int], body: CommonRequest) -> str:
        """A completion as text, without tokens that stand for none (the end, padding).

        Tokenizers of whole words put spaces between them, which a constraint on the text does not have.
        """
        if is_structured(body):
            return self._vocabulary.decode(ids).decode(errors="replace")
        return self.tokenizer.decode([token for token in ids if self._text(token)])

    def token_bytes(self, token: int) -> bytes:
        """The text of one token; of one that stands for none, its mark."""
        return self._text(token) or self.tokenizer.decode([token]).encode()

    def find_offsets(self, ids: Sequence[int], body: CommonRequest) -> list[int]:
        """Where each token of a completion begins in its text: the number of whole characters before it."""
        between = len(self._between(body))
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        first = [token for token in ids if self._text(token)][:1]
        # SentencePiece's decoders leave out the space before the first word.
        is_stripped = self._vocabulary.decode(first).startswith(b" ") and not self.read(first, body).startswith(" ")
        at, offsets = -1 if is_stripped else 0, list[int]()
        for token in ids:
            text = self._text(token)
            at += between if text and at > 0 else 0
            offsets.append(max(at, 0))
            at += len(decode(text))
        return offsets

    def _text(self, token: int) -> bytes:
        return (self._vocabulary.texts[token] if token < len(self._vocabulary.texts) else None) or b""

    def _between(self, body: CommonRequest) -> bytes:
        return b" " if self.tokenizer.is_word_level and not is_structured(body) else b""

    def decode_turn(self, ids: Sequence[int], template: Template) -> str:
        """A completion in a conversation as text, with the marks of the model's family and of thoughts."""
        known = filter(self.tokenizer.is_token, (*template.marks, *OTHER_THOUGHT_TOKENS))
        marks = {token for mark in known for token in self.tokenizer.encode_text(mark)}
        return self.tokenizer.decode([token for token in ids if token in marks or self._text(token)])

    def make_constraint(self, body: CommonRequest, template: Template | None = None) -> Constraint | None:
        """The request's constraint, None for none; a conversation, which has a ``template``, ends with the turn.

        Raises:
            RefusedError: several constraints at once, an unknown one, or odd stop strings.
            ModelError: the constraint cannot be compiled, or allows nothing.
            ConfigError: the extra ``grammars`` is not installed.
        """
        ends = self.tokenizer.ends if template is None else turn_ends(self.tokenizer, template)
        end = next(iter(ends), None)
        texts = (self._structured_outputs(body, end), self._response_format(body, end))
        constraints = [limit for limit in texts if limit]
        if body.allowed_token_ids is not None:
            constraints.append(UntilStopToken(ends, sorted(set(body.allowed_token_ids))))
        if len(constraints) > 1:
            raise RefusedError(400, "response_format, structured_outputs, allowed_token_ids: expected one of them")
        free = None if template is None else turn_constraint(self.tokenizer, template)
        limit = constraints[0] if constraints else free
        if not body.stop_strings:
            return limit
        written = TokenTexts(self._vocabulary.texts, self._between(body), self.tokenizer.ends)
        return StopStringConstraint([stop.encode() for stop in body.stop_strings], written, limit)

    def _structured_outputs(self, body: CommonRequest, end: int | None) -> Constraint | None:
        limits = body.structured_outputs
        if limits is None:
            return None
        if sum(value is not None for value in (limits.regex, limits.json, limits.choice)) != 1:
            raise RefusedError(400, "structured_outputs: expected one of 'choice', 'json' or 'regex'")
        if limits.regex is not None:
            return self._grammars(end).compile_regex(limits.regex)
        if limits.json is not None:
            schema = limits.json
            try:
                if isinstance(schema, str):
                    schema = msgspec.json.decode(schema, type=Json)
            except msgspec.DecodeError as error:
                raise RefusedError(
                    400, f"structured_outputs.json: not a schema ({error})", "structured_outputs"
                ) from error
            return self._grammars(end).compile_json_schema(schema)
        return self._grammars(end).compile_regex("|".join(map(escape_literal, limits.choice or [])))

    def _response_format(self, body: CommonRequest, end: int | None) -> Constraint | None:
        requested = body.response_format
        if requested is None or requested.type == "text":
            return None
        if requested.type == "json_object":
            return self._grammars(end).compile_json_schema({"type": "object"})
        if requested.type != "json_schema" or requested.json_schema is None:
            raise RefusedError(
                400,
                f"response_format: {requested.type!r}; expected 'text', 'json_object', or 'json_schema' with a schema",
                "response_format",
            )
        return self._grammars(end).compile_json_schema(requested.json_schema.schema)

    def _grammars(self, end: int | None) -> GrammarCompiler:
        if end not in self._compilers:
            vocabulary = Vocabulary(self._vocabulary.texts, end, self.tokenizer.encode_text)
            self._compilers[end] = GrammarCompiler(vocabulary)
        return self._compilers[end]


def split_reasoning(turn: str, template: Template, thinking: bool) -> tuple[str, str | None]:
    """The answer in a turn, and the reasoning before it; of a thought without an end, when ``thinking``, no answer."""
    thought, end, answer = template.answer(mark_thoughts(turn)).rpartition(END_THINK)
    if not end and not thinking and THINK not in answer:
        return answer, None
    thought = (thought if end else answer).replace(THINK, "").replace(END_THINK, "").strip()
    return answer.strip() if end else "", thought or None


def is_structured(body: CommonRequest) -> bool:
    """Whether the text itself is constrained."""
    form = body.response_format
    return body.structured_outputs is not None or (form is not None and form.type != "text")
