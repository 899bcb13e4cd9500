"""Diplomacy written for people: what was ordered, what came in its way, who owns what."""

import pytest

from arena.games import make_game
from arena.games.base import Action, Game, Turn

POWERS = ("AUSTRIA", "ENGLAND", "FRANCE", "GERMANY", "ITALY", "RUSSIA", "TURKEY")
pytest.importorskip("diplomacy")


def holding(game: Game, **orders: list[str]) -> dict[int, Action]:
    """Orders of every power: those that are given, and to hold for all other units."""
    told = {}
    for seat in game.to_move():
        given = {" ".join(order.split()[:2]): order for order in orders.get(POWERS[seat], [])}
        units = game.position.units[seat]  # type: ignore[attr-defined]
        told[seat] = tuple(sorted(given.get(unit, f"{unit} H") for unit in units))
    return told


@pytest.fixture
def turns() -> list[Turn]:
    spec = make_game("diplomacy", {"max_year": 1901})
    game = spec.new(1)
    game.apply(holding(game, FRANCE=["A PAR - BUR"], GERMANY=["A MUN - BUR", "A BER - SIL"], RUSSIA=["A WAR - GAL"]))
    game.apply(
        holding(game, GERMANY=["A SIL S A MUN - BOH", "F KIE - DEN"], AUSTRIA=["A VIE - GAL"], RUSSIA=["A GAL - VIE"])
    )
    while moving := game.to_move():
        game.apply({seat: ("WAIVE",) * game.position.adjustment_due(seat) for seat in moving})  # type: ignore[attr-defined]
    return spec.transcript(game.record())


def test_phases_have_their_names_in_order(turns: list[Turn]) -> None:
    assert [turn.title for turn in turns] == ["S1901M", "F1901M", "W1901A"]


def test_orders_that_came_to_nothing_are_marked(turns: list[Turn]) -> None:
    assert turns[0].moves["FRANCE"] == ["A MAR H", "A PAR - BUR (bounce)", "F BRE H"]
    assert turns[0].moves["GERMANY"] == ["A BER - SIL", "A MUN - BUR (bounce)", "F KIE H"]
    assert turns[0].moves["RUSSIA"][1] == "A WAR - GAL"
    assert turns[1].moves["GERMANY"] == ["A MUN H", "A SIL S A MUN - BOH (void)", "F KIE - DEN"]
    assert turns[1].moves["AUSTRIA"][1] == "A VIE - GAL (bounce)"
    assert turns[2].moves["GERMANY"] == ["WAIVE"]


def test_supply_centres_stand_at_the_end_of_the_year_with_what_changed(turns: list[Turn]) -> None:
    assert turns[0].notes == turns[1].notes == []
    (note,) = turns[2].notes
    assert note.startswith("supply centres after 1901: AUSTRIA 3, ENGLAND 3, FRANCE 3, GERMANY 4 (+1),")


def test_a_dislodged_unit_is_told_with_its_ways_out() -> None:
    spec = make_game("diplomacy", {})
    game = spec.new(1)
    game.apply(holding(game, GERMANY=["A MUN - TYR"], ITALY=["A VEN H", "A ROM - TUS"], AUSTRIA=["F TRI H"]))
    game.apply(holding(game, GERMANY=["A TYR S A VEN - TRI"], ITALY=["A VEN - TRI"]))
    turn = spec.transcript(game.record())[1]
    assert turn.moves["AUSTRIA"][-1] == "F TRI H (dislodged)"
    assert turn.notes == ["dislodged: AUSTRIA F TRI, may go to ADR, ALB"]
