"""What every game promises that remote agents can play: any legal action can be said, and any reply means one."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.games import game_names, make_game
from arena.games.base import Game, GameSpec
from arena.games.texts import MAX_REPLY_LENGTH, SupportsWords, Words, words_of, write_reply
from schemas.errors import ConfigError, GameError
from tests.builders import text_settings


def spoken_games() -> list[str]:
    names = []
    for name in game_names():
        try:
            if isinstance(make_game(name, {}), SupportsWords):
                names.append(name)
        except ConfigError as error:
            if "pip install" not in str(error):
                raise
    return names


GAMES = spoken_games()
RUBBISH = ["", "I resign.", "```json\n{}\n```", "- \n* \n1. \n", "A A A - - - H H H", "1:1000 0:0 9:9", "\0\ud800 ∑ ½"]


MODES = [(name, settings) for name in GAMES for settings in text_settings(name)]


@pytest.fixture(params=MODES, ids=lambda mode: "-".join((mode[0], *mode[1].values())))
def spec(request: pytest.FixtureRequest) -> GameSpec:
    """A game in each of the ways that models can be asked about it, some of which have words of their own."""
    name, settings = request.param
    return make_game(name, settings)


def words(spec: GameSpec) -> Words:
    return words_of(spec)


def positions(spec: GameSpec, seed: int) -> Iterator[Game]:
    game, rng = spec.new(seed), Random(seed)
    while moving := game.to_move():
        yield game
        game.apply({seat: game.random_action(seat, rng) for seat in moving})


def test_what_a_legal_action_says_is_understood_as_that_action(spec: GameSpec) -> None:
    said, rng = words(spec), Random(4)
    for game in positions(spec, 4):
        for seat in game.to_move():
            action = game.random_action(seat, rng)
            plain = said.understand(game, seat, "\n".join(action), Random(0))
            assert (plain.action, plain.illegal) == (action, 0)
            marked = "Here are my orders:\n```\n" + "\n".join(f"- **{part.lower()}**" for part in action) + "\n```"
            assert said.understand(game, seat, marked, Random(0)) == plain


def test_every_reply_means_a_legal_action_and_what_is_missing_is_counted(spec: GameSpec) -> None:
    said = words(spec)
    for game in positions(spec, 5):
        before = game.save()
        for seat in game.to_move():
            for reply in RUBBISH:
                understood = said.understand(game, seat, reply, Random(1))
                assert game.is_legal(seat, understood.action)
                assert 0 <= understood.illegal <= understood.choices
            assert said.understand(game, seat, "", Random(1)).illegal == understood.choices > 0
        assert game.save() == before


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join((mode[0], *mode[1].values())))
@given(reply=st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_text_at_all_fails(mode: tuple[str, dict[str, str]], reply: str) -> None:
    spec = make_game(*mode)
    game = spec.new(1)
    seat = game.to_move()[0]
    assert game.is_legal(seat, words(spec).understand(game, seat, reply, Random(1)).action)


def test_defaults_depend_on_the_rng_alone(spec: GameSpec) -> None:
    game = spec.new(2)
    seat = game.to_move()[0]
    meant = [words(spec).understand(game, seat, "no idea", Random(7)).action for _ in range(3)]
    assert meant[0] == meant[1] == meant[2]


def test_thinking_is_not_taken_for_an_answer(spec: GameSpec) -> None:
    said, game = words(spec), spec.new(3)
    seat = game.to_move()[0]
    drawn = [game.random_action(seat, Random(seed)) for seed in range(8)]
    first, second = drawn[0], next(action for action in drawn if action != drawn[0])
    reply = f"{chr(10).join(second)}\n<think>\n{chr(10).join(first)}\n</think>"
    assert said.understand(game, seat, reply, Random(0)).action == second
    cut_off = said.understand(game, seat, "<think>" + "\n".join(first), Random(0))
    assert cut_off.illegal == cut_off.choices


def test_of_a_long_reply_the_end_is_read(spec: GameSpec) -> None:
    said, game = words(spec), spec.new(3)
    seat = game.to_move()[0]
    action = game.random_action(seat, Random(1))
    reply = "Let me see. " * MAX_REPLY_LENGTH + "\n" + "\n".join(action)
    assert said.understand(game, seat, reply, Random(0)).action == action


def test_rules_and_questions_are_the_same_for_the_same_position(spec: GameSpec) -> None:
    game, again = spec.new(6), spec.new(6)
    seat = game.to_move()[0]
    assert words(spec).rules() == words(spec).rules()
    assert words(spec).question(game, seat) == words(spec).question(again, seat)
    assert game.seats[seat] in words(spec).question(game, seat)


def test_seats_that_are_not_to_move_are_asked_nothing(spec: GameSpec) -> None:
    game = spec.new(2)
    rng = Random(2)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    with pytest.raises(GameError, match="not to move"):
        words(spec).question(game, 0)


def test_a_game_without_words_says_so() -> None:
    class Mute:
        name = "mute"

    with pytest.raises(GameError, match=r"mute: the game is not put into plain language.*expected a GameSpec"):
        words_of(Mute())  # type: ignore[arg-type]


def test_every_action_has_a_reply_that_is_understood_as_it(spec: GameSpec) -> None:
    """What a bot replies to a chat request of the opponent pool."""
    said, game, rng = words(spec), spec.new(5), Random(5)
    for _ in range(12):
        if not (moving := game.to_move()):
            break
        actions = {seat: game.random_action(seat, rng) for seat in moving}
        for seat, action in actions.items():
            reply = write_reply(said, game, seat, action)
            assert said.understand(game, seat, reply, rng) == (action, len(action), 0, True, True)
        game.apply(actions)
    if game.to_move():
        seat = game.to_move()[0]
        with pytest.raises(GameError, match=r"none of 1 replies stands for the action"):
            write_reply(said, game, seat, game.random_action(seat, rng), ["no such move \u2603"])
