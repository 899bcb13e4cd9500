"""A debate: two sides speak in turn, a judge names the winner. +1 for the winner, -1 for the other side, 0 for a draw.

The judge is not a role, so its replies are not trained on. It reads each side's speeches together, numbered by round,
once with each side first.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from arena.arena import Arena
from arena.datasets import TOPICS
from arena.environments import register
from arena.episodes.chat import AlternatingRolesEpisode
from arena.judges import Ballot, JudgeConfig, JudgedEpisode, JudgedSpec, improvised_speech, improvised_verdict
from schemas.config.base import Table
from schemas.episodes import EpisodeState, Message
from schemas.errors import ConfigError
from schemas.numbers import PositiveInt

AFF, NEG = "Aff", "Neg"
JUDGE_PROMPT = "You judge debates. End with Winner: Aff or Winner: Neg."
_TOPIC = "Topic: "


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    topics: tuple[str, ...] = TOPICS
    rounds: PositiveInt = 3
    """Speeches of each side."""
    batch_size: PositiveInt = 4
    """Topics of a batch."""
    group_size: PositiveInt = 1
    """Debates about a topic that are compared with each other; 1 compares all debates of a batch."""
    max_tokens: PositiveInt = 256
    """Most tokens of a speech."""
    judging: JudgeConfig = JudgeConfig()

    def __post_init__(self) -> None:
        if not self.topics or not all(topic.strip() and topic.splitlines() == [topic] for topic in self.topics):
            raise ConfigError(f"topics: {list(self.topics)}; expected at least one, each a line of text")


class DebateEpisode(AlternatingRolesEpisode, JudgedEpisode):
    """One debate."""

    episode_type = "debate"

    def __init__(self, settings: Settings) -> None:
        super().__init__((AFF, NEG), 2 * settings.rounds)
        self.judging = settings.judging

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The topic."""
        return f"{_TOPIC}{artifact['topic']}"

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Debate, then ask the judge."""
        await super().rollout(arena, artifact, state)
        speeches = {
            side: [step.completion_text for step in state.trajectory if step.role_id == side] for side in (AFF, NEG)
        }
        ballots = [make_ballot(artifact["topic"], speeches, order) for order in ((AFF, NEG), (NEG, AFF))]
        return await self.judge(arena, state, JUDGE_PROMPT, ballots)


def make_ballot(topic: str, speeches: Mapping[str, Sequence[str]], order: Sequence[str]) -> Ballot:
    """The question to the judge, with each speech joined to one line."""
    lines = [
        f"{side} {round}: {' '.join(text.split())}"
        for side in order
        for round, text in enumerate(speeches[side], start=1)
    ]
    question = "\n".join([f"{_TOPIC}{topic}", *lines, "Who won?"])
    return Ballot(question, {side: side for side in order})


class DebateSpec(JudgedSpec):
    """Two seats, for and against a topic."""

    name = "debate"
    seats = (AFF, NEG)
    items, item = "topics", "topic"
    settings_type, episode_class = Settings, DebateEpisode
    prompts: Mapping[str, str] = {AFF: "Argue for the topic.", NEG: "Argue against the topic."}

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """Sentences with words of the topic by chance. The judge mostly names the side with more of them.

        That is no judgement of an argument; it is what the smallest model can learn to see, and to do.
        """
        lines = next(message.content for message in messages if message.role == "user").splitlines()
        topic = lines[0].removeprefix(_TOPIC)
        if role_id is not None:
            return improvised_speech(topic, rng)
        speeches: dict[str, str] = {}
        for line in lines[1:-1]:
            side, _, text = line.partition(" ")
            speeches[side] = f"{speeches.get(side, '')} {text}"
        return improvised_verdict(speeches, topic, rng)


make = register("debate")(DebateSpec.of)
