"""Leaderboards under any rating system or likelihood model: of agents, agents by seat, or kinds of agents.

Ratings of configured systems are shown as recorded; all others are computed from the matches.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from league.analysis.comparisons import connected_groups, make_comparisons
from league.analysis.roster import Grouping, LeaderboardEntry, Roster, split_entrant
from league.ratings.arrays import Ints, MatchArrays, RatingRule, fold_arrays
from league.ratings.base import DEFAULT_RATING, SYSTEMS, RatingTable, make_rating_system
from league.ratings.compiled import has_compiler
from league.ratings.load import load_start_ratings
from league.ratings.rating_history import Interval, affordable_draws, bootstrap_intervals
from schemas.errors import UsageError, format_choices
from schemas.events import AgentRating

if TYPE_CHECKING:
    from league.analysis.bradley_terry import FitOptions, Strength

LIKELIHOOD_MODELS: dict[str, Literal["pairs", "ranks"]] = {"bradley_terry": "pairs", "plackett_luce": "ranks"}
"""Likelihood models fitted to the whole history, by their names beside those of the rating systems."""

_MIN_SEEDS = 30
"""With fewer seeds, resampling them says little about other seeds."""

_BOARD_COST = Fraction(1, 3) if has_compiler() else Fraction(8)
"""Cost of a seat of a draw for a likelihood model, in that of a fold."""


class SeatEffect(msgspec.Struct, frozen=True):
    """Advantage of a seat, in rating points relative to the mean of all seats."""

    seat: str
    effect: float
    low: float | None
    high: float | None


class Leaderboard(msgspec.Struct, frozen=True):
    """Entrants by rating, and the origin of the ratings."""

    game: str
    system: str
    by: Grouping
    sequence: int
    recorded: bool
    """Whether the league recorded these ratings; otherwise they were computed."""
    official: bool
    matches: int
    """Number of rated matches."""
    draws: int
    """Number of bootstrap draws; 0 without intervals."""
    rows: list[LeaderboardEntry]
    seats: list[SeatEffect]
    """By name; only for likelihood models, and games with several roles."""
    notes: list[str]


def make_leaderboard(
    connection: Any,
    upto: int,
    system: str | None = None,
    game: str | None = None,
    by: Grouping = "agent",
    draws: int | None = None,
) -> Leaderboard:
    """Make a leaderboard from a DuckDB connection to a projection of the history up to ``upto`` or later.

    ``system`` is a rating system or likelihood model, by default the official one, ``game`` by default the configured
    one. ``draws`` resampled histories give the intervals: 0 for none, None for as many as the history's length allows.

    Raises:
        UsageError: an unknown system or game; or matches to which the model cannot be fitted.
    """
    roster = Roster(connection, upto, game, by)
    system = system or roster.official_system
    valid = sorted({*SYSTEMS.names(), *LIKELIHOOD_MODELS})
    if system not in valid:
        expected = format_choices(valid, system)
        raise UsageError(f"system {system!r}: neither a rating system nor a board; expected {expected}")
    if game is not None and game not in {*roster.games, roster.configured_game}:
        expected = format_choices(roster.games or [roster.configured_game], game)
        raise UsageError(f"game {game!r}: no match of it was played; expected {expected}")
    if system in LIKELIHOOD_MODELS:
        return _likelihood_leaderboard(roster, system, draws)
    if by == "agent" and system in roster.systems:
        return _recorded_leaderboard(roster, system, draws)
    return _computed_leaderboard(roster, system, draws)


def _recorded_leaderboard(roster: Roster, system: str, wished: int | None) -> Leaderboard:
    at, named = f"{roster.upto}, under := ?, playing := ?", (system, roster.game)
    recorded = roster.query(f"SELECT agent, rating, rated_games, rest FROM ratings_at({at})", *named)
    ratings = [AgentRating(agent, rating, games, rest or []) for agent, rating, games, rest in recorded]
    places = roster.query(f"SELECT sequence FROM rated_matches_at({at})", *named)
    sequences = np.array([sequence for (sequence,) in places], np.int64)
    rules = roster.rules(system)
    draws, spread = 0, dict[str, Interval]()
    # A match has at least two seats, so it is known before loading whether intervals are affordable.
    if affordable_draws(len(sequences), 2 * len(sequences)) if wished is None else wished:
        matches = roster.rated_matches(rules)
        draws = _bootstrap_draws(matches, wished)
        spread = bootstrap_intervals(matches, roster.game, system, rules, draws)
    rows = _agent_rows(roster, ratings, spread, rules)
    return _assemble(roster, system, sequences, draws, wished, rows, recorded=True)


def _computed_leaderboard(roster: Roster, system: str, wished: int | None) -> Leaderboard:
    rules = roster.rules(system)
    matches = roster.rated_matches(rules)
    ratings = fold_arrays(matches, rules).get((roster.game, system), [])
    draws = _bootstrap_draws(matches, wished)
    together, about = _seed_clusters(roster, matches) if roster.by == "seat" and draws else (None, [])
    spread = bootstrap_intervals(matches, roster.game, system, rules, draws, cluster_M=together)
    if roster.by == "agent":
        rows = _agent_rows(roster, ratings, spread, rules)
    else:
        rows = [
            _with_rating(row, one.rating, one.rest[0] if one.rest else None, one.games, spread.get(one.agent))
            for one in ratings
            if (row := roster.entry_for(one.agent)) is not None
        ]
    return _assemble(roster, system, matches.sequence_M, draws, wished, rows, notes=about)


def _agent_rows(
    roster: Roster, ratings: Sequence[AgentRating], spread: Mapping[str, Interval], rules: Sequence[RatingRule]
) -> list[LeaderboardEntry]:
    """Entries of all agents: those that were never rated have their start rating."""
    starts = load_start_ratings(roster.connection, roster.upto)
    table = RatingTable(starts, make_rating_system(rules[-1].ratings.system))
    table.replace(ratings)
    rows = []
    for agent, row in roster.agents.items():
        rating, *others = table.state(agent)
        deviation = others[0] if others else None
        rows.append(_with_rating(row, rating, deviation, table.games.get(agent, 0), spread.get(agent)))
    return rows


def _with_rating(
    row: LeaderboardEntry,
    rating: float,
    deviation: float | None,
    games: int,
    ends: tuple[float | None, float | None] | None,
) -> LeaderboardEntry:
    low, high = ends or (None, None)
    return msgspec.structs.replace(row, rating=rating, low=low, high=high, deviation=deviation, rated_games=games)


def _likelihood_leaderboard(roster: Roster, name: str, wished: int | None) -> Leaderboard:
    # Imported on use: it loads the compiler, which boards of rating systems do without.
    from league.analysis.bradley_terry import FitOptions, fit_strengths

    matches = roster.rated_matches(roster.rules(roster.official_system))
    if not len(matches):
        return _assemble(roster, name, matches.sequence_M, 0, wished, _uncompared_rows(roster, ()))
    matches, notes = _largest_component(matches)
    draws = _bootstrap_draws(matches, wished, _BOARD_COST)
    # The mean official rating of those compared makes the fitted ratings comparable.
    official = dict(roster.query(f"SELECT agent, rating FROM ratings_at({roster.upto}, playing := ?)", roster.game))
    names = (split_entrant(agent)[0] if roster.by == "seat" else agent for agent in matches.agents)
    known = [official[agent] for agent in names if agent in official]
    centre = sum(known) / len(known) if known else DEFAULT_RATING
    options = FitOptions(model=LIKELIHOOD_MODELS[name], draws=draws, centre=centre)
    # For agents by seat, the rating includes the seat's effect.
    by_seat = roster.by == "seat"
    together, _ = _seed_clusters(roster, matches) if by_seat else (None, [])
    fit = fit_strengths(matches, None if by_seat else matches.role_S, options, together)
    rows = []
    for one in fit.agents:
        if (row := roster.entry_for(one.name)) is not None:
            row = _with_rating(row, one.rating, None, one.matches, (one.low, one.high))
            rows.append(msgspec.structs.replace(row, one_sided=one.one_sided))
    rows += _uncompared_rows(roster, [row.agent for row in rows])
    seats, about = _seat_strengths(roster, options)
    return _assemble(roster, name, matches.sequence_M, draws, wished, rows, seats=seats, notes=[*notes, *about])


def _largest_component(matches: MatchArrays) -> tuple[MatchArrays, list[str]]:
    """Restrict the matches to the largest group of entrants connected by matches."""
    groups = connected_groups(make_comparisons(matches))
    if len(groups) == 1:
        return matches, []
    away = [name for group in groups[1:] for name in group]
    chosen = matches.exclude_agents(away)
    share = f"{len(away):,} of {len(away) + len(groups[0]):,}"
    note = f"{share} never met the others, not even by way of a third: no rating."
    return chosen.select(chosen.end_M - chosen.begin_M > 1), [note]


def _seat_strengths(roster: Roster, options: "FitOptions") -> tuple[list["Strength"], list[str]]:
    """Effects of the seats with intervals, and notes."""
    from league.analysis.bradley_terry import fit_strengths

    agents = roster if roster.by == "agent" else Roster(roster.connection, roster.upto, roster.game)
    matches = agents.rated_matches(agents.rules(agents.official_system))
    if not len(matches):
        # Agents that only met themselves.
        return [], []
    matches, _ = _largest_component(matches)
    together, about = _seed_clusters(roster, matches)
    strengths = fit_strengths(matches, matches.role_S, options, together).roles
    return strengths, about if options.draws and len(strengths) > 1 else []


def _seed_clusters(roster: Roster, matches: MatchArrays) -> tuple[list[int] | None, list[str]]:
    """Seed of each match as its bootstrap cluster, None where that makes no sense; and a note.

    Evaluations start several matches from one seed, so that agents meet the same luck. That is fair to agents; for
    seats it is a single piece of luck, repeated.
    """
    seeds = roster.match_seeds(matches.sequence_M)
    different = len(set(seeds))
    if different == len(seeds):
        return None, []
    count = f"Seats: {len(seeds):,} matches began from {different:,} seeds"
    if different >= _MIN_SEEDS:
        return seeds, [f"{count}, and those of one seed share its luck: they were drawn together."]
    return None, [f"{count}, too few to tell a seat's worth from their luck: the intervals are too narrow."]


def _uncompared_rows(roster: Roster, placed: Sequence[str]) -> list[LeaderboardEntry]:
    return [row for agent, row in roster.agents.items() if roster.by == "agent" and agent not in placed]


def _bootstrap_draws(matches: MatchArrays, wished: int | None, cost: Fraction = Fraction(1)) -> int:
    """Number of bootstrap draws, where a seat costs ``cost`` times as much as in a fold."""
    if wished is not None:
        return wished if len(matches) else 0
    return affordable_draws(len(matches), int(int((matches.end_M - matches.begin_M).sum()) * cost))


def _assemble(
    roster: Roster,
    system: str,
    sequences: Ints,
    draws: int,
    wished: int | None,
    rows: Sequence[LeaderboardEntry],
    *,
    recorded: bool = False,
    seats: Sequence["Strength"] = (),
    notes: Sequence[str] = (),
) -> Leaderboard:
    if wished is None and not draws and len(sequences):
        faster = "" if has_compiler() else ", pip install 'event-sourced-league[fast]' makes them faster"
        too_long = "Too long a history for intervals within seconds"
        notes = [*notes, f"{too_long}: --draws N makes them from N resampled histories{faster}."]
    rows = roster.add_results(rows, sequences)
    ordered = sorted(rows, key=lambda r: (r.rating is None, -(r.rating or 0.0), r.agent, r.seat, r.kind))
    return Leaderboard(
        game=roster.game,
        system=system,
        by=roster.by,
        sequence=roster.upto,
        recorded=recorded,
        official=system == roster.official_system,
        matches=len(sequences),
        draws=draws,
        rows=[
            row if row.rating is None else msgspec.structs.replace(row, rank=rank)
            for rank, row in enumerate(ordered, start=1)
        ],
        seats=[SeatEffect(s.name, s.rating, s.low, s.high) for s in seats] if len(seats) > 1 else [],
        notes=list(notes),
    )
