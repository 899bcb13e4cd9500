"""What every game promises, whatever its rules. Games are found by themselves; an extra that is missing is skipped."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from arena.games import game_names, make_game
from arena.games.base import GameSpec, Outcome
from arena.games.contract import RULES, TEXT_RULES, Rule, finished
from schemas.errors import ConfigError
from tests.builders import text_settings

GOLDEN = Path(__file__).parents[1] / "golden" / "games"
ROOT = Path(__file__).parents[2]

PLAY = """
import sys
from random import Random
from arena.games import make_game
from tests.builders import text_settings
spec = make_game(sys.argv[1], {})
text, game, rng = spec.text(), spec.new(11), Random(13)
print(text.vocabulary())
while moving := game.to_move():
    actions = {}
    for seat in moving:
        place = text.completions(game, seat)
        print(text.prompt(game, seat), list(place.options()))
        actions[seat] = game.random_action(seat, rng)
        print(text.write(game, seat, actions[seat]))
    game.apply(actions)
for name in spec.bots:
    print(spec.bot(name).act(spec.new(3), spec.new(3).to_move()[0], Random(5)))
print(game.record(), game.save(), game.outcome())
"""


@pytest.fixture(params=game_names())
def spec(request: pytest.FixtureRequest) -> GameSpec:
    try:
        return make_game(request.param, {})
    except ConfigError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


def texts() -> list[tuple[str, dict[str, str]]]:
    return [(name, settings) for name in game_names() for settings in text_settings(name)]


@pytest.fixture(params=texts(), ids=lambda mode: "-".join((mode[0], *mode[1].values())))
def spoken(request: pytest.FixtureRequest) -> GameSpec:
    """A game in each of the ways that models can be asked about it."""
    name, settings = request.param
    try:
        return make_game(name, settings)
    except ConfigError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_game_keeps_the_contract(spec: GameSpec, rule: Rule) -> None:
    rule(spec)


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_every_way_to_ask_keeps_the_contract(spoken: GameSpec, rule: Rule) -> None:
    rule(spoken)


def test_transcripts_of_the_games_here_have_notes(spec: GameSpec) -> None:
    assert any(turn.notes for turn in spec.transcript(finished(spec, 6).record()))


def test_a_record_from_before_there_were_checks_is_still_read(spec: GameSpec) -> None:
    game = finished(spec, 6)
    fields = json.loads(game.record())
    del fields["checks"]
    old = json.dumps(fields).encode()
    assert spec.open_record(old).checks == []
    assert spec.replay(old).save() == game.save()
    assert spec.transcript(old) == spec.transcript(game.record())


def test_unknown_settings_are_named(spec: GameSpec) -> None:
    with pytest.raises(ConfigError, match=r"game\.settings\.nonsense"):
        make_game(spec.name, {"nonsense": 1})


def test_play_is_the_same_in_every_process(spec: GameSpec) -> None:
    digests = set()
    for hash_seed in ("1", "77"):
        played = subprocess.run(
            [sys.executable, "-c", PLAY, spec.name],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        digests.add(hashlib.sha256(played.stdout).hexdigest())
    assert len(digests) == 1


def test_golden_playthrough(spec: GameSpec) -> None:
    """A game recorded once and for all still replays, position by position.

    After a deliberate change of rules or format, write the file again: ``python tests/golden/games/write.py NAME``.
    """
    path = GOLDEN / f"{spec.name}.json"
    assert path.is_file(), f"{path.name} is missing: write it with tests/golden/games/write.py, then read it"
    golden = json.loads(path.read_text())
    game = spec.replay(golden["record"].encode())
    assert game.save().decode() == golden["final"]
    assert game.outcome() == msgspec.convert(golden["outcome"], Outcome)
    text = spec.text()
    opening = spec.new(golden["seed"])
    seat = opening.to_move()[0]
    assert list(text.prompt(opening, seat)) == golden["first_prompt"]
    assert list(text.vocabulary()) == golden["vocabulary"]


def test_an_unknown_way_to_ask_is_refused(spoken: GameSpec) -> None:
    with pytest.raises(ConfigError, match=r"game\.settings\.text"):
        make_game(spoken.name, {"text": "nonsense"})


def test_an_unknown_game_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'diplomacy', .*'nim'"):
        make_game("chess", {})
