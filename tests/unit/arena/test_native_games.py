"""The rules of the two small games of our own, and that what is hidden stays hidden."""

import subprocess
import sys
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import pytest

from arena.games import make_game
from arena.games.base import Game, GameSpec
from arena.games.kuhn_poker import CARDS, KuhnPoker, KuhnPokerSpec, Settings, State
from arena.games.texts import words_of
from schemas.errors import ConfigError, DecodeError
from schemas.ids import derive_seed

KUHN = KuhnPokerSpec(Settings(shuffle=False))
DEALS = list(permutations(range(3), 2))
ENDS = {
    ("check", "check"): (1.0, "showdown"),
    ("bet", "fold"): (1.0, "first"),
    ("bet", "call"): (2.0, "showdown"),
    ("check", "bet", "fold"): (1.0, "second"),
    ("check", "bet", "call"): (2.0, "showdown"),
}


def dealt(cards: tuple[int, int], first: int = 0) -> KuhnPoker:
    game = KUHN.game_type(KUHN, 0, State(cards, first))
    assert isinstance(game, KuhnPoker)
    return game


def say(game: Game, *moves: str) -> Game:
    for move in moves:
        (seat,) = game.to_move()
        game.apply({seat: (move,)})
    return game


@pytest.mark.parametrize("said", ENDS, ids="-".join)
@pytest.mark.parametrize("cards", DEALS)
@pytest.mark.parametrize("first", [0, 1])
def test_kuhn_pays_the_higher_card_or_whoever_did_not_fold(said: tuple[str, ...], cards: tuple[int, int], first: int):
    outcome = say(dealt(cards, first), *said).outcome()
    chips, who = ENDS[said]
    higher = int(cards[1] > cards[0])
    winner = {"showdown": higher, "first": first, "second": 1 - first}[who]
    assert outcome.scores[winner] == chips == -outcome.scores[1 - winner]
    assert (outcome.winner, outcome.length, outcome.reason) == (winner, len(said), said[-1])


def value_of_the_first_seat(spec: GameSpec, games: int) -> float:
    """Of whoever begins, over all deals alike, both in equilibrium."""
    total = 0.0
    for nth in range(games):
        for cards in DEALS:
            game, turn = dealt(cards), 0
            while moving := game.to_move():
                rng = Random(derive_seed(nth, str(cards), turn))
                game.apply({moving[0]: spec.bot("kuhn_equilibrium").act(game, moving[0], rng)})
                turn += 1
            total += game.outcome().scores[0] / 6
    return total / games


def test_kuhn_in_equilibrium_costs_whoever_begins_an_eighteenth():
    assert value_of_the_first_seat(KUHN, 1500) == pytest.approx(-1 / 18, abs=0.03)


@pytest.mark.parametrize("said", [(), ("check",), ("bet",), ("check", "bet")], ids=len)
def test_kuhn_shows_a_seat_nothing_that_depends_on_the_other_card(said: tuple[str, ...]):
    for own in range(3):
        seen = set()
        for other in set(range(3)) - {own}:
            seat = len(said) % 2
            game = say(dealt((own, other) if seat == 0 else (other, own)), *said)
            seen.add((KUHN.text().prompt(game, seat), words_of(KUHN).question(game, seat)))
        ((prompt, question),) = seen
        assert CARDS[own] in prompt
        assert CARDS[own] in question
        assert not any(card in question for card in CARDS if card != CARDS[own])


def test_kuhn_deals_every_hand_to_both_seats():
    games = [make_game("kuhn_poker", {}).new(seed) for seed in range(200)]
    assert {(game.state.cards, game.state.first) for game in games} == {
        (cards, first) for cards in DEALS for first in (0, 1)
    }


def test_rounds_pay_by_the_table_and_one_gains_what_the_other_loses():
    game = make_game("rock_paper_scissors", {}).new(0)
    for first, second in (("rock", "scissors"), ("paper", "scissors"), ("rock", "rock")):
        game.apply({0: (first,), 1: (second,)})
    outcome = game.outcome()
    assert outcome.scores == (2.0 - 1.0, -2.0 + 1.0)
    assert outcome.metrics[0] == {"rock": 2.0, "paper": 1.0, "scissors": 0.0}
    assert outcome.winner == 0


def test_each_seat_sees_its_own_move_first():
    spec = make_game("rock_paper_scissors", {})
    game = spec.new(0)
    game.apply({0: ("rock",), 1: ("paper",)})
    assert spec.text().prompt(game, 0)[:2] == ("rock", "paper")
    assert spec.text().prompt(game, 1)[:2] == ("paper", "rock")
    assert "you paper, the other rock" in words_of(spec).question(game, 1)


def test_other_tables_and_other_words_can_be_played():
    settings = {"moves": ["hawk", "dove"], "payoffs": [[0, 3], [-3, 0]], "rounds": 1}
    spec = make_game("rock_paper_scissors", settings)
    game = spec.new(0)
    game.apply({0: ("hawk",), 1: ("dove",)})
    assert game.outcome().scores == (3.0, -3.0)
    assert spec.replay(game.record()).outcome() == game.outcome()


def test_each_player_can_have_a_table_of_its_own():
    dilemma = {"moves": ["cooperate", "defect"], "payoffs": [[3, 0], [5, 1]], "second_payoffs": [[3, 5], [0, 1]]}
    spec = make_game("rock_paper_scissors", {**dilemma, "rounds": 3})
    game = spec.new(0)
    for first, second in (("cooperate", "cooperate"), ("cooperate", "defect"), ("defect", "defect")):
        game.apply({0: (first,), 1: (second,)})
    assert game.outcome().scores == (3.0 + 0.0 + 1.0, 3.0 + 5.0 + 1.0)
    assert game.outcome().winner == 1
    assert "cooperate against defect: 0 and 5" in words_of(spec).rules()
    assert spec.replay(game.record()).outcome() == game.outcome()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"second_payoffs": [[0, 1]]}, r"game\.settings\.second_payoffs: found rows of \[2\]"),
        ({"payoffs": [[0, 1]]}, r"game\.settings\.payoffs: found rows of \[2\]"),
        ({"payoffs": [[float("nan")] * 3] * 3}, r"game\.settings\.payoffs\[\d\]\[\d\]: nan; expected"),
        ({"moves": ["rock", "rock", "rock"]}, r"game\.settings\.moves"),
        ({"rounds": 0}, r"game\.settings\.rounds: 0"),
    ],
)
def test_bad_tables_are_refused(settings: dict[str, object], named: str):
    with pytest.raises(ConfigError, match=named):
        make_game("rock_paper_scissors", settings)


@pytest.mark.parametrize(("game", "module"), [("openspiel", "pyspiel"), ("textarena", "textarena")])
def test_without_its_package_a_game_says_what_to_install_and_others_are_played(game: str, module: str):
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from arena.games import make_game\n"
        "make_game('kuhn_poker', {}).bot('random_bot')\n"
        f"try: make_game({game!r}, {{}})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.startswith("ConfigError game.name:")
    assert f"pip install 'event-sourced-league[{game}]'" in said


@pytest.mark.parametrize(
    ("game", "saved"),
    [
        ("kuhn_poker", {"cards": [0, 3], "first": 0}),
        ("kuhn_poker", {"cards": [0, 1], "first": 2}),
        ("kuhn_poker", {"cards": [1, 1], "first": 0}),
        ("kuhn_poker", {"cards": [0, 1], "first": 0, "said": ["raise"]}),
        ("kuhn_poker", {"cards": [0, 1], "first": 0, "said": ["check", "bet", "check"]}),
        ("leduc_poker", {"cards": [0, 1, 2], "rounds": []}),
        ("leduc_poker", {"cards": [0, -1, 2]}),
        ("leduc_poker", {"cards": [0, 1, 2], "rounds": [["bet"]]}),
        ("nim", {"heaps": [3, 4, 5], "mover": 7, "turns": 0, "taken": [0, 0], "last": None}),
        ("nim", {"heaps": [3, 4, 5], "mover": 0, "turns": 0, "taken": [0], "last": None}),
        ("nim", {"heaps": [3, 4, -5], "mover": 0, "turns": 0, "taken": [0, 0], "last": None}),
        ("rock_paper_scissors", {"played": [[0, 3]]}),
    ],
)
def test_positions_that_the_game_does_not_have_are_refused(game: str, saved: dict[str, Any]):
    with pytest.raises(DecodeError, match=game):
        make_game(game, {}).load(msgspec.json.encode(saved))


def test_a_record_of_seats_without_numbers_is_refused():
    spec = make_game("leduc_poker", {})
    record = spec.new(0).record().replace(b'"turns":[]', b'"turns":[{"first":["call"]}]')
    with pytest.raises(DecodeError, match="leduc_poker record"):
        spec.open_record(record)


@pytest.mark.parametrize(("game", "text"), [("kuhn_poker", b'"said":["'), ("diplomacy", b'"phase":"')])
def test_bytes_that_are_not_utf_8_are_refused(game: str, text: bytes):
    spec = make_game(game, {})
    saved = (say(spec.new(0), "check") if game == "kuhn_poker" else spec.new(0)).save()
    assert text in saved
    with pytest.raises(DecodeError, match=game):
        spec.load(saved.replace(text, text + b"\xff"))
    with pytest.raises(DecodeError, match=game):
        spec.open_record(spec.new(0).record().replace(b'"game":"', b'"game":"\xff'))


def test_minimax_never_loses_at_tic_tac_toe_and_draws_against_itself():
    spec = make_game("tic_tac_toe", {})
    for seed in range(60):
        for other in ("random_bot", "tic_tac_toe_minimax"):
            game, rng = spec.new(seed), Random(seed)
            while moving := game.to_move():
                bot = "tic_tac_toe_minimax" if moving[0] == 0 else other
                game.apply({moving[0]: spec.bot(bot).act(game, moving[0], rng)})
            outcome = game.outcome().scores
            assert outcome == (0.0, 0.0) if other == "tic_tac_toe_minimax" else outcome[0] >= 0


def test_tic_tac_toe_ends_with_three_in_a_line_and_shows_each_seat_its_own_marks():
    game = make_game("tic_tac_toe", {"shuffle": False}).new(0)
    for move in "15293":
        (seat,) = game.to_move()
        game.apply({seat: (move,)})
    assert game.outcome().scores == (1.0, -1.0)
    assert game.outcome().reason == "three in a line"
    assert game.sees(0)[:3] == ("1+", "2+", "3+")
    assert game.sees(1)[4] == "5+"
    assert game.tells(1) == "You are O. The board:\nX X X\n4 O 6\n7 8 O"
