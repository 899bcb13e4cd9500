"""Games of TextArena, or players' records of them, as in its published data set: a JSON object a line."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from arena.games.base import TeamSizes
from lifecycle.external_results.lines import ExternalResult, ExternalSeat, Line, read_lines, safe_id, show
from schemas.errors import GameError, UsageError

KEYS = ("env_name", "env_id", "rewards", "players", "model_name", "opponent_names")
"""Keys that tell the format."""


def recognise(fields: Mapping[str, Any]) -> bool:
    """Whether an object is of this format."""
    return "rewards" in fields and ("env_name" in fields or "env_id" in fields)


def parse(data: bytes, source: str) -> list[ExternalResult]:
    """The matches of a file; records of one game are one match."""
    games: dict[str, ExternalResult] = {}
    turns: dict[str, dict[str, int]] = {}
    sizes = TeamSizes()
    for line in read_lines(data, source):
        game = _parse_game(line)
        try:
            sizes.check(game.id, game.environment, [seat.team for seat in game.seats if seat.team])
        except GameError as error:
            raise UsageError(f"{line.where}: {error}") from None
        first = games.setdefault(game.id, game)
        if (first.environment, first.seats, first.error) != (game.environment, game.seats, game.error):
            raise UsageError(
                f"{line.where}: another account of game {game.id} than line {first.line}; found {_describe(game)}, "
                f"expected {_describe(first)}"
            )
        # Each player's record counts its own turns.
        turns.setdefault(game.id, {})[str(line.fields.get("player_id"))] = game.length
    return [msgspec.structs.replace(game, length=sum(turns[name].values())) for name, game in games.items()]


def _parse_game(line: Line) -> ExternalResult:
    fields, where = line.fields, line.where
    environment = fields.get("env_name") or fields.get("env_id")
    if not isinstance(environment, str):
        raise UsageError(f"{where}: env_name: found {show(environment)}; expected the name of an environment")
    status = fields.get("status", "finished")
    error = "" if status == "finished" else f"status {show(status)}"
    seats = [] if error else _game_seats(fields, where)
    identity, turns = fields.get("game_id"), fields.get("num_turns", 0)
    if not isinstance(turns, int) or not 0 <= turns < 2**31:
        raise UsageError(f"{where}: num_turns: found {show(turns)}; expected a number of turns")
    return ExternalResult(
        line=line.number,
        id=line.identity if identity is None else safe_id(str(identity)),
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
            raise UsageError(f"{where}: {key}: player {player}: found {show(name)}; expected the name of a model")
        names[player] = name.strip()
    rewards = _by_player(fields, "rewards", where)
    if sorted(rewards) != sorted(names) or sorted(names) != list(range(len(names))):
        raise UsageError(
            f"{where}: rewards of players {sorted(rewards)}, names of players {sorted(names)}; expected both for each "
            "player from 0 on"
        )
    for player, reward in rewards.items():
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) < 2**53:
            raise UsageError(f"{where}: rewards: found {show(reward)} for player {player}; expected a finite number")
    teams, roles = (_labels(fields, key, len(names), where) for key in ("teams", "roles"))
    return [
        ExternalSeat(
            f"Player {player}", names[player], float(rewards[player]), team=teams[player], drawn_role=roles[player]
        )
        for player in sorted(names)
    ]


def _labels(fields: Mapping[str, Any], key: str, players: int, where: str) -> list[str]:
    """The optional name of each player's team or role; empty ones where the row has none."""
    if fields.get(key) is None:
        return [""] * players
    labels = _by_player(fields, key, where)
    for player in range(players):
        if not isinstance(label := labels.get(player), str) or not label.strip():
            raise UsageError(f"{where}: {key}: player {player}: found {show(label)}; expected a name for each player")
    return [labels[player].strip() for player in range(players)]


def _by_player(fields: Mapping[str, Any], key: str, where: str) -> dict[int, Any]:
    """Values by player, from an object, a list, or either as a string."""
    value = fields.get(key)
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, list):
        return dict(enumerate(value))
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {key}: found {show(value)}; expected a value for each player")
    return {_player_number(player, f"{where}: {key}"): each for player, each in value.items()}


def _player_number(value: Any, where: str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise UsageError(f"{where}: found {show(value)}; expected the number of a player, from 0")
    return int(text)


def _describe(result: ExternalResult) -> str:
    scores = ", ".join(f"{seat.player} {seat.score:g}" for seat in result.seats)
    return f"{result.environment}: {result.error or scores}"
