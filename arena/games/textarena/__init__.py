"""The environments of TextArena (Guertler et al. 2025, arXiv 2504.11442), played as text.

They list no legal moves: an action is free text, and the environment judges it. A move that it rejects is recorded,
penalised by the environment's rules, and counted. Models answer freely (``[prompts] reply = "free"``); where candidate
moves can be found by trial, bots and models made here choose among those. ``library`` has environments with their own
random state, ``language`` observations and replies, ``moves`` candidate moves of environments that show none,
``teams`` teams and drawn roles.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from arena.games import register
from arena.games.base import Action, GameSpec
from arena.games.textarena.language import MAX_MOVE_LENGTH, TextArenaText, TextArenaWords, candidate_moves, clean_reply
from arena.games.textarena.library import TextArenaEnvironment, check_name, resolve_player_count
from arena.games.third_party import LetteredGame, LetteredSpec
from schemas.config.base import Table
from schemas.errors import ConfigError, DecodeError
from schemas.ids import digest
from schemas.jobs import EnvironmentSeats, SeatCounts
from schemas.numbers import PositiveInt

PASS_MOVE = "[pass]"
"""A bot's message where no move was found."""


class EnvironmentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One of several environments, with what differs from the others."""

    name: str
    players: int | None = None
    """Number of players; None for the number of all environments."""
    observation: str = ""
    """Override of ``prompts.observation``."""
    extractor: str = ""
    """Override of ``prompts.extractor``."""

    @property
    def prompts(self) -> dict[str, str]:
        """Keys of the table ``prompts``."""
        return {key: value for key in ("observation", "extractor") if (value := getattr(self, key))}


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    env: str | EnvironmentSettings | tuple[str | EnvironmentSettings, ...] = "TicTacToe-v0-train"
    """TextArena's id, or several, among which the seed chooses: each an id, or a table with it (``name``) and with its
    own ``players``, ``observation`` and ``extractor``. The observations of those with ``-train`` omit the reasons for
    rejections and all but the newest board.
    """
    evaluation_env: str | EnvironmentSettings | tuple[str | EnvironmentSettings, ...] = ()
    """Environments of evaluation matches; empty for the same ones."""
    players: int | None = None
    """Number of players; None for the smallest from two on that the environment accepts."""
    talk: bool | None = None
    """Whether other seats see whole messages, or only the parts in square brackets; None asks the environment."""
    max_turns: PositiveInt = 200
    """Maximum length of a game; one that is not over by then fails."""
    longest: PositiveInt = 1_000
    """Maximum length of a message, in characters; moves that the environment shows are never cut."""

    def __post_init__(self) -> None:
        if not list_environments(self.env):
            raise ConfigError("env: found none; expected an environment that TextArena registers")
        prompts: dict[str, dict[str, str]] = {}
        for each in (*list_environments(self.env), *list_environments(self.evaluation_env)):
            if prompts.setdefault(each.name, each.prompts) != each.prompts:
                raise ConfigError(f"env: {each.name} is there with two prompts; expected one of each environment")


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """A position, represented by the messages that lead to it."""

    env: str
    seed: int
    said: list[str]
    """Messages, turn by turn; the environment knows whose turn it was."""
    told: str
    """Digest of all observations so far: detects a change of the environment."""
    players: int | None = None
    """Number of players, where the settings list the environment with several numbers."""


class TextArenaGame(LetteredGame[State]):
    """One play-through."""

    spec: "TextArenaSpec"

    def __init__(self, spec: "TextArenaSpec", seed: int, start: State, env: TextArenaEnvironment | None = None) -> None:
        """Replay the messages of ``start``, in ``env`` if that is at its beginning; ``DecodeError`` if they fail."""
        super().__init__(spec, seed, start)
        self.environment = self.label = start.env
        self.seats = spec.seats[: start.players or spec.players.get(start.env)]
        self._said = [*start.said]
        """All messages, those before ``start`` included."""
        if env is None:
            self.restore()
        else:
            self._begin(env)
        if self._digest_after(len(start.said)) != start.told:
            raise DecodeError(
                f"textarena: {start.env} does not come to the saved position; another version of TextArena?"
            )
        talk = spec.settings.talk
        self.talk: bool = not self._env.uses_brackets if talk is None else talk
        """Whether other seats see whole messages, or only the parts in square brackets."""

    def _begin(self, env: TextArenaEnvironment) -> None:
        """Submit all messages so far to an environment in its first position."""
        messages = self._said
        self._said = []
        self._env = env
        self._turn_counts = [0] * len(self.seats)
        self._refused_counts = [0] * len(self.seats)
        self._ended_by: int | None = None
        self._observed: list[tuple[int, bool, str]] = []
        """Mover, end and observation after each message."""
        self._digests = [digest(env.observation.encode())]
        """Digest of all observations, at the start and after messages, as far as they were needed."""
        self._moves: list[str] | None = None
        for message in messages:
            self.play({env.mover: message})

    @property
    def clock(self) -> int:
        """The number of turns played."""
        return len(self._said)

    def to_move(self) -> Sequence[int]:
        """The seat to move: always one, as simultaneous choices are made one after the other."""
        return () if self._env.done else (self._env.mover,)

    def moves(self, seat: int) -> Sequence[str]:
        """The candidate moves that the environment accepts; none where they cannot be found."""
        if self._moves is None:
            tried = candidate_moves(self.environment, self._env.observation, self._env.listed_moves())
            self._moves = [move for move in tried if not self._env.refuses(move)]
        return self._moves

    def random_action(self, seat: int, rng: Random) -> Action:
        """Draw uniformly from the candidate moves."""
        self.check_to_move(seat)
        return (rng.choice(self.moves(seat) or [PASS_MOVE]),)

    def is_legal(self, seat: int, action: Action) -> bool:
        """Whether the text can be submitted, which does not imply that the environment accepts it."""
        if seat not in self.to_move() or not isinstance(action, tuple) or len(action) != 1:
            return False
        (message,) = action
        is_clean = message == clean_reply(message, max(self.spec.settings.longest, MAX_MOVE_LENGTH)) != ""
        return is_clean and (self.talk or ("[" in message and "]" in message))

    def refuses(self, message: str) -> bool:
        """Whether the environment would reject this message from the seat to move."""
        return message not in (self._moves or ()) and self._env.refuses(message)

    def play(self, moves: Mapping[int, str]) -> None:
        """Submit the mover's message to the environment."""
        (message,) = moves.values()
        env, seat = self._env, self._env.mover
        refused = env.step(message)
        self._said.append(message)
        self._observed.append((env.mover, env.done, env.observation))
        self._turn_counts[seat] += 1
        self._refused_counts[seat] += refused
        self._ended_by = seat if refused and env.done else None
        self._moves = None

    def replay(self) -> None:
        """Submit all messages so far to a new environment."""
        self._begin(TextArenaEnvironment(self.environment, len(self.seats), self._start.seed))

    def state_after(self, turns: int) -> State:
        """The position after so many turns: the messages until then and their observations' digest."""
        start, played = self._start, len(self._start.said) + turns
        return State(self.environment, start.seed, self._said[:played], self._digest_after(played), start.players)

    def scores(self) -> Sequence[float]:
        """The environment's rewards; ``GameError`` unless there is a number for each seat."""
        return self._env.rewards(len(self.seats))

    def teams(self) -> Sequence[str]:
        """The teams that the environment made."""
        return self._env.sides(len(self.seats)).teams

    def roles(self) -> Sequence[str]:
        """The roles that the environment drew."""
        return self._env.sides(len(self.seats)).roles

    def reason(self) -> str:
        """The reason: a rejected move, or the rules."""
        return "over" if self._ended_by is None else "invalid_move"

    def metrics(self) -> Sequence[dict[str, float]]:
        """Each seat's turns and rejected moves, and whether its last rejected move ended the game."""
        return [
            {"turns": float(turns), "invalid": float(refused), "ended_by_invalid": float(seat == self._ended_by)}
            for seat, (turns, refused) in enumerate(zip(self._turn_counts, self._refused_counts, strict=True))
        ]

    def tells(self, seat: int) -> str:
        """The environment's own prompt."""
        return self._env.observation

    def notes(self) -> list[str]:
        """A note on how the game ended."""
        return [self._env.reason() or "over"] if self._env.done else []

    def _digest_after(self, messages: int) -> str:
        for mover, done, observation in self._observed[len(self._digests) - 1 : messages]:
            self._digests.append(digest(f"{self._digests[-1]} {mover} {done} {observation}".encode()))
        return self._digests[messages]


class TextArenaSpec(LetteredSpec[State]):
    """Factory of play-throughs of one environment, or of several."""

    name = "textarena"
    settings_type, state_type, game_type = Settings, State, TextArenaGame

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._counts = SeatCounts(_count_players("env", settings))
        evaluated = _count_players("evaluation_env", settings)
        self.players = dict((*evaluated, *self._counts.environments))
        """Number of players by environment, evaluation's included."""
        largest = max(each.seats for each in (*evaluated, *self._counts.environments))
        self.seats = tuple(f"Player {seat}" for seat in range(largest))

    def for_evaluation(self) -> GameSpec:
        """The environments of evaluation matches."""
        env = self.settings.evaluation_env
        if not env:
            return self
        listed = env if isinstance(env, tuple) else (env,)
        return TextArenaSpec(msgspec.structs.replace(self.settings, env=listed, evaluation_env=()))

    def seat_counts(self) -> SeatCounts:
        """The environments with their numbers of seats."""
        return self._counts

    def environment_prompts(self) -> Mapping[str, Mapping[str, str]]:
        """Prompts that differ by environment, evaluation's included."""
        listed = (*list_environments(self.settings.env), *list_environments(self.settings.evaluation_env))
        return {each.name: each.prompts for each in listed if each.prompts}

    def new(self, seed: int) -> TextArenaGame:
        """Start a play-through in an environment chosen by the seed; ``GameError`` if it does not begin."""
        chosen = self._counts.choose(seed)
        env = TextArenaEnvironment(*chosen, seed)
        players = {each.seats for each in self._counts.environments if each.name == env.name}
        number = chosen.seats if len(players) > 1 else None
        return TextArenaGame(self, seed, State(env.name, seed, [], digest(env.observation.encode()), number), env)

    def rules(self) -> str:
        """The game's origin; an environment explains its rules in its prompts."""
        fewest, most = min(each.seats for each in self._counts.environments), self._counts.most
        players = f"{most} player{'s'[: most > 1]}" if fewest == most else f"{fewest} to {most} players"
        return f"You are playing a game of TextArena with {players}."

    def text(self) -> TextArenaText:
        """The format with observations letter by letter, and candidate moves or any text in square brackets."""
        return TextArenaText(self)

    def words(self) -> TextArenaWords:
        """The format with the environments' own prompts."""
        return TextArenaWords(self, self.settings.longest)


def list_environments(
    env: str | EnvironmentSettings | Sequence[str | EnvironmentSettings],
) -> tuple[EnvironmentSettings, ...]:
    """List the environments of a setting."""
    several = (env,) if isinstance(env, str | EnvironmentSettings) else env
    return tuple(EnvironmentSettings(name=each) if isinstance(each, str) else each for each in several)


def _count_players(key: str, settings: Settings) -> tuple[EnvironmentSeats, ...]:
    environments = list_environments(getattr(settings, key))
    for each in environments:
        check_name(each.name, key)
    players = [settings.players if each.players is None else each.players for each in environments]
    return tuple(
        EnvironmentSeats(each.name, resolve_player_count(each.name, count))
        for each, count in zip(environments, players, strict=True)
    )


make = register("textarena")(TextArenaSpec.of)
