"""Queries of a history for the facts about one version: strength, training, lineage and provenance."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from league.analysis.leaderboard import leaderboard
from league.history.lineage import Lineage, LineageNode, resolve_agent, trace_lineage
from league.queries.tables import TableReader, open_tables, row_dicts
from league.run import Run
from league.state import LeagueState
from models.adapter_bundle import pack_folder
from schemas.errors import ReplayError, UsageError, format_choices
from schemas.ids import digest, split_agent
from schemas.numbers import wilson_interval

_MAX_OPPONENTS = 8
_MAX_AGENTS = 8

# An agent sits in one seat of a benchmark; a match without a winner was won by neither side.
_BENCHMARKS_SQL = """
    SELECT v.agent, v.opponents, v.matches, v.mean_rank, s.role, s.won, m.match_id, m.sequence
    FROM evaluations v JOIN matches m USING (evaluation_id) JOIN match_seats s USING (match_id)
    WHERE v.suite = 'benchmark' AND v.finished_sequence IS NOT NULL AND v.agent IN (?, ?) AND s.agent = v.agent
          AND m.voided_sequence IS NULL
    ORDER BY v.finished_sequence, m.sequence
"""
_OPPONENTS_SQL = """
    SELECT opponent, games, share FROM payoff WHERE agent = ? AND share < 0.5 ORDER BY share, opponent
"""
_CONFIGURATIONS_SQL = """
    SELECT c.config, coalesce(max(g.step), 0)
    FROM configurations c LEFT JOIN gradient_steps g ON g.policy = ? AND g.sequence < c.sequence
    WHERE c.sequence > 0 GROUP BY c.sequence, c.config ORDER BY c.sequence
"""
_TRAINING_TABLES = ("game", "matchmaking", "model", "policies", "prompts", "rollout", "schedule", "stop", "trainer")
"""Tables of settings that determine a policy's training and contain no address."""
_TRAINING_TIME_SQL = "SELECT sum(metrics['wall_s']) FROM gradient_steps WHERE policy = ? AND step BETWEEN ? AND ?"


class ReleaseVersion(NamedTuple):
    """The version to release."""

    agent: str
    version: int
    adapter: str
    """SHA-256 digest of the adapter, as the league stores it."""


def choose_version(state: LeagueState, version: str | None) -> ReleaseVersion:
    """Choose the version to release: the named one, else the newest benchmarked one, else the newest checkpoint."""
    policy = _require_config(state).trainer.policy
    adapters = {agent.name: agent.adapter for agent in state.checkpoints if agent.adapter}
    adapters |= {f"{policy}@{number}": each.adapter for number, each in state.published.get(policy, {}).items()}
    named = ((split_agent(name), name, adapter) for name, adapter in adapters.items())
    mine = [ReleaseVersion(name, parts[1], adapter) for parts, name, adapter in named if parts and parts[0] == policy]
    versions = {each.agent: each for each in sorted(mine, key=lambda each: each.version)}
    if version is None:
        measured = {x.agent for x in state.evaluations.values() if x.suite == "benchmark" and x.finished is not None}
        joined = {agent.name for agent in state.checkpoints}
        for group in (measured, joined):
            if fit := [each for each in versions.values() if each.agent in group]:
                return fit[-1]
        raise UsageError(
            f"league {state.league!r}: no version of {policy!r} was benchmarked or joined; nothing to release"
        )
    if version not in versions:
        newest = list(versions)[-_MAX_AGENTS:]
        raise UsageError(
            f"--agent {version}: no version of {policy!r}, the league's main policy, with an adapter; expected "
            f"{format_choices(newest) if newest else 'a league that has published one'}"
        )
    return versions[version]


def _require_config(state: LeagueState) -> Any:
    if state.config is None:
        raise ReplayError(f"league {state.league!r}: its history holds no configuration")
    return state.config


async def gather_facts(tables: TableReader, state: LeagueState, chosen: ReleaseVersion) -> dict[str, Any]:
    """Gather the facts from tables that are at the state's sequence.

    ``state`` is the digest of the league's state at ``sequence``; ``rating`` is the Bradley–Terry rating, None without
    a rated match; ``online`` and ``baselines`` are ratings of the league's own ``system``; ``before`` are benchmarks of
    the base model; ``opponents`` counts the other seats in the matches of all steps of the lineage; ``changes`` are
    settings that changed while the version was trained; ``ahead`` are opponents that took more than half of the points.
    """
    config = _require_config(state)
    lineage = await trace_lineage(tables.query, chosen.agent)
    played: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for match in _query_rows(tables, _BENCHMARKS_SQL, chosen.agent, config.base_agent):
        played.setdefault((match[0], ", ".join(match[1])), []).append(match)
    benchmarks = [_benchmark(agent, opponent, matches) for (agent, opponent), matches in played.items()]
    policy, version = config.trainer.policy, chosen.version
    opponents = Counter[str]()
    for step in lineage.steps:
        for name, seats in step.opponents.items():
            parts = split_agent(name)
            opponents[f"versions of {policy}" if parts is not None and parts[0] == policy else name] += seats
    settings = [(msgspec.json.decode(text), step) for text, step in _query_rows(tables, _CONFIGURATIONS_SQL, policy)]
    [(seconds,)] = _query_rows(tables, _TRAINING_TIME_SQL, policy, state.training_start(policy, version), version)
    board = leaderboard(tables.connection, at=state.sequence)
    row = next((row for row in board.rows if row.agent == chosen.agent), None)
    others = sorted((row for row in board.rows if row.agent in config.agents), key=lambda row: -row.online)
    newest = "SELECT time FROM events WHERE sequence <= ? ORDER BY sequence DESC"
    published = "SELECT time FROM policies WHERE policy = ? AND version = ?"
    return {
        "league": state.league,
        "sequence": state.sequence,
        "state": state.digest(),
        "last_event": _query_time(tables, newest, state.sequence),
        "published": _query_time(tables, published, policy, version),
        **chosen._asdict(),
        "rating": None if row is None else row.rating,
        "low": None if row is None else row.low,
        "high": None if row is None else row.high,
        "online": state.rating(chosen.agent),
        "system": board.system,
        "rated_games": state.rating_table.games.get(chosen.agent, 0),
        "baselines": {row.agent: row.online for row in others},
        "benchmarks": [row for row in benchmarks if row["agent"] == chosen.agent],
        "before": [row for row in benchmarks if row["agent"] == config.base_agent],
        "segments": [_lineage_segment(station) for station in lineage.stations],
        "opponents": dict(opponents.most_common()),
        "training_s": float(seconds or 0.0),
        "changes": [
            {"step": step, "key": key, "before": first, "after": second}
            for (before, _), (after, step) in pairwise(settings)
            for key, first, second in _config_differences(before, after)
            if key.split(".")[0] in _TRAINING_TABLES and step < version
        ],
        "ahead": row_dicts(tables.connection.execute(_OPPONENTS_SQL, [chosen.agent])),
    }


def _config_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Dotted keys of settings that differ, with both values; None for a setting that is missing."""
    settings = dict(_flatten(first)), dict(_flatten(second))
    keys = sorted({*settings[0], *settings[1]})
    values = [(key, settings[0].get(key), settings[1].get(key)) for key in keys]
    return [row for row in values if row[1] != row[2]]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _query_rows(tables: TableReader, statement: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
    rows: Sequence[tuple[Any, ...]] = tables.connection.execute(statement, list(parameters)).fetchall()
    return rows


def _query_time(tables: TableReader, statement: str, *parameters: Any) -> str:
    rows = _query_rows(tables, f"{statement} LIMIT 1", *parameters)
    return f"{rows[0][0]:%Y-%m-%dT%H:%M:%SZ}" if rows and rows[0][0] is not None else ""


def _benchmark(agent: str, opponent: str, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The games of an agent in one seat against one opponent in all others; failed or voided games count as not won."""
    games, mean_rank = rows[0][2], rows[0][3]
    won_by_seat: dict[str, list[bool]] = {}
    for row in rows:
        won_by_seat.setdefault(row[4], []).append(row[5])
    seat = min(won_by_seat, key=lambda each: (sum(won_by_seat[each]) / len(won_by_seat[each]), each))
    worst = {"seat": seat, "wins": sum(won_by_seat[seat]), "games": len(won_by_seat[seat])}
    wins = sum(sum(won) for won in won_by_seat.values())
    low, high = wilson_interval(wins, games)
    return {
        "agent": agent,
        "opponent": opponent,
        "wins": wins,
        "games": games,
        "share": wins / games,
        "low": low,
        "high": high,
        "mean_rank": mean_rank,
        "worst": worst if len(won_by_seat) > 1 else None,
        "matches": [(row[6], row[7]) for row in rows],
    }


def _lineage_segment(station: LineageNode) -> dict[str, Any]:
    """A segment of the lineage, with totals of the gradient steps that made it."""
    steps = station.steps
    opponents, roles = Counter[str](), Counter[str]()
    for step in steps:
        opponents.update(step.opponents)
        roles.update(step.roles)
    frequent = dict(opponents.most_common(_MAX_OPPONENTS))
    rest = opponents.total() - sum(frequent.values())
    sums = ("skipped", "accepted", "stale", "refused", "voided")
    return {
        **{name: getattr(station, name) for name in ("agent", "kind", "reason", "adapter", "sequence", "origin")},
        "first_step": steps[0].step if steps else None,
        "last_step": steps[-1].step if steps else None,
        "steps": len(steps),
        "matches": sum(len(step.matches) for step in steps),
        **{name: sum(getattr(step, name) for step in steps) for name in sums},
        "tainted": sum(len(step.tainted) for step in steps),
        "roles": dict(sorted(roles.items())),
        "opponents": frequent | ({"others": rest} if rest else {}),
    }


async def load_lineage(run: Run, agent: str) -> Lineage:
    """Load the ancestors of an agent, and the gradient steps between them.

    The agent is given by name, by its adapter's digest or first digits of it, or by the path of its adapter's files.
    """
    named = _name_or_digest(agent)
    async with open_tables(run) as tables:
        return await trace_lineage(tables.query, await resolve_agent(tables.query, named))


def _name_or_digest(agent: str) -> str:
    """The name, or for files the digest of the adapter in them."""
    path = Path(agent)
    if not path.is_file():
        return digest(pack_folder(path)) if path.is_dir() else agent
    # One file of a folder stands for the folder; otherwise it is the packed adapter, as the blob store keeps it.
    unpacked = path.suffix in (".safetensors", ".json")
    return digest(pack_folder(path.parent) if unpacked else path.read_bytes())
