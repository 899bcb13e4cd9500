"""PettingZoo's environments here: played to the end as they are by themselves, and refused with a reason."""

import math
import sys
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from arena.environments import make_environment
from arena.games import make_game
from arena.games.base import Game, GameSpec
from arena.games.texts import words_of
from schemas.errors import ConfigError, DecodeError, GameError

CARDS_AND_BOARDS = ["connect_four-v3", "hanabi-v5", "leduc_holdem-v4", "texas_holdem_no_limit-v6", "texas_holdem-v4"]
LONG = ["chess-v6", "go-v5"]


@pytest.mark.parametrize(
    ("name", "module"), [("pettingzoo", "arena.games.pettingzoo"), ("verifiers", "arena.environments.verifiers")]
)
def test_a_missing_package_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'event-sourced-league\[{name}\]'"):
        make_environment(name, {})


def of(env: str, **settings: Any) -> GameSpec:
    pytest.importorskip("pettingzoo")
    return make_game("pettingzoo", {"env": env, **settings})


def play(spec: GameSpec, seed: int, turns: int = 1_000) -> Game:
    game, rng = spec.new(seed), Random(seed)
    while (moving := game.to_move()) and game.clock < turns:
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    return game


def bare_rewards(env_id: str, seed: int) -> list[float]:
    """Rewards of random play by PettingZoo's own loop."""
    import pettingzoo

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env, rng = pettingzoo.make("aec", env_id), Random(seed)
        env.reset(seed=seed)
        totals = dict.fromkeys(env.possible_agents, 0.0)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, _ = env.last()
            totals[agent] += reward
            legal = [int(at) for at in observation["action_mask"].nonzero()[0]]
            env.step(None if terminated or truncated else rng.choice(legal))
    return list(totals.values())


@pytest.mark.parametrize("env", CARDS_AND_BOARDS)
def test_random_play_earns_what_it_does_in_the_bare_environment(env: str):
    spec = of(f"classic/{env}")
    for seed in range(3):
        assert list(play(spec, seed).outcome().scores) == bare_rewards(f"classic/{env}", seed)


@pytest.mark.parametrize("env", [*CARDS_AND_BOARDS, *LONG, "rps-v2", "tictactoe-v3"])
def test_positions_are_saved_replayed_and_put_into_words(env: str):
    spec = of(f"classic/{env}")
    game = play(spec, 1, 12)
    assert spec.load(game.save()).save() == spec.replay(game.record()).save() == game.save()
    opening = spec.new(2)
    for seat in opening.to_move():
        question = words_of(spec).question(opening, seat)
        assert all(move in question for move in opening.moves(seat))
        assert "Observation of shape" not in question, "it has a wording of its own"


def test_simultaneous_agents_are_asked_together_and_unseen():
    spec = of("classic/rps-v2")
    game = spec.new(1)
    assert list(game.to_move()) == [0, 1]
    game.apply({0: ("rock",), 1: ("paper",)})
    assert [game.progress(seat) for seat in (0, 1)] == [-1.0, 1.0]
    assert "throw: paper" in words_of(spec).question(game, 0)
    in_turn = of("classic/rps-v2", parallel=False).new(1)
    assert list(in_turn.to_move()) == [0]
    in_turn.apply({0: ("rock",)})
    assert "none yet" in words_of(spec).question(in_turn, 1), "the first throw is not shown to the second player"


def test_settings_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"env: PettingZoo has no turn-taking 'classic/ches-v6'.*chess-v6"):
        of("classic/ches-v6")
    with pytest.raises(ConfigError, match=r"cannot be made with options {'size': 3}"):
        of("classic/tictactoe-v3", options={"size": 3})
    with pytest.raises(ConfigError, match="atari/pong-v3 cannot be made"):
        of("atari/pong-v3")


def test_a_position_that_the_environment_no_longer_comes_to_is_refused():
    spec = of("classic/tictactoe-v3")
    changed = spec.new(1).save().replace(b'"seen":"', b'"seen":"0')
    with pytest.raises(DecodeError, match="another version of PettingZoo"):
        spec.load(changed)


@pytest.fixture
def countdown() -> Iterator[type]:
    """A registered environment that ends after three actions, and whose defects can be set."""
    pettingzoo = pytest.importorskip("pettingzoo")
    import numpy as np
    from gymnasium.spaces import Discrete

    class Countdown(pettingzoo.AECEnv):
        metadata = {"name": "countdown_v0"}  # noqa: RUF012
        step_raises: int | None = None
        last_reward = 1.0
        length = 3

        def __init__(self) -> None:
            self.possible_agents = ["a", "b"]
            self.action_spaces = {agent: Discrete(2) for agent in self.possible_agents}

        def action_space(self, agent: str) -> Discrete:
            return self.action_spaces[agent]

        def observe(self, agent: str) -> Any:
            return np.array([self.done, 7], dtype=np.int8)

        def reset(self, seed: int | None = None, options: Any = None) -> None:
            self.agents, self.done = list(self.possible_agents), 0
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
            self.agent_selection = "a"

        def step(self, action: Any) -> None:
            agent = self.agent_selection
            if self.terminations[agent]:
                return self._was_dead_step(action)
            if self.done == self.step_raises:
                raise RuntimeError("the dice fell off the table")
            self.done += 1
            self._cumulative_rewards[agent] = 0.0
            if self.done == self.length:
                self.rewards[agent] = self.last_reward
                self.terminations = dict.fromkeys(self.agents, True)
            self._accumulate_rewards()
            self.agent_selection = "b" if agent == "a" else "a"
            return None

    pettingzoo.register("aec", "mine/countdown-v0", Countdown)
    yield Countdown
    pettingzoo.aec_registry.pop("mine/countdown-v0")


def test_an_environment_without_a_wording_is_played_by_numbers(countdown: type):
    spec = of("mine/countdown-v0")
    game = play(spec, 1)
    assert game.outcome().scores == (1.0, 0.0)
    assert "0=1 1=7\nLegal moves: 0, 1" in words_of(spec).question(play(spec, 1, 1), 1)


def test_an_environment_that_raises_fails_the_match_and_leaves_the_position(countdown: Any):
    countdown.step_raises = 1
    game = play(of("mine/countdown-v0"), 1, 1)
    before = game.save()
    with pytest.raises(GameError, match=r"mine/countdown-v0: the environment raises \(RuntimeError: the dice"):
        game.apply({1: ("0",)})
    assert (game.save(), list(game.to_move())) == (before, [1])


def test_an_observation_that_cannot_be_described_fails_the_match_by_name(
    countdown: Any, monkeypatch: pytest.MonkeyPatch
):
    import numpy as np

    monkeypatch.setattr(countdown, "observe", lambda *_: np.array(["left", "right"]))
    spec = of("mine/countdown-v0")
    for describe in (words_of(spec).question, spec.text().prompt):
        with pytest.raises(GameError, match=r"mine/countdown-v0: the environment cannot describe .* \(ValueError"):
            describe(spec.new(1), 0)


def test_an_environment_without_an_end_or_with_a_reward_that_is_no_number_fails_the_match(countdown: Any):
    countdown.last_reward = math.nan
    with pytest.raises(GameError, match="reward nan of a; expected a finite number"):
        play(of("mine/countdown-v0"), 1)
    countdown.length = 0
    with pytest.raises(GameError, match=r"not over after 5 turns; settings\.max_turns"):
        play(of("mine/countdown-v0", max_turns=5), 1)
