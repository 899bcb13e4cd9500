"""What-ifs: matches rated again under other rules, and compared with the recorded ratings. Nothing is written."""

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from league.log.base import RecordedEvent
from league.projections.tables import RECORDED_EVENTS
from league.ratings.fold import RatingFold
from schemas.config import Plugin, RatingsConfig, convert, to_builtins
from schemas.config.base import assign_setting, parse_value
from schemas.errors import ConfigError, UsageError, format_choices
from schemas.events import AgentRating, MatchFinished

_EVENTS = f"""
    {RECORDED_EVENTS} WHERE sequence <= ? AND type IN (
        'LeagueOpened', 'LeagueConfigured', 'AgentRegistered', 'CheckpointAdded', 'PolicyReset',
        'MatchFinished', 'MatchFailed'
    ) ORDER BY sequence
"""
_BATCH_EVENTS = 5_000


class Counterfactual(msgspec.Struct, frozen=True):
    """Changes to the rules."""

    settings: Sequence[str] = ()
    """``ratings.<system>.<setting>=VALUE``, or any key of ``ratings``; values as in TOML."""
    system: str | None = None
    """Rating system instead of the official one."""
    without_agents: Collection[str] = ()
    """Agents whose seats are left out; the other seats of the match are still compared."""
    without_matches: Collection[str] = ()
    """Matches to leave out."""


class RatingShift(msgspec.Struct, frozen=True):
    """An agent's recorded and counterfactual rank and rating."""

    agent: str
    rank: int | None
    """The counterfactual rank: 1 for the best of all rated agents; None without a rating."""
    recorded_rank: int | None
    rating: float | None
    recorded_rating: float | None
    games: int
    """Rated matches."""
    recorded_games: int


class RatingComparison(msgspec.Struct, frozen=True):
    """A history's recorded and counterfactual ratings."""

    sequence: int
    """Last sequence of the history considered."""
    game: str
    system: str
    """System of the counterfactual ratings."""
    recorded_system: str
    """The same system where the league records it, otherwise the official one."""
    matches: int
    """Matches that were rated under the other rules."""
    moves: list[RatingShift]
    """All agents rated in either, by counterfactual rating, best first."""

    @property
    def changed_count(self) -> int:
        """Number of ratings that differ."""
        return sum(move.rating != move.recorded_rating for move in self.moves)


def compare_ratings(connection: Any, until: int, otherwise: Counterfactual) -> RatingComparison:
    """Rate a projection's matches under other rules.

    The projection holds the history up to ``until`` at least; ratings recorded after it are ignored.

    Raises:
        ConfigError: a setting or system that does not exist; the message names it.
        UsageError: an agent that is in no match.
    """
    game, official, systems = connection.execute(
        "SELECT game, system, systems FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1", [until]
    ).fetchone()
    _check_settings(connection, until, otherwise)
    _check_agents(connection, until, otherwise.without_agents)
    fold, matches = _refold(connection, until, otherwise)
    recorded_system = next((name for name in systems if name == otherwise.system), official)
    rows = connection.execute(
        f"SELECT agent, rating, rated_games FROM ratings_at({until}, under := ?)", [recorded_system]
    ).fetchall()
    moves = rating_shifts([AgentRating(*row) for row in rows], fold.rated_agents(game))
    return RatingComparison(until, game, fold.official_system, recorded_system, matches, moves)


def _refold(connection: Any, until: int, otherwise: Counterfactual) -> tuple[RatingFold, int]:
    """The fold of a history under other rules, and the number of matches that it rated."""
    voided = connection.execute("SELECT match_id FROM voids WHERE sequence <= ?", [until]).fetchall()
    without = {match_id for (match_id,) in voided}.union(otherwise.without_matches)
    fold = RatingFold(without=without, amend=partial(amend_ratings, otherwise=otherwise))
    matches = 0
    rows = connection.execute(_EVENTS, [until])
    while batch := rows.fetchmany(_BATCH_EVENTS):
        for row in batch:
            event = RecordedEvent(*row).event
            if isinstance(event, MatchFinished) and otherwise.without_agents:
                seats = [seat for seat in event.seats if seat.agent not in otherwise.without_agents]
                event = msgspec.structs.replace(event, seats=seats)
            matches += bool(fold.apply(row[0], event))
    return fold, matches


def _check_agents(connection: Any, until: int, agents: Collection[str]) -> None:
    if not agents:
        return
    rows = connection.execute("SELECT DISTINCT agent FROM match_seats WHERE sequence <= ? ORDER BY agent", [until])
    players = [agent for (agent,) in rows.fetchall()]
    for agent in agents:
        if agent not in players:
            expected = format_choices(players[:20], agent)
            raise UsageError(f"agent {agent!r}: in no match up to event {until:,}; expected {expected}")


def rating_shifts(recorded: Sequence[AgentRating], after: Sequence[AgentRating]) -> list[RatingShift]:
    """Pair two tables of ratings by agent, in the order of the second."""
    olds, news = _rank_ratings(recorded), _rank_ratings(after)
    shifts = []
    for agent in news | olds:
        rank, rating, games = news.get(agent, _UNRATED)
        recorded_rank, recorded_rating, recorded_games = olds.get(agent, _UNRATED)
        shifts.append(RatingShift(agent, rank, recorded_rank, rating, recorded_rating, games, recorded_games))
    return shifts


_Ranked = tuple[int | None, float | None, int]
"""Rank, rating and number of games."""

_UNRATED: _Ranked = (None, None, 0)


def _rank_ratings(ratings: Sequence[AgentRating]) -> dict[str, _Ranked]:
    order = sorted(ratings, key=lambda rated: (-rated.rating if math.isfinite(rated.rating) else math.inf, rated.agent))
    return {rated.agent: (rank, rated.rating, rated.games) for rank, rated in enumerate(order, start=1)}


def amend_ratings(ratings: RatingsConfig, otherwise: Counterfactual) -> RatingsConfig:
    """Apply the changes to one configuration of a history; settings of other systems than its own change nothing.

    Raises:
        ConfigError: a setting or system that does not exist.
    """
    name = otherwise.system or ratings.system.name
    # As configured, or with its defaults.
    system = next((plugin for plugin in ratings.systems if plugin.name == name), Plugin(name=name))
    amended = msgspec.structs.replace(ratings, system=system, also=())
    for setting in otherwise.settings:
        path, value = _parse_setting(setting)
        own = _system_of(path)
        if own is None or own == name:
            changed = to_builtins(amended)
            assign_setting(changed, path if own is None else ["system", "settings", path[1]], value, f"--set {setting}")
            amended = convert(changed, RatingsConfig, "ratings")
    return amended


def _check_settings(connection: Any, until: int, otherwise: Counterfactual) -> None:
    """Reject settings of a system that no configuration of the history has as its official one."""
    rows = connection.execute(
        "SELECT system FROM configurations WHERE sequence BETWEEN 1 AND ? ORDER BY sequence", [until]
    )
    official = [otherwise.system] if otherwise.system else [system for (system,) in rows.fetchall()]
    for setting in otherwise.settings:
        path, _ = _parse_setting(setting)
        system = _system_of(path)
        if system is not None and system not in official:
            key, name = ".".join(path), path[1]
            raise ConfigError(
                f"--set ratings.{key}: nothing was rated under {system!r}; expected "
                f"ratings.{official[-1]}.{name}, or --system {system} with it"
            )


def _parse_setting(setting: str) -> tuple[list[str], Any]:
    """The path below ``ratings``, and the value, of ``ratings.KEY=VALUE``."""
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not key.startswith("ratings."):
        raise ConfigError(f"--set {setting}: expected ratings.KEY=VALUE, such as ratings.elo.k=16")
    return key.split(".")[1:], parse_value(text)


def _system_of(path: Sequence[str]) -> str | None:
    """The system that a setting names: ``elo`` in ``ratings.elo.k``; None for a key of ``ratings`` itself."""
    return path[0] if len(path) == 2 and path[0] not in RatingsConfig.__struct_fields__ else None
