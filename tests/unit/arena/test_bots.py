"""What each scripted agent is there for."""

from random import Random

import pytest

pytest.importorskip("diplomacy")

from arena.bots import bot_names, make_bot
from arena.games import make_game
from arena.games.base import Outcome
from arena.games.diplomacy.game import DiplomacyGame
from schemas.errors import GameError
from schemas.ids import derive_seed


def play(hero: str, others: str, seat: int, seed: int) -> Outcome:
    game = make_game("diplomacy", {}).new(seed)
    bots = {s: make_bot(hero if s == seat else others, "diplomacy") for s in range(7)}
    turn = 0
    while moving := game.to_move():
        game.apply({s: bots[s].act(game, s, Random(derive_seed(seed, turn, s))) for s in moving})
        turn += 1
    return game.outcome()


def share_of_moves(name: str) -> float:
    moves = total = 0
    for seed in range(6):
        game = make_game("diplomacy", {}).new(seed)
        assert isinstance(game, DiplomacyGame)
        for seat in game.to_move():
            action = make_bot(name, "diplomacy").act(game, seat, Random(derive_seed(seed, seat)))
            moves += sum(line.split()[2] == "-" for line in action)
            total += len(action)
    return moves / total


def test_bots_are_known_by_the_games_they_play() -> None:
    assert bot_names("nim") == ("random_bot",)
    assert {"chaos_bot", "convoyer", "dumbbot", "greedy", "mover", "random_bot", "tactician"} <= {
        *bot_names("diplomacy")
    }
    with pytest.raises(GameError, match="expected 'random_bot'"):
        make_bot("greedy", "nim")


def test_greedy_wins_against_random_bots_in_every_seat() -> None:
    assert [play("greedy", "random_bot", seat, 40 + seat).winner for seat in range(7)] == list(range(7))


def test_tactician_supports_its_attacks_and_gains_more_centres_than_greedy_among_greedy_bots() -> None:
    outcomes = [
        [play(name, "greedy", seat, seed) for seat in range(7) for seed in (1, 2, 3)]
        for name in ("tactician", "greedy")
    ]
    supported, plain = (sum(o.metrics[i // 3]["centers"] for i, o in enumerate(each)) for each in outcomes)
    assert supported > plain


def test_convoyer_ships_armies_to_where_they_cannot_walk() -> None:
    """England's armies stay on the island with Tactician; each convoy that Convoyer orders has its fleet."""
    abroad = {}
    for name in ("tactician", "convoyer"):
        abroad[name] = 0
        for seed in range(4):
            game = make_game("diplomacy", {"max_year": 1903}).new(seed)
            assert isinstance(game, DiplomacyGame)
            while moving := game.to_move():
                actions = {
                    s: make_bot(name if s == 1 else "greedy", "diplomacy").act(game, s, Random(seed)) for s in moving
                }
                for order in actions.get(1, ()):
                    if order.endswith(" VIA"):
                        assert any(each.endswith(f" C {order.removesuffix(' VIA')}") for each in actions[1])
                game.apply(actions)
            island = {"CLY", "EDI", "LON", "LVP", "WAL", "YOR"}
            abroad[name] += sum(unit[0] == "A" and unit[2:5] not in island for unit in game.position.units[1])
    assert abroad["convoyer"] > abroad["tactician"]


def test_mover_gains_more_centres_than_random_bots() -> None:
    centers = [play("mover", "random_bot", seat, seed).metrics[seat]["centers"] for seat in range(7) for seed in (1, 2)]
    assert sum(centers) / len(centers) > 34 / 7


def test_chaos_prefers_moves_to_supports_and_mover_does_nothing_else() -> None:
    assert share_of_moves("mover") == 1.0
    assert 1.0 > share_of_moves("chaos_bot") > share_of_moves("random_bot") + 0.15


def test_mover_and_greedy_use_every_build() -> None:
    for name in ("mover", "greedy", "tactician", "convoyer"):
        game = make_game("diplomacy", {"max_year": 1903}).new(3)
        assert isinstance(game, DiplomacyGame)
        bot, turn = make_bot(name, "diplomacy"), 0
        while moving := game.to_move():
            actions = {s: bot.act(game, s, Random(derive_seed(3, turn, s))) for s in moving}
            assert not any("WAIVE" in action for action in actions.values())
            game.apply(actions)
            turn += 1
