"""Episodes of Kaggle's environments, as ``Environment.toJSON`` and its replays have them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from lifecycle.external_results.lines import ExternalResult, ExternalSeat, Line, read_objects, safe_id
from schemas.errors import UsageError

KEYS = ("steps", "rewards", "statuses", "specification", "configuration", "info")
"""Keys that tell the format."""
_FAILURES = frozenset(("ERROR", "INVALID", "TIMEOUT"))


class _Info(msgspec.Struct, rename="pascal"):
    team_names: list[str] = []
    episode_id: str | int = ""


class _Episode(msgspec.Struct):
    name: str
    steps: list[Any]
    rewards: list[float | None]
    statuses: list[str] = []
    id: str | int = ""
    info: _Info = msgspec.field(default_factory=_Info)


def recognise(fields: Mapping[str, Any]) -> bool:
    """Whether an object is of this format."""
    return "steps" in fields and "rewards" in fields


def parse(data: bytes, source: str) -> list[ExternalResult]:
    """The matches of a file: one episode, a list of them, or one a line."""
    results: dict[str, ExternalResult] = {}
    for line in read_objects(data, source):
        result = _parse_episode(line)
        if (first := results.setdefault(result.id, result)) is not result:
            raise UsageError(f"{line.where}: episode {result.id} repeats line {first.line}; expected it once")
    return list(results.values())


def _parse_episode(line: Line) -> ExternalResult:
    try:
        episode = msgspec.convert(line.fields, _Episode)
    except msgspec.ValidationError as error:
        raise UsageError(f"{line.where}: nearly an episode of Kaggle, but {error}") from None
    names = episode.info.team_names or [f"player {number}" for number in range(len(episode.rewards))]
    if len(names) != len(episode.rewards) or not all(names):
        raise UsageError(
            f"{line.where}: {len(episode.rewards)} rewards and {len(names)} TeamNames; expected one of each per player"
        )
    failed = next((at for at, status in enumerate(episode.statuses) if status in _FAILURES), None)
    missing = next((at for at, reward in enumerate(episode.rewards) if reward is None), None)
    failure = "" if missing is None else f"player {missing} has no reward"
    if failed is not None and failure:
        failure = f"player {failed}: {episode.statuses[failed]}"
    scored = enumerate(zip(names, episode.rewards, strict=True))
    seats = [ExternalSeat(f"player {at}", name, float(reward or 0.0)) for at, (name, reward) in scored]
    identity = str(episode.info.episode_id or episode.id)
    return ExternalResult(
        line=line.number,
        id=safe_id(identity) if identity else line.identity,
        environment=episode.name,
        seats=() if failure else tuple(seats),
        reason="over" if failed is None else episode.statuses[failed].lower(),
        length=max(len(episode.steps) - 1, 0),
        error=failure,
    )
