"""Pictures of a league's history, as ``league plot`` draws them. Importing this module imports Matplotlib."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from league.analysis.leaderboard import leaderboard
from league.plots.charts import draws_picture, payoff_picture, ratings_picture, throughput_picture, wins_picture
from league.plots.render import Picture
from league.plots.series import draw_windows, measure_throughput, policies_at, win_rates
from league.queries.tables import open_tables, resolve_sequence, row_dicts
from league.run import Run
from schemas.errors import UsageError, format_choices, suggest
from schemas.ids import split_agent

_MAX_PAYOFF_AGENTS = 12
_DRAW_WINDOWS = 16
_AGENTS_SQL = "SELECT agent FROM entrants_at(?) UNION ALL SELECT agent FROM unadmitted_versions_at(?)"

PlotKind = Literal["elo", "winrate", "payoff", "pfsp", "throughput"]


async def draw_picture(
    run: Run, kind: PlotKind, at: str | None = None, agents: Sequence[str] = (), policy: str | None = None
) -> Picture:
    """Draw a picture of a league.

    ``at`` is the sequence or time of the newest event to include, ``agents`` are names and ``policy`` is a trained
    policy: None or empty for all.

    Raises:
        UsageError: there is no such picture, the league has no such policy or agent, or nothing to draw.
    """
    if kind not in get_args(PlotKind):
        raise UsageError(f"figure {kind!r}: unknown; expected {format_choices(get_args(PlotKind), kind)}")
    async with run.open_log() as history:
        upto = await history.last_sequence() if at is None else await resolve_sequence(run, history, at, "--at")
        async with open_tables(run, history) as tables:
            connection = tables.connection
            policies = policies_at(connection, upto)
            if policy is not None and policy not in policies:
                raise UsageError(
                    f"--policy {policy}: no version of it was published; expected {format_choices(policies, policy)}"
                )
            entrants = [agent for (agent,) in connection.execute(_AGENTS_SQL, [upto, upto]).fetchall()]
            for name in agents:
                if name not in entrants:
                    raise UsageError(
                        f"--agents {name}: not in the league at event {upto:,}; `league leaderboard` lists them"
                        + suggest(name, entrants)
                    )
            return _draw(connection, kind, upto, agents, policies if policy is None else [policy])


def _draw(connection: Any, kind: PlotKind, upto: int, agents: Sequence[str], policies: list[str]) -> Picture:
    if kind == "elo":
        return _ratings_picture(connection, upto, agents, policies)
    if kind == "throughput":
        return throughput_picture(measure_throughput(connection, upto, policies), upto)
    if kind == "pfsp":
        windows = draw_windows(connection, upto, policies, _DRAW_WINDOWS)
        if not windows:
            raise UsageError(f"pfsp: no opponents were drawn up to event {upto:,}; expected training matches")
        return draws_picture(windows, upto)
    [(game,)] = connection.execute(
        "SELECT game FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1", [upto]
    ).fetchall()
    if kind == "winrate":
        rates = win_rates(connection, upto, game, policies, agents)
        if not rates:
            raise UsageError(f"winrate: no such game of a policy's version up to event {upto:,}; expected matches")
        return wins_picture(rates, game, upto)
    return _payoff_picture(connection, upto, game, agents)


def _ratings_picture(connection: Any, upto: int, agents: Sequence[str], policies: list[str]) -> Picture:
    board = leaderboard(connection, at=upto)
    rows = []
    for row in board.rows:
        named = split_agent(row.agent)
        is_drawn = row.agent in agents if agents else named is None or named[0] in policies
        if row.rating is not None and is_drawn:
            rows.append(row)
    if not rows:
        raise UsageError(f"elo: no such agent has a rating at event {upto:,}; expected rated matches")
    return ratings_picture(msgspec.structs.replace(board, rows=rows), agents)


def _payoff_picture(connection: Any, upto: int, game: str, agents: Sequence[str]) -> Picture:
    met = row_dicts(connection.execute("FROM payoff_at(?)", [upto]))
    games: dict[str, int] = {}
    shares: dict[str, list[float]] = {}
    for pair in met:
        games[pair["agent"]] = games.get(pair["agent"], 0) + pair["games"]
        shares.setdefault(pair["agent"], []).append(pair["share"])
    chosen = [name for name in agents if name in games]
    chosen = chosen or sorted(games, key=lambda name: (-games[name], name))[:_MAX_PAYOFF_AGENTS]
    if len(chosen) < 2:
        raise UsageError(f"payoff: fewer than two agents met up to event {upto:,}; expected played matches")
    ordered = sorted(chosen, key=lambda name: (-sum(shares[name]) / len(shares[name]), name))
    return payoff_picture(ordered, met, game, upto)
