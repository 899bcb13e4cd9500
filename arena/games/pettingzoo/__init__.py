"""Environments of PettingZoo (Terry et al. 2021, arXiv 2009.14471) with discrete actions, in turn and simultaneous.

Here is an environment as ``Game`` and ``GameSpec``, by the package ``pettingzoo`` (the extra of that name): legal
actions from masks, a position by the actions that lead to it. ``wording`` has actions and observations in words.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
import numpy as np

from arena.games import register
from arena.games.pettingzoo.wording import Environment, wording_of
from arena.games.third_party import EnvironmentCall, LetteredGame, LetteredSpec, require_package
from schemas.errors import ConfigError, DecodeError, GameError, format_choices
from schemas.ids import digest
from schemas.numbers import PositiveInt

# It brings pygame, whose dependencies warn.
with require_package("pettingzoo", "pettingzoo"), warnings.catch_warnings(action="ignore"):
    import pettingzoo
    from gymnasium.spaces import Discrete


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    env: str = "classic/tictactoe-v3"
    """PettingZoo's id; what a plugin adds by ``pettingzoo.register`` has one too."""
    options: dict[str, Any] = {}
    """Arguments of the environment: ``{ num_players = 3 }``."""
    parallel: bool | None = None
    """Whether agents act simultaneously; None where the environment is registered so."""
    max_turns: PositiveInt = 1_000
    """Maximum length of a game; one that is not over by then fails."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A position, represented by the actions that lead to it."""

    seed: int
    turns: list[dict[str, int]]
    """Action numbers of each seat, turn by turn."""
    seen: str
    """Digest of all observations so far: detects a change of the environment."""


class RunningEnvironment:
    """One environment in play, in turn or simultaneous."""

    def __init__(self, settings: Settings, seed: int) -> None:
        """Begin with a seed; ``GameError`` if the environment raised."""
        self._label = f"pettingzoo, {settings.env}"
        self._parallel = is_parallel(settings)
        self._stepping = EnvironmentCall(self._label, "raises")
        self.naming = EnvironmentCall(self._label, "cannot name its actions")
        self.describing = EnvironmentCall(self._label, "cannot describe an observation")
        with EnvironmentCall(self._label, "does not begin"), warnings.catch_warnings(action="ignore"):
            self.env: Environment = make_environment(settings)
            self.agents: list[str] = list(self.env.possible_agents)
            self.totals = dict.fromkeys(self.agents, 0.0)
            self.observations: dict[str, Any] = {}
            self._infos: dict[str, Any] = {}
            self.seen = ""
            self.moving: list[str] = []
            """Agents that must act."""
            first = self.env.reset(seed=seed % 2**32)
            if self._parallel:
                self.observations, self._infos = first
            self._observe()

    def legal_actions(self, agent: str) -> list[int]:
        """Numbers of an agent's legal actions: those of its mask, or all of its space; ``GameError`` without any."""
        space, mask = self.env.action_space(agent), self._mask(agent)
        is_legal = np.ones(space.n, bool) if mask is None else mask
        legal: list[int] = (np.flatnonzero(is_legal) + space.start).tolist()
        if not legal:
            raise GameError(f"{self._label}: {agent} is to act and has no legal action")
        return legal

    def step(self, actions: Mapping[str, int]) -> None:
        """Apply an action of each agent to move; after a ``GameError`` the environment is unusable."""
        with self._stepping:
            if self._parallel:
                self.observations, rewards, _, _, self._infos = self.env.step(dict(actions))
                for agent, reward in rewards.items():
                    self._add(agent, reward)
            else:
                (action,) = actions.values()
                self.env.step(action)
            self._observe()

    def _observe(self) -> None:
        """Take in observations and rewards; agents that are out of the game pass."""
        self.moving = []
        if self._parallel:
            self.moving = [agent for agent in self.agents if agent in self.env.agents]
            for agent in self.moving:
                self._mark(agent)
            return
        while self.env.agents:
            agent = self.env.agent_selection
            out = self.env.terminations[agent] or self.env.truncations[agent]
            observation, reward, _, _, info = self.env.last(observe=not out)
            self._add(agent, reward)
            if not out:
                self.observations[agent], self._infos[agent] = observation, info
                self.moving = [agent]
                self._mark(agent)
                return
            self.env.step(None)

    def _mark(self, agent: str) -> None:
        observation, mask = self.observations[agent], self._mask(agent)
        values = np.ascontiguousarray(observation["observation"] if isinstance(observation, dict) else observation)
        allowed = b"" if mask is None else np.ascontiguousarray(mask).tobytes()
        self.seen = digest(self.seen.encode() + agent.encode() + values.tobytes() + allowed)

    def _mask(self, agent: str) -> Any:
        observation = self.observations[agent]
        if isinstance(observation, dict) and "action_mask" in observation:
            return observation["action_mask"]
        return self._infos.get(agent, {}).get("action_mask")

    def _add(self, agent: str, reward: Any) -> None:
        if not math.isfinite(reward):
            raise GameError(f"{self._label}: reward {reward} of {agent}; expected a finite number")
        self.totals[agent] += float(reward)


class PettingZooGame(LetteredGame[State]):
    """One play-through."""

    def __init__(
        self, spec: "PettingZooSpec", seed: int, start: State, running: RunningEnvironment | None = None
    ) -> None:
        """Replay the actions of ``start``, where ``running`` is not there yet; ``DecodeError`` if that fails."""
        super().__init__(spec, seed, start)
        self.label = spec.settings.env
        self._moves: dict[int, dict[str, int]] = {}
        self._played = [*start.turns]
        """Action numbers by seat, turn by turn, those before the first position included."""
        if running is None:
            self.restore()
        else:
            self._running = running
        self._seen = [self._running.seen]
        """``State.seen`` of the first position and after each turn since."""
        if self._running.seen != start.seen:
            raise DecodeError(
                f"pettingzoo: {self.label} does not come to the saved position; another version of PettingZoo?"
            )

    @property
    def clock(self) -> int:
        """The number of turns played."""
        return len(self._played)

    def to_move(self) -> Sequence[int]:
        """The seat to move, or those that act simultaneously."""
        return [self._running.agents.index(agent) for agent in self._running.moving]

    def moves(self, seat: int) -> Sequence[str]:
        """The legal actions by name."""
        return tuple(self._legal_moves(seat))

    def play(self, moves: Mapping[int, str]) -> None:
        """Step the running environment by legal moves."""
        chosen = {seat: self._legal_moves(seat)[move] for seat, move in moves.items()}
        self._moves = {}
        self._running.step({self._running.agents[seat]: number for seat, number in chosen.items()})
        self._played.append({str(seat): number for seat, number in chosen.items()})
        self._seen.append(self._running.seen)

    def replay(self) -> None:
        """Play all actions so far in a new environment; ``GameError`` for one that is illegal there."""
        self._moves = {}
        self._running = running = RunningEnvironment(self.spec.settings, self._start.seed)
        for turn in self._played:
            chosen = {running.agents[int(seat)]: number for seat, number in turn.items()}
            if sorted(chosen) != sorted(running.moving) or any(
                number not in running.legal_actions(agent) for agent, number in chosen.items()
            ):
                raise GameError(f"found the actions {turn}; expected legal ones of {running.moving}")
            running.step(chosen)

    def state_after(self, turns: int) -> State:
        """The position after so many turns: the actions until then and their observations' digest."""
        return State(self._start.seed, self._played[: len(self._start.turns) + turns], self._seen[turns])

    def progress(self, seat: int) -> float:
        """The seat's rewards so far."""
        return self.scores()[seat]

    def scores(self) -> Sequence[float]:
        """The sum of each seat's rewards."""
        return [self._running.totals[agent] for agent in self._running.agents]

    def tells(self, seat: int) -> str:
        """The seat's observation in words."""
        agent, running = self._running.agents[seat], self._running
        with running.describing:
            return wording_of(self.spec.settings.env).observation(running.env, agent, running.observations[agent])

    def notes(self) -> list[str]:
        """The rewards so far, once there are any."""
        totals = self._running.totals
        return [f"{agent}: {total:g}" for agent, total in totals.items()] if any(totals.values()) else []

    def _legal_moves(self, seat: int) -> dict[str, int]:
        if seat not in self._moves:
            agent, env = self._running.agents[seat], self._running.env
            with self._running.naming:
                numbers = self._running.legal_actions(agent)
                name = wording_of(self.spec.settings.env).action
                self._moves[seat] = {name(env, agent, number): number for number in numbers}
        return self._moves[seat]


class PettingZooSpec(LetteredSpec[State]):
    """Factory of play-throughs of one environment."""

    name = "pettingzoo"
    settings_type, state_type, game_type = Settings, State, PettingZooGame

    def __init__(self, settings: Any) -> None:
        """Check that the environment can be made here; ``ConfigError`` if not, or its actions are not discrete."""
        super().__init__(settings)
        env = make_environment(settings)
        self.seats = tuple(env.possible_agents)
        for agent in self.seats:
            if not isinstance(env.action_space(agent), Discrete):
                raise ConfigError(
                    f"game.settings.env: {settings.env} has actions {env.action_space(agent)}; expected discrete ones"
                )

    def new(self, seed: int) -> PettingZooGame:
        """Start a play-through; ``GameError`` if the environment does not begin with this seed."""
        running = RunningEnvironment(self.settings, seed)
        return PettingZooGame(self, seed, State(seed, [], running.seen), running)

    def rules(self) -> str:
        """The environment's name, and its rules where they are known here."""
        name = self.settings.env.rpartition("/")[2].rpartition("-v")[0].replace("_", " ")
        seats, rules = ", ".join(self.seats), wording_of(self.settings.env).rules
        return f"You are playing {name}, as PettingZoo plays it, as one of {seats}. {rules}".strip()


def is_parallel(settings: Settings) -> bool:
    """Whether agents act simultaneously."""
    return settings.env in pettingzoo.parallel_registry if settings.parallel is None else settings.parallel


def make_environment(settings: Settings) -> Environment:
    """Make an environment without its wrappers, which only repeat the masks' checks; ``ConfigError`` if it cannot."""
    parallel = is_parallel(settings)
    registry = pettingzoo.parallel_registry if parallel else pettingzoo.aec_registry
    if settings.env not in registry:
        near = get_close_matches(settings.env, sorted(registry), n=6, cutoff=0.3) or sorted(registry)
        kind = "simultaneous" if parallel else "turn-taking"
        raise ConfigError(
            f"game.settings.env: PettingZoo has no {kind} {settings.env!r}; expected a registered one, as "
            f"{format_choices(near)}"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            if not parallel:
                return pettingzoo.make("aec", settings.env, **settings.options).unwrapped
            env = pettingzoo.make("parallel", settings.env, **settings.options)
            if hasattr(env, "aec_env"):
                env.aec_env = env.aec_env.unwrapped
            return env
    except Exception as error:  # environments are third-party code and may raise anything
        raise ConfigError(
            f"game.settings.env: {settings.env} cannot be made with options {settings.options} "
            f"({type(error).__name__}: {error})"
        ) from error


make = register("pettingzoo")(PettingZooSpec.of)
