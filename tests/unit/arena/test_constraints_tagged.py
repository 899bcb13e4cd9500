"""Free text, then a tag, then a constrained part: the tag is found however it falls into tokens."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.constraints.constraint_slices import SliceState, slice_constraint, state_after
from arena.constraints.tagged import TaggedConstraints, UntilStopToken
from arena.constraints.token_walk import ANY_TOKEN, Constraint, ListConstraint, read_choices
from arena.constraints.vocabulary import Vocabulary
from schemas.errors import ModelError

TEXTS = [b"<", b"o", b"r", b">", b"/", b"x", b"<o", b"or", b"or>", b"x<", b"r>x", b"<o<o", None, b"y", b"z"]
X, END, Y, Z = 5, 12, 13, 14
VOCABULARY = Vocabulary(TEXTS, end=END)
INNER = ListConstraint([(Y, Z), (Y, Y, Y), (Z,)])
tokens = st.integers(0, len(TEXTS) - 1)


def said(place: Constraint, choices: list[int]) -> list[int]:
    """Follow a walk by wishes; where a wish is not allowed the first token that is."""
    ids: list[int] = []
    wishes = iter(choices)
    while allowed := place.allowed():
        wish = next(wishes, 0)
        ids.append(wish if allowed is ANY_TOKEN or wish in allowed else allowed[0])
        place = place.advance(ids[-1])
    return ids


@settings(max_examples=300, deadline=None)
@given(st.lists(tokens, max_size=30), st.integers(0, 12))
def test_every_completion_has_one_tag_and_one_constrained_part_after_it(wishes, free):
    tagged = TaggedConstraints(VOCABULARY, tag="<or>", closing="</or>", free_tokens=free)
    ids = said(tagged(INNER), wishes)
    thought, tag, rest = VOCABULARY.decode(ids).partition(b"<or>")
    inner = tagged.read(INNER, ids)
    assert tag
    assert tuple(inner) in {(Y, Z), (Y, Y, Y), (Z,)}
    assert rest == VOCABULARY.decode(inner) + b"</or>"
    written = next(at for at in range(len(ids) + 1) if VOCABULARY.decode(ids[:at]).startswith(thought + b"<or>"))
    assert written <= free + len(VOCABULARY.encode(b"<or>"))


@settings(max_examples=200, deadline=None)
@given(st.lists(tokens, max_size=30))
def test_free_tokens_are_branches_over_the_whole_vocabulary_and_the_tag_is_none(wishes):
    tagged = TaggedConstraints(VOCABULARY, tag="<or>", closing="</or>", free_tokens=8)
    place, ids = tagged(INNER), said(tagged(INNER), wishes)
    branches, allowed = read_choices(place, ids)
    free = sum(not choices for choices in allowed)
    assert branches[:free] == list(range(free))
    assert 1 <= free <= 8
    assert all(set(choices) == {Y, Z} for choices in allowed[free:])


@pytest.mark.parametrize("pieces", [(b"<", b"or>"), (b"<o", b"r", b">"), (b"x<", b"o", b"r", b">"), (b"<o<o", b"r")])
def test_tag_is_found_however_it_falls_into_tokens(pieces: tuple[bytes, ...]) -> None:
    place = TaggedConstraints(VOCABULARY, "<or>", "", 50)(INNER)
    wishes = [TEXTS.index(piece) for piece in pieces]
    text = VOCABULARY.decode(said(place, wishes))
    assert text.endswith(b"<or>yyy")
    assert text.count(b"<or>") == 1


def test_rest_of_the_tag_is_forced_where_a_token_could_run_beyond_it() -> None:
    place = TaggedConstraints(VOCABULARY, "<or>", "", 50)(INNER)
    assert place.advance(TEXTS.index(b"<")).allowed() is ANY_TOKEN
    forced = place.advance(TEXTS.index(b"<o")).allowed()
    assert [TEXTS[token] for token in forced] == [b"r"]


def test_end_token_in_the_free_text_brings_the_tag() -> None:
    ids = said(TaggedConstraints(VOCABULARY, "<or>", "", 50)(INNER), [TEXTS.index(b"x"), END])
    assert VOCABULARY.decode(ids) == b"x<or>yyy"
    assert ids[1] == END


def test_without_free_tokens_the_tag_is_forced_at_once() -> None:
    place = TaggedConstraints(VOCABULARY, "<or>", "", 0)(INNER)
    assert [TEXTS[token] for token in place.allowed()] == [b"<o"]


@settings(max_examples=200, deadline=None)
@given(st.lists(tokens, max_size=30), st.integers(0, 12))
def test_no_tag_is_found_in_a_thought_and_none_is_left_open(wishes, free):
    """A rule that is quoted in a thought is no answer."""
    tagged = TaggedConstraints(VOCABULARY, "<or>", "</or>", free, thought_end=X)
    ids = said(tagged(INNER), wishes)
    end = ids.index(X)
    assert end <= max(free - 1, 0)
    assert ids[:end] == wishes[:end] + [0] * (end - len(wishes[:end]))
    text = VOCABULARY.decode(ids[end + 1 :]).partition(b"<or>")[2]
    assert text == VOCABULARY.decode(tagged.read(INNER, ids)) + b"</or>"
    place, state = tagged(INNER), SliceState(slice_constraint(tagged(INNER), 64))
    for token in ids:
        if state.is_truncated:
            state = SliceState(slice_constraint(place, 64))
        assert list(state.allowed()) == list(place.allowed())
        place, state = place.advance(token), state.advance(token)


def test_word_vocabulary_says_the_tag_in_one_token() -> None:
    vocabulary = Vocabulary([None, b"north", b"<orders>", b"</orders>", b"H"], end=0)
    tagged = TaggedConstraints(vocabulary, free_tokens=5)
    ids = said(tagged(ListConstraint([(4,)])), [1, 1, 2])
    assert ids == [1, 1, 2, 4, 3]
    assert tagged.read(ListConstraint([(4,)]), ids) == [4]


def test_mistakes_are_named() -> None:
    with pytest.raises(ModelError, match="allows nothing"):
        TaggedConstraints(VOCABULARY, "<or>", "")(ListConstraint([]))
    with pytest.raises(ModelError, match="none of its 15 tokens begins b'q>'"):
        TaggedConstraints(VOCABULARY, "<q>", "")
    with pytest.raises(ModelError, match="holds the tag b'or' and more"):
        TaggedConstraints(VOCABULARY, "or", "")
    tagged = TaggedConstraints(VOCABULARY, "<or>", "", 4)
    with pytest.raises(ModelError, match="not a whole tagged completion"):
        tagged.read(INNER, [0])
    with pytest.raises(ModelError, match="token 5 is not allowed"):
        tagged.read(INNER, [6, 5])


def test_long_walks_at_random_come_to_an_end() -> None:
    tagged, rng = TaggedConstraints(VOCABULARY, "<or>", "</or>", 40), Random(1)
    for _ in range(200):
        ids = said(tagged(INNER), [rng.randrange(len(TEXTS)) for _ in range(80)])
        assert len(ids) <= 40 + 4 + 3 + 5


def test_text_up_to_a_stop_token_is_one_place_of_a_slice() -> None:
    constraint_slice = slice_constraint(UntilStopToken((9, 4)), 8)
    assert (len(constraint_slice.allowed), constraint_slice.free_span[0].breaks) == (1, [4, 9])
    assert state_after(constraint_slice, [1] * 5000).allowed() is ANY_TOKEN
    for stop in (4, 9):
        assert state_after(constraint_slice, [1, 2, stop]).is_truncated
