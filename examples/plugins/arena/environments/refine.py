"""A writer drafts, a critic comments, the writer revises: both earn the same, so that they help each other.

The task can be checked without a judge: a text of few words that contains all required ones. The reward is the score of
the last draft, plus a bonus for its gain over the first. The quality of the text does not count.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from arena.arena import Arena
from arena.environments import DatasetArena, DatasetSpec, register
from arena.episodes.chat import AlternatingRolesEpisode
from arena.rubrics import Rubric
from schemas.config.base import Table
from schemas.episodes import Artifact, EpisodeState, GenerateResult, Message, Rollout
from schemas.errors import ConfigError
from schemas.ids import derive_seed
from schemas.numbers import Count, PositiveInt

WRITER, CRITIC = "Writer", "Critic"
WORD_KEEP_RATE = 0.7
"""Probability that an improvised draft keeps a required word: with less, small models do not learn that drafts depend
on tasks."""
_TASK_PATTERN = re.compile(r"Words: ([^.]*)\.")

WORDS: Sequence[str] = (
    *("apple", "bell", "boat", "bridge", "candle", "cat", "cloud", "coat", "door", "drum", "field", "fox"),
    *("garden", "hill", "kite", "lamp", "moon", "rain", "river", "road", "ship", "stone", "tree", "wolf"),
)


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    words: tuple[str, ...] = ()
    """Single words from which tasks are drawn; empty for the built-in ones."""
    wanted: PositiveInt = 3
    """Words that a draft must contain."""
    longest: int = 10
    """Most words of a draft; a longer one scores 0."""
    rounds: Count = 1
    """Comments and revisions after the first draft."""
    bonus: float = 0.1
    """Reward for the gain from the first draft to the last, per unit of score."""
    group_size: PositiveInt = 8
    """Attempts at a task that are compared with each other."""
    tasks_per_batch: PositiveInt = 4
    tasks: Count = 0
    """Number of different tasks, the same for all seeds, which can be memorised; 0 for new ones in every batch."""
    max_tokens: PositiveInt = 64
    """Most tokens of a draft or a comment."""

    def __post_init__(self) -> None:
        if self.longest < self.wanted:
            raise ConfigError(f"longest: {self.longest}; expected {self.wanted} or more")
        # Otherwise a draft that lacks a word could earn as much as one that lacks none, and count as passed.
        most = 1.0 / max(1, self.wanted - 1)
        if not 0 <= self.bonus < most:
            raise ConfigError(f"bonus: {self.bonus}; expected from 0 to below {most:g} for {self.wanted} wanted words")
        if any(_words(word) != [word] for word in self.words):
            raise ConfigError(f"words: {list(self.words)}; expected single words in lower case")
        if self.words and len(set(self.words)) < self.wanted:
            raise ConfigError(f"words: {len(set(self.words))} different ones; expected {self.wanted} or more")


class Task(msgspec.Struct, frozen=True):
    """Requirements of a draft."""

    words: list[str]
    longest: int


def score_draft(draft: str, task: Task) -> float:
    """Share of the required words that a draft contains; 0 if it is too long."""
    words = _words(draft)
    return 0.0 if len(words) > task.longest else sum(word in words for word in task.words) / len(task.words)


class RefineEpisode(AlternatingRolesEpisode):
    """A draft, and rounds of comment and revision."""

    episode_type = "refine"

    def __init__(self, settings: Settings) -> None:
        super().__init__([WRITER, CRITIC], 1 + 2 * settings.rounds)
        self.rubric = Rubric([finished, gained], [1.0, settings.bonus])

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The task."""
        return f"Words: {', '.join(artifact['words'])}. At most {artifact['longest']} words."

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """All drafts, in order."""
        return {"drafts": [step.completion_text for step in state.trajectory if step.role_id == WRITER]}


def _draft_scores(rollout: Rollout) -> list[float]:
    task = msgspec.convert(rollout.artifact, Task)
    return [score_draft(draft, task) for draft in rollout.extras["drafts"]]


def finished(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Score of the last draft, for both roles."""
    return dict.fromkeys((WRITER, CRITIC), _draft_scores(rollout)[-1])


def gained(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Gain of the last draft over the first, for both roles."""
    scores = _draft_scores(rollout)
    return dict.fromkeys((WRITER, CRITIC), scores[-1] - scores[0])


class RefineSpec(DatasetSpec):
    """One seat: the policy is both the writer and the critic."""

    name = "refine"
    seats = ("Both",)
    items, item = "words", "task"
    batch = "tasks_per_batch"
    settings_type, episode_class = Settings, RefineEpisode
    prompts: Mapping[str, str] = {WRITER: "Write one sentence with all words.", CRITIC: "Say which words are missing."}

    def draw_items(self, arena: DatasetArena, count: int) -> Iterator[Artifact]:
        """New tasks, or some of those that are the same for all seeds."""
        settings = self.settings
        for _ in range(count):
            group = arena.group_count + 1
            seed, number = (0, group % settings.tasks) if settings.tasks else (arena.seed, group)
            rng = Random(derive_seed(seed, "task", number))
            words = rng.sample(sorted(set(settings.words or WORDS)), settings.wanted)
            yield Artifact({"words": words, "longest": settings.longest})

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """A text in which random words replace some required ones; a comment that names a required word."""
        match = next(filter(None, (_TASK_PATTERN.search(message.content) for message in messages)), None)
        required = match[1].split(", ") if match else []
        if role_id == CRITIC:
            return f"Use {rng.choice(required or ['more'])}."
        vocabulary = self.settings.words or WORDS
        words = [word if rng.random() < WORD_KEEP_RATE else rng.choice(vocabulary) for word in required]
        return f"The {' and '.join(words)}."

    def metrics(self, result: GenerateResult) -> Mapping[str, float]:
        """The rewards, which are the same for both roles, once."""
        values = result.rollout.metrics
        return {name: values[f"{name}/{WRITER}"] for name in ("finished", "gained") if f"{name}/{WRITER}" in values}

    def passed(self, score: float) -> bool:
        """All required words in the last draft, which earns each role 1."""
        return score >= 2.0


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


make = register("refine")(RefineSpec.of)
