"""Import of another program's registry into a league's history: ``league.json`` of League Training.

    {"agents": {NAME: {"type": "baseline" | "checkpoint", "elo", "path", "step", "created_at", "parent"}},
     "history": [{"step", "p1", "p2", "result"}],
     "metadata": {"best_agent", …}}

A baseline is an agent of the configuration; a checkpoint becomes a version of the trained policy, ``main@50`` for
step 50. The whole file is checked before any event is made. Unknown fields are ignored. ``registry_formats`` turns what
programs really write into this form. Releases add two fields:
``base_digest``, and each checkpoint's ``adapter_digest``.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from league.history.registry_formats import to_specification
from schemas import events as e
from schemas.codec import FIRST_SCHEMA_VERSION, SCHEMA_VERSION, canonical_json
from schemas.config import AgentConfig, LeagueConfig, convert
from schemas.errors import ConfigError, FileContentError, UsageError, format_choices
from schemas.files import read_bounded
from schemas.ids import agent_name, digest
from schemas.numbers import Finite
from schemas.subjects import check_name

REGISTRY_FILE, SETTINGS_FILE = "league.json", "league.toml"
"""Names of the files in the folder of a release."""
MAX_REGISTRY_BYTES = 32 * 1024 * 1024
WORKER = "import"
PURPOSE = "imported"
NO_ADAPTER = "imported without its adapter"
_RESULT_WORDS = {"p1": 1.0, "win": 1.0, "p2": 0.0, "loss": 0.0, "draw": 0.5}

_Text = Annotated[str, Meta(min_length=1)]
_Step = Annotated[int, Meta(ge=0, le=10**15)]


class ImportedBaseline(msgspec.Struct, frozen=True):
    """An agent that is not a checkpoint."""

    name: str
    elo: Finite


class ImportedCheckpoint(msgspec.Struct, frozen=True):
    """A version of the trained policy, as described in the file."""

    name: str
    step: _Step
    elo: Finite
    path: _Text | None = None
    """Path of its adapter, relative to the file."""
    parent: _Text | None = None
    created_at: float | str | None = None
    """ISO 8601, UTC by default; or seconds since 1970."""
    adapter_digest: _Text | None = None
    """SHA-256 of its adapter as leagues store it, if the file gives one: the adapter found must match."""

    def __post_init__(self) -> None:
        try:
            _ = self.created_ns
        except (ValueError, OverflowError, OSError):
            raise ConfigError(
                f"created_at: found {_abbreviate(self.created_at)}; expected a time in ISO 8601, or seconds since 1970"
            ) from None

    @property
    def created_ns(self) -> int | None:
        """Nanoseconds since 1970."""
        if self.created_at is None:
            return None
        if isinstance(self.created_at, str):
            time = datetime.fromisoformat(self.created_at)
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
        else:
            time = datetime.fromtimestamp(self.created_at, tz=UTC)
        return round(time.timestamp() * 1e6) * 1_000


class ImportedSeat(msgspec.Struct, frozen=True):
    """One seat of a match of the file."""

    role: str
    agent: str
    """Name in the file."""
    score: Finite


class ImportedMatch(msgspec.Struct, frozen=True):
    """One entry of the file's history."""

    seats: tuple[ImportedSeat, ...]
    step: int | None
    length: int = 0


class _Match(msgspec.Struct):
    p1: str = ""
    p2: str = ""
    result: Any = None
    step: _Step | None = None
    seats: tuple[ImportedSeat, ...] = ()
    length: Annotated[int, Meta(ge=0, le=10**6)] = 0


class _File(msgspec.Struct):
    agents: dict[str, dict[str, Any]]
    history: list[_Match] = []
    metadata: dict[str, Any] = {}
    base_digest: _Text | None = None


class ImportedRegistry(msgspec.Struct, frozen=True):
    """The whole file, validated."""

    source: str
    digest: str
    baselines: list[ImportedBaseline]
    checkpoints: list[ImportedCheckpoint]
    """Checkpoints by step."""
    history: list[ImportedMatch]
    metadata: dict[str, Any]
    base_digest: str | None = None
    """SHA-256 of the base model beside the file as leagues store it, if the file gives one."""
    outsiders: list[str] = []
    """Names of baselines that no bot here plays: they join as external agents, for their results."""


def read_registry(path: Path, form: str = "") -> ImportedRegistry:
    """Read and check a ``league.json``; UsageError, which names the place, if it cannot be read or is invalid.

    ``form`` is one of ``registry_formats.FORMATS``; empty where the file tells.
    """
    try:
        return parse_registry(read_bounded(path, MAX_REGISTRY_BYTES), path.name, form)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a league.json") from None
    except FileContentError:
        raise
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_registry(data: bytes, source: str, form: str = "") -> ImportedRegistry:
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
        raise UsageError(f"contains a value that cannot be recorded: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"the file: found {_abbreviate(value)}; expected a table of names and values")
    _check_release(value)
    # A missing key is rejected like null, under its name.
    file = convert({"agents": None, **to_specification(value, form)}, _File, "")
    baselines, checkpoints = list[ImportedBaseline](), list[ImportedCheckpoint]()
    for name, fields in file.agents.items():
        kind, where = fields.get("type"), f"agents.{name}"
        if kind == "baseline":
            baselines.append(convert(fields | {"name": name}, ImportedBaseline, where))
        elif kind == "checkpoint":
            checkpoints.append(convert(fields | {"name": name}, ImportedCheckpoint, where))
        else:
            raise UsageError(f"{where}.type: found {_abbreviate(kind)}; expected 'baseline' or 'checkpoint'")
    for baseline in baselines:
        check_name(f"agents.{baseline.name}", baseline.name)
    names_by_step: dict[int, str] = {}
    for checkpoint in checkpoints:
        where, parent = f"agents.{checkpoint.name}", checkpoint.parent
        if not checkpoint.name:
            raise UsageError(f"{where}: the empty name cannot be an agent's")
        if parent is not None and parent not in file.agents:
            raise UsageError(
                f"{where}.parent: {parent!r} is not among the agents; expected {format_choices(file.agents)}"
            )
        if (other := names_by_step.setdefault(checkpoint.step, checkpoint.name)) != checkpoint.name:
            raise UsageError(f"{where}.step: {checkpoint.step} is also the step of {other!r}; expected distinct steps")
    return ImportedRegistry(
        source=source,
        digest=digest(data),
        baselines=baselines,
        checkpoints=sorted(checkpoints, key=lambda checkpoint: checkpoint.step),
        history=[_parse_match(match, file.agents, f"history[{n}]") for n, match in enumerate(file.history)],
        metadata=file.metadata,
        base_digest=file.base_digest,
    )


def _check_release(value: Mapping[str, Any]) -> None:
    """Reject a release that another version wrote, in a form that this one does not read."""
    metadata = value.get("metadata")
    written = metadata.get("released_from") if isinstance(metadata, Mapping) else None
    schema = written.get("schema") if isinstance(written, Mapping) else None
    if not isinstance(written, Mapping) or not isinstance(schema, int):
        return
    if not FIRST_SCHEMA_VERSION <= schema <= SCHEMA_VERSION:
        by = _abbreviate(written.get("version"))
        known = " or ".join(map(str, range(FIRST_SCHEMA_VERSION, SCHEMA_VERSION + 1)))
        remedy = "or take a newer release" if schema < FIRST_SCHEMA_VERSION else "or upgrade this one"
        raise UsageError(
            f"a release written by version {by} (events of schema {schema}); expected schema {known}: import it with "
            f"that version of event-sourced-league, {remedy}"
        )


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the name {twice!r} occurs twice in one table; expected distinct names")
    return table


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _parse_match(match: _Match, agents: Collection[str], where: str) -> ImportedMatch:
    if not (match.seats or (match.p1 and match.p2)):
        missing = "p2" if match.p1 else "p1"
        raise UsageError(f"{where}: object missing required field `{missing}`, or power_agents of League Training")
    named = [(f"seats.{seat.role}", seat.agent) for seat in match.seats] or [("p1", match.p1), ("p2", match.p2)]
    for seat, name in named:
        if name not in agents:
            raise UsageError(f"{where}.{seat}: {name!r} is not among the agents; expected {format_choices(agents)}")
    if match.seats:
        return ImportedMatch(match.seats, match.step, match.length)
    scores = _parse_scores(match.result, match.p1, match.p2)
    if scores is None:
        raise UsageError(
            f"{where}.result: found {_abbreviate(match.result)}; expected 1, 0.5 or 0 (the share of p1), "
            f"{format_choices(_RESULT_WORDS)}, two scores in a list, or a score for each of "
            f"{format_choices({match.p1, match.p2})}"
        )
    players = zip(("p1", "p2"), (match.p1, match.p2), scores, strict=True)
    return ImportedMatch(tuple(ImportedSeat(*player) for player in players), match.step)


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
    decide whether the criteria cover it. ConfigError if the result is no valid league, e.g. without a base model.
    """
    agents = dict(config.agents)
    for baseline in registry.baselines:
        if baseline.name in registry.outsiders:
            continue
        configured = agents.get(baseline.name, AgentConfig(kind="bot", rating=baseline.elo, baseline=True))
        agents[baseline.name] = msgspec.structs.replace(configured, rating=baseline.elo)
    return msgspec.structs.replace(config, agents=agents)


def imported_events(
    registry: ImportedRegistry,
    config: LeagueConfig,
    adapters: Mapping[str, str],
    trusted: Collection[str] = (),
    left_off: Mapping[str, str] = {},
) -> Iterator[tuple[e.Event, int | None]]:
    """Convert a registry into events, each with the time at which it happened, if that is known.

    ``config`` is from ``merge_baselines``; ``adapters`` has the digest of each checkpoint's stored adapter, if any, by
    its name in the file; for ``trusted`` and ``left_off`` see ``HistoryImported``.
    """
    policy = config.trainer.policy
    names = {checkpoint.name: agent_name(policy, checkpoint.step) for checkpoint in registry.checkpoints}
    names |= {name: agent_name(name, 0) for name in registry.outsiders}
    imported = e.HistoryImported(
        source=registry.source,
        digest=registry.digest,
        agents=len(registry.baselines) + len(registry.checkpoints),
        matches=len(registry.history),
        metadata=registry.metadata | ({"imported_names": names} if names else {}),
        trusted=sorted(trusted),
        left_off=dict(left_off),
    )
    yield imported, None
    for name in registry.outsiders:
        yield e.ExternalVersionAdded(agent=names[name], policy=name, version=0, worker=WORKER), None
    for checkpoint in registry.checkpoints:
        agent, created_ns = names[checkpoint.name], checkpoint.created_ns
        parent = names.get(checkpoint.parent or "", checkpoint.parent or config.base_agent)
        if adapter := adapters.get(checkpoint.name, ""):
            published = e.PolicyPublished(policy=policy, version=checkpoint.step, adapter=adapter, parent=parent)
            yield published, created_ns
        added = e.CheckpointAdded(
            agent=agent,
            policy=policy,
            version=checkpoint.step,
            parent=parent,
            reason=_join_reason(checkpoint, registry, config),
            adapter=adapter,
            rating=checkpoint.elo,
        )
        yield added, created_ns
        if not adapter:
            yield e.AgentRetired(agent=agent, reason=NO_ADAPTER), created_ns
    for index, played in enumerate(registry.history):
        yield _match_event(played, index, config, names), None


def _join_reason(checkpoint: ImportedCheckpoint, registry: ImportedRegistry, config: LeagueConfig) -> str:
    """Reason for a checkpoint's admission to this league; one that is merely recent is retired in time."""
    if checkpoint.name == registry.metadata.get("best_agent"):
        return "elite"
    if checkpoint is registry.checkpoints[0]:
        return "first"
    return "landmark" if checkpoint.step % config.schedule.landmark_every == 0 else "recent"


def _match_event(played: ImportedMatch, index: int, config: LeagueConfig, names: Mapping[str, str]) -> e.MatchFinished:
    scores = [seat.score for seat in played.seats]
    ranks = [1 + sum(other > score for other in scores) for score in scores]
    metrics = {} if played.step is None else {"step": float(played.step)}
    seats = [
        e.SeatResult(number, seat.role, names.get(seat.agent, seat.agent), seat.score, ranks[number], metrics=metrics)
        for number, seat in enumerate(played.seats)
    ]
    return e.MatchFinished(
        match_id=f"{WORKER}-{index}",
        game=config.game.name,
        purpose=PURPOSE,
        worker=WORKER,
        seed=0,
        seats=seats,
        winner=ranks.index(1) if ranks.count(1) == 1 else None,
        reason=PURPOSE,
        length=played.length,
        seconds=0.0,
    )
