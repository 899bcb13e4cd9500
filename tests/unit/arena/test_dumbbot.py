"""DumbBot in its three variants, against the published ruleset where a copy of it is at hand."""

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("diplomacy")

from arena.bots import make_bot
from arena.bots.dumbbot import _SCALE, place_values
from arena.games import make_game
from arena.games.diplomacy import board
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position
from schemas.ids import derive_seed

VARIANTS = ("dumbbot", "dumbbot_plus", "dumbbot_simple")
RULESET = os.environ.get("LEAGUE_DUMBBOT_RULESET", "")
"""Path of ``diplomacy_research/players/rulesets/dumbbot_ruleset.py``, which is not part of this repository."""
POSITIONS = int(os.environ.get("LEAGUE_DUMBBOT_POSITIONS", "1000"))


def new_game(seed: int, max_year: int = 1905) -> DiplomacyGame:
    game = make_game("diplomacy", {"max_year": max_year}).new(seed)
    assert isinstance(game, DiplomacyGame)
    return game


def positions(seed: int, names: tuple[str, ...], max_year: int = 1905) -> Iterator[tuple[DiplomacyGame, int]]:
    """The game before each phase, played by the named bots in turn, and a seat that is to move."""
    game, turn = new_game(seed, max_year), 0
    while moving := game.to_move():
        rng = Random(derive_seed(seed, turn))
        yield game, rng.choice(list(moving))
        bots = [make_bot(names[(seed + seat) % len(names)], "diplomacy") for seat in range(7)]
        game.apply({seat: bots[seat].act(game, seat, Random(derive_seed(seed, turn, seat))) for seat in moving})
        turn += 1


def centers_of_greedy(others: str) -> float:
    """Mean centres of a greedy bot in each seat among six of the others."""
    total = 0.0
    for seat in range(7):
        game, turn = new_game(seat), 0
        bots = [make_bot("greedy" if other == seat else others, "diplomacy") for other in range(7)]
        while moving := game.to_move():
            game.apply({s: bots[s].act(game, s, Random(derive_seed(seat, turn, s))) for s in moving})
            turn += 1
        total += game.outcome().metrics[seat]["centers"]
    return total / 7


@pytest.mark.parametrize("name", VARIANTS)
def test_every_action_is_legal_and_repeatable_in_all_phases(name: str) -> None:
    kinds = set()
    for seed in range(3):
        for game, seat in positions(seed, VARIANTS, 1908):
            action = make_bot(name, "diplomacy").act(game, seat, Random(seed))
            assert game.is_legal(seat, action), f"{name} in {game.position.phase}: {action}"
            assert action == make_bot(name, "diplomacy").act(game, seat, Random(seed))
            kinds.add(game.position.kind)
    assert kinds == {"M", "R", "A"}


def test_only_the_original_values_unowned_centres() -> None:
    position, france = new_game(0).position, new_game(0).seats.index("FRANCE")
    published, original = (place_values(position, france, values_unowned) for values_unowned in (False, True))
    assert original.values["A SPA"] > published.values["A SPA"]
    assert original.competition == published.competition
    assert published.competition["BUR"] == 1, "Munich alone is next to it"
    assert published.competition["POR"] == 0


def test_equal_positions_have_equal_values_in_whole_numbers() -> None:
    game = new_game(0)
    germany = game.seats.index("GERMANY")
    values = place_values(game.position, germany, False).values
    assert values == place_values(new_game(1).position, germany, False).values
    assert all(isinstance(value, int) for value in values.values())


def test_the_original_is_the_strongest_variant_and_the_simplified_one_the_weakest() -> None:
    plus, published, simple = map(centers_of_greedy, ("dumbbot_plus", "dumbbot", "dumbbot_simple"))
    assert min(published, plus) + 1 < simple


@pytest.fixture(scope="module")
def ruleset() -> Any:
    """The published module; what it imports of its own project is replaced, since positions are passed as games."""
    stub = ModuleType("diplomacy_research.models.state_space")
    stub.build_game_from_state_proto = lambda state: state  # type: ignore[attr-defined]
    names = ("diplomacy_research", "diplomacy_research.models", stub.__name__)
    sys.modules.update(zip(names, (ModuleType(names[0]), ModuleType(names[1]), stub), strict=True))
    spec = importlib.util.spec_from_file_location("published_dumbbot", Path(RULESET))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in names:
        del sys.modules[name]


def package_game(position: Position, power: str) -> Any:
    import diplomacy

    game: Any = diplomacy.Game()
    saved = position.saved
    game.set_state(
        {
            "name": saved.phase,
            "units": {p: [*saved.units[p], *("*" + unit for unit in saved.retreats[p])] for p in saved.units},
            "retreats": saved.retreats,
            "centers": saved.centers,
        }
    )
    game.powers[power].units.sort()
    return game


@pytest.mark.skipif(not RULESET, reason="LEAGUE_DUMBBOT_RULESET does not name a copy of the published ruleset")
def test_values_and_orders_are_those_of_the_published_ruleset(ruleset: Any) -> None:
    """Equal values, and with equal random numbers equal orders, but for illegal ones of the ruleset."""
    compared = illegal = seed = 0
    while compared < POSITIONS:
        for game, seat in positions(seed, ("dumbbot", "greedy", "mover", "dumbbot_plus", "random_bot"), 1912):
            position, power = game.position, game.seats[seat]
            theirs = package_game(position, power)
            values, factors = ruleset.get_board_factors(theirs, power)
            own = place_values(position, seat, False)
            assert {unit: value * _SCALE for unit, value in values.items()} == pytest.approx(own.values, rel=1e-9)
            assert {p: factors.competition_map[p] for p in board.PROVINCES} == own.competition
            random.seed(compared)
            published = sorted(ruleset.decode_orders(theirs, power, values, factors))
            action = make_bot("dumbbot", "diplomacy").act(game, seat, Random(compared))
            if game.is_legal(seat, tuple(published)):
                assert sorted(action) == published, position.phase
            else:
                illegal += 1
            compared += 1
        seed += 1
    print(f"{compared} positions compared, {illegal} with an illegal order of the ruleset")
