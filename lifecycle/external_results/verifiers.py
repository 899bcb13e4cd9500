"""Episodes of verifiers v1, as its commands save them in ``traces.jsonl``: a JSON object a line."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lifecycle.external_results.lines import ExternalResult, ExternalSeat, Line, read_lines, safe_id
from schemas.errors import UsageError

KEYS = ("traces", "env", "task", "ok")
"""Keys that tell the format."""


def recognise(fields: Mapping[str, Any]) -> bool:
    """Whether an object is of this format."""
    return isinstance(fields.get("traces"), list)


class _Reward(msgspec.Struct):
    score: float
    weight: float = 1.0


class _AgentSettings(msgspec.Struct):
    model: str | None = None


class _Agent(msgspec.Struct):
    config: _AgentSettings
    name: str = "agent"


class _Node(msgspec.Struct):
    sampled: bool = False


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Trace(msgspec.Struct):
    agent: _Agent
    ok: bool = False
    rewards: dict[str, _Reward | None] = {}
    nodes: list[_Node] = []
    errors: list[_Error] = []
    stop_condition: str | None = None
    num_output_tokens: int = 0


class _Environment(msgspec.Struct):
    id: str = ""


class _Episode(msgspec.Struct):
    id: str
    traces: list[_Trace]
    ok: bool = False
    env: _Environment = msgspec.field(default_factory=_Environment)
    errors: list[_Error] = []


def parse(data: bytes, source: str) -> list[ExternalResult]:
    """The matches of a file, a line each."""
    results: dict[str, ExternalResult] = {}
    for line in read_lines(data, source):
        result = _parse_episode(line)
        if (first := results.setdefault(result.id, result)) is not result:
            raise UsageError(
                f"{line.where}: episode {result.id} repeats line {first.line}; expected one line per episode"
            )
    return list(results.values())


def _parse_episode(line: Line) -> ExternalResult:
    try:
        episode = msgspec.convert(line.fields, _Episode)
    except (UnicodeEncodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{line.where}: not an episode of verifiers v1: {error}") from None
    traces = sorted(episode.traces, key=lambda trace: trace.agent.name)
    failures = [*episode.errors, *(error for trace in traces if not trace.ok for error in trace.errors)]
    is_failed = not episode.ok or any(not trace.ok for trace in traces)
    seats = [] if is_failed else _episode_seats(traces, line.where)
    return ExternalResult(
        line=line.number,
        id=safe_id(episode.id),
        environment=episode.env.id,
        seats=tuple(seats),
        reason=next((trace.stop_condition for trace in traces if trace.stop_condition), "over"),
        length=sum(node.sampled for trace in traces for node in trace.nodes),
        tokens=sum(max(trace.num_output_tokens, 0) for trace in traces),
        error=next((f"{each.type}: {each.message}" for each in failures), "not ok") if is_failed else "",
    )


def _episode_seats(traces: Sequence[_Trace], where: str) -> list[ExternalSeat]:
    """A seat for each trace with rewards: agents without any, as judges, play no part in the result."""
    seats, roles = [], Counter[str]()
    for trace in traces:
        rewards = [reward for reward in trace.rewards.values() if reward is not None]
        if not rewards:
            continue
        score, name = sum(reward.score * reward.weight for reward in rewards), trace.agent.name
        if not math.isfinite(score):
            raise UsageError(f"{where}: rewards of {name}: found {score}; expected finite numbers")
        roles[name] += 1
        role = name if roles[name] == 1 else f"{name} {roles[name]}"
        seats.append(ExternalSeat(role, trace.agent.config.model or name, score))
    if not seats:
        raise UsageError(f"{where}: no trace has rewards; expected those of one agent at least")
    return seats
