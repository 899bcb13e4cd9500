"""Constraints on text allow exactly the language that was asked for, whatever the tokens are."""

import itertools
from random import Random
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from arena.constraints.grammars import GrammarCompiler, encode_along
from arena.constraints.token_walk import Constraint, read_choices
from arena.constraints.vocabulary import Vocabulary
from schemas.errors import ModelError

BYTES = [bytes((value,)) for value in range(256)]
MERGED = [b"ab", b"abc", b"ca", b'{"', b'":', b'","', b"unit", b"null", b"</", b"</orders>"]
VOCABULARY = Vocabulary([*BYTES, *MERGED, None], end=len(BYTES) + len(MERGED))
GRAMMARS = GrammarCompiler(VOCABULARY)


class Order(msgspec.Struct, forbid_unknown_fields=True):
    unit: Annotated[str, msgspec.Meta(max_length=6)]
    verb: Literal["hold", "move", "support"]
    to: Literal["PAR", "BUR", "MUN"] | None = None


class Reply(msgspec.Struct, forbid_unknown_fields=True):
    orders: Annotated[list[Order], msgspec.Meta(max_length=3)]
    year: Annotated[int, msgspec.Meta(ge=1901, le=1999)]
    sure: bool


def texts(place: Constraint, vocabulary: Vocabulary, so_far: tuple[int, ...] = ()) -> set[bytes]:
    """Every text that the walk can write; only for small languages."""
    allowed = place.allowed()
    if not allowed:
        return {vocabulary.decode(so_far)}
    return set[bytes]().union(*(texts(place.advance(t), vocabulary, (*so_far, t)) for t in allowed))


def say(place: Constraint, vocabulary: Vocabulary, text: bytes) -> list[int]:
    """The tokens of one text along the walk, the end token included; fails where none fits."""
    ids: list[int] = []
    while allowed := place.allowed():
        fits = [t for t in allowed if (vocabulary.texts[t] or b"") and text.startswith(vocabulary.texts[t] or b"")]
        ids.append(max(fits, key=lambda t: len(vocabulary.texts[t] or b"")) if fits else allowed[-1])
        assert fits or (not text and ids[-1] == vocabulary.end), f"{text!r} cannot be said"
        place, text = place.advance(ids[-1]), text[len(vocabulary.texts[ids[-1]] or b"") :]
    assert not text
    return ids


def wander(place: Constraint, rng: Random) -> list[int]:
    ids: list[int] = []
    while allowed := place.allowed():
        ids.append(rng.choice(allowed))
        place = place.advance(ids[-1])
    return ids


def alternatives(parts: list[tuple[str, frozenset[str]]]) -> tuple[str, frozenset[str]]:
    return "|".join(f"(?:{pattern})" for pattern, _ in parts), frozenset().union(*(words for _, words in parts))


def sequence(parts: list[tuple[str, frozenset[str]]]) -> tuple[str, frozenset[str]]:
    words = frozenset("".join(choice) for choice in itertools.product(*(words for _, words in parts)))
    return "".join(f"(?:{pattern})" for pattern, _ in parts), words


letters = st.sampled_from([("a", frozenset("a")), ("b", frozenset("b")), ("[bc]", frozenset("bc"))])
patterns = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(alternatives),
        st.lists(inner, min_size=1, max_size=2).map(sequence),
        inner.map(lambda part: (f"(?:{part[0]})?", part[1] | {""})),
    ),
    max_leaves=5,
)
"""Regular expressions together with all the words they match, made apart from any library."""


@settings(max_examples=60, deadline=None)
@given(patterns, st.lists(st.text("abc", min_size=2, max_size=3).map(str.encode), max_size=4))
def test_regular_expression_allows_exactly_the_words_that_match(pattern, merged):
    expression, words = pattern
    vocabulary = Vocabulary([b"a", b"b", b"c", None, *merged], end=3)
    place = GrammarCompiler(vocabulary).compile_regex(f"(?:{expression})a")
    assert texts(place, vocabulary) == {f"{word}a".encode() for word in words}


@settings(max_examples=30, deadline=None)
@given(patterns)
def test_closing_text_follows_every_match_and_ends_it_without_an_end_token(pattern):
    expression, words = pattern
    vocabulary = Vocabulary([b"a", b"b", b"c", b"</o>", b"<", b"/o>"], end=None)
    assert texts(GrammarCompiler(vocabulary).compile_regex(expression, closing="</o>"), vocabulary) == {
        f"{word}</o>".encode() for word in words
    }


@pytest.mark.parametrize("seed", range(12))
def test_every_walk_along_a_schema_validates_against_it(seed: int) -> None:
    ids = wander(GRAMMARS.compile_json_schema(msgspec.json.schema(Reply)), Random(seed))
    reply = msgspec.json.decode(VOCABULARY.decode(ids), type=Reply)
    assert 1901 <= reply.year <= 1999


orders = st.builds(
    Order,
    # Control characters are said by their escapes alone, which is not how msgspec writes the delete character.
    unit=st.text(st.characters(exclude_categories=("C",)), max_size=6),
    verb=st.sampled_from(["hold", "move", "support"]),
    to=st.sampled_from(["PAR", "BUR", "MUN", None]),
)
replies = st.builds(Reply, orders=st.lists(orders, max_size=3), year=st.integers(1901, 1999), sure=st.booleans())


@settings(max_examples=40, deadline=None)
@given(replies)
def test_every_value_of_a_schema_can_be_said(reply):
    text = msgspec.json.encode(reply)
    ids = say(
        GRAMMARS.compile_json_schema(msgspec.json.schema(Reply), closing="</orders>"), VOCABULARY, text + b"</orders>"
    )
    assert VOCABULARY.decode(ids) == text + b"</orders>"


def test_place_stays_as_it_is_when_others_go_on_from_it() -> None:
    place = GRAMMARS.compile_regex("a[bc]{3}").advance(ord("a"))
    before = list(place.allowed())
    first, second = place.advance(ord("b")), place.advance(ord("c"))
    assert first.advance(ord("b")).allowed() == second.advance(ord("c")).allowed()
    assert list(place.allowed()) == before
    assert texts(place, VOCABULARY) == {f"{x}{y}{z}".encode() for x in "bc" for y in "bc" for z in "bc"}


def test_forced_text_is_forced_token_by_token_as_the_tokenizer_writes_it() -> None:
    unit = {"properties": {"unit": {"enum": ["a", "b"]}}, "required": ["unit"], "additionalProperties": False}
    place = GRAMMARS.compile_json_schema({"type": "object", **unit})
    ids = say(place, VOCABULARY, b'{"unit":"b"}')
    assert [VOCABULARY.texts[token] for token in ids] == [b'{"', b"unit", b'":', b'"', b"b", b'"', b"}"]
    branches, allowed = read_choices(place, ids)
    assert [VOCABULARY.texts[ids[at]] for at in branches] == [b"b"]
    assert allowed == [[ord("a"), ord("b")]]


def test_completion_that_may_end_or_go_on_is_ended_by_the_end_token() -> None:
    place = GRAMMARS.compile_regex("ab?").advance(ord("a"))
    assert list(place.allowed()) == [ord("b"), VOCABULARY.end]
    assert list(place.advance(ord("b")).allowed()) == []
    with pytest.raises(ModelError, match="end token or a closing text"):
        GrammarCompiler(Vocabulary(BYTES, end=None)).compile_regex("ab?").advance(ord("a")).allowed()


@pytest.mark.parametrize("closing", ["", "</o>"])
@pytest.mark.parametrize("pattern", [r"[^\s\S]", r"a[^\s\S]", "a(", "a)|(?:b"])
def test_regular_expression_that_allows_nothing_is_an_error_at_once(pattern: str, closing: str) -> None:
    with pytest.raises(ModelError, match="regular expression"):
        GRAMMARS.compile_regex(pattern, closing)


def test_empty_text_alone_is_an_error_unless_a_closing_text_follows() -> None:
    with pytest.raises(ModelError, match="nothing but the empty text"):
        GRAMMARS.compile_regex("")
    assert texts(GRAMMARS.compile_regex("", closing="</"), VOCABULARY) == {b"</"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"enum": []},
        {"type": "order"},
        {"not": {"type": "string"}},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
    ],
)
def test_schema_that_allows_nothing_or_cannot_be_kept_is_an_error_at_once(schema: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"JSON schema .* cannot be kept"):
        GRAMMARS.compile_json_schema(schema)


def test_vocabulary_of_words_writes_what_it_can() -> None:
    vocabulary = Vocabulary([None, b"hold", b" PAR", b" BUR", b"</orders>"], end=0)
    place = GrammarCompiler(vocabulary).compile_regex("hold (PAR|BUR|MUN)", closing="</orders>")
    assert texts(place, vocabulary) == {b"hold PAR</orders>", b"hold BUR</orders>"}


def test_text_that_the_vocabulary_cannot_write_is_an_error() -> None:
    grammars = GrammarCompiler(Vocabulary([None, b"hold", b" PAR"], end=0))
    with pytest.raises(ModelError, match="allows nothing"):
        grammars.compile_regex("move PAR")
    with pytest.raises(ModelError, match="256 of the 256 bytes"):
        grammars.compile_regex("hold MUN").advance(1).allowed()


def test_token_that_is_not_allowed_is_named() -> None:
    with pytest.raises(ModelError, match="token 98 is not allowed"):
        GRAMMARS.compile_regex("a|c").advance(ord("b"))


@pytest.mark.parametrize("text", [b"ab", b"abcab", b"", b"cab"])
def test_text_is_spelt_with_tokens_that_a_walk_allows(text: bytes) -> None:
    place = GRAMMARS.compile_regex("(ab|c)*", closing="!")
    ids = encode_along(place, VOCABULARY, text + b"!")
    assert VOCABULARY.decode(ids) == text + b"!"
    for token in ids:
        assert token in place.allowed()
        place = place.advance(token)
    assert not place.allowed()


def test_text_that_may_end_or_go_on_is_spelt_with_the_end_token() -> None:
    assert encode_along(GRAMMARS.compile_regex("(ab)+"), VOCABULARY, b"ab")[-1] == VOCABULARY.end


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"abd", "b'abd' is not allowed from b'd' on"),
        (b"ab", "is not allowed from b'' on"),
        (b"ab!!", "too long by b'!'"),
    ],
)
def test_text_outside_the_language_cannot_be_spelt(text: bytes, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        encode_along(GRAMMARS.compile_regex("(ab|c)*", closing="!"), VOCABULARY, text)
