"""What signposts tell each unit, that they tell the truth, and that every action has one completion."""

import json
from random import Random

import pytest

pytest.importorskip("diplomacy")

from arena.games import make_game
from arena.games.diplomacy import board
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.signposts import MOVE_NUMBERS, ORDER_MARK, RIVALS_HERE
from arena.games.diplomacy.spec import DiplomacySpec
from arena.games.texts import Phrases, Pieces, TextFormat

FRANCE, TURKEY = POWERS.index("FRANCE"), POWERS.index("TURKEY")
SPEC = make_game("diplomacy", {"text": "signposted"})
TEXT = SPEC.text()
SURROUNDINGS = make_game("diplomacy", {"text": "surroundings"}).text()


def table(phase: str, units: dict[str, list[str]], centers: dict[str, list[str]]) -> DiplomacyGame:
    saved = {
        "phase": phase,
        "year": int(phase[1:5]),
        "turns": 0,
        "units": {power: units.get(power, []) for power in POWERS},
        "retreats": {power: {} for power in POWERS},
        "centers": {power: centers.get(power, []) for power in POWERS},
    }
    assert isinstance(SPEC, DiplomacySpec)
    return SPEC.load(json.dumps(saved).encode())


def by_unit(written: Pieces) -> list[str]:
    """What is written for each unit, in turn."""
    said, lines = list(written[:-1]), []
    while said:
        stop = said.index(ORDER_MARK) + 1
        stop += {"H": 1, "-": 2, "VIA": 2, "S": 3, "C": 3}.get(said[stop], 1)
        lines.append(" ".join(said[:stop]))
        del said[:stop]
    return lines


def test_a_unit_is_told_of_centres_around_it_and_of_rivals() -> None:
    units = {"FRANCE": ["A BUR", "A MAR", "A PAR"], "GERMANY": ["A MUN", "A RUH", "F HOL"]}
    game = table("S1902M", units, {"FRANCE": ["PAR", "MAR", "BRE"], "GERMANY": ["MUN", "HOL"]})
    # What fewer others can hinder has the lower number. Paris, which has farther to go, speaks last, and is not sent
    # toward Belgium, where a unit goes already.
    assert by_unit(TEXT.write(game, FRANCE, ("A BUR - BEL", "A MAR H", "A PAR - PIC"))) == [
        "BUR <on-field> <here-2> <1-free-2> BEL <2-held-1> MUN <do> <1>",
        "MAR <on-own> <here-0> <1-free-0> SPA <do> H",
        "PAR <on-own> <here-0> <1-way> GAS <do> - PIC",
    ]
    assert by_unit(TEXT.write(game, FRANCE, ("A BUR - BEL", "A MAR - PIE", "A PAR H")))[1].endswith("<do> - PIE")


def test_a_unit_that_could_support_a_contested_move_is_told_once_it_was_said() -> None:
    units = {"FRANCE": ["A BUR", "A TYR"], "GERMANY": ["A MUN", "A RUH"]}
    game = table("S1902M", units, {"FRANCE": ["PAR", "MAR"], "GERMANY": ["MUN"]})
    first, second = by_unit(TEXT.write(game, FRANCE, ("A BUR - MUN", "A TYR S A BUR - MUN")))
    assert first.startswith("BUR")
    assert "help" not in first
    assert "<help-1-held-1> MUN <do> <help-1>" in second
    _, second = by_unit(TEXT.write(game, FRANCE, ("A BUR H", "A TYR H")))
    assert "help" not in second
    assert "<4-held-1> MUN" in second
    free = table("S1902M", {"FRANCE": ["A BUR", "A GAS"]}, {"FRANCE": ["PAR", "MAR"]})
    assert "help" not in " ".join(TEXT.write(free, FRANCE, ("A BUR - BEL", "A GAS H")))


@pytest.mark.parametrize("seed", range(6))
def test_signs_are_true(seed: int) -> None:
    game, rng = SPEC.new(seed), Random(seed)
    assert isinstance(game, DiplomacyGame)
    for _ in range(3 + seed):
        game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    while game.position.kind != "M":
        game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    told = 0
    for seat in game.to_move():
        units = {unit[2:]: unit for unit in game.position.units[seat]}
        for line in by_unit(TEXT.write(game, seat, game.random_action(seat, rng))):
            place, *signs = line.split()
            told += check(game, seat, units[place], signs[: signs.index(ORDER_MARK)])
    assert told


def check(game: DiplomacyGame, seat: int, unit: str, signs: list[str]) -> int:
    """Compare what a unit is told with the board; how many signs there were."""
    others = [u for other, us in enumerate(game.position.units) if other != seat for u in us]

    def rivals(province: str) -> int:
        return min(sum(any(d[:3] == province for d in board.MOVES[u]) for u in others), 3)

    assert signs[1] == RIVALS_HERE[rivals(unit[2:5])]
    pairs = list(zip(signs[2::2], signs[3::2], strict=True))
    for sign, place in pairs:
        kind, _, count = sign.strip("<>").removeprefix("help-").partition("-")[2].partition("-")
        province = place[:3]
        owner, holder = game.position.owner.get(province), game.position.occupied.get(province)
        if "help" not in sign:
            assert place in board.MOVES[unit]
        if kind == "way":
            continue
        assert int(count) == rivals(province)
        assert (kind == "held") == (holder not in (None, seat))
        assert "help" in sign or (owner == seat) == (kind == "guard")
    return len(pairs)


@pytest.mark.parametrize("text", [TEXT, SURROUNDINGS], ids=["signposted", "surroundings"])
def test_every_action_has_one_completion(text: TextFormat) -> None:
    game, rng = SPEC.new(5), Random(5)
    numbered = 0
    while game.to_move() != ():
        for seat in game.to_move():
            completion = walked(text.completions(game, seat), rng)
            assert text.write(game, seat, text.read(game, seat, completion)) == completion
            assert {*text.prompt(game, seat), *completion} <= {*text.vocabulary()}
            numbered += bool(set(completion) & set(MOVE_NUMBERS))
        game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    assert numbered


def walked(place: Phrases, rng: Random) -> Pieces:
    pieces: list[str] = []
    while options := place.options():
        pieces.append(rng.choice(list(options)))
        place = options[pieces[-1]]
    return tuple(pieces)


def test_retreats_and_adjustments_are_said_as_in_the_compact_text() -> None:
    game = table("W1901A", {"TURKEY": ["A CON"]}, {"TURKEY": ["ANK", "CON", "BUL"]})
    plain = make_game("diplomacy", {}).text()
    for action in (("A ANK B",), ("WAIVE",)):
        assert TEXT.write(game, TURKEY, action) == plain.write(game, TURKEY, action)


def test_surroundings_count_help_and_leave_the_board_out() -> None:
    units = {"FRANCE": ["A BUR", "A GAS", "A MAR"], "GERMANY": ["A MUN", "A RUH"], "ITALY": ["A PIE"]}
    game = table("S1902M", units, {"FRANCE": ["PAR", "MAR", "BRE"], "GERMANY": ["MUN"]})
    assert SURROUNDINGS.prompt(game, FRANCE) == ("<france>", "<spring>", "<left-3>", "<lead-2>", "<orders>")
    first, second, third = by_unit(
        SURROUNDINGS.write(game, FRANCE, ("A BUR S A MAR", "A GAS - SPA", "A MAR S A GAS - SPA"))
    )
    assert first == "BUR <on-field-2-2> <1-free-1-0> BEL <2-held-1-0> MUN <do> S MAR H"
    # Marseilles can still help Gascony in Spain, which nobody contests, so it needs no sign for it.
    assert second == "GAS <on-field-0-1> <1-free-0-1> SPA <do> <1>"
    assert third.startswith("MAR <on-own-1-0>")
    assert "help" not in third


def test_surroundings_offer_supports_of_units_that_stay() -> None:
    units = {"FRANCE": ["A MAR", "A SPA"], "GERMANY": ["A BUR"], "ITALY": ["A PIE"]}
    game = table("F1903M", units, {"FRANCE": ["PAR", "MAR", "BRE", "SPA", "POR", "BEL"], "GERMANY": ["MUN"]})
    lines = by_unit(SURROUNDINGS.write(game, FRANCE, ("A MAR H", "A SPA S A MAR")))
    assert lines[1].endswith("<help-1-stay-2-0> MAR <do> <help-1>")
    assert "stay" not in by_unit(SURROUNDINGS.write(game, FRANCE, ("A MAR - BUR", "A SPA H")))[1]
