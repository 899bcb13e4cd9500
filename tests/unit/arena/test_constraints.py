"""The walk over tokens allows exactly the game's completions, whatever the tokenizer makes of the pieces."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.constraints.token_walk import Constraint, ListConstraint, PhraseCompiler, read_choices
from schemas.errors import ModelError

END = 99


class Trie:
    """Phrases over a list of completions; places are made once, so that their identity is stable."""

    def __init__(self, completions: Sequence[tuple[str, ...]]) -> None:
        self.asked = 0
        heads = sorted({c[0] for c in completions if c})
        self._next = {h: Trie([c[1:] for c in completions if c and c[0] == h]) for h in heads}

    def options(self) -> "Mapping[str, Trie]":
        self.asked += 1
        return self._next


def letters(piece: str) -> tuple[int, ...]:
    return tuple(ord(letter) - ord("a") for letter in piece)


def all_runs(place: Constraint, so_far: tuple[int, ...] = ()) -> set[tuple[int, ...]]:
    if not place.allowed():
        return {so_far}
    return {run for token in place.allowed() for run in all_runs(place.advance(token), (*so_far, token))}


def prefix_free(completions: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [c for c in completions if not any(c != d and d[: len(c)] == c for d in completions)]


completion_sets = st.lists(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4).map(tuple),
    min_size=1,
    max_size=8,
    unique=True,
).map(prefix_free)


@given(completion_sets)
def test_walk_allows_exactly_the_completions_of_a_sub_word_tokenizer(completions):
    walks = PhraseCompiler(letters, end=END)
    runs = all_runs(walks(Trie(completions)))
    assert {tuple(t for t in run if t != END) for run in runs} == {letters("".join(c)) for c in completions}


@given(completion_sets)
def test_every_walk_reads_back_as_pieces_that_the_game_knows(completions):
    walks, trie = PhraseCompiler(letters, end=END), Trie(completions)
    for run in all_runs(walks(trie)):
        pieces = walks.read(trie, run)
        assert pieces in completions
        assert letters("".join(pieces)) == tuple(t for t in run if t != END)


@given(completion_sets)
def test_every_completion_can_be_written_and_read_back_in_tokens(completions):
    walks, trie = PhraseCompiler(letters, end=END), Trie(completions)
    runs = all_runs(walks(trie))
    for completion in completions:
        ids = walks.encode(trie, completion)
        assert tuple(ids) in runs
        assert "".join(walks.read(trie, ids)) == "".join(completion)


def test_unfinished_completion_cannot_be_written():
    with pytest.raises(ModelError):
        PhraseCompiler(letters, end=END).encode(Trie([("a", "b")]), ("a",))


def test_branches_of_a_completion_are_where_it_could_have_gone_another_way():
    place = PhraseCompiler(letters)(Trie([("a", "bc", "a"), ("a", "bc", "b"), ("a", "c")]))
    assert read_choices(place, [0, 1, 2, 1]) == ([1, 3], [[1, 2], [0, 1]])


def test_one_piece_may_begin_with_all_tokens_of_another():
    trie = Trie([("a", "c"), ("ab", "d")])
    walks = PhraseCompiler(letters)
    place = walks(trie).advance(0)
    assert list(place.allowed()) == [1, 2]
    assert walks.read(trie, [0, 1, 3]) == ("ab", "d")
    assert walks.read(trie, [0, 2]) == ("a", "c")


def test_completion_that_may_end_or_go_on_needs_an_end_token():
    trie = Trie([("a",), ("ab",)])
    with pytest.raises(ModelError, match="end token"):
        PhraseCompiler(letters)(trie).advance(0)
    walks = PhraseCompiler(letters, end=END)
    assert list(walks(trie).advance(0).allowed()) == [1, END]
    assert walks.read(trie, [0, END]) == ("a",)
    assert list(walks(trie).advance(0).advance(END).allowed()) == []


def test_places_are_made_once():
    trie = Trie([("a", "b"), ("a", "c")])
    walks = PhraseCompiler(letters)
    assert walks(trie).advance(0) is walks(trie).advance(0)
    assert trie.asked == 1


def test_forgetting_places_changes_nothing():
    trie = Trie([("a", "b", "c"), ("a", "c", "b"), ("b", "a", "a")])
    assert all_runs(PhraseCompiler(letters, capacity=1)(trie)) == all_runs(PhraseCompiler(letters)(trie))


def test_misuse_is_named():
    walks, trie = PhraseCompiler(letters), Trie([("a", "b")])
    with pytest.raises(ModelError, match="token 7 is not allowed"):
        walks(trie).advance(7)
    with pytest.raises(ModelError, match="not a whole completion"):
        walks.read(trie, [0])
    with pytest.raises(ModelError, match="no token for the piece 'a'"):
        PhraseCompiler(lambda piece: ())(trie)


def test_fixed_allows_its_completions_only():
    assert all_runs(ListConstraint([(1, 2), (1, 3), (4,)])) == {(1, 2), (1, 3), (4,)}
