"""Import of another program's registry into a league's history: ``league.json`` of the league specification.

    {"agents": {NAME: {"type": "baseline" | "checkpoint", "elo", "path", "step", "created_at", "parent"}},
     "history": [{"step", "p1", "p2", "result"}],
     "metadata": {"best_agent", …}}

A baseline is an agent of the configuration; a checkpoint becomes a version of the trained policy, ``main@50`` for
step 50. The whole file is checked before any event is made. Unknown fields are ignored. Releases add two fields:
``base_digest``, and each checkpoint's ``adapter_digest``.

Long on purpose: each check names its entry and field, and stands beside the conversion of the entry.
"""

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from schemas.codec import canonical_json
from schemas.config import AgentConfig, LeagueConfig
from schemas.errors import UsageError, format_choices
from schemas.events import (
    AgentRetired,
    CheckpointAdded,
    Event,
    HistoryImported,
    MatchFinished,
    PolicyPublished,
    SeatResult,
)
from schemas.ids import agent_name, digest
from schemas.subjects import check_name

REGISTRY_FILE, SETTINGS_FILE = "league.json", "league.toml"
"""Names of the files in the folder of a release."""
WORKER = "import"
PURPOSE = "imported"
NO_ADAPTER = "imported without its adapter"
_LARGEST_STEP = 10**15
_RESULT_WORDS = {"p1": 1.0, "win": 1.0, "p2": 0.0, "loss": 0.0, "draw": 0.5}


class ImportedBaseline(msgspec.Struct, frozen=True):
    """An agent that is not a checkpoint."""

    name: str
    elo: float


class ImportedCheckpoint(msgspec.Struct, frozen=True):
    """A version of the trained policy, as described in the file."""

    name: str
    step: int
    elo: float
    path: str | None
    """Path of its adapter, relative to the file."""
    parent: str | None
    created_ns: int | None
    """Nanoseconds since 1970."""
    adapter_digest: str | None = None
    """SHA-256 of its adapter as leagues store it, if the file gives one: the adapter found must match."""


class ImportedMatch(msgspec.Struct, frozen=True):
    """One entry of the file's history."""

    first: str
    second: str
    scores: tuple[float, float]
    step: int | None


class ImportedRegistry(msgspec.Struct, frozen=True):
    """The whole file, validated."""

    source: str
    digest: str
    baselines: list[ImportedBaseline]
    checkpoints: list[ImportedCheckpoint]
    """By step."""
    history: list[ImportedMatch]
    metadata: dict[str, Any]
    base_digest: str | None = None
    """SHA-256 of the base model beside the file as leagues store it, if the file gives one."""


def read_registry(path: Path) -> ImportedRegistry:
    """Read and check a ``league.json``.

    Raises:
        UsageError: it cannot be read or is invalid; the message names the place.
    """
    try:
        data = path.read_bytes()
        return parse_registry(data, path.name)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a league.json") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_registry(data: bytes, source: str) -> ImportedRegistry:
    """Check the bytes of a ``league.json``; raises as ``read_registry`` does."""
    try:
        value = json.loads(data, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"not JSON: {error}") from None
    try:
        canonical_json(value)
    except (ValueError, OverflowError, RecursionError) as error:
        # Broken characters and numbers beyond 64 bits cannot be written as events: found here rather than half-way.
        raise UsageError(f"holds what cannot be recorded: {error}") from None
    root = _expect_table(value, "the file")
    agents = _expect_table(root.get("agents"), "agents")
    baselines, checkpoints = [], []
    for name, fields in agents.items():
        where = f"agents.{name}"
        kind = _expect_table(fields, where).get("type")
        if kind == "baseline":
            baselines.append(ImportedBaseline(check_name(where, name), _parse_number(fields, "elo", where)))
        elif kind == "checkpoint":
            checkpoints.append(_parse_checkpoint(name, fields, agents, where))
        else:
            raise UsageError(f"{where}.type: found {kind!r}; expected 'baseline' or 'checkpoint'")
    _check_steps(checkpoints)
    history = [
        _parse_match(entry, agents, f"history[{n}]")
        for n, entry in enumerate(_expect_list(root.get("history", []), "history"))
    ]
    metadata = _expect_table(root.get("metadata", {}), "metadata")
    checkpoints.sort(key=lambda checkpoint: checkpoint.step)
    base = _parse_text(root, "base_digest", "the file")
    return ImportedRegistry(source, digest(data), baselines, checkpoints, history, metadata, base)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the name {twice!r} stands twice in one table; expected every name once")
    return table


def _expect_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: found {_abbreviate(value)}; expected a table of names and values")
    return value


def _expect_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: found {_abbreviate(value)}; expected a list")
    return value


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _parse_number(fields: Mapping[str, Any], key: str, where: str) -> float:
    value = fields.get(key)
    if not _is_number(value):
        raise UsageError(f"{where}.{key}: found {_abbreviate(value)}; expected a finite number")
    assert isinstance(value, int | float)
    return float(value)


def _parse_step(fields: Mapping[str, Any], where: str) -> int:
    value = fields.get("step")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_STEP:
        raise UsageError(f"{where}.step: found {_abbreviate(value)}; expected a whole number from 0")
    return value


def _parse_text(fields: Mapping[str, Any], key: str, where: str) -> str | None:
    value = fields.get(key)
    if value is not None and not (isinstance(value, str) and value):
        raise UsageError(f"{where}.{key}: found {_abbreviate(value)}; expected a text or null")
    return value


def _parse_checkpoint(
    name: str, fields: Mapping[str, Any], agents: Mapping[str, Any], where: str
) -> ImportedCheckpoint:
    if not name:
        raise UsageError(f"{where}: the empty name cannot be an agent's")
    parent = _parse_text(fields, "parent", where)
    if parent is not None and parent not in agents:
        raise UsageError(f"{where}.parent: {parent!r} is not among the agents; expected {format_choices(agents)}")
    return ImportedCheckpoint(
        name=name,
        step=_parse_step(fields, where),
        elo=_parse_number(fields, "elo", where),
        path=_parse_text(fields, "path", where),
        parent=parent,
        created_ns=_parse_time(fields.get("created_at"), f"{where}.created_at"),
        adapter_digest=_parse_text(fields, "adapter_digest", where),
    )


def _parse_time(value: Any, where: str) -> int | None:
    """Nanoseconds since 1970 of an ISO 8601 text (UTC by default) or of seconds since 1970."""
    try:
        if value is None:
            return None
        if _is_number(value):
            return round(datetime.fromtimestamp(value, tz=UTC).timestamp() * 1e6) * 1_000
        time = datetime.fromisoformat(value)
        return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1e6) * 1_000
    except (TypeError, ValueError, OverflowError, OSError):
        raise UsageError(
            f"{where}: found {_abbreviate(value)}; expected a time in ISO 8601, or seconds since 1970"
        ) from None


def _check_steps(checkpoints: list[ImportedCheckpoint]) -> None:
    known: dict[int, str] = {}
    for checkpoint in checkpoints:
        other = known.setdefault(checkpoint.step, checkpoint.name)
        if other != checkpoint.name:
            raise UsageError(
                f"agents.{checkpoint.name}.step: {checkpoint.step} is that of {other!r} too; expected every step once"
            )


def _parse_match(entry: Any, agents: Mapping[str, Any], where: str) -> ImportedMatch:
    fields = _expect_table(entry, where)
    for seat in ("p1", "p2"):
        if not isinstance(fields.get(seat), str) or fields[seat] not in agents:
            raise UsageError(
                f"{where}.{seat}: {_abbreviate(fields.get(seat))} is not among the agents; expected "
                f"{format_choices(agents)}"
            )
    step = _parse_step(fields, where) if fields.get("step") is not None else None
    first, second = fields["p1"], fields["p2"]
    scores = _parse_scores(fields.get("result"), first, second)
    if scores is None:
        raise UsageError(
            f"{where}.result: found {_abbreviate(fields.get('result'))}; expected 1, 0.5 or 0 (the share of p1), "
            f"{format_choices(_RESULT_WORDS)}, two scores in a list, or a score for each of "
            f"{format_choices({first, second})}"
        )
    return ImportedMatch(first, second, scores, step)


def _parse_scores(result: Any, first: str, second: str) -> tuple[float, float] | None:
    """Scores of both players; None without a result."""
    if isinstance(result, str):
        result = _RESULT_WORDS.get(result)
    if _is_number(result):
        return (float(result), 1.0 - result) if result in (0, 0.5, 1) else None
    if isinstance(result, dict) and set(result) == {first, second} and first != second:
        result = [result[first], result[second]]
    if isinstance(result, list) and len(result) == 2 and all(map(_is_number, result)):
        return float(result[0]), float(result[1])
    return None


def merge_baselines(config: LeagueConfig, registry: ImportedRegistry) -> LeagueConfig:
    """The configuration of the imported league: the file's baselines, at their ratings, before the configured ones.

    A baseline that is not configured is a bot, unless it has the base model's name. For a configured one the settings
    decide whether the criteria cover it.

    Raises:
        ConfigError: the result is no valid league, e.g. without a base model.
    """
    agents = dict(config.agents)
    for baseline in registry.baselines:
        known = agents.get(baseline.name, AgentConfig(kind="bot", rating=baseline.elo, baseline=True))
        agents[baseline.name] = msgspec.structs.replace(known, rating=baseline.elo)
    return msgspec.structs.replace(config, agents=agents)


def imported_events(
    registry: ImportedRegistry, config: LeagueConfig, adapters: Mapping[str, str]
) -> Iterator[tuple[Event, int | None]]:
    """Convert a registry into events, each with the time at which it happened, if that is known.

    ``config`` is from ``merge_baselines``; ``adapters`` has the digest of each checkpoint's stored adapter, if any, by
    its name in the file.
    """
    names = {c.name: agent_name(config.trainer.policy, c.step) for c in registry.checkpoints}
    yield (
        HistoryImported(
            source=registry.source,
            digest=registry.digest,
            agents=len(registry.baselines) + len(registry.checkpoints),
            matches=len(registry.history),
            metadata=registry.metadata | ({"imported_names": names} if names else {}),
        ),
        None,
    )
    for checkpoint in registry.checkpoints:
        for event in _checkpoint_events(checkpoint, registry, config, names, adapters.get(checkpoint.name, "")):
            yield event, checkpoint.created_ns
    for index, played in enumerate(registry.history):
        yield _match_event(played, index, config, names), None


def _checkpoint_events(
    checkpoint: ImportedCheckpoint,
    registry: ImportedRegistry,
    config: LeagueConfig,
    names: Mapping[str, str],
    adapter: str,
) -> Iterator[Event]:
    agent, policy = names[checkpoint.name], config.trainer.policy
    parent = names.get(checkpoint.parent or "", checkpoint.parent or config.base_agent)
    if adapter:
        yield PolicyPublished(policy=policy, version=checkpoint.step, adapter=adapter, parent=parent)
    yield CheckpointAdded(
        agent=agent,
        policy=policy,
        version=checkpoint.step,
        parent=parent,
        reason=_join_reason(checkpoint, registry, config),
        adapter=adapter,
        rating=checkpoint.elo,
    )
    if not adapter:
        yield AgentRetired(agent=agent, reason=NO_ADAPTER)


def _join_reason(checkpoint: ImportedCheckpoint, registry: ImportedRegistry, config: LeagueConfig) -> str:
    """Reason for a checkpoint's admission to this league; one that is merely recent is retired in time."""
    if checkpoint.name == registry.metadata.get("best_agent"):
        return "elite"
    if checkpoint is registry.checkpoints[0]:
        return "first"
    return "landmark" if checkpoint.step % config.schedule.landmark_every == 0 else "recent"


def _match_event(played: ImportedMatch, index: int, config: LeagueConfig, names: Mapping[str, str]) -> MatchFinished:
    scores = played.scores
    metrics = {} if played.step is None else {"step": float(played.step)}
    seats = [
        SeatResult(
            seat,
            f"p{seat + 1}",
            names.get(name, name),
            scores[seat],
            1 + (scores[1 - seat] > scores[seat]),
            metrics=metrics,
        )
        for seat, name in enumerate((played.first, played.second))
    ]
    return MatchFinished(
        match_id=f"{WORKER}-{index}",
        game=config.game.name,
        purpose=PURPOSE,
        worker=WORKER,
        seed=0,
        seats=seats,
        winner=None if scores[0] == scores[1] else int(scores[1] > scores[0]),
        reason=PURPOSE,
        length=0,
        seconds=0.0,
    )
