"""Environments in which a judge compares two sides.

The judge is asked in both orders; an unreadable verdict, or one that depends on the order, is a draw. Models of any
size get the same prompts. A model made for an arena learns to judge by ``improvised_verdict``: which side used more
words of the topic, which its debaters can learn to do. It counts aloud: without that, two layers learn to compare two
sides with some seeds and not with others.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from arena.arena import Arena
from arena.environments import DatasetSpec
from arena.episodes import Episode
from arena.rubrics import Rubric
from schemas.config.base import Table
from schemas.episodes import EpisodeState, GenerateResult, Message, Rollout
from schemas.numbers import PositiveFloat, PositiveInt

DRAW = "draw"
SLIP_RATE = 0.05
"""Share of improvised verdicts that name the side with fewer words of the topic."""
_DRAW_WORDS = (DRAW, "tie", "none", "neither", "both", "nobody", "equal")
_STOP_WORDS = frozenset(
    ("are", "better", "than", "should", "need", "more", "learn", "teach", "free", "belong", "what", "does", "makes")
)
"""Words of topics that carry no meaning of their own."""
_FILLERS = ("people", "money", "time", "hope", "luck", "noise", "wind", "rules")
_VERBS = ("bring", "need", "love", "fear")


class JudgeConfig(Table, frozen=True):
    """Configuration of a judge."""

    both_orders: bool = True
    """Ask twice, with the sides exchanged: judges tend to prefer the side they read first (Zheng et al. 2023)."""
    temperature: PositiveFloat = 0.1
    max_tokens: PositiveInt = 256
    """Most tokens of a verdict."""


class Ballot(NamedTuple):
    """One question to a judge."""

    question: str
    sides: Mapping[str, str]
    """Role id by the judge's name for it."""


class Verdict(msgspec.Struct, frozen=True):
    """Result of the ballots."""

    winner: str = ""
    """Role id; empty for a draw."""
    unread: int = 0
    """Replies without a readable verdict."""
    split: bool = False
    """Whether readable verdicts differ."""
    words: list[str] = []
    """The judge's replies."""


async def ask_judge(arena: Arena, system: str, ballots: Sequence[Ballot], judging: JudgeConfig) -> Verdict:
    """The winner on which all ballots agree, or a draw. The judge is not a role: its replies are not trained on.

    Only the first of the ballots, the question in one order and in the other, is used unless ``both_orders``.
    A judge without a usable reply is a ``LeagueError``.
    """
    used = ballots if judging.both_orders else ballots[:1]

    async def ask(ballot: Ballot) -> str:
        messages = [Message("system", system), Message("user", ballot.question)]
        # Tokens distinguish an empty reply from none: where empty replies count, one is an unreadable verdict.
        reply = await arena.call_model(messages, None, judging.temperature, judging.max_tokens, return_tokens=True)
        return reply.text

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(ballot)) for ballot in used]
    replies = [task.result() for task in tasks]
    names = [parse_verdict(reply, tuple(ballot.sides)) for ballot, reply in zip(used, replies, strict=True)]
    winners = [ballot.sides.get(name or "", "") for ballot, name in zip(used, names, strict=True)]
    agreed = len(set(winners)) == 1
    unread = names.count(None)
    return Verdict(winners[0] if agreed else "", unread, not (agreed or unread), replies)


def parse_verdict(reply: str, names: Sequence[str]) -> str | None:
    """The winner of a verdict: one of ``names``, ``DRAW``, or None if it is unreadable.

    A name directly after the word "winner" takes precedence, in the last such line; otherwise the reply must name only
    one side. Case and markup do not matter.
    """
    known = {name.casefold(): name for name in names} | dict.fromkeys(_DRAW_WORDS, DRAW)
    either = "|".join(re.escape(name) for name in known)
    after = re.compile(rf"\bwinner\b(?:\W|\bis\b|\bthe\b|\ba\b)*\b({either})\b(\W+or\b)?")
    for line in reversed(reply.casefold().splitlines()):
        if matches := after.findall(line):
            certain = {known[name] for name, alternative in matches if not alternative}
            return certain.pop() if len(certain) == len({name for name, _ in matches}) == 1 else None
    sides = {known[name] for name in re.findall(rf"\b({either})\b", reply.casefold())} - {DRAW}
    return sides.pop() if len(sides) == 1 else None


def won(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Reward function: +1 for the winner of ``extras["verdict"]`` and -1 for the other side, 0 each in a draw."""
    winner = rollout.extras["verdict"]["winner"]
    roles = sorted({step.role_id for step in rollout.steps})
    return {role: 0.0 if not winner else 1.0 if role == winner else -1.0 for role in roles}


def topic_words(text: str) -> list[str]:
    """The meaningful words of a topic, each once, in order."""
    words = [word for word in re.findall(r"[^\W\d_]+", text.casefold()) if len(word) > 3 and word not in _STOP_WORDS]
    return list(dict.fromkeys(words)) or [text.strip().casefold()]


def count_topic_words(text: str, topic: str) -> int:
    """Number of words of a text that are words of the topic."""
    about = set(topic_words(topic))
    return sum(word in about for word in re.findall(r"[^\W\d_]+", text.casefold()))


def improvised_speech(topic: str, rng: Random) -> str:
    """A sentence of four nouns; each is a word of the topic with a probability drawn for this speech."""
    about = topic_words(topic)
    share = rng.random()
    nouns = [rng.choice(about if rng.random() < share else _FILLERS) for _ in range(4)]
    return f"{nouns[0]} {rng.choice(_VERBS)} {nouns[1]} and {nouns[2]} {rng.choice(_VERBS)} {nouns[3]}."


def improvised_verdict(texts: Mapping[str, str], topic: str, rng: Random) -> str:
    """Name the side with more words of the topic, except for a share of ``SLIP_RATE``; ties are random.

    ``texts`` are by the judge's name for the side.
    """
    (first, second), (a, b) = tuple(texts), tuple(count_topic_words(text, topic) for text in texts.values())
    ahead = rng.choice([first, second]) if a == b else first if a > b else second
    behind = second if ahead == first else first
    return f"{first} {a}, {second} {b}. Winner: {behind if rng.random() < SLIP_RATE else ahead}"


class JudgedEpisode(Episode):
    """An episode that ends with a verdict, which is asked for outside the rubric so that the record contains it."""

    rubric = Rubric([won])
    judging: JudgeConfig

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """The verdict, and what else the episode put into its data."""
        return dict(state.data)

    async def judge(self, arena: Arena, state: EpisodeState, system: str, ballots: Sequence[Ballot]) -> EpisodeState:
        """Ask the judge and put the verdict into the state."""
        state.data["verdict"] = msgspec.to_builtins(await ask_judge(arena, system, ballots, self.judging))
        return state


class JudgedSpec(DatasetSpec):
    """Two seats, compared by a judge: +1 for the winner, -1 for the other, 0 for a draw."""

    single = False

    def make_items(self) -> Iterable[Any]:
        """The texts of the setting ``items``."""
        return ({self.item: text} for text in getattr(self.settings, self.items))

    def metrics(self, result: GenerateResult) -> Mapping[str, float]:
        """Add metrics: whether it was a draw, the unreadable verdicts, and whether the order decided."""
        verdict = msgspec.convert(result.rollout.extras["verdict"], Verdict)
        return {
            **super().metrics(result),
            "draw": float(not verdict.winner),
            "unread_verdicts": float(verdict.unread),
            "split_verdicts": float(verdict.split),
        }
