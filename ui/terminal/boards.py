"""Leaderboard, rating histories as curves, payoffs and opponents."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from rich.console import Group
from rich.text import Text

from league.plots.terminal import line_chart, series_style
from league.queries.live_league import LiveLeague
from league.queries.pages.ratings import payoff, query_leaderboard, ratings
from league.queries.pages.training import matchmaking, matchmaking_audit
from ui.output import PLACEHOLDER, format_number, format_percent
from ui.terminal.sections import Column, Section, Table
from ui.terminal.views import View, ViewOptions, query_page, share_bar, single_line

_FIELDS: dict[Column, Callable[[dict[str, Any]], str]] = {
    Column("#", number=True): lambda row: format_number(row["rank"]),
    Column("agent", most=28): lambda row: single_line(row["agent"]),
    Column("kind"): lambda row: single_line(row["kind"]),
    Column("rating", number=True): lambda row: format_number(row["rating"]) + ("*" if row["one_sided"] else ""),
    Column("95 %"): lambda row: PLACEHOLDER if row["low"] is None else f"{row['low']:.0f} … {row['high']:.0f}",
    Column("online", number=True): lambda row: format_number(row["online"]),
    Column("games", number=True): lambda row: format_number(row["rated_games"]),
    Column("wins", number=True): lambda row: format_number(row["wins"]),
}
"""Columns of a leaderboard, and the cells of a row in them."""
_NAME_WIDTH = 24
_SHADES = (0, 80, 110, 140, 170)
_BAR_WIDTH = 14
_BUCKET_COLUMNS = (
    Column("bucket", most=20),
    Column("target", number=True),
    Column(""),
    Column("realised", number=True),
    Column(" "),
)
_AGENT_COLUMNS = (
    Column("opponent", most=28),
    Column("picks", number=True),
    Column("share", number=True),
    Column("", most=_BAR_WIDTH),
    Column("chance now", number=True),
)
_MAX_AGENTS = 8
_MIN_LINES = 5


def leaderboard_table(rows: Sequence[dict[str, Any]], data: dict[str, Any]) -> Table:
    """Render the rows of a leaderboard; the online rating has its system's name."""
    columns = [column._replace(name=data["system"]) if column.name == "online" else column for column in _FIELDS]
    return Table(columns, [[cell(row) for cell in _FIELDS.values()] for row in rows])


class LeaderboardView(View):
    """The leaderboard with intervals."""

    title = "board"
    sorts = ("rating", "rated_games", "wins", "agent")
    pace_s = 2.0

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """The leaderboard with intervals."""
        return await query_page(league, query_leaderboard, at=at)

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """A line on the origin of the ratings, then the rows."""
        rows = options.select_rows(data["rows"], "agent", "kind")
        notes = [
            f"Bradley–Terry ratings in {single_line(data['game'])}, {data['matches']:,} rated matches",
            *(["*: won or lost all games"] if any(row["one_sided"] for row in rows) else []),
        ]
        return [Section(Text("; ".join(notes) + "\n", "dim"), leaderboard_table(rows, data))]


class PayoffView(View):
    """Shares of the points between pairs of agents."""

    title = "payoff"

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """Shares of the points between the agents with the most matches."""
        return await query_page(league, payoff, at=at)

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """A heat map whose cells show the share as text and as a shade."""
        names = data["shown"]
        shares = {(pair["agent"], pair["opponent"]): pair["share"] for pair in data["pairs"]}
        words = options.search.lower()
        chosen = [i for i, name in enumerate(names) if words in name.lower()]
        columns = [Column("#", number=True), Column("agent", most=_NAME_WIDTH)]
        rows: list[list[str | Text]] = [
            [str(i + 1), single_line(names[i]), *(_share_cell(shares.get((names[i], names[j]))) for j in chosen)]
            for i in chosen
        ]
        summary = (
            f"% of the points won against agent number …; best mean first, {len(names)} of {data['agents']} agents"
        )
        return [Section(Text(f"{summary}\n", "dim"), Table([*columns, *(Column(f"{i + 1:>3}") for i in chosen)], rows))]


def _share_cell(share: float | None) -> Text:
    if share is None:
        return Text("  ·", "dim")
    # Blue and red are safe for most colour-blind readers, and dark enough for white figures.
    strength = round(abs(share - 0.5) * 2 * (len(_SHADES) - 1))
    level = _SHADES[strength]
    colour = f"rgb(0,{level // 2},{level})" if share >= 0.5 else f"rgb({level},0,0)"
    return Text(f"{100 * share:>3.0f}", f"rgb(255,255,255) on {colour}" if strength else "")


class OpponentsView(View):
    """Target and realised shares of the sampler, and the opponents that were drawn."""

    title = "opponents"
    sorts = ("picks", "agent", "newest")
    pace_s = 10.0

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """Draws of the main policy, and an audit of them."""
        policy = league.summary()["policy"]
        drawn = await query_page(league, matchmaking, policy=policy, at=at)
        return {**drawn, "policy": policy, **await query_page(league, matchmaking_audit, policy=policy, at=at)}

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """Buckets, then agents."""
        rows = options.select_rows(data["opponents"], "agent")
        chances = data["now"]["agents"] if data["now"] is not None else None
        cells = [
            (
                single_line(row["agent"]),
                format_number(row["picks"]),
                format_percent(row["share"]),
                share_bar(row["share"], _BAR_WIDTH),
                PLACEHOLDER if chances is None else format_percent(chances.get(row["agent"], 0.0)),
            )
            for row in rows
        ]
        buckets, summary = _audit_table(data["audit"], data["why"])
        return [Section(None, buckets), Section(Text(f"{summary}\n", "dim"), Table(_AGENT_COLUMNS, cells))]


def _audit_table(audit: dict[str, Any] | None, why: str) -> tuple[Table | None, str]:
    if audit is None:
        return None, f"target shares are not known: {single_line(why)}"
    whole = audit["whole"]
    rows = []
    for bucket in sorted(whole["target"] or whole["realised"]):
        target, realised = whole["target"].get(bucket), whole["realised"].get(bucket, 0.0)
        shares = [
            text for share in (target, realised) for text in (format_percent(share), share_bar(share, _BAR_WIDTH))
        ]
        rows.append((single_line(bucket), *shares))
    summary = f"{whole['picks']:,} opponents drawn, steps {whole['first_step']:,} to {whole['last_step']:,}; "
    if whole["distance"] is None:
        summary += "no target could be recomputed"
    else:
        distances = [format_percent(whole[name]) for name in ("distance", "by_chance")]
        summary += "{} off the target, {} by chance".format(*distances)
    return Table(_BUCKET_COLUMNS, rows), summary


class RatingsView(View):
    """Rating histories of the best agents."""

    title = "ratings"

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """The best agents, and the rating history of each."""
        ranked = await query_page(league, query_leaderboard, at=at)
        # The parameter joins names with commas, so they are escaped as in URLs.
        best = [row["agent"] for row in ranked["rows"] if row["rated_games"]][:_MAX_AGENTS]
        if not best:
            return {"system": ranked["system"], "series": []}
        return await query_page(league, ratings, agents=",".join(quote(name, safe="") for name in best), to=at)

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """A chart with a legend."""
        words = options.search.lower()
        series = [curve for curve in data["series"] if curve["points"] and words in curve["agent"].lower()]
        if not series:
            return [
                Section(Text("no agent of that name has a rating" if words else "no agent has a rating yet", "dim"))
            ]
        heading = Text(f"rating under {single_line(data['system'])}, over the events of the history", "dim")
        height = max(options.height - len(series) - 3, _MIN_LINES)
        chart = line_chart([curve["points"] for curve in series], options.width, height, stepped=True)
        return [Section(Group(heading, *chart), _legend(series))]


def _legend(series: Sequence[dict[str, Any]]) -> Table:
    deviates = any(len(curve["points"][-1]) > 2 for curve in series)
    columns = [Column(""), Column("agent", most=36), Column("rating", number=True), *([Column("95 %")] * deviates)]
    rows: list[list[str | Text]] = []
    for number, curve in enumerate(series):
        _, rating, *interval = curve["points"][-1]
        shown = [f"{interval[0]:.0f} … {interval[1]:.0f}" if interval else PLACEHOLDER] * deviates
        rows.append([Text("━", series_style(number)), single_line(curve["agent"]), format_number(rating), *shown])
    return Table(columns, rows)
