"""A match: who is asked, with which seed, and what happens to a bad answer."""

import asyncio
from random import Random

import pytest

from arena.bots import RandomBot
from arena.games import make_game
from arena.games.base import Action, Game
from arena.match import BotPlayer, decision_seed, play
from schemas.errors import GameError


class Slow:
    """Answers after a while, later seats sooner, and remembers the seeds it was given."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.waiting = 0
        self.most_waiting = 0

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        self.seeds.append(seed)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0.001 * (len(game.seats) - seat))
        self.waiting -= 1
        return game.random_action(seat, Random(seed))


class Cheat:
    async def act(self, game: Game, seat: int, seed: int) -> Action:
        return ("7:7",)


class Broken:
    async def act(self, game: Game, seat: int, seed: int) -> Action:
        raise GameError("model: no answer")


def test_waiting_for_an_agent_changes_nothing_in_the_play() -> None:
    spec = make_game("nim", {"seats": 3})
    games = [spec.new(1), spec.new(1)]
    bot, slow = BotPlayer(RandomBot()), Slow()
    outcomes = [asyncio.run(play(game, [player] * 3, 5)) for game, player in zip(games, [bot, slow], strict=True)]
    assert outcomes[0] == outcomes[1]
    assert games[0].record() == games[1].record()
    assert len(set(slow.seeds)) == len(slow.seeds)
    assert slow.seeds[0] == decision_seed(5, 0, spec.new(1).to_move()[0])


def test_all_seats_of_a_turn_are_asked_at_once() -> None:
    pytest.importorskip("diplomacy")
    slow, bot = Slow(), BotPlayer(RandomBot())
    game = make_game("diplomacy", {"max_year": 1901}).new(0)
    asyncio.run(play(game, [slow, slow, bot, slow, bot, bot, slow], 2))
    assert slow.most_waiting == 4


def test_other_games_go_on_while_bots_play() -> None:
    async def side_by_side() -> list[int]:
        ended: list[int] = []

        async def one(number: int, heaps: list[int]) -> None:
            game = make_game("nim", {"heaps": heaps}).new(0)
            await play(game, [BotPlayer(RandomBot())] * 2, number)
            ended.append(number)

        await asyncio.gather(one(0, [99] * 9), one(1, [1]))
        return ended

    assert asyncio.run(side_by_side()) == [1, 0]


def test_an_illegal_action_names_seat_turn_and_action() -> None:
    game = make_game("nim", {"shuffle": False}).new(0)
    with pytest.raises(GameError, match=r"turn 1: seat 1 \(P2\) cannot play \('7:7',\)"):
        asyncio.run(play(game, [BotPlayer(RandomBot()), Cheat()], 0))


def test_a_failing_agent_fails_the_match_with_its_own_error() -> None:
    game = make_game("nim", {}).new(0)
    with pytest.raises(GameError, match="model: no answer"):
        asyncio.run(play(game, [Broken(), Broken()], 0))


def test_a_match_can_be_limited_in_turns() -> None:
    game = make_game("nim", {"heaps": [99] * 9}).new(0)
    with pytest.raises(GameError, match="not over after 3 turns"):
        asyncio.run(play(game, [BotPlayer(RandomBot())] * 2, 0, max_turns=3))


def test_players_must_fit_the_seats() -> None:
    with pytest.raises(GameError, match="1 players; expected 2"):
        asyncio.run(play(make_game("nim", {}).new(0), [BotPlayer(RandomBot())], 0))
