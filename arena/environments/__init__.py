"""Environments by name, arenas and games: the contract of an arena, and the parts that most of them share.

Each module is an arena of that name and registers its factory, which makes an ``ArenaSpec`` from settings. A league
names an arena where it would name a game (``[game]``), so no two of them share a name. ``make_environment`` makes
either.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, NamedTuple, Self

import msgspec

from arena.arena import Arena
from arena.clients import InferenceClient
from arena.enumerable import ListedGame, ListedSpec
from arena.episodes import Episode
from arena.games import game_names, make_game
from arena.games.base import GameSpec, Turn
from arena.games.texts import evaluation_spec, seat_counts, words_of
from arena.model_call import Limits
from arena.records import make_transcript
from arena.stores import Sink
from schemas.batches import CreditAssigner
from schemas.config import convert
from schemas.episodes import Artifact, ArtifactAdded, EpisodeRequest, GenerateResult, Message, Role
from schemas.errors import ConfigError, format_choices, suggest
from schemas.jobs import SeatCounts
from schemas.plugins import F, FactoryRegistry, missing_folders

RANDOM_BOT = "random_bot"
"""The scripted agent that plays ``ArenaSpec.improvise`` in any seat."""


class ArenaOptions(NamedTuple):
    """Options of ``ArenaSpec.open``: ``Arena``'s own arguments, and the sink of additions to its stores."""

    name: str = "arena"
    seed: int = 0
    limits: Limits | None = None
    credit_assigner: CreditAssigner | None = None
    sink: Sink | None = None


class EnvironmentArena(Arena):
    """An arena with stores of initial artifacts and with groups of equal requests."""

    def __init__(
        self,
        client: InferenceClient,
        options: ArenaOptions,
        roles: Iterable[Role] = (),
        episodes: Iterable[Episode] = (),
    ) -> None:
        super().__init__(client, options.credit_assigner, name=options.name, seed=options.seed, limits=options.limits)
        self.group_count = 0
        self._sink = options.sink
        for role in roles:
            self.add_role(role)
        for episode in episodes:
            self.add_episode(episode.episode_type, episode)

    def fill_store(self, name: str, items: Iterable[Any]) -> None:
        """Register a store that begins with these artifacts, which are not passed on to the sink."""
        store = self.add_store(name, sink=self._sink)
        store.replay(ArtifactAdded(name, Artifact(item)) for item in items)

    def make_group(self, request: EpisodeRequest, name: str, size: int, single: bool = True) -> list[EpisodeRequest]:
        """Copies of a request that are compared with each other, under a new group, whose name begins with ``name``.

        ``single``: whether a single copy is a group of its own; otherwise it is compared with the whole batch.
        """
        self.group_count += 1
        group = f"{name}-{self.group_count}" if size > 1 or single else ""
        return [msgspec.structs.replace(request, group=group, group_size=size)] * size


class DatasetArena(EnvironmentArena):
    """The arena of a ``DatasetSpec``."""

    def __init__(self, client: InferenceClient, options: ArenaOptions, spec: "DatasetSpec") -> None:
        super().__init__(client, options, spec.make_roles(), spec.make_episodes())
        self._spec = spec
        if (items := spec.make_items()) is not None:
            self.fill_store(f"{spec.item}s", items)

    def get_batch(self) -> list[EpisodeRequest]:
        """A group of requests about each of some items."""
        return self._spec.make_batch(self)


class ArenaSpec(ABC):
    """A registered arena. In a league each of its top-level episodes is a match, with an agent in each seat."""

    name: str
    seats: Sequence[str]
    """Names of the seats. With one, there are no opponents and no ratings."""
    rules_version: int = 1
    """Version of its protocol and scoring, like a game's: results under different versions are not comparable."""
    bots: Sequence[str] = (RANDOM_BOT,)
    """Scripted agents for its seats."""
    items: str = ""
    """The setting that lists the artifacts (topics, questions); empty if there is none."""
    batch: str = "batch_size"
    """The setting with the size of a step's batch."""
    attempts: str = "group_size"
    """The setting with the number of attempts that are compared."""
    settings_type: ClassVar[type[msgspec.Struct]]
    """Struct of the ``[game]`` settings, for ``of``."""
    arena_type: ClassVar[Any]
    """Class of the arena, which the default of ``open`` calls with the client, the options and the settings."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Build from the ``[game]`` settings; ``ConfigError`` for a bad one."""
        return cls(convert(settings, cls.settings_type, "game.settings"))

    def roles_in(self, seat: int) -> Sequence[str]:
        """Ids of the roles that the agent in a seat plays: by default the one of the seat's name."""
        return (self.seats[seat],)

    def open(self, client: InferenceClient, opening: ArenaOptions = ArenaOptions()) -> Arena:  # noqa: B008 - immutable
        """An arena with all its roles, episodes and stores, the stores filled with their initial artifacts.

        A league calls its ``get_batch`` but not its ``on_step_end``: a curriculum must grow from within episodes.
        """
        arena: Arena = self.arena_type(client, opening, self.settings)
        return arena

    def evaluation_batch(self, arena: Arena) -> Sequence[EpisodeRequest]:
        """The requests from which a league's evaluation matches are drawn by seed: by default a step's.

        Where training plays tasks that the policy itself proposed, it is a fixed set, to compare versions by the same.
        """
        return arena.get_batch()

    @abstractmethod
    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """A well-formed reply of a role, or of a judge (None), without skill.

        It is the play of ``random_bot``, and a made model's first lesson.
        """

    def score(self, result: GenerateResult) -> tuple[float, ...]:
        """The match's score of each seat: by default the sum of its roles' rewards in the top-level episode."""
        rewards = result.rollout.rewards
        return tuple(
            float(sum(rewards.get(role, 0.0) for role in self.roles_in(seat))) for seat in range(len(self.seats))
        )

    def metrics(self, result: GenerateResult) -> Mapping[str, float]:
        """Facts about a match, the same for all seats: by default each reward function's value (``name.role``)."""
        return {name.replace("/", "."): value for name, value in result.rollout.metrics.items()}

    def transcript(self, record: bytes) -> list[Turn]:
        """The turns of a match's record."""
        return make_transcript(record)

    def passed(self, score: float) -> bool:
        """Whether the score of an only seat counts as a win: by default, if above 0."""
        return score > 0


class DatasetSpec(ArenaSpec):
    """An arena that draws items and has a group of episodes about each. A single seat plays all roles."""

    item: str
    """Singular of the store's name, and the prefix of a group's name."""
    compared: str = "group_size"
    """The setting with the number of episodes about an item."""
    single: bool = True
    """Whether a single episode about an item is a group of its own; otherwise it is compared with the whole batch."""
    episode_class: ClassVar[Any]
    """Class of the episode that a batch requests, made from the settings."""
    prompts: Mapping[str, str] = {}
    """System prompts by role; none where ``make_roles`` is overridden."""

    def make_roles(self) -> Sequence[Role]:
        """All roles, by default with one limit of tokens."""
        return [Role(id, prompt, max_tokens=self.settings.max_tokens) for id, prompt in self.prompts.items()]

    def roles_in(self, seat: int) -> Sequence[str]:
        """All roles of ``prompts``, or the one of the seat's name where there are several seats or no prompts."""
        return tuple(self.prompts) if self.prompts and len(self.seats) == 1 else super().roles_in(seat)

    def make_episodes(self) -> Sequence[Episode]:
        """All episodes; a batch requests the first."""
        return [self.episode_class(self.settings)]

    def make_items(self) -> Iterable[Any] | None:
        """The initial items of the store; None for an arena without one, which overrides ``draw_items``."""
        return None

    def draw_items(self, arena: DatasetArena, count: int) -> Iterable[Artifact]:
        """The items of a batch, each asked for after the former's group was made: none twice before all others."""
        return arena.stores[f"{self.item}s"].sample(count)

    def request(self, episode_type: str, artifact: Artifact) -> EpisodeRequest:
        """An episode about an item."""
        return EpisodeRequest(episode_type, artifact.data)

    def make_batch(self, arena: DatasetArena) -> list[EpisodeRequest]:
        """A group of episodes about each of some items."""
        episode_type = next(iter(arena.episodes))
        count, size = (getattr(self.settings, setting) for setting in (self.batch, self.compared))
        return [
            request
            for artifact in self.draw_items(arena, count)
            for request in arena.make_group(self.request(episode_type, artifact), self.item, size, self.single)
        ]

    def open(self, client: InferenceClient, opening: ArenaOptions = ArenaOptions()) -> Arena:  # noqa: B008 - immutable
        """The arena, with its roles, episodes and a store of the items."""
        return DatasetArena(client, opening, self)


Factory = Callable[[Mapping[str, Any]], ArenaSpec]

ADAPTERS = ("openenv", "verifiers")
"""Arenas made of another package's environments. They have no default settings and are not listed."""

ARENAS: FactoryRegistry[Factory, None] = FactoryRegistry(__name__, ADAPTERS)

EnvironmentSpec = GameSpec | ArenaSpec


def rules_in_words(spec: EnvironmentSpec) -> str:
    """The rules in plain language, or ``GameError``; empty for an arena, whose questions explain themselves."""
    return "" if isinstance(spec, ArenaSpec) else words_of(spec).rules()


def register(name: str) -> Callable[[F], F]:
    """Register a factory under the name of its module."""
    return ARENAS.register(name, None)


def arena_names() -> list[str]:
    """All registered arenas with default settings."""
    return ARENAS.modules()


def make_arena(name: str, settings: Mapping[str, Any]) -> ArenaSpec:
    """The arena of that name with its settings; ``ConfigError`` for an unknown name or a bad setting."""
    if name not in (*arena_names(), *ADAPTERS):
        raise ConfigError(f"game.name: no arena is called {name!r}; expected {format_choices(arena_names())}")
    return ARENAS.load(name).make(settings)


def make_environment(name: str, settings: Mapping[str, Any]) -> EnvironmentSpec:
    """The game or the arena of that name; ``ConfigError`` for an unknown one, a missing package or a bad setting."""
    if name in (*arena_names(), *ADAPTERS):
        return make_arena(name, settings)
    if name in game_names():
        return make_game(name, settings)
    if re.search(r"-v\d", name):
        raise ConfigError(
            f"game.name: nothing is called {name!r}; an environment of TextArena is the game 'textarena' with "
            f"game.settings.env = {name!r}, one of PettingZoo 'pettingzoo', a task of verifiers 'verifiers'"
        )
    raise ConfigError(
        f"game.name: nothing is called {name!r}; expected a game ({format_choices(game_names())}) or "
        f"an arena ({format_choices(arena_names())}), or one of your own in a folder that LEAGUE_PLUGINS names"
        f"{suggest(name, (*game_names(), *arena_names()))}{missing_folders()}"
    )


def evaluation_seat_counts(name: str, settings: Mapping[str, Any]) -> SeatCounts:
    """Numbers of seats of a league's evaluation matches, by their seeds; raises as ``make_environment``."""
    return seat_counts(evaluation_spec(make_environment(name, settings)))


def reports_progress(spec: EnvironmentSpec) -> bool:
    """Whether a seat's progress is known during play; otherwise only its final score is."""
    if isinstance(spec, ListedSpec):
        return spec.game_type.progress is not ListedGame.progress
    return not isinstance(spec, ArenaSpec)
