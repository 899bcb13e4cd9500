"""Leaderboard, rating histories as curves, payoffs and opponents."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.text import Text

from league.plots.terminal import line_chart, series_style
from league.queries.live_league import LiveLeague
from league.queries.pages.ratings import payoff, query_leaderboard, ratings
from league.queries.pages.training import matchmaking, matchmaking_audit
from ui.output import PLACEHOLDER, format_number, format_percent
from ui.terminal.views import Column, View, ViewOptions, make_table, query_page, share_bar, single_line

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
_CELL_WIDTH = 4
_NAME_WIDTH = 26
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


def leaderboard_table(rows: Sequence[dict[str, Any]], data: dict[str, Any]) -> RenderableType:
    """Render the rows of a leaderboard; the online rating has its system's name."""
    if not rows:
        return Text("no agents", "dim")
    columns = [column._replace(name=data["system"]) if column.name == "online" else column for column in _FIELDS]
    return make_table(columns, ([cell(row) for cell in _FIELDS.values()] for row in rows))


class LeaderboardView(View):
    """The leaderboard with intervals."""

    title = "leaderboard"
    sorts = ("rating", "rated_games", "wins", "agent")
    pace_s = 2.0

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """The leaderboard with intervals."""
        return await query_page(league, query_leaderboard, at=at)

    def draw(self, data: Any, options: ViewOptions) -> RenderableType:
        """A line on the origin of the ratings, then the rows."""
        rows = options.select_rows(data["rows"], "agent", "kind")
        notes = [
            f"Bradley–Terry ratings in {single_line(data['game'])}, {data['matches']:,} rated matches",
            *(["*: won or lost all games"] if any(row["one_sided"] for row in rows) else []),
        ]
        return Group(Text("; ".join(notes), "dim"), Text(), leaderboard_table(rows, data))


class PayoffView(View):
    """Shares of the points between pairs of agents."""

    title = "payoff"

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """Shares of the points between the agents with the most matches."""
        return await query_page(league, payoff, at=at)

    def draw(self, data: Any, options: ViewOptions) -> RenderableType:
        """A heat map whose cells show the share as text and as a shade."""
        names = data["shown"]
        shares = {(pair["agent"], pair["opponent"]): pair["share"] for pair in data["pairs"]}
        words = options.search.lower()
        most = max((options.width - _NAME_WIDTH) // _CELL_WIDTH, 2)
        chosen = [i for i, name in enumerate(names) if words in name.lower()][:most]
        heading = Text("points taken, in %, from".ljust(_NAME_WIDTH), "bold", no_wrap=True)
        heading.append("".join(f"{i + 1:>{_CELL_WIDTH}}" for i in chosen))
        lines = [heading]
        for i in chosen:
            line = Text(f"{i + 1:>3} {single_line(names[i], _NAME_WIDTH - 5)}", no_wrap=True)
            line.pad_right(_NAME_WIDTH - line.cell_len)
            for j in chosen:
                line.append_text(_share_cell(shares.get((names[i], names[j]))))
            lines.append(line)
        summary = f"best mean share first; {len(names)} of {data['agents']} agents"
        return Group(*lines, Text(), Text(summary, "dim"))


def _share_cell(share: float | None) -> Text:
    if share is None:
        return Text("·".rjust(_CELL_WIDTH), "dim")
    # Blue and red are safe for most colour-blind readers, and dark enough for white figures.
    strength = round(abs(share - 0.5) * 2 * (len(_SHADES) - 1))
    level = _SHADES[strength]
    colour = f"rgb(0,{level // 2},{level})" if share >= 0.5 else f"rgb({level},0,0)"
    return Text(f"{100 * share:.0f}".rjust(_CELL_WIDTH), f"rgb(255,255,255) on {colour}" if strength else "")


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

    def draw(self, data: Any, options: ViewOptions) -> RenderableType:
        """Buckets, then agents."""
        opponents: RenderableType = Text("no opponents drawn", "dim")
        if rows := options.select_rows(data["opponents"], "agent"):
            chances = data["now"]["agents"] if data["now"] is not None else None
            cells = (
                (
                    single_line(row["agent"]),
                    format_number(row["picks"]),
                    format_percent(row["share"]),
                    share_bar(row["share"], _BAR_WIDTH),
                    PLACEHOLDER if chances is None else format_percent(chances.get(row["agent"], 0.0)),
                )
                for row in rows
            )
            opponents = make_table(_AGENT_COLUMNS, cells)
        return Group(*_audit_lines(data["audit"], data["why"]), Text(), opponents)


def _audit_lines(audit: dict[str, Any] | None, why: str) -> list[RenderableType]:
    if audit is None:
        return [Text(f"target shares are not known: {single_line(why)}", "dim")]
    whole = audit["whole"]
    rows = []
    for bucket in sorted(whole["target"] or whole["realised"]):
        target, realised = whole["target"].get(bucket), whole["realised"].get(bucket, 0.0)
        shares = [
            text for share in (target, realised) for text in (format_percent(share), share_bar(share, _BAR_WIDTH))
        ]
        rows.append((single_line(bucket), *shares))
    summary = f"{whole['picks']:,} seats drawn for, steps {whole['first_step']:,} to {whole['last_step']:,}; "
    if whole["distance"] is None:
        summary += "no target could be computed again"
    else:
        distances = [format_percent(whole[name]) for name in ("distance", "by_chance")]
        summary += "{} apart, {} to be expected by chance".format(*distances)
    return [make_table(_BUCKET_COLUMNS, rows), Text(summary, "dim")]


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

    def draw(self, data: Any, options: ViewOptions) -> RenderableType:
        """A chart with a legend."""
        words = options.search.lower()
        series = [one for one in data["series"] if one["points"] and words in one["agent"].lower()]
        if not series:
            return Text("no agent of that name has a rating" if words else "no agent has a rating yet", "dim")
        heading = Text(f"rating under {single_line(data['system'])}, over the events of the history", "dim")
        height = max(options.height - len(series) - 4, _MIN_LINES)
        chart = line_chart([one["points"] for one in series], options.width, height, stepped=True)
        return Group(heading, *chart, _legend(series))


def _legend(series: Sequence[dict[str, Any]]) -> RenderableType:
    deviates = any(len(one["points"][-1]) > 2 for one in series)
    columns = [Column(""), Column("agent", most=36), Column("rating", number=True), *([Column("95 %")] * deviates)]
    rows: list[list[str | Text]] = []
    for number, one in enumerate(series):
        _, rating, *interval = one["points"][-1]
        shown = [f"{interval[0]:.0f} … {interval[1]:.0f}" if interval else PLACEHOLDER] * deviates
        letter = Text("━", series_style(number))
        rows.append([letter, single_line(one["agent"]), format_number(rating), *shown])
    return make_table(columns, rows)
