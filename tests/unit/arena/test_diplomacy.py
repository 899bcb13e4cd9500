"""When a game of Diplomacy ends, what it is worth, and what its text looks like."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("diplomacy")

from arena.games import make_game
from arena.games.base import Game
from arena.games.diplomacy import Settings, board, order_trie
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.position import Position, SavedPosition
from arena.games.diplomacy.spec import DiplomacySpec
from arena.games.texts import Phrases
from schemas.errors import ConfigError, DecodeError

ROOT = Path(__file__).parents[3]
FRANCE, TURKEY = POWERS.index("FRANCE"), POWERS.index("TURKEY")


def spec_of(**settings_: object) -> DiplomacySpec:
    spec = make_game("diplomacy", settings_)
    assert isinstance(spec, DiplomacySpec)
    return spec


def saved(phase: str, units: dict[str, list[str]], centers: dict[str, list[str]], **retreats: object) -> bytes:
    table = {
        "phase": phase,
        "year": int(phase[1:5]),
        "turns": 0,
        "units": {power: units.get(power, []) for power in POWERS},
        "retreats": {power: retreats.get(power, {}) for power in POWERS},
        "centers": {power: centers.get(power, []) for power in POWERS},
    }
    return json.dumps(table).encode()


def final(centers: dict[str, int], units: dict[str, int]) -> Position:
    names = iter(board.CENTERS)
    places = iter(board.PROVINCES)
    return Position(
        SavedPosition(
            phase="S1906M",
            year=1906,
            turns=12,
            units={power: [f"A {next(places)}" for _ in range(units.get(power, 0))] for power in POWERS},
            retreats={power: {} for power in POWERS},
            centers={power: [next(names) for _ in range(centers.get(power, 0))] for power in POWERS},
        )
    )


def walk_with(place: Phrases, rng: Random) -> tuple[str, ...]:
    pieces: list[str] = []
    while options := place.options():
        pieces.append(rng.choice(list(options)))
        place = options[pieces[-1]]
    return tuple(pieces)


def every_completion(place: Phrases, said: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    options = place.options()
    if not options:
        yield said
    for piece, after in options.items():
        yield from every_completion(after, (*said, piece))


def test_score_is_centres_and_half_the_units_with_a_bonus_for_a_sole_leader() -> None:
    outcome = final({"FRANCE": 12, "TURKEY": 11, "ITALY": 2}, {"FRANCE": 9, "TURKEY": 11}).outcome(Settings())
    assert outcome.scores == (0.0, 0.0, 21.5, 0.0, 2.0, 0.0, 16.5)
    assert outcome.ranks == (4, 4, 1, 4, 3, 4, 2)
    assert outcome.winner == FRANCE
    assert outcome.metrics[TURKEY] == {"centers": 11.0, "units": 11.0, "survived": 1.0}
    assert outcome.metrics[0]["survived"] == 0.0
    assert (outcome.reason, outcome.length) == ("year_cap", 12)


@pytest.mark.parametrize(
    ("centers", "winner", "best"),
    [
        ({"FRANCE": 12, "TURKEY": 12}, None, 12.0),
        ({"FRANCE": 9, "TURKEY": 8}, FRANCE, 9.0),
        ({"FRANCE": 10, "TURKEY": 8}, FRANCE, 15.0),
    ],
)
def test_bonus_needs_a_sole_leader_with_enough_centres(
    centers: dict[str, int], winner: int | None, best: float
) -> None:
    outcome = final(centers, {}).outcome(Settings())
    assert outcome.winner == winner
    assert max(outcome.scores) == best


def test_a_game_ends_after_the_last_adjustments_of_the_capped_year() -> None:
    game, rng = spec_of(max_year=1902).new(0), Random(0)
    phases = []
    while game.to_move():
        phases.append(game.position.phase)
        game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    assert phases[-1] in ("W1902A", "F1902R", "F1902M")
    assert game.position.phase == "S1903M"
    assert game.clock == 1903
    assert game.outcome().length == len(phases)


def test_play_throughs_share_nothing() -> None:
    """A game ends alike whether or not others are played in turn with it."""
    alone, beside, other = (spec_of(max_year=1902).new(0) for _ in range(3))

    def play_phase(game: Game, seed: int) -> None:
        game.apply({seat: game.random_action(seat, Random(seed)) for seat in game.to_move()})

    for turn in range(20):
        if beside.to_move():
            play_phase(beside, turn)
        if other.to_move():
            play_phase(other, 100 + turn)
    for turn in range(beside.position.saved.turns):
        play_phase(alone, turn)
    assert alone.save() == beside.save() != other.save()


def test_eighteen_centres_win_at_once() -> None:
    centers = [center for center in board.CENTERS if center not in ("ANK", "MUN")]
    data = saved("F1904M", {"FRANCE": ["A MUN"], "TURKEY": ["A ANK"]}, {"FRANCE": centers[:17], "TURKEY": ["ANK"]})
    game = spec_of().load(data)
    game.apply({FRANCE: ("A MUN H",), TURKEY: ("A ANK H",)})
    assert game.to_move() == ()
    assert game.clock == 1904
    outcome = game.outcome()
    assert (outcome.reason, outcome.winner) == ("solo", FRANCE)
    assert spec_of().load(game.save()).outcome() == outcome


def test_centres_change_hands_after_the_autumn_moves_only() -> None:
    game = spec_of().new(0)
    hold = {seat: tuple(f"{unit} H" for unit in game.position.units[seat]) for seat in game.to_move()}
    game.apply({**hold, TURKEY: ("A CON - BUL", "A SMY H", "F ANK H")})
    assert game.progress(TURKEY) == 3
    hold = {seat: tuple(f"{unit} H" for unit in game.position.units[seat]) for seat in game.to_move()}
    game.apply(hold)
    assert game.position.phase == "W1901A"
    assert game.progress(TURKEY) == 4
    assert game.to_move() == (TURKEY,)
    assert game.position.free_build_sites(TURKEY) == ("CON",)


def test_builds_beyond_the_free_home_centres_are_not_due() -> None:
    centers = {"TURKEY": ["ANK", "BUL", "CON", "GRE", "SMY"], "FRANCE": ["PAR"]}
    units = {"TURKEY": ["A CON", "A SMY"], "FRANCE": ["A PAR"]}
    game = spec_of().load(saved("W1902A", units, centers))
    assert game.position.adjustment_due(TURKEY) == 1
    assert game.is_legal(TURKEY, ("WAIVE",))
    assert not game.is_legal(TURKEY, ("A ANK B", "WAIVE"))
    game.apply({TURKEY: ("F ANK B",)})
    assert game.position.units[TURKEY] == ("A CON", "A SMY", "F ANK")


def test_dislodged_units_are_what_a_retreat_phase_orders() -> None:
    units = {"TURKEY": ["A SER"], "AUSTRIA": ["A BUD"]}
    centers = {"TURKEY": ["ANK", "SER"], "AUSTRIA": ["BUD", "VIE"]}
    data = saved("S1902R", units, centers, TURKEY={"A BUL": ["GRE", "RUM", "SER"]})
    game = spec_of().load(data)
    assert game.to_move() == (TURKEY,)
    (unit,) = game.legal_orders(TURKEY)
    assert unit.orders == ("A BUL D", "A BUL R GRE", "A BUL R RUM")
    prompt = spec_of().text().prompt(game, TURKEY)
    assert prompt[-3:] == ("<my-dislodged>", "BUL", "<orders>")


def test_a_support_is_not_tied_to_a_coast_that_its_fleet_can_choose() -> None:
    units = {"TURKEY": ["F AEG", "F CON"], "AUSTRIA": ["A BUL"]}
    game = spec_of().load(saved("S1902M", units, {"TURKEY": ["ANK", "CON"], "AUSTRIA": ["BUD"]}))
    game.apply({TURKEY: ("F AEG S F CON - BUL/EC", "F CON - BUL/SC"), 0: ("A BUL H",)})
    assert "F BUL/SC" in game.position.units[TURKEY]


def test_a_position_takes_about_seventy_pieces() -> None:
    game, text = spec_of().new(0), spec_of().text()
    prompt = text.prompt(game, FRANCE)
    assert len(prompt) == 67
    assert prompt[:7] == ("<france>", "<spring>", "<left-4>", "<my-centers>", "BRE", "MAR", "PAR")
    assert prompt[-6:] == ("<my-armies>", "MAR", "PAR", "<my-fleets>", "BRE", "<orders>")
    assert 100 <= len(text.vocabulary()) <= 200


def test_where_a_unit_stands_is_forced_and_the_list_is_closed() -> None:
    game, text = spec_of().new(0), spec_of().text()
    action = ("A MAR S A PAR - BUR", "A PAR - BUR", "F BRE H")
    written = text.write(game, FRANCE, action)
    assert " ".join(written) == "MAR S PAR BUR PAR - BUR BRE H </orders>"
    place = text.completions(game, FRANCE)
    assert list(place.options()) == ["MAR"]
    assert sorted(place.options()["MAR"].options()) == ["-", "H", "S"]


def test_adjustments_are_said_in_one_order_and_never_repeat_a_place() -> None:
    centers = {"RUSSIA": ["BUL", "MOS", "SEV", "STP", "WAR"], "FRANCE": ["PAR"]}
    game = spec_of().load(saved("W1902A", {"RUSSIA": ["A BUL", "A WAR"], "FRANCE": ["A PAR"]}, centers))
    text, russia = spec_of().text(), POWERS.index("RUSSIA")
    completions = list(every_completion(text.completions(game, russia)))
    said = {text.read(game, russia, completion) for completion in completions}
    places = board.HOMES["RUSSIA"][:-1]
    # MOS takes an army, SEV either kind, STP an army or a fleet on two coasts; any of them may stay empty.
    assert len(completions) == len(said) == (1 + 1) * (1 + 2) * (1 + 3)
    assert all(len({line[2:5] for line in action if line != "WAIVE"}) + action.count("WAIVE") == 3 for action in said)
    assert {line[2:5] for action in said for line in action if line != "WAIVE"} == set(places)


def test_equal_choices_share_their_places() -> None:
    text = spec_of().text()
    first, second = (text.completions(spec_of().new(seed), TURKEY) for seed in (0, 1))
    assert first is second
    assert order_trie.chain_tries(()) is order_trie.CLOSING_STATE


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), turns=st.integers(0, 25), how=st.integers(0, 10**6))
def test_every_action_survives_being_said(seed: int, turns: int, how: int) -> None:
    spec = spec_of(max_year=1909)
    game, text, rng = spec.new(seed), spec.text(), Random(seed)
    for _ in range(turns):
        if game.to_move():
            game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    for seat in game.to_move():
        completion = walk_with(text.completions(game, seat), Random(how))
        action = text.read(game, seat, completion)
        assert game.is_legal(seat, action)
        assert text.write(game, seat, action) == completion


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_year": 1800}, r"game\.settings\.max_year: 1800; expected"),
        ({"max_year": "soon"}, r"game\.settings\.max_year: .*int"),
        ({"winner_threshold_sc": 0}, r"game\.settings\.winner_threshold_sc: 0"),
        ({"win_bonus": -1.0}, r"game\.settings\.win_bonus: -1\.0"),
        ({"years": 5}, r"game\.settings\.years: unknown key; expected .*'max_year'"),
    ],
)
def test_bad_settings_are_named(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_game("diplomacy", setting)


def test_without_the_package_the_message_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['diplomacy'] = None\n"
        "from arena.games import make_game\n"
        "make_game('nim', {}).bot('random_bot')\n"
        "try: make_game('diplomacy', {})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigError game.name: 'diplomacy' needs")
    assert "pip install 'event-sourced-league[diplomacy]'" in done.stdout


@pytest.mark.parametrize(
    ("key", "value"), [("phase", "X"), ("units", {"FRANCE": ["A NOWHERE"]}), ("centers", {"GAUL": ["PAR"]})]
)
def test_positions_that_are_not_on_the_map_are_refused(key: str, value: object) -> None:
    table = msgspec.json.decode(spec_of().new(0).save())
    table[key] = {**table[key], **value} if isinstance(value, dict) else value
    with pytest.raises(DecodeError, match="diplomacy position"):
        spec_of().load(msgspec.json.encode(table))
