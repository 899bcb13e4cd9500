"""Counterfactual ratings: the same history refolded under other rules, compared with the recorded ratings.

Nothing here writes. The matches come from a projection as arrays, so that millions are rated in seconds.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from league.ratings.arrays import RatingRule, fold_arrays
from league.ratings.base import make_rating_system
from league.ratings.load import load_matches
from schemas.config import Plugin, RatingsConfig, convert, to_builtins
from schemas.config.base import assign_setting, parse_value
from schemas.errors import ConfigError, UsageError, format_choices
from schemas.events import AgentRating


class Counterfactual(msgspec.Struct, frozen=True):
    """Changes to the rules."""

    settings: Sequence[str] = ()
    """``ratings.<system>.<setting>=VALUE``, or any key of ``ratings``; values as in TOML."""
    system: str | None = None
    without_agents: Collection[str] = ()
    """Agents whose seats are left out; the other seats of the match are still compared."""
    without_matches: Collection[int] = ()
    """Sequences of matches to leave out."""


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
    """Matches folded: rated or not, but none voided or left out."""
    moves: list[RatingShift]
    """All agents rated in either, by counterfactual rating, best first."""

    @property
    def changed_count(self) -> int:
        """Number of ratings that differ."""
        return sum(move.rating != move.recorded_rating for move in self.moves)


def compare_ratings(connection: Any, until: int, otherwise: Counterfactual) -> RatingComparison:
    """Fold a projection's matches under other rules.

    The projection holds the history up to ``until`` at least; ratings recorded after it are ignored.

    Raises:
        ConfigError: a setting or system that does not exist; the message names it.
        UsageError: an agent that is in no match.
    """
    matches = load_matches(connection, f"sequence <= {until} AND coalesce(voided_sequence > {until}, true)")
    game, system, systems = connection.execute(
        "SELECT game, system, systems FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1", [until]
    ).fetchone()
    if otherwise.system in systems:
        system = otherwise.system
    recorded = f"SELECT agent, rating, rated_games FROM ratings_at({until}, under := ?)"
    rows = connection.execute(recorded, [system]).fetchall()
    rules = amend_rules([rule for rule in matches.rules if rule.sequence <= until], otherwise)
    for agent in otherwise.without_agents:
        if agent not in matches.agents:
            known = format_choices(matches.agents[:20])
            raise UsageError(f"agent {agent!r}: in no match up to there; expected {known}")
    if otherwise.without_matches:
        matches = matches.exclude_matches(otherwise.without_matches)
    if otherwise.without_agents:
        matches = matches.exclude_agents(otherwise.without_agents)
    place = game, rules[-1].ratings.system.name
    moves = rating_shifts([AgentRating(*row) for row in rows], fold_arrays(matches, rules).get(place, []))
    return RatingComparison(until, *place, system, len(matches), moves)


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


def amend_rules(rules: Sequence[RatingRule], otherwise: Counterfactual) -> list[RatingRule]:
    """Rules of a history with the changed settings applied to each.

    ConfigError for a setting that does not exist, or that concerns a system which no rule has.
    """
    amended = [
        RatingRule(rule.sequence, _with_system(rule.ratings, otherwise.system))
        for rule in rules or [RatingRule(0, RatingsConfig())]
    ]
    for setting in otherwise.settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not key.startswith("ratings."):
            raise ConfigError(f"--set {setting}: expected ratings.KEY=VALUE, such as ratings.elo.k=16")
        value = parse_value(text)
        path = key.split(".")[1:]
        system = None
        if len(path) == 2 and path[0] not in RatingsConfig.__struct_fields__:
            # ``ratings.elo.k`` is a setting of the system where that is Elo.
            system, name = path
            path = ["system", "settings", name]
            if system not in {rule.ratings.system.name for rule in amended}:
                raise ConfigError(
                    f"--set {key}: nothing was rated under {system!r}; expected ratings."
                    f"{amended[-1].ratings.system.name}.{name}, or --system {system} with it"
                )
        amended = [
            RatingRule(rule.sequence, _with_setting(rule.ratings, path, value))
            if system in (None, rule.ratings.system.name)
            else rule
            for rule in amended
        ]
    for rule in amended:
        make_rating_system(rule.ratings.system)
    return amended


def _with_system(ratings: RatingsConfig, name: str | None) -> RatingsConfig:
    """Restrict the rules to one system: the official one, or the named one as configured or with its defaults."""
    named = next((plugin for plugin in ratings.systems if plugin.name == name), Plugin(name=name) if name else None)
    return msgspec.structs.replace(ratings, system=named or ratings.system, also=())


def _with_setting(ratings: RatingsConfig, path: Sequence[str], value: Any) -> RatingsConfig:
    changed = to_builtins(ratings)
    assign_setting(changed, path, value, f"--set ratings.{'.'.join(path)}")
    return convert(changed, RatingsConfig, "ratings")
