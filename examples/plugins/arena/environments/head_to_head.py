"""Head to head: two seats answer the same prompt, neither sees the other's answer, and a judge compares them.

+1 for the better answer, -1 for the other, 0 for a draw. The judge, which is not a role, reads the answers as First and
Second in both orders, and does not know which side wrote which.
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from arena.arena import Arena
from arena.environments import register
from arena.judges import Ballot, JudgeConfig, JudgedEpisode, JudgedSpec, improvised_speech, improvised_verdict
from schemas.config.base import Table
from schemas.episodes import EpisodeState, Message
from schemas.errors import ConfigError
from schemas.numbers import PositiveInt

SIDES = ("A", "B")
JUDGE_PROMPT = "You compare two answers. End with Winner: First or Winner: Second."
_PROMPT, _LABELS = "Prompt: ", ("First", "Second")

PROMPTS: tuple[str, ...] = (
    "Why do birds sing?",
    "Why is bread baked?",
    "Why do rivers bend?",
    "Why do leaves fall?",
    "Why do ships float?",
    "Why do stars shine?",
    "Why do cats purr?",
    "Why do dogs bark?",
    "Why does iron rust?",
    "Why do bees dance?",
    "Why do clocks tick?",
    "Why do kites rise?",
    "How does yeast work?",
    "How do seeds grow?",
    "How do wheels help?",
    "How do maps lie?",
    "How does glass form?",
    "How do bridges stand?",
    "How do tides turn?",
    "How do storms begin?",
    "What makes tea bitter?",
    "What makes honey sweet?",
    "What makes soup thick?",
    "What makes paper white?",
)


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    prompts: tuple[str, ...] = PROMPTS
    system: str = "Answer in one sentence."
    """System prompt of both sides."""
    batch_size: PositiveInt = 8
    """Prompts of a batch."""
    group_size: PositiveInt = 1
    """Pairs of answers to a prompt that are compared with each other; 1 compares all pairs of a batch."""
    max_tokens: PositiveInt = 256
    """Most tokens of an answer."""
    judging: JudgeConfig = JudgeConfig()

    def __post_init__(self) -> None:
        if not self.prompts or not all(prompt.strip() for prompt in self.prompts):
            raise ConfigError(f"prompts: {list(self.prompts)}; expected at least one, each a text")


class ComparisonEpisode(JudgedEpisode):
    """Two concurrent answers, and the verdict."""

    episode_type = "pair"

    def __init__(self, settings: Settings) -> None:
        self.judging = settings.judging

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Have both sides answer, then ask the judge."""
        prompt = artifact["prompt"]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.call_model(side, prompt, arena)) for side in SIDES]
        answers = {side: task.result().text for side, task in zip(SIDES, tasks, strict=True)}
        ballots = [make_ballot(prompt, answers, order) for order in (SIDES, SIDES[::-1])]
        return await self.judge(arena, state, JUDGE_PROMPT, ballots)


def make_ballot(prompt: str, answers: Mapping[str, str], order: Sequence[str]) -> Ballot:
    """The question to the judge, with each answer joined to one line."""
    lines = [f"{label}: {' '.join(answers[side].split())}" for label, side in zip(_LABELS, order, strict=True)]
    question = "\n".join([f"{_PROMPT}{prompt}", *lines, "Which is better?"])
    return Ballot(question, dict(zip(_LABELS, order, strict=True)))


class HeadToHeadSpec(JudgedSpec):
    """Two seats with the same task."""

    name = "head_to_head"
    seats = SIDES
    items, item = "prompts", "prompt"
    settings_type, episode_class = Settings, ComparisonEpisode

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.prompts = dict.fromkeys(SIDES, settings.system)

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """A sentence with words of the prompt by chance. The judge mostly names the answer with more of them.

        That says nothing of how good an answer is; it is what the smallest model can learn to see, and to do.
        """
        content = messages[-1].content
        if role_id is not None:
            return improvised_speech(content, rng)
        prompt, first, second, _ = content.removeprefix(_PROMPT).rsplit("\n", 3)
        answers = {line.partition(":")[0]: line.partition(":")[2] for line in (first, second)}
        return improvised_verdict(answers, prompt, rng)


make = register("head_to_head")(HeadToHeadSpec.of)
