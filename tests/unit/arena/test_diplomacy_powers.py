"""Diplomacy for fewer than seven powers, against the package itself, and everything that tells of who plays."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("diplomacy")

import diplomacy

from arena.games import make_game
from arena.games.base import position_checksum
from arena.games.diplomacy import POWERS
from arena.games.diplomacy.engine import MAP
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.map_svg import render_svg, replay_phases
from arena.games.diplomacy.spec import DiplomacySpec
from arena.games.texts import words_of
from league.queries.matches import match_replay, render_map
from players.human import answer_fields
from schemas.errors import ConfigError, DecodeError
from schemas.ids import derive_seed
from tests.builders import text_settings

GOLDEN = Path(__file__).parents[2] / "golden" / "games" / "diplomacy.json"
TWO, THREE = ("AUSTRIA", "FRANCE"), ("ENGLAND", "RUSSIA", "TURKEY")


def spec_of(powers: tuple[str, ...] | None, **settings: Any) -> DiplomacySpec:
    spec = make_game("diplomacy", settings if powers is None else {"powers": list(powers), **settings})
    assert isinstance(spec, DiplomacySpec)
    return spec


def finished(spec: DiplomacySpec, seed: int) -> DiplomacyGame:
    """A game of bots that take centres, so that units meet."""
    game, bot, turn = spec.new(seed), spec.bot("greedy"), 0
    while moving := game.to_move():
        game.apply({seat: bot.act(game, seat, Random(derive_seed(seed, turn, seat))) for seat in moving})
        turn += 1
    return game


def oracle_of(powers: tuple[str, ...]) -> Any:
    """The package's own game, where it can by its own map of that variant."""
    if powers == TWO:
        return diplomacy.Game(map_name="standard_france_austria")
    game = diplomacy.Game()
    for absent in {*POWERS} - {*powers}:
        game.set_units(absent, [], reset=True)
        game.set_centers(absent, [], reset=True)
    return game


@pytest.mark.parametrize("powers", [TWO, THREE], ids="-".join)
@pytest.mark.parametrize("seed", range(4))
def test_every_phase_is_as_the_package_adjudicates_it(powers: tuple[str, ...], seed: int) -> None:
    game, oracle = spec_of(powers, max_year=1912).new(seed), oracle_of(powers)
    rng, bot = Random(derive_seed(seed, "powers")), spec_of(powers).bot("greedy")
    assert list(game.position.units) == [tuple(sorted(oracle.get_units(power))) for power in powers]
    while moving := game.to_move():
        assert oracle.get_current_phase() == game.position.phase
        possible = oracle.get_all_possible_orders()
        for seat, power in enumerate(powers):
            asked = oracle.get_orderable_locations(power)
            assert bool(asked) == (seat in moving)
            if game.position.kind != "A":
                ours = {unit.unit[2:5]: list(unit.orders) for unit in game.legal_orders(seat)}
                assert ours == {place: sorted(possible[place]) for place in asked}
        # Random orders hardly ever meet anybody on a board that is half empty: bots see to it now and then.
        actions = {
            seat: bot.act(game, seat, rng) if rng.random() < 0.7 else game.random_action(seat, rng) for seat in moving
        }
        for seat, action in actions.items():
            oracle.set_orders(powers[seat], list(action))
        oracle.process()
        game.apply(actions)
        if oracle.is_game_done:
            assert game.outcome().reason == "solo"
            break
        state = oracle.get_state()
        for seat, power in enumerate(powers):
            standing = [unit for unit in state["units"][power] if not unit.startswith("*")]
            assert sorted(standing) == list(game.position.units[seat])
            assert sorted(state["centers"][power]) == list(game.position.centers[seat])
            assert sorted(state["retreats"][power]) == list(game.position.retreats[seat])


def test_powers_are_those_of_the_map_and_sit_in_its_order_however_they_are_named() -> None:
    assert tuple(sorted(MAP.powers)) == POWERS
    assert tuple(spec_of(("TURKEY", "ENGLAND", "RUSSIA")).seats) == THREE
    assert tuple(spec_of(None).seats) == POWERS
    assert spec_of(POWERS).new(1).save() == spec_of(None).new(1).save()


@pytest.mark.parametrize("powers", [TWO, THREE], ids="-".join)
def test_saves_and_records_hold_who_plays_and_nobody_else(powers: tuple[str, ...]) -> None:
    spec = spec_of(powers, max_year=1904)
    game = finished(spec, 2)
    saved, record = json.loads(game.save()), json.loads(game.record())
    assert [list(saved[table]) for table in ("units", "centers", "retreats")] == [list(powers)] * 3
    assert record["settings"]["powers"] == list(powers)
    # Pages and commands open records without knowing the league's settings.
    anybody = spec_of(None)
    again = anybody.replay(game.record())
    assert (again.save(), again.record(), again.outcome()) == (game.save(), game.record(), game.outcome())
    recording = anybody.open_record(game.record())
    assert tuple(recording.start.seats) == powers
    assert {power for turn in anybody.transcript(game.record()) for power in turn.moves} == set(powers)
    half_way = spec.load(spec.new(2).save())
    while moving := half_way.to_move():
        half_way.apply({seat: half_way.random_action(seat, Random(seat)) for seat in moving})
    assert anybody.replay(half_way.record()).save() == half_way.save()


def test_the_game_of_seven_is_recorded_as_before() -> None:
    golden = json.loads(GOLDEN.read_text())
    old = json.loads(golden["record"])
    assert "powers" not in old["settings"], "it was written before fewer could play"
    new = json.loads(spec_of(None).replay(golden["record"].encode()).record())
    assert new == {**old, "settings": new["settings"]}
    plain = {"analysis": 0, "max_year": 1905, "text": "compact", "win_bonus": 5.0, "winner_threshold_sc": 10}
    assert new["settings"] == plain
    assert position_checksum(golden["final"].encode()) == new["checks"][-1]


@pytest.mark.parametrize("text", [settings["text"] for settings in text_settings("diplomacy")])
def test_a_model_of_the_game_of_seven_can_read_and_say_the_smaller_one(text: str) -> None:
    spec, vocabulary = spec_of(TWO, text=text, max_year=1902), spec_of(None, text=text).text().vocabulary()
    language, game, rng = spec.text(), spec.new(3), Random(3)
    assert list(language.vocabulary()) == list(vocabulary)
    while moving := game.to_move():
        for seat in moving:
            assert set(vocabulary).issuperset(language.prompt(game, seat))
            action = game.random_action(seat, rng)
            written = language.write(game, seat, action)
            assert set(vocabulary).issuperset(written)
            assert language.read(game, seat, written) == action
        game.apply({seat: spec.bot("greedy").act(game, seat, rng) for seat in moving})


def test_each_seat_is_told_that_it_is_its_own_power_and_what_is_free() -> None:
    spec = spec_of(TWO)
    game = spec.new(0)
    for seat, power in enumerate(TWO):
        prompt = spec.text().prompt(game, seat)
        assert prompt[0] == f"<{power.lower()}>"
        free = prompt[prompt.index("<free-centers>") + 1 : prompt.index("<their-centers>")]
        assert len(free) == 34 - 6
        assert prompt[prompt.index("<their-centers>") + 1 : prompt.index("<their-armies>")] == tuple(
            sorted(MAP.homes[TWO[1 - seat]])
        )
        assert f"You are {power}." in words_of(spec).question(game, seat)


@pytest.mark.parametrize("text", ["compact", "egocentric"])
def test_rules_in_words_say_how_many_play(text: str) -> None:
    assert "as one of seven powers" in words_of(spec_of(None, text=text)).rules()
    rules = words_of(spec_of(THREE, text=text)).rules()
    assert "as one of three powers (ENGLAND, RUSSIA and TURKEY; nobody plays the others" in rules
    assert "seven" not in rules


def test_every_bot_takes_neutral_centres_of_powers_that_do_not_play() -> None:
    spec = spec_of(TWO, max_year=1904)
    for name in spec.bots:
        game, bot, turn = spec.new(0), spec.bot(name), 0
        while moving := game.to_move():
            game.apply({seat: bot.act(game, seat, Random(derive_seed(name, turn, seat))) for seat in moving})
            turn += 1
        assert sum(game.progress(seat) for seat in range(2)) > 6, name
    assert sum(len(owned) for owned in finished(spec, 1).position.centers) > 20


def test_credit_is_told_for_every_order_of_every_power_that_plays() -> None:
    game = finished(spec_of(TWO, max_year=1904), 5)
    turns = json.loads(game.record())["turns"]
    for seat, power in enumerate(TWO):
        told = game.credits(seat)
        assert [list(one) for one in told] == [turn[power] for turn in turns if power in turn]
        assert sum(sum(one.values()) for one in told) > 3, "centres were taken"


def test_maps_and_their_words_show_only_who_plays() -> None:
    game = finished(spec_of(TWO, max_year=1901), 1)
    told = replay_phases(spec_of(None).open_record(game.record()))
    assert set(told[-1].centers) == set(TWO)
    assert "Austria: " in told[0].describe()
    assert "Turkey" not in told[0].describe()
    drawn, seven = (
        render_svg(told[0]),
        render_svg(replay_phases(spec_of(None).open_record(spec_of(None).new(1).record()))[0]),
    )
    assert drawn.count("unitaustria") == seven.count("unitaustria") > 0
    assert seven.count('class="unitturkey"') > 0
    assert drawn.count('class="unitturkey"') == 0
    assert drawn.count('class="turkey"') == 0


def test_pages_show_a_match_of_two_without_being_told_who_plays() -> None:
    game = finished(spec_of(TWO, max_year=1901), 1)
    shown = match_replay(game.record(), "diplomacy")
    assert len(shown.pictures) == len(shown.turns) + 1
    assert [set(picture.centers) for picture in shown.pictures] == [set(TWO)] * len(shown.pictures)
    assert (render_map(game.record(), 0) or "").startswith("<?xml")
    words, start = words_of(spec_of(TWO)), spec_of(TWO).new(0)
    named = [choice.name for choice in answer_fields(words, start, TWO.index("FRANCE"))]
    assert named == ["army in Marseilles (MAR)", "army in Paris (PAR)", "fleet in Brest (BRE)"]


@pytest.mark.parametrize(
    ("powers", "message"),
    [
        (["austria", "FRANCE"], r"game\.settings\.powers: found 'austria'; expected some of AUSTRIA, .*TURKEY"),
        (["FRANCE", "GAUL"], r"powers: found 'GAUL'; expected some of AUSTRIA"),
        (["FRANCE", "AUSTRIA", "FRANCE"], r"powers: found FRANCE more than once; expected 2 to 7 different powers"),
        (["FRANCE"], r"powers: found FRANCE; expected 2 to 7 of AUSTRIA"),
        ([], r"powers: found none; expected 2 to 7 of AUSTRIA"),
        ("FRANCE", r"game\.settings\.powers: expected `array`"),
    ],
)
def test_other_powers_than_two_to_seven_of_the_map_are_refused(powers: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_game("diplomacy", {"powers": powers})


def test_a_position_in_which_others_play_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"powers \['AUSTRIA', 'FRANCE'\]; expected ENGLAND, RUSSIA, TURKEY"):
        spec_of(THREE).load(spec_of(TWO).new(0).save())
    with pytest.raises(DecodeError, match=r"expected AUSTRIA, FRANCE"):
        spec_of(TWO).load(spec_of(None).new(0).save())
    record = json.loads(finished(spec_of(TWO, max_year=1901), 1).record())
    record["turns"][0]["ITALY"] = ["A ROM H"]
    with pytest.raises(DecodeError, match=r"orders of \['ITALY'\]; expected those of AUSTRIA, FRANCE"):
        spec_of(None).open_record(json.dumps(record).encode())
