"""What is kept of an episode that was a league's match: the whole tree in text, and how people read it."""

from typing import Any

import msgspec

from arena.games.base import Turn
from schemas.episodes import GenerateResult, Message, Step
from schemas.errors import EpisodeError

VERSION = 1
"""Of the record's form."""

_INDENT = "  "


class Call(msgspec.Struct, frozen=True):
    """A model call by a role."""

    role: str
    prompt: list[Message]
    said: str
    info: Any = None


class Kept(msgspec.Struct, frozen=True):
    """An episode, and those that it asked for."""

    id: str
    episode_type: str
    artifact: Any
    meta: Any
    group: str
    is_trainable: bool
    failure: str
    rewards: dict[str, float]
    metrics: dict[str, float]
    calls: list[Call]
    children: "list[Kept]" = []


class Record(msgspec.Struct, frozen=True, tag_field="kind", tag="episode"):
    """An episode without clocks and token ids: the same play is the same bytes."""

    version: int
    arena: str
    tree: Kept


def record_of(arena: str, result: GenerateResult) -> bytes:
    """The record of a match, as canonical JSON; what is no JSON in an artifact is kept as Python writes it."""
    kept = Record(VERSION, arena, _kept(result))
    return msgspec.json.encode(kept, enc_hook=repr, order="sorted")


def _kept(result: GenerateResult) -> Kept:
    rollout = result.rollout
    return Kept(
        id=rollout.id,
        episode_type=rollout.episode_type,
        artifact=rollout.artifact,
        meta=rollout.meta,
        group=rollout.group,
        is_trainable=rollout.is_trainable,
        failure=rollout.failure,
        rewards=rollout.rewards,
        metrics=rollout.metrics,
        calls=[_call(step) for step in rollout.steps],
        children=[_kept(child) for child in result.children],
    )


def _call(step: Step) -> Call:
    return Call(step.role_id, step.prompt, step.completion_text, step.info or None)


def is_episode(record: bytes) -> bool:
    """Whether a record is that of an episode; games have forms of their own."""
    return record.startswith(b'{"arena":')


def read_record(record: bytes) -> Record:
    """The record of a match.

    Raises:
        EpisodeError: it is none, or of a version that this one does not know.
    """
    try:
        found = msgspec.json.decode(record, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EpisodeError(f"record of an episode: {error}; expected what a league's worker wrote") from None
    if found.version != VERSION:
        raise EpisodeError(f"record of an episode: version {found.version}; expected {VERSION}")
    return found


def turns_of(record: bytes) -> list[Turn]:
    """A record for people: each episode with its calls, those under it further in, then what each earned.

    Raises:
        EpisodeError: it is no record of an episode.
    """
    return _turns(read_record(record).tree, "")


def _turns(kept: Kept, indent: str) -> list[Turn]:
    marks = "" if kept.is_trainable else ", not trained on"
    about = [] if kept.artifact is None else [f"{indent}about: {_plain(kept.artifact)}"]
    found = [Turn(f"{indent}{kept.id}: {kept.episode_type}{marks}", {}, about)]
    found += [
        Turn(f"{indent}{kept.id}, call {number}", {f"{indent}{call.role}": call.said.splitlines() or [""]})
        for number, call in enumerate(kept.calls)
    ]
    for child in kept.children:
        found += _turns(child, indent + _INDENT)
    return [*found, Turn(f"{indent}{kept.id}: {'FAILED' if kept.failure else 'over'}", {}, _notes(kept, indent))]


def _notes(kept: Kept, indent: str) -> list[str]:
    if kept.failure:
        return [f"{indent}{kept.failure}"]
    rewards = [f"{indent}{role} earns {reward:g}" for role, reward in sorted(kept.rewards.items())]
    return [*rewards, *(f"{indent}{name} = {value:g}" for name, value in sorted(kept.metrics.items()))]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
