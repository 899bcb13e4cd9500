"""What every game promises, whatever its rules. Games are found by themselves; an extra that is missing is skipped."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from arena.games import game_names, make_game
from arena.games.base import Action, Game, GameSpec, Outcome, position_checksum
from arena.games.texts import Phrases, Pieces
from schemas.errors import ConfigError, DecodeError, GameError
from schemas.ids import derive_seed
from tests.builders import text_settings

GOLDEN = Path(__file__).parents[1] / "golden" / "games"
ROOT = Path(__file__).parents[2]
MAX_TURNS = 500

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


def random_actions(game: Game, rng: Random) -> dict[int, Action]:
    return {seat: game.random_action(seat, rng) for seat in game.to_move()}


def random_play(game: Game, rng: Random) -> Iterator[Game]:
    """The game before each turn of random play."""
    for _ in range(MAX_TURNS):
        if not game.to_move():
            return
        yield game
        game.apply(random_actions(game, rng))
    raise AssertionError(f"{game.name} does not end")


def finished(spec: GameSpec, seed: int) -> Game:
    game = spec.new(seed)
    for _ in random_play(game, Random(seed)):
        pass
    return game


def random_walk(place: Phrases, rng: Random) -> Pieces:
    pieces: list[str] = []
    while options := place.options():
        piece = rng.choice(sorted(options))
        pieces.append(piece)
        place = options[piece]
    return tuple(pieces)


def test_random_play_is_legal_and_ends_with_an_outcome_for_every_seat(spec: GameSpec) -> None:
    for seed in range(3):
        game, rng = spec.new(seed), Random(seed)
        clock = game.clock
        for now in random_play(game, rng):
            moving = list(now.to_move())
            assert moving == sorted(set(moving))
            assert now.clock >= clock
            clock = now.clock
            with pytest.raises(GameError, match="not over"):
                now.outcome()
            for seat in moving:
                action = now.random_action(seat, rng)
                assert list(action) == sorted(action)
                assert now.is_legal(seat, action)
        outcome = game.outcome()
        seats = len(spec.seats)
        assert len(outcome.scores) == len(outcome.ranks) == len(outcome.metrics) == seats
        assert [1 + sum(other > score for other in outcome.scores) for score in outcome.scores] == list(outcome.ranks)
        assert outcome.winner is None or 0 <= outcome.winner < seats
        assert outcome.length > 0
        assert outcome.reason
        assert list(game.seats) == list(spec.seats)
        assert all(isinstance(game.progress(seat), float) for seat in range(seats))


def test_bad_actions_are_refused_and_change_nothing(spec: GameSpec) -> None:
    game, rng = spec.new(1), Random(1)
    for now in random_play(game, rng):
        good = random_actions(now, rng)
        seat = min(good)
        idle = [other for other in range(len(spec.seats)) if other not in good]
        before = now.save(), now.record()
        bad_sets = [
            {other: action for other, action in good.items() if other != seat},
            {**good, seat: ("nonsense",)},
            {**good, seat: ()},
            {**good, seat: (*good[seat], good[seat][-1])},
            {**good, len(spec.seats): good[seat]},
            *({**good, other: good[seat]} for other in idle),
        ]
        for bad in bad_sets:
            with pytest.raises(GameError, match=f"{spec.name}, "):
                now.apply(bad)
        assert not now.is_legal(seat, ("nonsense",))
        assert not any(now.is_legal(other, good[seat]) for other in idle)
        assert (now.save(), now.record()) == before


def test_seats_that_are_not_to_move_are_asked_for_nothing(spoken: GameSpec) -> None:
    game, text = finished(spoken, 2), spoken.text()
    for ask in (game.random_action, lambda seat, _: text.prompt(game, seat)):
        with pytest.raises(GameError, match="not to move"):
            ask(0, Random(0))
    with pytest.raises(GameError):
        text.completions(game, 0)
    with pytest.raises(GameError):
        game.apply({0: ("nonsense",)})


def test_a_loaded_position_continues_as_the_saved_one(spec: GameSpec) -> None:
    game, rng = spec.new(4), Random(4)
    for now in random_play(game, rng):
        loaded = spec.load(now.save())
        assert loaded.save() == now.save()
        assert list(loaded.to_move()) == list(now.to_move())
        twin_seed = rng.random()
        actions = random_actions(now, Random(twin_seed))
        assert random_actions(loaded, Random(twin_seed)) == actions
        after = spec.load(now.save())
        after.apply(actions)
        loaded.apply(actions)
        assert after.save() == loaded.save()
        replayed = spec.replay(loaded.record())
        assert replayed.save() == loaded.save()
    half_way = spec.load(spec.new(4).save())
    for _ in random_play(half_way, Random(8)):
        pass
    assert spec.replay(half_way.record()).record() == half_way.record()
    assert spec.load(game.save()).outcome() == game.outcome()


def test_the_saved_position_decides_the_next_one(spec: GameSpec) -> None:
    game, rng = spec.new(5), Random(5)
    for now in random_play(game, rng):
        actions = random_actions(now, rng)
        loaded = spec.load(now.save())
        loaded.apply(actions)
        ahead = spec.replay(now.record())
        ahead.apply(actions)
        assert ahead.save() == loaded.save()


def test_a_replayed_record_gives_the_same_bytes(spec: GameSpec) -> None:
    game = finished(spec, 6)
    again = spec.replay(game.record())
    assert again.save() == game.save()
    assert again.record() == game.record()
    assert again.outcome() == game.outcome()
    for data in (game.save(), game.record()):
        assert msgspec.json.encode(msgspec.json.decode(data), order="sorted") == data


def test_a_record_opens_into_turns_with_a_check_of_each_position(spec: GameSpec) -> None:
    recording = spec.open_record(finished(spec, 6).record())
    assert recording.seed == 6
    assert len(recording.checks) == len(recording.turns) > 0
    game = recording.start
    for actions, check in zip(recording.turns, recording.checks, strict=True):
        assert sorted(actions) == list(game.to_move())
        game.apply(actions)
        assert position_checksum(game.save()) == check
    assert not game.to_move()


def test_a_record_from_before_there_were_checks_is_still_read(spec: GameSpec) -> None:
    game = finished(spec, 6)
    fields = json.loads(game.record())
    del fields["checks"]
    old = json.dumps(fields).encode()
    assert spec.open_record(old).checks == []
    assert spec.replay(old).save() == game.save()
    assert spec.transcript(old) == spec.transcript(game.record())


def test_a_transcript_names_every_turn_and_whoever_moved(spec: GameSpec) -> None:
    record = finished(spec, 6).record()
    recording, turns = spec.open_record(record), spec.transcript(record)
    assert len(turns) == len(recording.turns)
    assert len({turn.title for turn in turns}) == len(turns)
    for turn, actions in zip(turns, recording.turns, strict=True):
        assert list(turn.moves) == [recording.start.seats[seat] for seat in sorted(actions)]
        assert all(line for lines in turn.moves.values() for line in lines)
    assert any(turn.notes for turn in turns)


def test_broken_bytes_are_refused(spec: GameSpec) -> None:
    for broken in (b"", b"{}", b"[1]", b'{"phase":'):
        with pytest.raises(DecodeError, match=spec.name):
            spec.load(broken)
        with pytest.raises(DecodeError, match=spec.name):
            spec.replay(broken)
        with pytest.raises(DecodeError, match=spec.name):
            spec.transcript(broken)


def test_text_says_every_action_and_only_legal_ones(spoken: GameSpec) -> None:
    text = spoken.text()
    vocabulary = set(text.vocabulary())
    assert list(text.vocabulary()) == sorted(vocabulary)
    for seed in range(2):
        game, rng = spoken.new(seed), Random(derive_seed(seed, "text"))
        for now in random_play(game, rng):
            for seat in now.to_move():
                assert vocabulary.issuperset(text.prompt(now, seat))
                completion = random_walk(text.completions(now, seat), rng)
                assert vocabulary.issuperset(completion)
                said = text.read(now, seat, completion)
                assert now.is_legal(seat, said)
                assert text.write(now, seat, said) == completion
                action = now.random_action(seat, rng)
                assert text.read(now, seat, text.write(now, seat, action)) == action


def test_text_refuses_what_it_cannot_say(spoken: GameSpec) -> None:
    game, text = spoken.new(7), spoken.text()
    seat = game.to_move()[0]
    completion = random_walk(text.completions(game, seat), Random(7))
    for bad in ((), completion[:-1], ("nonsense",), (*completion, completion[0])):
        with pytest.raises(GameError):
            text.read(game, seat, bad)
    with pytest.raises(GameError):
        text.write(game, seat, ("nonsense",))


def test_walking_is_repeatable(spoken: GameSpec) -> None:
    game, text = spoken.new(8), spoken.text()
    for now in random_play(game, Random(8)):
        seat = now.to_move()[0]
        place = text.completions(now, seat)
        assert random_walk(place, Random(1)) == random_walk(place, Random(1))
        assert random_walk(place, Random(1)) == random_walk(text.completions(now, seat), Random(1))


def test_every_bot_plays_legally(spec: GameSpec) -> None:
    assert "random_bot" in spec.bots
    for name in spec.bots:
        bot, game = spec.bot(name), spec.new(9)
        turn = 0
        while moving := game.to_move():
            seeds = {seat: derive_seed(9, name, turn, seat) for seat in moving}
            before = game.save()
            actions = {seat: bot.act(game, seat, Random(seeds[seat])) for seat in moving}
            assert actions == {seat: bot.act(game, seat, Random(seeds[seat])) for seat in reversed(moving)}
            assert game.save() == before
            game.apply(actions)
            turn += 1
    with pytest.raises(GameError, match="random_bot"):
        spec.bot("nobody")


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
