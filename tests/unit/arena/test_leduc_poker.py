"""Leduc poker is OpenSpiel's, and shows nobody what is hidden."""

import re
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from arena.games import make_game
from arena.games.leduc_poker import CARDS, LeducPoker, LeducPokerSpec, Settings, State
from arena.games.texts import words_of
from schemas.ids import derive_seed

SPEC = LeducPokerSpec(Settings())


def played(cards: tuple[int, int, int], *moves: str) -> LeducPoker:
    game = SPEC.game_type(SPEC, 0, State(cards))
    assert isinstance(game, LeducPoker)
    for move in moves:
        (seat,) = game.to_move()
        game.apply({seat: (move,)})
    return game


def test_every_hand_pays_what_openspiel_pays():
    pyspiel = pytest.importorskip("pyspiel")
    for nth in range(400):
        rng = Random(derive_seed("leduc", nth))
        dealt = rng.sample(range(6), 3)
        theirs = pyspiel.load_game("leduc_poker").new_initial_state()
        ours = played((dealt[0] // 2, dealt[1] // 2, dealt[2] // 2))
        chance = iter(dealt)
        while not theirs.is_terminal():
            if theirs.is_chance_node():
                theirs.apply_action(next(chance))
                continue
            seat = theirs.current_player()
            names = {theirs.action_to_string(seat, move).lower(): move for move in theirs.legal_actions()}
            assert (seat,) == tuple(ours.to_move())
            assert sorted(names) == sorted(ours.moves(seat))
            move = rng.choice(sorted(names))
            theirs.apply_action(names[move])
            ours.apply({seat: (move,)})
        assert list(ours.outcome().scores) == theirs.returns(), theirs


@pytest.mark.parametrize(
    ("cards", "moves", "scores"),
    [
        ((0, 2, 0), ("call", "call", "call", "call"), [1.0, -1.0]),
        ((0, 2, 1), ("call", "call", "call", "call"), [-1.0, 1.0]),
        ((2, 2, 1), ("raise", "raise", "call", "raise", "raise", "call"), [0.0, 0.0]),
        ((1, 2, 0), ("raise", "raise", "call", "raise", "raise", "call"), [-13.0, 13.0]),
        ((1, 2, 0), ("raise", "fold"), [1.0, -1.0]),
        ((1, 2, 0), ("raise", "raise", "fold"), [-3.0, 3.0]),
    ],
)
def test_a_pair_wins_then_the_higher_card_or_whoever_did_not_fold(
    cards: tuple[int, int, int], moves: Sequence[str], scores: list[float]
):
    assert list(played(cards, *moves).outcome().scores) == scores


def test_a_round_has_two_raises_at_most_and_nothing_to_fold_to_at_first():
    assert list(played((0, 1, 2)).moves(0)) == ["call", "raise"]
    assert list(played((0, 1, 2), "raise").moves(1)) == ["fold", "call", "raise"]
    assert list(played((0, 1, 2), "raise", "raise").moves(0)) == ["fold", "call"]


def test_a_seat_sees_its_own_card_and_the_table_only_once_it_is_open():
    for moves in ((), ("raise",), ("raise", "call"), ("call", "call", "raise")):
        for own in range(3):
            seen = set()
            for other in range(3):
                for table in range(3):
                    game = played((own, other, table) if len(moves) % 2 == 0 else (other, own, table), *moves)
                    (seat,) = game.to_move()
                    hidden = "-" if "open" not in game.sees(seat) else CARDS[table]
                    seen.add((hidden, SPEC.text().prompt(game, seat), words_of(SPEC).question(game, seat)))
            assert len(seen) == len({hidden for hidden, _, _ in seen}), "depends on what is hidden"


def test_all_deals_are_drawn_as_often_as_there_are_cards_for_them():
    deals = list(permutations([0, 0, 1, 1, 2, 2], 3))
    assert len(deals) == 120
    drawn = [make_game("leduc_poker", {}).new(seed).state.cards for seed in range(6_000)]
    for cards in sorted(set(deals)):
        assert drawn.count(cards) / 6_000 == pytest.approx(deals.count(cards) / 120, abs=0.02), cards
    assert not any(re.fullmatch(r"(\d)\1\1", "".join(map(str, cards))) for cards in drawn)
