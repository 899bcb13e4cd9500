"""Records of episodes that were matches: the whole tree as text, and its transcript for people."""

from typing import Any

import msgspec

from arena.games.base import Turn
from schemas.codec import DECODE_ERRORS
from schemas.episodes import GenerateResult, Message
from schemas.errors import EpisodeError

VERSION = 1
"""Version of the record's form."""

_INDENT = "  "


class RecordedCall(msgspec.Struct, frozen=True):
    """A model call by a role."""

    role: str
    prompt: list[Message]
    said: str
    info: Any = None


class RecordedEpisode(msgspec.Struct, frozen=True):
    """An episode with its children."""

    id: str
    episode_type: str
    artifact: Any
    meta: Any
    group: str
    is_trainable: bool
    failure: str
    rewards: dict[str, float]
    metrics: dict[str, float]
    calls: list[RecordedCall]
    children: "list[RecordedEpisode]" = []


class EpisodeRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="episode"):
    """A record without clocks and token ids: equal play gives equal bytes."""

    version: int
    arena: str
    tree: RecordedEpisode


def encode_record(arena: str, result: GenerateResult) -> bytes:
    """The record of a match as canonical JSON; values of artifacts that are not JSON are kept as their ``repr``."""
    episode = EpisodeRecord(VERSION, arena, _record_episode(result))
    return msgspec.json.encode(episode, enc_hook=repr, order="sorted")


def _record_episode(result: GenerateResult) -> RecordedEpisode:
    rollout = result.rollout
    return RecordedEpisode(
        id=rollout.id,
        episode_type=rollout.episode_type,
        artifact=rollout.artifact,
        meta=rollout.meta,
        group=rollout.group,
        is_trainable=rollout.is_trainable,
        failure=rollout.failure,
        rewards=rollout.rewards,
        metrics=rollout.metrics,
        calls=[
            RecordedCall(step.role_id, step.prompt, step.completion_text, step.info or None) for step in rollout.steps
        ],
        children=[_record_episode(child) for child in result.children],
    )


def is_episode_record(record: bytes) -> bool:
    """Whether a record is an episode's, rather than a game's."""
    return record.startswith(b'{"arena":')


def decode_record(record: bytes) -> EpisodeRecord:
    """The record of a match; ``EpisodeError`` if it is none, or of an unknown version."""
    try:
        episode = msgspec.json.decode(record, type=EpisodeRecord)
    except DECODE_ERRORS as error:
        raise EpisodeError(f"record of an episode: {error}; expected what a league's worker wrote") from None
    if episode.version != VERSION:
        raise EpisodeError(f"record of an episode: version {episode.version}; expected {VERSION}")
    return episode


def make_transcript(record: bytes) -> list[Turn]:
    """A record for people: each episode with its calls, its children indented, and its rewards; or ``EpisodeError``."""
    return _transcript_turns(decode_record(record).tree, "")


def _transcript_turns(episode: RecordedEpisode, indent: str) -> list[Turn]:
    marks = "" if episode.is_trainable else ", not trained on"
    about = episode.artifact
    if not isinstance(about, str | None):
        about = msgspec.json.encode(about).decode()
    subject = [] if about is None else [f"{indent}about: {about}"]
    turns = [Turn(f"{indent}{episode.id}: {episode.episode_type}{marks}", {}, subject)]
    for number, call in enumerate(episode.calls):
        said = {f"{indent}{call.role}": call.said.splitlines() or [""]}
        turns.append(Turn(f"{indent}{episode.id}, call {number}", said))
    for child in episode.children:
        turns += _transcript_turns(child, indent + _INDENT)
    if episode.failure:
        return [*turns, Turn(f"{indent}{episode.id}: FAILED", {}, [f"{indent}{episode.failure}"])]
    notes = [f"{indent}{role} earns {reward:g}" for role, reward in sorted(episode.rewards.items())]
    notes += [f"{indent}{name} = {value:g}" for name, value in sorted(episode.metrics.items())]
    return [*turns, Turn(f"{indent}{episode.id}: over", {}, notes)]
