"""What orders are credited with: centres taken, helped into and lost, unit by unit."""

from random import Random

import pytest

pytest.importorskip("diplomacy")

from arena.games import make_game
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.game import DiplomacyGame
from tests.unit.arena.test_diplomacy import saved, spec_of

FRANCE, GERMANY = POWERS.index("FRANCE"), POWERS.index("GERMANY")


def played(
    units: dict[str, list[str]], centers: dict[str, list[str]], *turns: dict[int, tuple[str, ...]]
) -> DiplomacyGame:
    game = spec_of(max_year=1902).load(saved("S1902M", units, centers))
    for turn in turns:
        game.apply(turn)
    rng = Random(0)
    while not game.is_over():
        game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    return game


def test_who_takes_a_centre_is_credited_in_both_seasons_and_others_are_not() -> None:
    units, centers = {"FRANCE": ["A GAS", "A PAR"]}, {"FRANCE": ["BRE", "PAR"]}
    game = played(units, centers, {FRANCE: ("A GAS - SPA", "A PAR H")}, {FRANCE: ("A PAR H", "A SPA H")})
    spring, autumn, *_ = game.credits(FRANCE)
    assert spring == {"A GAS - SPA": 1.0, "A PAR H": 0.0}
    assert autumn == {"A SPA H": 1.0, "A PAR H": 0.0}


def test_a_support_is_credited_where_somebody_was_in_the_way() -> None:
    centers = {"FRANCE": ["BRE", "PAR"], "GERMANY": ["MUN"]}
    for held, credit in ((["A MUN"], 0.5), (["A KIE"], 0.0)):
        game = played(
            {"FRANCE": ["A BUR", "A TYR"], "GERMANY": held},
            centers,
            {FRANCE: ("A BUR H", "A TYR H"), GERMANY: (f"{held[0]} H",)},
            {FRANCE: ("A BUR - MUN", "A TYR S A BUR - MUN"), GERMANY: (f"{held[0]} H",)},
        )
        assert "MUN" in game.position.centers[FRANCE]
        autumn = game.credits(FRANCE)[1]
        assert autumn == {"A BUR - MUN": 1.0, "A TYR S A BUR - MUN": credit}


def test_a_lost_centre_is_shared_by_those_who_could_have_guarded_it() -> None:
    units = {"FRANCE": ["A BUR", "A GAS", "A TUS"], "GERMANY": ["A PIC"]}
    game = played(
        units,
        {"FRANCE": ["BRE", "MAR", "PAR"], "GERMANY": ["MUN"]},
        {FRANCE: ("A BUR H", "A GAS H", "A TUS H"), GERMANY: ("A PIC H",)},
        {FRANCE: ("A BUR H", "A GAS H", "A TUS H"), GERMANY: ("A PIC - PAR",)},
    )
    spring, autumn, *_ = game.credits(FRANCE)
    assert autumn == {"A BUR H": -0.5, "A GAS H": -0.5, "A TUS H": 0.0}
    assert spring == autumn
    assert game.credits(GERMANY)[1] == {"A PIC - PAR": 1.0}


def test_later_years_count_less_and_a_new_unit_stands_for_its_build() -> None:
    spec = spec_of(max_year=1903)
    game = spec.load(saved("W1901A", {"FRANCE": ["A BRE"]}, {"FRANCE": ["BRE", "MAR"]}))
    for orders in (("A MAR B",), ("A BRE H", "A MAR - SPA"), ("A BRE H", "A SPA - POR"), ("WAIVE",)):
        game.apply({FRANCE: orders})
    rest = [("A BRE H", "A POR - SPA"), ("A BRE H", "A SPA H")]
    for orders in rest:
        game.apply({FRANCE: orders})
    while not game.is_over():
        game.apply({seat: game.random_action(seat, Random(0)) for seat in game.to_move()})
    told = game.credits(FRANCE)
    # POR in 1902, SPA in 1903.
    assert told[1]["A MAR - SPA"] == pytest.approx(1 + 0.8)
    assert told[0] == {"A MAR B": pytest.approx(0.8 * 1.8)}
    assert told[4]["A POR - SPA"] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_gains_less_losses_are_told_for_every_order(seed: int) -> None:
    game, rng = make_game("diplomacy", {"max_year": 1904}).new(seed), Random(seed)
    assert isinstance(game, DiplomacyGame)
    asked: dict[int, list[tuple[str, ...]]] = {seat: [] for seat in range(7)}
    while not game.is_over():
        actions = {seat: game.random_action(seat, rng) for seat in game.to_move()}
        for seat, action in actions.items():
            asked[seat].append(action)
        game.apply(actions)
    for seat, actions in asked.items():
        told = game.credits(seat)
        assert [set(credits) for credits in told] == [set(action) for action in actions]
