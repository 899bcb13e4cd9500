"""TextArena's environments here: chance of their own, their own rules for invalid moves, failures with a name."""

import asyncio
import copy
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from arena.games import make_game, third_party
from arena.games.base import Game, GameSpec
from arena.games.texts import SupportsEvaluationSpec, evaluation_spec, seat_counts, words_of
from arena.match import BotPlayer, play
from schemas.errors import ConfigError, DecodeError, GameError

pytest.importorskip("textarena")

from arena.games.textarena.language import candidate_moves, clean_reply, extract_bracketed_move
from arena.games.textarena.library import ENV_REGISTRY, GlobalRandomState, textarena


def of(env: Any, **settings: Any) -> GameSpec:
    return make_game("textarena", {"env": env, **settings})


def say(game: Game, *said: str) -> Game:
    for text in said:
        (seat,) = game.to_move()
        game.apply({seat: (text,)})
    return game


def turns(game: Game, seed: int, most: int = 200) -> Iterator[Game]:
    rng = Random(seed)
    for _ in range(most):
        if not (moving := game.to_move()):
            return
        game.apply({moving[0]: game.random_action(moving[0], rng)})
        yield game


class Broken(textarena.Env):  # type: ignore[misc]
    """An environment of ours that misbehaves as it is told to."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Say [yes].")

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.fault == "raises" and "[no]" in action:
            raise KeyError("no")
        while self.fault == "hangs" and "[no]" in action:
            with suppress(Exception):
                time.sleep(3600)
        if self.fault == "nan":
            self.state.rewards, self.state.done = {0: float("nan"), 1: 0.0}, True
        if self.fault == "half":
            self.state.rewards, self.state.done = {1: 0.0}, True
        return self.state.step()  # type: ignore[no-any-return]


@contextmanager
def broken(fault: str) -> Iterator[GameSpec]:
    name = f"Broken-v0-{fault}"
    textarena.register(name, Broken, fault=fault)
    try:
        yield of(name, talk=False, max_turns=30)
    finally:
        del ENV_REGISTRY[name]


def test_chance_of_a_game_is_neither_drawn_from_nor_left_in_the_global_generators():
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), str(np.random.get_state())
    game = of("PigDice-v0-train").new(1)
    for _, _ in zip(range(20), turns(game, 1), strict=False):
        random.random()
    random.seed(5)
    np.random.seed(5)
    assert (random.getstate(), str(np.random.get_state())) == before
    alone = of("PigDice-v0-train").new(1)
    for _, _ in zip(range(20), turns(alone, 1), strict=False):
        pass
    assert alone.save() == game.save()
    kept = random.getstate()
    say(alone, "[roll]")
    assert random.getstate() == kept


def test_games_side_by_side_do_not_disturb_each_other():
    spec = of("PigDice-v0-train")
    apart = []
    for seed in (1, 2):
        game = spec.new(seed)
        list(turns(game, seed, 30))
        apart.append(game.record())
    first, second = spec.new(1), spec.new(2)
    together = [turns(first, 1, 30), turns(second, 2, 30)]
    while together:
        together = [one for one in together if next(one, None) is not None]
    assert [first.record(), second.record()] == apart


def test_the_seed_decides_what_is_dealt():
    spec = of("KuhnPoker-v0-train")
    told = {words_of(spec).question(game, game.to_move()[0]) for game in map(spec.new, range(40))}
    assert len(told) == 3, "one for each card"


def test_a_refused_move_costs_what_the_rules_say_and_is_counted():
    game = say(of("TicTacToe-v0-train").new(1), "[4]", "[4]")
    assert list(game.to_move()) == [1], "one error is allowed"
    outcome = say(game, "[9]").outcome()
    assert (outcome.scores, outcome.reason, outcome.winner) == ((1.0, -1.0), "invalid_move", 0)
    assert outcome.metrics == (
        {"turns": 1.0, "invalid": 0.0, "ended_by_invalid": 0.0},
        {"turns": 2.0, "invalid": 2.0, "ended_by_invalid": 1.0},
    )


def test_in_a_game_of_three_the_others_go_on_after_one_is_out():
    game = say(of("ThreePlayerGOPS-v0-train").new(1), "[nonsense]", "[nonsense]")
    assert list(game.to_move()) == [1]
    list(turns(game, 3))
    outcome = game.outcome()
    assert len(outcome.scores) == 3
    assert outcome.metrics[0]["invalid"] == 2


def test_a_seat_is_not_shown_the_card_of_the_other():
    spec, seen = of("KuhnPoker-v0-train"), set()
    for seed in range(60):
        game = spec.new(seed)
        seat = game.to_move()[0]
        question = words_of(spec).question(game, seat)
        if "Your card is: 'Q'" in question:
            seen.add((question, spec.text().prompt(game, seat)))
    assert len(seen) == 1, "jack or king on the other side, it reads the same"


@pytest.mark.parametrize(
    ("env", "seats"), [("SimpleTak-v0-train", 2), ("ThreePlayerIPD-v0-train", 3), ("Sudoku-v0-train", 1)]
)
def test_players_are_as_many_as_the_environment_takes(env: str, seats: int):
    assert len(of(env).seats) == seats


def test_more_players_can_be_asked_for():
    assert of("LiarsDice-v0-train", players=5).seats == tuple(f"Player {seat}" for seat in range(5))
    with pytest.raises(ConfigError, match=r"game\.settings\.players: TicTacToe-v0-train does not begin with 3 players"):
        of("TicTacToe-v0-train", players=3)


def test_whether_all_is_heard_is_the_environments_to_say():
    spoken = {"TicTacToe-v0-train": None, "SecretMafia-v0-train": None, "SimpleNegotiation-v0-train": True}
    heard = {env: of(env, talk=talk).new(1).talk for env, talk in spoken.items()}  # type: ignore[attr-defined]
    assert heard == {"TicTacToe-v0-train": False, "SecretMafia-v0-train": True, "SimpleNegotiation-v0-train": True}


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        ("[4]", "[4]"),
        ("I could play [3], but no.\n\nSo: [4]", "[4]"),
        ("Between [3] and [4] I take **[4]**", "[4]"),
        ("[3] it is, not [99]", "[3]"),
        ("[swap] [99]", "[swap] [99]"),
        ("4", "[4]"),
        ("I resign", "[I resign]"),
        ("]][[", "[no answer]"),
    ],
)
def test_of_a_reply_what_stands_in_brackets_is_heard(reply: str, heard: str):
    assert extract_bracketed_move(reply, ["[3]", "[4]"]) == heard


def test_moves_that_differ_in_letter_case_alone_are_told_apart():
    assert [extract_bracketed_move(reply, ["[b]", "[B]"]) for reply in ("[b]", "[B]")] == ["[b]", "[B]"]


@pytest.mark.parametrize("longest", [5, 50, 1_000])
@pytest.mark.parametrize("reply", ["[a]" * 333, "[a]" * 2_000, "word " * 400, "[4] is best, and that is why", "", "]["])
def test_no_reply_fails_the_match(reply: str, longest: int):
    spec = of("TicTacToe-v0-train", longest=longest)
    game = spec.new(1)
    action = words_of(spec).understand(game, 0, reply, Random(0)).action
    assert game.is_legal(0, action)
    game.apply({0: action})


def test_replies_are_heard_as_text_that_can_be_written_down():
    assert clean_reply("  a\0b\ud800\n½ ∑ ", 100) == "ab\n½ ∑"
    assert clean_reply("x" * 50 + "[4]", 10) == "xxxxxxx[4]"


def test_what_the_environment_would_refuse_is_told_to_it_and_counted():
    game, words = of("TicTacToe-v0-train").new(1), words_of(of("TicTacToe-v0-train"))
    assert words.understand(game, 0, "[44]", Random(0))[:3] == (("[44]",), 1, 1)
    assert words.understand(game, 0, "[4]", Random(0))[:3] == (("[4]",), 1, 0)
    assert list(game.to_move()) == [0], "nothing was told to it yet"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Chess is written for Python 3.12")
def test_an_environment_for_a_newer_python_says_so() -> None:
    with pytest.raises(ConfigError, match=r"env\.py:\d+ is not the syntax of Python 3\.11; try a newer one"):
        of("Chess-v0-train")


def test_missing_data_of_nltk_are_named() -> None:
    nltk = pytest.importorskip("nltk")
    try:
        nltk.data.find("corpora/words")
    except LookupError:
        with pytest.raises(ConfigError, match=r"data of nltk are missing; .*`python -m nltk\.downloader words`"):
            of("Hangman-v0-train")


def test_candidate_moves_can_be_submitted():
    assert candidate_moves("None-v0", "Say [one\ttwo], [yes] or [\u200bno].") == ["[yes]"]


def test_where_no_move_is_found_anything_in_brackets_can_be_said():
    spec = of("Mastermind-v0-train")
    game, text, rng = spec.new(1), spec.text(), Random(3)
    while game.moves(0):  # type: ignore[attr-defined]
        game.apply({0: game.random_action(0, rng)})
    place, said = text.completions(game, 0), []
    while options := place.options():
        said.append(rng.choice(sorted(options)))
        place = options[said[-1]]
    action = text.read(game, 0, tuple(said))
    assert game.is_legal(0, action)
    assert text.write(game, 0, ("[1 2 3 4]",))[-1] == "</move>"
    with pytest.raises(GameError, match="not a text in brackets"):
        text.read(game, 0, ("4", "</move>"))


def test_an_environment_that_raises_fails_the_match_and_leaves_the_position():
    with broken("raises") as spec:
        game = say(spec.new(1), "[yes]")
        before = game.save()
        for _ in range(2):
            with pytest.raises(
                GameError, match=r"Broken-v0-raises: the environment raises \(KeyError: 'no', test_textarena\.py:\d+\)"
            ):
                say(game, "[no]")
            assert game.save() == before
        say(game, "[yes]")
        assert list(game.to_move()) == [0]


def test_an_environment_that_gives_no_answer_fails_the_match_and_leaves_the_position(monkeypatch: pytest.MonkeyPatch):
    with broken("hangs") as spec:
        game = say(spec.new(1), "[yes]")
        before = game.save()
        with monkeypatch.context() as patch:
            patch.setattr(third_party, "CALL_LIMIT_S", 1.0)
            with pytest.raises(GameError, match=r"Broken-v0-hangs: no answer of the environment within 1 s"):
                say(game, "[no]")
        assert game.save() == before
        say(game, "[yes]")


def test_an_environment_that_never_ends_fails_at_its_most_turns():
    with broken("endless") as spec, pytest.raises(GameError, match=r"not over after 30 turns; settings\.max_turns"):
        asyncio.run(play(spec.new(1), [BotPlayer(spec.bot("random_bot"))] * 2, 1))


@pytest.mark.parametrize("fault", ["nan", "half"])
def test_rewards_that_are_no_numbers_fail_the_match(fault: str):
    with broken(fault) as spec, pytest.raises(GameError, match="expected a number for each of 2 players"):
        say(spec.new(1), "[yes]").outcome()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"env": "TicTacTo-v0"}, r"game\.settings\.env: TextArena has no 'TicTacTo-v0'.*'TicTacToe-v0'"),
        ({"env": "Debate-v0"}, r"game\.settings\.env: Debate-v0 does not begin .*cannot be made .*OpenRouter"),
        ({"max_turns": 0}, r"game\.settings\.max_turns: 0"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(
    settings: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=named):
        make_game("textarena", settings)


def test_positions_of_another_version_are_refused():
    spec = of("TicTacToe-v0-train")
    saved = json.loads(say(spec.new(1), "[4]").save())
    with pytest.raises(DecodeError, match="another version of TextArena"):
        spec.load(json.dumps({**saved, "told": "0" * 64}).encode())
    with pytest.raises(DecodeError, match="does not come to the saved position"):
        spec.load(json.dumps({**saved, "said": ["[5]"]}).encode())


def env_of(game: Game) -> str:
    return str(json.loads(game.save())["env"])


def test_of_several_environments_the_seed_chooses_and_evaluation_has_its_own():
    trained = ["TicTacToe-v0-train", "SimpleTak-v0-train"]
    spec = make_game("textarena", {"env": trained, "evaluation_env": "KuhnPoker-v0-train"})
    assert isinstance(spec, SupportsEvaluationSpec)
    evaluated = spec.for_evaluation()
    assert {env_of(spec.new(seed)) for seed in range(20)} == set(trained)
    assert env_of(spec.new(3)) == env_of(spec.new(3))
    assert {env_of(evaluated.new(seed)) for seed in range(20)} == {"KuhnPoker-v0-train"}
    game = evaluated.new(3)
    list(turns(game, 3))
    assert spec.replay(game.record()).outcome() == game.outcome(), "records are read by either"
    assert of("TicTacToe-v0-train").for_evaluation().new(3).save() == of("TicTacToe-v0-train").new(3).save()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"env": []}, r"game\.settings\.env: found none"),
        ({"evaluation_env": "Tak"}, r"game\.settings\.evaluation_env: TextArena has no 'Tak'"),
        ({"env": [{"name": "SimpleTak-v0-train", "players": 3}]}, r"SimpleTak-v0-train does not begin with 3 players"),
        ({"env": [{"name": "SimpleTak-v0-train", "players": 0}]}, r"SimpleTak-v0-train does not begin with 0 players"),
        ({"env": [{"name": "Nim-v0-train", "extractor": "boxed"}, "Nim-v0-train"]}, r"Nim-v0-train.* two prompts"),
    ],
)
def test_environments_that_do_not_go_together_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        make_game("textarena", settings)


def test_environments_may_have_different_numbers_of_players() -> None:
    listed = ["TicTacToe-v0-train", {"name": "LiarsDice-v0-train", "players": 3}]
    more = [{"name": "LiarsDice-v0-train", "players": 5}, "ThreePlayerIPD-v0-train"]
    spec = make_game("textarena", {"env": listed, "evaluation_env": more})
    evaluated = evaluation_spec(spec)
    assert spec.seats == tuple(f"Player {seat}" for seat in range(5))
    assert seat_counts(spec).environments == (("TicTacToe-v0-train", 2), ("LiarsDice-v0-train", 3))
    assert seat_counts(evaluated).environments == (("LiarsDice-v0-train", 5), ("ThreePlayerIPD-v0-train", 3))
    for each in (spec, evaluated):
        for seed in range(3):
            game = each.new(seed)
            assert (game.environment, len(game.seats)) == seat_counts(each).choose(seed)  # type: ignore[attr-defined]
            outcome = asyncio.run(play(game, [BotPlayer(each.bot("random_bot"))] * len(game.seats), seed))
            assert len(outcome.scores) == len(game.seats)
            assert spec.replay(game.record()).outcome() == outcome
    assert "3 to 5 players" in words_of(evaluated).rules()


def test_an_environment_with_several_numbers_of_players_keeps_the_number_with_the_position() -> None:
    spec = of([{"name": "LiarsDice-v0-train", "players": number} for number in (2, 4)])
    saved = [(seed, spec.new(seed).save()) for seed in range(8)]
    assert {len(spec.load(data).seats) for _, data in saved} == {2, 4}
    assert all(len(spec.load(data).seats) == seat_counts(spec).choose(seed).seats for seed, data in saved)
    assert b"players" not in of("LiarsDice-v0-train", players=4).new(1).save()


def test_numpys_generator_of_an_environment_is_its_own_and_is_copied_with_it() -> None:
    def draw() -> list[float]:
        np.random.seed(4)
        return [np.random.ranf(), np.random.normal(), float(np.random.randint(9)), random.gauss(0, 1)]

    np.random.seed(1)
    expected = np.random.RandomState(7).rand(2).tolist()
    chance = GlobalRandomState(7)
    outside = np.random.get_state()[1].tolist()
    with chance:
        drawn = [np.random.rand()]
        copied = copy.deepcopy(chance)
        drawn.append(np.random.rand())
    with copied:
        assert np.random.rand() == drawn[1]
        seeded = draw()
    with chance:
        random.seed(0)
        assert draw()[:3] == seeded[:3]
    assert drawn == expected
    assert np.random.get_state()[1].tolist() == outside


def test_a_copy_of_an_environment_shares_its_messages_and_no_list_of_them() -> None:
    game = of("LiarsDice-v0-train", players=3).new(1)
    environment = game._env  # type: ignore[attr-defined]
    copied = copy.deepcopy(environment)
    message, count = environment._state.logs[0], len(environment._state.logs)
    seen = environment.observation
    assert copied._state.logs[0] is message
    copied.step(game.moves(game.to_move()[0])[0])
    assert len(copied._state.logs) > count == len(environment._state.logs)
    assert copied.observation != seen == environment.observation


class Uncopied(textarena.Env):  # type: ignore[misc]
    """An environment that cannot be copied, so that moves cannot be tried."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Say [yes].")
        self.lock = threading.Lock()

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.state.set_winner(player_id=0, reason="Said.")
        return self.state.step()


def test_an_environment_that_cannot_be_copied_fails_the_match_by_name():
    textarena.register("Uncopied-v0", Uncopied)
    try:
        spec = of("Uncopied-v0")
        game = spec.new(0)
        with pytest.raises(GameError, match=r"textarena, Uncopied-v0: the environment cannot be copied \(TypeError"):
            words_of(spec).understand(game, 0, "[yes]", Random(0))
    finally:
        del ENV_REGISTRY["Uncopied-v0"]


@pytest.mark.parametrize(
    "name",
    [
        *("Bandit", "Battleship", "GuessTheNumber", "Minesweeper", "NewRecruit", "PegJump", "RushHour"),
        *("Alquerque", "Breakthrough", "Briscola", "Chopsticks", "ColonelBlotto", "GermanWhist", "Golf"),
        *("IteratedTwoThirdsAverage", "LinesOfAction", "QuantumTicTacToe", "Tak", "TwoDollar"),
    ],
)
def test_random_play_makes_legal_moves_where_the_environment_lists_none(name: str) -> None:
    game = of(f"{name}-v0-train").new(1)
    played = sum(1 for _ in turns(game, 1, 12))
    assert played == 12 or not game.to_move()
    assert sum(seat["invalid"] for seat in game.metrics()) == 0
