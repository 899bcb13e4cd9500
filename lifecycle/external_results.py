"""Results of matches that another system played, read from its files: a JSON object a line. Pure functions.

| format | a line is |
|---|---|
| ``textarena`` | a game, or one player's record of it, as in TextArena's published data set |
| ``verifiers`` | an episode of verifiers v1, as its commands save it in ``traces.jsonl`` |

``docs/environments.md`` names the fields. Values may be JSON in a string; unknown fields are ignored. The whole file
is checked before any event is made.
"""

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from schemas.errors import UsageError, format_choices
from schemas.ids import digest
from schemas.numbers import Count

_MAX_SHOWN = 80
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class ExternalSeat(NamedTuple):
    """One seat of a result."""

    role: str
    player: str
    """Name of its agent in the file."""
    score: float


class ExternalResult(msgspec.Struct, frozen=True):
    """One match of a file."""

    line: int
    """Its first line, from 1."""
    id: str
    """Identity among the results of its origin."""
    environment: str
    seats: tuple[ExternalSeat, ...]
    reason: str = ""
    length: int = 0
    """Number of turns."""
    tokens: Count = 0
    """Tokens that models wrote."""
    error: str = ""
    """Why the match failed; its scores do not count then."""


def parse_results(data: bytes, source: str, form: str) -> list[ExternalResult]:
    """The matches of a file in a format of ``FORMATS``, in its order; messages name the ``source``.

    Raises:
        UsageError: no such format, no results, or a line that is not one; the message has file and line.
    """
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected {format_choices(FORMATS)}")
    results = FORMATS[form](_read_lines(data, source))
    if not results:
        raise UsageError(f"{source}: found no results; expected one JSON object per line")
    for result in results:
        try:
            msgspec.json.decode(msgspec.json.encode(result), type=ExternalResult)
        except (UnicodeEncodeError, msgspec.ValidationError) as error:
            raise UsageError(f"{source}, line {result.line}: cannot be recorded ({error})") from None
    return results


class _Line(NamedTuple):
    number: int
    where: str
    """File and line, for messages."""
    fields: dict[str, Any]
    identity: str
    """Digest of the line, and its occurrence in the file: for results without an id of their own."""


def _read_lines(data: bytes, source: str) -> Iterator[_Line]:
    occurrences: Counter[str] = Counter()
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            text = _show(line.decode(errors="replace"))
            raise UsageError(f"{where}: found {text}; expected JSON ({error})") from None
        if not isinstance(fields, dict):
            raise UsageError(f"{where}: found {_show(fields)}; expected a JSON object")
        name = digest(line.strip())[:24]
        occurrences[name] += 1
        yield _Line(number, where, fields, f"{name}-{occurrences[name]}")


def _parse_textarena(lines: Iterator[_Line]) -> list[ExternalResult]:
    games: dict[str, ExternalResult] = {}
    turns: dict[str, dict[str, int]] = {}
    for line in lines:
        game = _parse_game(line)
        first = games.setdefault(game.id, game)
        if (first.environment, first.seats, first.error) != (game.environment, game.seats, game.error):
            raise UsageError(
                f"{line.where}: another account of game {game.id} than line {first.line}; found {_describe(game)}, "
                f"expected {_describe(first)}"
            )
        # Each player's record counts its own turns.
        turns.setdefault(game.id, {})[str(line.fields.get("player_id"))] = game.length
    return [msgspec.structs.replace(game, length=sum(turns[name].values())) for name, game in games.items()]


def _parse_game(line: _Line) -> ExternalResult:
    fields, where = line.fields, line.where
    environment = fields.get("env_name") or fields.get("env_id")
    if not isinstance(environment, str):
        raise UsageError(f"{where}: env_name: found {_show(environment)}; expected the name of an environment")
    status = fields.get("status", "finished")
    error = "" if status == "finished" else f"status {_show(status)}"
    seats = [] if error else _game_seats(fields, where)
    identity, turns = fields.get("game_id"), fields.get("num_turns", 0)
    if not isinstance(turns, int) or not 0 <= turns < 2**31:
        raise UsageError(f"{where}: num_turns: found {_show(turns)}; expected a number of turns")
    return ExternalResult(
        line=line.number,
        id=line.identity if identity is None else _safe_id(str(identity)),
        environment=environment,
        seats=tuple(seats),
        reason=str(fields.get("reason") or "over"),
        length=turns,
        error=error,
    )


def _game_seats(fields: Mapping[str, Any], where: str) -> list[ExternalSeat]:
    key = "opponent_names" if "model_name" in fields else "players"
    models = _by_player(fields, key, where)
    if "model_name" in fields:
        models |= {_player_number(fields.get("player_id"), f"{where}: player_id"): fields["model_name"]}
    names: dict[int, str] = {}
    for player, model in models.items():
        name = model.get("model_name") if isinstance(model, dict) else model
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"{where}: {key}: player {player}: found {_show(name)}; expected the name of a model")
        names[player] = name.strip()
    rewards = _by_player(fields, "rewards", where)
    if sorted(rewards) != sorted(names) or sorted(names) != list(range(len(names))):
        raise UsageError(
            f"{where}: rewards of players {sorted(rewards)}, names of players {sorted(names)}; expected both for each "
            "player from 0 on"
        )
    for player, reward in rewards.items():
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) < 2**53:
            raise UsageError(f"{where}: rewards: found {_show(reward)} for player {player}; expected a finite number")
    return [ExternalSeat(f"Player {player}", names[player], float(rewards[player])) for player in sorted(names)]


def _by_player(fields: Mapping[str, Any], key: str, where: str) -> dict[int, Any]:
    """Values by player, from an object, a list, or either as a string."""
    value = fields.get(key)
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, list):
        return dict(enumerate(value))
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {key}: found {_show(value)}; expected a value for each player")
    return {_player_number(player, f"{where}: {key}"): each for player, each in value.items()}


def _player_number(value: Any, where: str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise UsageError(f"{where}: found {_show(value)}; expected the number of a player, from 0")
    return int(text)


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


def _parse_verifiers(lines: Iterator[_Line]) -> list[ExternalResult]:
    results: dict[str, ExternalResult] = {}
    for line in lines:
        result = _parse_episode(line)
        if (first := results.setdefault(result.id, result)) is not result:
            raise UsageError(
                f"{line.where}: episode {result.id} repeats line {first.line}; expected one line per episode"
            )
    return list(results.values())


def _parse_episode(line: _Line) -> ExternalResult:
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
        id=_safe_id(episode.id),
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


FORMATS: dict[str, Callable[[Iterator[_Line]], list[ExternalResult]]] = {
    "textarena": _parse_textarena,
    "verifiers": _parse_verifiers,
}
"""Parsers by format; the game of a result has the same name unless another is given."""


def _safe_id(text: str) -> str:
    return text if _ID.fullmatch(text) else digest(text.encode("utf-8", "surrogatepass"))[:24]


def _describe(result: ExternalResult) -> str:
    scores = ", ".join(f"{seat.player} {seat.score:g}" for seat in result.seats)
    return f"{result.environment}: {result.error or scores}"


def _show(value: Any) -> str:
    return repr(value[:_MAX_SHOWN]) if isinstance(value, str) else json.dumps(value)[:_MAX_SHOWN]
