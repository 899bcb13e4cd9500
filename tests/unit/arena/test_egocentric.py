"""Diplomacy for large models: a golden prompt, and orders that survive being written between tags."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from arena.games import make_game
from arena.games.base import Game, GameSpec
from arena.games.diplomacy.egocentric import EgocentricText, EgocentricWords
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.spec import DiplomacySpec
from arena.games.diplomacy.text import DiplomacyText
from arena.games.texts import Phrases, Pieces
from arena.prompts import Chat, make_template, template_names
from schemas.errors import ConfigError, GameError

GOLDEN = Path(__file__).parents[2] / "golden" / "prompts"
FRANCE, TURKEY = POWERS.index("FRANCE"), POWERS.index("TURKEY")


@pytest.fixture(scope="module")
def spec() -> DiplomacySpec:
    made = make_game("diplomacy", {"text": "egocentric", "max_year": 1908, "analysis": 64})
    assert isinstance(made, DiplomacySpec)
    return made


def decisions(spec: GameSpec, seed: int) -> Iterator[tuple[Game, int]]:
    game, rng = spec.new(seed), Random(seed)
    while moving := game.to_move():
        for seat in moving:
            yield game, seat
        game.apply({seat: game.random_action(seat, rng) for seat in moving})


def random_walk(place: Phrases, rng: Random) -> Pieces:
    said: list[str] = []
    while options := place.options():
        said.append(rng.choice(list(options)))
        place = options[said[-1]]
    return tuple(said)


def position(phase: str, units: dict[str, list[str]], centers: dict[str, list[str]], **retreats: object) -> bytes:
    """A position in which powers that are not named have nothing."""
    table = {
        "phase": phase,
        "year": int(phase[1:5]),
        "turns": 3,
        "units": {power: units.get(power, []) for power in POWERS},
        "centers": {power: centers.get(power, []) for power in POWERS},
        "retreats": {power: retreats.get(power, {}) for power in POWERS},
    }
    return json.dumps(table).encode()


def test_configuration_chooses_the_language(spec: DiplomacySpec):
    assert isinstance(spec.text(), EgocentricText)
    assert isinstance(spec.text(), Chat)
    compact = make_game("diplomacy", {}).text()
    assert isinstance(compact, DiplomacyText)
    assert not isinstance(compact, Chat)
    with pytest.raises(ConfigError, match="analysis: found 64 with text = 'compact'"):
        make_game("diplomacy", {"analysis": 64})
    with pytest.raises(ConfigError, match=r"game\.settings.*compact|compact.*egocentric|'egocentrical'"):
        make_game("diplomacy", {"text": "egocentrical"})


@pytest.mark.parametrize("family", template_names())
def test_prompt_of_a_known_position_never_changes_by_accident(spec: DiplomacySpec, family: str):
    """After a deliberate change, write the files again with ``python tests/golden/prompts/write.py`` and read them."""
    game = spec.load((GOLDEN / "diplomacy-position.json").read_bytes())
    messages = EgocentricText(spec.settings).messages(game, FRANCE)
    assert make_template(family).render(messages) == (GOLDEN / f"diplomacy-{family}.txt").read_text()


def test_view_is_json_that_differs_by_seat_and_lists_exactly_the_legal_orders(spec: DiplomacySpec):
    text = EgocentricText(spec.settings)
    for game, seat in decisions(spec, 3):
        seen = json.loads(text.messages(game, seat)[1].content)
        assert seen["power"] == POWERS[seat]
        assert POWERS[seat] not in seen["others"]
        listed = {f"{unit} {order}" for unit, orders in seen["legal_orders"].items() for order in orders}
        for _ in range(3):
            assert listed.issuperset(set(game.random_action(seat, Random(seat))) - {"WAIVE"})
        assert not any(order in listed for order in ("A PAR - LON", "A PAR H H"))


def test_threats_are_the_units_that_can_enter_what_a_seat_holds(spec: DiplomacySpec):
    units = {"FRANCE": ["A BUR", "F ENG"], "GERMANY": ["A MUN", "F NTH"], "ITALY": ["F TYS"]}
    game = spec.load(position("S1903M", units, {"FRANCE": ["BEL", "PAR"], "GERMANY": ["MUN"]}))
    seen = json.loads(EgocentricText(spec.settings).messages(game, FRANCE)[1].content)
    assert seen["threats"] == {"BEL": ["GERMANY F NTH"], "BUR": ["GERMANY A MUN"], "ENG": ["GERMANY F NTH"]}


def test_orders_of_every_phase_survive_being_written_and_read(spec: DiplomacySpec):
    text, words = spec.text(), spec.words()
    vocabulary = set(text.vocabulary())
    kinds: set[str] = set()
    for game, seat in itertools.chain(*(decisions(spec, seed) for seed in range(4))):
        rng = Random(seat)
        assert vocabulary.issuperset(text.prompt(game, seat))
        action = game.random_action(seat, rng)
        written = text.write(game, seat, action)
        assert text.read(game, seat, written) == action
        walked = random_walk(text.completions(game, seat), rng)
        assert vocabulary.issuperset(walked)
        said = text.read(game, seat, walked)
        assert game.is_legal(seat, said)
        assert text.write(game, seat, said) == walked
        reply = f"<analysis>\nOnce I thought of <orders>A PAR H</orders>.\n</analysis>\n{''.join(written)}"
        understood = words.understand(game, seat, reply, rng)
        assert (understood.action, understood.illegal) == (action, 0)
        kinds.add(json.loads(game.save())["phase"][-1])
    assert kinds == set("MRA")


def test_analysis_is_asked_for_only_where_there_is_room_for_it(spec: DiplomacySpec):
    game, curt = spec.new(0), make_game("diplomacy", {"text": "egocentric"})
    assert isinstance(curt, DiplomacySpec)
    assert "<analysis>" in EgocentricText(spec.settings).messages(game, FRANCE)[0].content
    assert "<analysis>" not in EgocentricText(curt.settings).messages(game, FRANCE)[0].content
    assert "<analysis>" in curt.words().rules()


def test_brief_question_leaves_out_what_follows_from_the_rest_and_says_nothing_of_it(spec: DiplomacySpec):
    listed, whole = ("threats", "legal_orders", "free_centers"), EgocentricWords(spec.settings)
    for game, seat in decisions(spec, 3):
        told, left = (json.loads(words.question(game, seat)) for words in (whole, whole.brief()))
        assert left == {key: value for key, value in told.items() if key not in listed}
    text, game = EgocentricText(spec.settings), spec.new(0)
    whole_talk, brief_talk = text.messages(game, FRANCE), text.brief().messages(game, FRANCE)
    assert not any(key in message.content for key in listed for message in brief_talk)
    assert 3 * len(brief_talk[1].content) < 2 * len(whole_talk[1].content)
    assert text.with_free_tokens(7).brief().free_tokens == text.brief().with_free_tokens(7).free_tokens == 7
    assert text.brief().with_free_tokens(64).messages(game, FRANCE) == brief_talk
    assert text.brief().write(game, FRANCE, ("A MAR H", "A PAR H", "F BRE H")) == text.write(
        game, FRANCE, ("A MAR H", "A PAR H", "F BRE H")
    )


def test_a_completion_reads_as_the_reply_that_is_asked_for(spec: DiplomacySpec):
    game, text = spec.new(0), spec.text()
    action = ("A MAR S A PAR - BUR", "A PAR - BUR", "F BRE H")
    written = "".join(text.write(game, FRANCE, action))
    assert written == "<orders>\nA MAR S A PAR - BUR\nA PAR - BUR\nF BRE H\n</orders>"


def test_every_unit_gets_one_order_and_no_place_two_builds(spec: DiplomacySpec):
    text = spec.text()
    for seed in range(3):
        for game, seat in decisions(spec, seed):
            said = text.read(game, seat, random_walk(text.completions(game, seat), Random(seed)))
            places = [order[2:5] for order in said if order != "WAIVE"]
            assert len(places) == len(set(places))


def test_what_is_not_a_legal_completion_is_refused(spec: DiplomacySpec):
    game, text = spec.new(0), spec.text()
    whole = random_walk(text.completions(game, TURKEY), Random(0))
    for bad in ((), whole[:-1], whole[1:], (*whole, whole[0]), ("<orders>", "\n", "A PAR")):
        with pytest.raises(GameError, match="diplomacy text"):
            text.read(game, TURKEY, bad)
    with pytest.raises(GameError, match="cannot play"):
        text.write(game, TURKEY, ("A PAR H",))


def test_seat_that_is_not_to_move_is_asked_nothing(spec: DiplomacySpec):
    game = spec.load(position("S1903M", {"FRANCE": ["A PAR"]}, {"FRANCE": ["PAR"]}))
    with pytest.raises(GameError, match="not to move"):
        EgocentricText(spec.settings).messages(game, TURKEY)


def test_orders_that_were_only_thought_of_are_not_given(spec: DiplomacySpec):
    game = spec.new(0)
    reply = "<think><orders>A PAR - PIC</orders></think>\nA PAR - BUR, F BRE - MAO, A MAR H"
    understood = spec.words().understand(game, FRANCE, reply, Random(0))
    assert understood.action == ("A MAR H", "A PAR - BUR", "F BRE - MAO")


def test_reply_without_tags_is_still_read(spec: DiplomacySpec):
    game = spec.new(0)
    understood = spec.words().understand(game, FRANCE, "Army Paris to Burgundy", Random(0))
    assert "A PAR - BUR" in understood.action
    assert (understood.choices, understood.illegal) == (3, 2)
