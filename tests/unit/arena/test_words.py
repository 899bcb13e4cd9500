"""How people and models write moves, and what is made of it."""

from random import Random

import msgspec
import pytest

from arena.games import make_game
from arena.games.base import Game
from arena.games.texts import ParsedAction, words_of

pytest.importorskip("diplomacy")

from arena.games.diplomacy.words import sort_farthest_first

DIPLOMACY = make_game("diplomacy", {})
NIM = make_game("nim", {"seats": 2, "heaps": [3, 4, 5], "shuffle": False})
FRANCE, ENGLAND, RUSSIA = (list(DIPLOMACY.seats).index(power) for power in ("FRANCE", "ENGLAND", "RUSSIA"))


def meant(game: Game, seat: int, reply: str) -> ParsedAction:
    return words_of(DIPLOMACY).understand(game, seat, reply, Random(0))


def at(phase: str, **powers: list[str]) -> Game:
    """A position with these units, and centres ``{power}_sc``."""
    saved = DIPLOMACY.new(0).position.saved  # type: ignore[attr-defined]
    units = {power: sorted(powers.get(power, [])) for power in saved.units}
    centers = {power: sorted(powers.get(f"{power}_sc", [])) for power in saved.centers}
    now = msgspec.structs.replace(saved, phase=phase, units=units, centers=centers)
    return DIPLOMACY.load(msgspec.json.encode(now))


@pytest.mark.parametrize(
    ("reply", "order"),
    [
        ("A PAR - BUR", "A PAR - BUR"),
        ("a par-bur", "A PAR - BUR"),
        ("1. A PAR -> BUR.", "A PAR - BUR"),
        ("* **Army Paris to Burgundy**", "A PAR - BUR"),
        ("A PAR (Paris) moves to BUR (Burgundy)", "A PAR - BUR"),
        ("PAR → BUR", "A PAR - BUR"),
        ('["A PAR - BUR", "A MAR - SPA"]', "A PAR - BUR"),
        ("FRANCE: A PAR - BUR; A MAR H", "A PAR - BUR"),
        ("A PAR holds, then A PAR - GAS", "A PAR - GAS"),
        ("I could hold with A PAR H\nbut finally:\nA PAR - PIC", "A PAR - PIC"),
        ("A PAR supports A MAR - BUR", "A PAR S A MAR - BUR"),
        ("Army Paris support Army Marseilles to Burgundy", "A PAR S A MAR - BUR"),
        ("A PAR S MAR - BUR", "A PAR S A MAR - BUR"),
        ("A PAR S F BRE", "A PAR S F BRE"),
        ("A PAR S F BRE H", "A PAR S F BRE"),
        ("HOLD A PAR", "A PAR H"),
    ],
)
def test_an_order_is_understood_however_it_is_written(reply: str, order: str) -> None:
    understood = meant(DIPLOMACY.new(0), FRANCE, reply)
    assert order in understood.action
    assert understood.illegal == 2 - (reply.count("MAR - SPA") + reply.count("A MAR H"))


@pytest.mark.parametrize(
    "reply",
    [
        "A PAR - MOS",
        "F PAR - BUR",
        "A PAR S A MAR - PAR",
        "A PAR - BUR - MUN",
        "A MUN - PAR",
        "GERMANY: A MUN S A PAR - BUR",
        "F LON S A PAR - PIC",
        "A PAR B",
    ],
)
def test_what_is_no_legal_order_leaves_the_unit_where_it_is(reply: str) -> None:
    understood = meant(DIPLOMACY.new(0), FRANCE, reply)
    assert understood.action == ("A MAR H", "A PAR H", "F BRE H")
    assert (understood.choices, understood.illegal) == (3, 3)


def test_coasts_may_be_written_out_or_left_out_where_one_fits() -> None:
    start = DIPLOMACY.new(0)
    for reply in (
        "F STP/SC - BOT",
        "F STP - BOT",
        "Fleet St. Petersburg (South Coast) to Gulf of Bothnia",
        "F STP(sc)-BOT",
    ):
        assert "F STP/SC - BOT" in meant(start, RUSSIA, reply).action
    fleet = at("S1902M", FRANCE=["F MAO"])
    for reply in ("F MAO - SPA/NC", "F MAO to Spain (NC)", "F MAO - SPA north coast"):
        assert meant(fleet, FRANCE, reply).action == ("F MAO - SPA/NC",)
    assert meant(fleet, FRANCE, "F MAO - SPA") == ParsedAction(("F MAO H",), 1, 1)


def test_convoys_are_understood() -> None:
    game = at("S1902M", ENGLAND=["A LON", "F ENG"])
    for reply in ("A LON - BRE VIA\nF ENG C A LON - BRE", "A London to Brest via convoy\nF ENG convoys A LON to BRE"):
        assert meant(game, ENGLAND, reply) == ParsedAction(("A LON - BRE VIA", "F ENG C A LON - BRE"), 2, 0)
    assert meant(game, ENGLAND, "A LON - BRE\nF ENG H").action == ("A LON - BRE VIA", "F ENG H")


def test_builds_are_taken_place_by_place_and_the_rest_is_waived() -> None:
    game = at("W1901A", FRANCE=["A SPA"], FRANCE_sc=["BRE", "MAR", "PAR", "SPA"])
    assert meant(game, FRANCE, "Build A PAR\nF BRE B\nwaive") == ParsedAction(("A PAR B", "F BRE B", "WAIVE"), 3, 0)
    assert meant(game, FRANCE, "army paris") == ParsedAction(("A PAR B", "WAIVE", "WAIVE"), 3, 2)
    assert meant(game, FRANCE, "F PAR B\nA PAR B\nA MUN B") == ParsedAction(("A PAR B", "WAIVE", "WAIVE"), 3, 2)
    assert meant(game, FRANCE, "WAIVE " * 9 + "\nWAIVE\nWAIVE\nWAIVE").illegal == 0


def test_disbands_fall_on_the_farthest_unit_where_nobody_chooses() -> None:
    game = at("W1903A", FRANCE=["A MAR", "A MOS", "F ION"], FRANCE_sc=["MAR"])
    assert meant(game, FRANCE, "Keep A MOS.\nDisband A MAR\nremove F ION") == ParsedAction(("A MAR D", "F ION D"), 2, 0)
    assert meant(game, FRANCE, "A MAR D") == ParsedAction(("A MAR D", "A MOS D"), 2, 1)
    assert meant(game, FRANCE, "") == ParsedAction(("A MOS D", "F ION D"), 2, 2, mentions_move=False)
    assert sort_farthest_first("FRANCE", ["A BUR", "F MAO", "A GAS", "A PAR"]) == ["F MAO", "A BUR", "A GAS", "A PAR"]


def test_dislodged_units_retreat_or_disband() -> None:
    saved = at("F1902R", FRANCE=["A MAR"], GERMANY=["A PAR"]).position.saved  # type: ignore[attr-defined]
    retreats = {**saved.retreats, "FRANCE": {"A PAR": ["GAS", "PIC"]}}
    game = DIPLOMACY.load(msgspec.json.encode(msgspec.structs.replace(saved, retreats=retreats)))
    for reply in ("A PAR R GAS", "A PAR retreats to Gascony", "retreat: A PAR R GAS"):
        assert meant(game, FRANCE, reply) == ParsedAction(("A PAR R GAS",), 1, 0)
    assert meant(game, FRANCE, "A PAR R BUR") == ParsedAction(("A PAR D",), 1, 1)
    assert meant(game, FRANCE, "disband A PAR") == ParsedAction(("A PAR D",), 1, 0)


def test_a_question_lists_every_legal_order_and_no_other() -> None:
    game = at("S1902M", FRANCE=["A BRE", "A SPA", "F ENG", "F MAO", "F STP/NC"], ENGLAND=["A LON", "F NTH"])
    listed = words_of(DIPLOMACY).question(game, FRANCE).partition("Legal orders")[2].splitlines()[1:]
    said = []
    for line in listed:
        kind, place, verb, *rest = line.split(" ", 3)
        ways = rest[0].split(" | ") if rest else [""]
        said += [f"{kind} {place} {verb} {way}".rstrip() for way in ways]
    legal = [order for unit in game.legal_orders(FRANCE) for order in unit.orders]  # type: ignore[attr-defined]
    assert sorted(said) == sorted(legal)
    assert any("VIA" in order for order in said)


@pytest.mark.parametrize(
    ("reply", "move"),
    [
        ("MOVE 2:3", "2:3"),
        ("move: 2 : 3", "2:3"),
        ("**MOVE 2:3** (leaving 2:1)", "2:3"),
        ("I'd rather not play 1:1.\n\n```\nMOVE 3:5\n```", "3:5"),
        ("I take 2 stones from heap 3.", "3:2"),
        ("Take 2 from the heap 3", "3:2"),
        ('{"heap": 3, "stones": 2}', "3:2"),
        ("Heap 1, all 3 of them", "1:3"),
    ],
)
def test_a_move_of_nim_is_understood_however_it_is_written(reply: str, move: str) -> None:
    assert words_of(NIM).understand(NIM.new(0), 0, reply, Random(0))[:3] == ((move,), 1, 0)


@pytest.mark.parametrize("reply", ["", "MOVE 1:4", "MOVE 4:1", "2:12", "heap", "MOVE 0:1", "12:34:56"])
def test_where_no_legal_move_is_said_one_is_drawn(reply: str) -> None:
    game = NIM.new(0)
    drawn = {words_of(NIM).understand(game, 0, reply, Random(seed)) for seed in range(30)}
    assert all(game.is_legal(0, understood.action) and understood.illegal == 1 for understood in drawn)
    assert len(drawn) > 5
