"""The leaderboard: entrants with Bradley–Terry strengths and intervals, beside their recorded online ratings."""

from typing import Any

import msgspec

from league.analysis.bradley_terry import MatchResults, Strength, fit_strengths
from schemas.errors import UsageError, format_choices

BRADLEY_TERRY = "bradley_terry"
"""Name of the default order; the others are named after the configured rating systems."""

_CONFIGURED = "SELECT game, system, systems FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"
_ROWS = """
    SELECT agent, kind, rating AS online, deviation, rated_games, wins, mean_rank, active, reason
    FROM leaderboard_at(?, under := ?, playing := ?)
"""
_SEATS = """
    SELECT sequence, seat, side, agent, score, 1.0 AS weight
    FROM rated_matches_at(?, playing := ?) JOIN match_seats USING (sequence)
"""
_SEATS_OF_ALL_GAMES = """
    SELECT sequence, seat, side, agent, score, weight FROM rated_games_at(?) JOIN match_seats USING (sequence)
"""
_ALL_GAMES = "SELECT count(*) AS matches, count(DISTINCT (game, environment)) AS games FROM rated_games_at(?)"
_FIT_COLUMNS = ("sequence", "side", "code", "score", "weight")
_NOT_PLAYED = {"rated_games": 0, "wins": 0, "mean_rank": None}
_PLAYED_IN_ALL_GAMES = """
    SELECT agent, count(DISTINCT sequence) AS rated_games, count(DISTINCT sequence) FILTER (won) AS wins,
           avg(rank) AS mean_rank
    FROM rated_games_at(?) JOIN match_seats USING (sequence) GROUP BY agent
"""


class LeaderboardEntry(msgspec.Struct, frozen=True):
    """An entrant on the leaderboard."""

    rank: int | None
    """Place in the order; None for an entrant without a rating in it."""
    agent: str
    kind: str
    rating: float | None
    """Bradley–Terry rating in Elo; None without a rated match that connects it to the others."""
    low: float | None
    """Lower end of the rating's 95 % interval."""
    high: float | None
    one_sided: bool
    """Whether it won, or lost, every comparison: the prior determines its distance from the others."""
    online: float
    """Rating under the online system, as recorded."""
    deviation: float | None
    """Standard deviation of the online rating, if the system has one."""
    rated_games: int
    wins: int
    """Rated matches in which its seat was strictly first."""
    mean_rank: float | None
    """Mean rank of its seats in rated matches."""
    active: bool
    reason: str


class Leaderboard(msgspec.Struct, frozen=True):
    """Entrants, best first, and the origin of their ratings."""

    game: str
    system: str
    """Online rating system of the column ``online``."""
    official: bool
    """Whether decisions go by this system."""
    order: str
    """``bradley_terry``, or ``system``."""
    sequence: int
    matches: int
    """Number of rated matches."""
    rows: list[LeaderboardEntry]


def leaderboard(
    connection: Any,
    game: str | None = None,
    at: int | None = None,
    system: str | None = None,
    *,
    all_games: bool = False,
) -> Leaderboard:
    """Make the leaderboard from a DuckDB connection to a projection.

    ``at`` is the last sequence that counts, by default the newest; ``game`` is by default the configured one.
    ``system`` selects the online ratings that are shown and ranks by them; by default those of the official system are
    shown, and the Bradley–Terry ratings rank. Their mean is the mean official rating of the same agents. ``all_games``
    fits the rated matches of all games and environments at once, each with the same weight.

    Raises:
        UsageError: an unknown system or game, or one of them for all games.
    """
    if all_games and (game is not None or system not in (None, BRADLEY_TERRY)):
        raise UsageError("all games: they have one Bradley–Terry board; expected neither a game nor a rating system")
    if at is None:
        [(at,)] = connection.execute("SELECT sequence FROM position").fetchall()
    [(configured, official, systems)] = connection.execute(_CONFIGURED, [at]).fetchall()
    if system is not None and system not in (BRADLEY_TERRY, *systems):
        expected = format_choices([BRADLEY_TERRY, *systems], system)
        raise UsageError(f"system {system!r}: not recorded in this history; expected {expected}")
    if game is not None and game != configured:
        played = [name for (name,) in connection.execute("SELECT DISTINCT game FROM matches ORDER BY game").fetchall()]
        if game not in played:
            raise UsageError(f"game {game!r}: no match of it was played; expected {format_choices(played, game)}")
    game = game or configured
    order = BRADLEY_TERRY if system is None else system
    shown = official if order == BRADLEY_TERRY else order
    strengths = fit_seats(connection, *((_SEATS_OF_ALL_GAMES, [at]) if all_games else (_SEATS, [at, game])))
    centre = _official_mean(connection, game, at, strengths)
    entrants = _read(connection, _ROWS, [at, shown, game])
    [rated] = _read(connection, "SELECT count(*) AS matches FROM rated_matches_at(?, playing := ?)", [at, game])
    if all_games:
        counts = {row["agent"]: row for row in _read(connection, _PLAYED_IN_ALL_GAMES, [at])}
        entrants = [row | counts.get(row["agent"], _NOT_PLAYED) for row in entrants]
        [rated] = _read(connection, _ALL_GAMES, [at])
        game = f"{rated['games']} games with equal weight"
    rows = [_entry(row, strengths, centre) for row in entrants]
    return Leaderboard(
        game=game,
        system=shown,
        official=shown == official,
        order=order,
        sequence=at,
        matches=rated["matches"],
        rows=_ranked(rows, order),
    )


def _read(connection: Any, sql: str, parameters: list[Any]) -> list[dict[str, Any]]:
    read = connection.execute(sql, parameters)
    names = [column[0] for column in read.description]
    return [dict(zip(names, row, strict=True)) for row in read.fetchall()]


def fit_seats(connection: Any, seats: str, parameters: list[Any]) -> dict[str, Strength]:
    """Fit the strengths of agents.

    ``seats`` is SQL for rows of ``sequence``, ``seat``, ``side``, ``agent``, ``score`` and the match's ``weight``.
    """
    names = f"SELECT DISTINCT agent FROM ({seats}) ORDER BY agent"
    agents = [name for (name,) in connection.execute(names, parameters).fetchall()]
    columns = connection.execute(
        f"""
        WITH seats AS ({seats}), named AS (SELECT unnest(?::VARCHAR[]) AS agent, unnest(range(?)) AS code)
        SELECT {", ".join(_FIT_COLUMNS)} FROM seats JOIN named USING (agent) ORDER BY sequence, side, seat
        """,
        [*parameters, agents, len(agents)],
    ).fetchnumpy()
    match_S, side_S, agent_S, score_S, weight_S = (columns[name] for name in _FIT_COLUMNS)
    return fit_strengths(MatchResults(match_S, side_S, agent_S, score_S, weight_S, agents))


def _official_mean(connection: Any, game: str, at: int, strengths: dict[str, Strength]) -> float:
    rows = connection.execute("SELECT agent, rating FROM ratings_at(?, playing := ?)", [at, game]).fetchall()
    ratings = [rating for agent, rating in sorted(rows) if agent in strengths]
    return sum(ratings) / len(ratings) if ratings else 1000.0


def _entry(row: dict[str, Any], strengths: dict[str, Strength], centre: float) -> LeaderboardEntry:
    strength = strengths.get(row["agent"])
    if strength is None:
        return LeaderboardEntry(rank=None, rating=None, low=None, high=None, one_sided=False, **row)
    return LeaderboardEntry(
        rank=None,
        rating=strength.rating + centre,
        low=strength.low + centre,
        high=strength.high + centre,
        one_sided=strength.one_sided,
        **row,
    )


def _ranked(rows: list[LeaderboardEntry], order: str) -> list[LeaderboardEntry]:
    def value(row: LeaderboardEntry) -> float | None:
        return row.rating if order == BRADLEY_TERRY else row.online

    ordered = sorted(rows, key=lambda row: (value(row) is None, -(value(row) or 0.0), -row.online, row.agent))
    return [
        row if value(row) is None else msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(ordered, 1)
    ]
