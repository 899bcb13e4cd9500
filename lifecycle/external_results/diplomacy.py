"""Saved games of the ``diplomacy`` package: one a file, one a line, or one after another. Each is adjudicated again."""

from collections.abc import Mapping
from typing import Any

from lifecycle.external_results.lines import ExternalResult, ExternalSeat, Line, read_objects, safe_id
from schemas.errors import GameError, UsageError

KEYS = ("phases", "map", "rules", "id")
"""Keys that tell the format."""
_NAMES = ("power_models", "agents", "players")
"""Keys under which programs keep who played which power: the format itself has none."""


def recognise(fields: Mapping[str, Any]) -> bool:
    """Whether an object is of this format."""
    return "phases" in fields


def parse(data: bytes, source: str) -> list[ExternalResult]:
    """The games of a file, with their records."""
    results: dict[str, ExternalResult] = {}
    for line in read_objects(data, source):
        result = _parse_game(line)
        if (first := results.setdefault(result.id, result)) is not result:
            raise UsageError(f"{line.where}: game {result.id} repeats line {first.line}; expected each game once")
    return list(results.values())


def _parse_game(line: Line) -> ExternalResult:
    from arena.games import make_game
    from arena.games.diplomacy.saved_games import read_saved_game

    try:
        saved = read_saved_game(line.fields)
    except GameError as error:
        raise UsageError(f"{line.where}: {error}") from None
    game = saved.game
    outcome = game.outcome()
    return ExternalResult(
        line=line.number,
        id=safe_id(saved.id) if saved.id else line.identity,
        environment="",
        seats=tuple(
            ExternalSeat(power, _player(line.fields, power), outcome.scores[place], outcome.metrics[place])
            for place, power in enumerate(game.seats)
        ),
        reason=outcome.reason,
        length=outcome.length,
        record=game.record(),
        rules=make_game("diplomacy", {}).rules_version,
    )


def _player(fields: Mapping[str, Any], power: str) -> str:
    for key in _NAMES:
        if isinstance(names := fields.get(key), Mapping) and isinstance(name := names.get(power), str) and name.strip():
            return name.strip()
    return power
