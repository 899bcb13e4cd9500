"""Diplomacy's legal orders through a sub-word tokenizer, alone and after free text."""

from functools import cache
from random import Random

import pytest

pytest.importorskip("diplomacy")

from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import ANY_TOKEN, Constraint, PhraseCompiler
from arena.constraints.vocabulary import ALL_BYTES, Vocabulary
from arena.games import make_game
from arena.games.diplomacy.game import DiplomacyGame

MERGED = [b" A", b" PA", b" BUR", b" -", b"</orders", b"<or", b"ders", b"ders>", b"><", b" VI", b"WAIVE", b" V"]
END = 256 + len(MERGED)
VOCABULARY = Vocabulary([*ALL_BYTES, *MERGED, None], end=END)


@cache
def encode(piece: str) -> tuple[int, ...]:
    return VOCABULARY.encode(f" {piece}".encode())


WALKS = PhraseCompiler(encode, end=END)
TAGGED = TaggedConstraints(VOCABULARY, closing="", free_tokens=20)
"""Diplomacy's completions say their closing tag themselves."""


def wander(place: Constraint, rng: Random) -> list[int]:
    ids: list[int] = []
    while allowed := place.allowed():
        ids.append(rng.randrange(len(VOCABULARY)) if allowed is ANY_TOKEN else rng.choice(allowed))
        place = place.advance(ids[-1])
    return ids


@pytest.mark.parametrize("after_free_text", [False, True])
def test_any_walk_gives_every_unit_one_order_and_none_twice(after_free_text: bool) -> None:
    game = make_game("diplomacy", {"max_year": 1904}).new(2)
    assert isinstance(game, DiplomacyGame)
    text, rng, kinds = make_game("diplomacy", {}).text(), Random(4), set[str]()
    while game.to_move():
        actions = {}
        for seat in game.to_move():
            phrases = text.completions(game, seat)
            legal = WALKS(phrases)
            ids = wander(TAGGED(legal) if after_free_text else legal, rng)
            pieces = WALKS.read(phrases, TAGGED.read(legal, ids) if after_free_text else ids)
            actions[seat] = text.read(game, seat, pieces)
            assert game.is_legal(seat, actions[seat])
            assert_one_each(game, seat, list(actions[seat]))  # type: ignore[call-overload]
            assert VOCABULARY.decode(ids).endswith(b" </orders>")
            assert after_free_text == (b"<orders>" in VOCABULARY.decode(ids))
        kinds.add(game.position.kind)
        game.apply(actions)
    assert {"M", "A"} <= kinds


def assert_one_each(game: DiplomacyGame, seat: int, orders: list[str]) -> None:
    places = [order.split()[1][:3] for order in orders if order != "WAIVE"]
    assert len(places) == len(set(places))
    if game.position.kind == "A":
        assert len(orders) == abs(game.position.adjustment_due(seat))
    else:
        assert sorted(places) == sorted(choices.unit[2:5] for choices in game.legal_orders(seat))
