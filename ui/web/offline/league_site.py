"""A whole league as static pages with CSV files, which work from a folder and on any web server."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from league.analysis.leaderboard import Leaderboard, leaderboard
from league.plots.series import RatingCurve, rating_curve
from league.queries.live_league import LiveLeague
from league.queries.match_list import PageQuery, read_page
from league.queries.pages import RequestParams
from league.queries.pages.matches import load_whole_match
from league.queries.pages.overview import overview
from league.queries.pages.ratings import lineage
from league.queries.pages.training import criteria as judge_criteria
from league.success_criteria import CriteriaReport
from schemas.errors import LeagueError
from ui.web.offline import MATCH_FOLDER, SiteFile
from ui.web.offline.elements import (
    Column,
    Markup,
    Table,
    agent_link,
    draw_rating_curve,
    encode_csv,
    h,
    join,
    make_document,
    render_table,
)
from ui.web.offline.match_page import match_file_name, render_match

_PROMPT_CHARS = 150_000
"""Characters of prompts in the page of a match: fewer than in a file of its own, since there are many."""
# Half of the pages at most are of benchmarks: the newest match of each, the newest benchmark first.
_CHOSEN_MATCHES = """
    WITH benchmarks AS (
        SELECT max(m.sequence) AS sequence FROM matches m JOIN evaluations e USING (evaluation_id)
        WHERE e.suite = 'benchmark' GROUP BY evaluation_id ORDER BY sequence DESC LIMIT (? // 2)
    ), ranked AS (
        FROM benchmarks UNION ALL SELECT sequence FROM matches
        WHERE sequence NOT IN (FROM benchmarks) ORDER BY sequence DESC LIMIT ?
    )
    SELECT sequence FROM ranked ORDER BY sequence DESC
"""

MatchPath = Callable[[Mapping[str, Any]], str]
"""The address of a match's page, by its row."""


class _LeagueData(NamedTuple):
    """Data of the pages, as of one event."""

    counts: Mapping[str, Any]
    board: Leaderboard
    curves: Sequence[RatingCurve]
    benchmarks: Sequence[Mapping[str, Any]]
    criteria: CriteriaReport | str
    """The reason where they cannot be judged."""
    parents: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    matches: Sequence[Mapping[str, Any]]


async def make_site(
    league: LiveLeague,
    matches: int,
    report: Callable[[str, float], None] = lambda stage, share: None,
    match_path: MatchPath | None = None,
    runs: Mapping[str, str] | None = None,
) -> AsyncIterator[SiteFile]:
    """The files of a league's site, with the pages of so many ``matches``: the newest, and those of benchmarks.

    ``match_path`` gives other addresses of matches; their pages are then not among the files. ``runs`` are
    the addresses of other runs' pages by their names.
    """
    report("reading the league", 0.0)
    data = await _load_data(league, matches)
    # By rating, then those that are not rated; with their origins where they have any.
    known = {row["agent"]: dict(row) for row in data.parents}
    agents = [msgspec.to_builtins(row) | known.pop(row.agent, {}) for row in data.board.rows] + list(known.values())
    links = {row["agent"]: f"agents.html#agent-{number}" for number, row in enumerate(agents)}
    name = str(data.counts["league"])
    header = _header(name, runs or {})
    for title, path, tables, body in (
        (name, "index.html", *_overview(data, links, match_path or _match_path)),
        (f"Agents · {name}", "agents.html", *_agents(agents, links)),
    ):
        yield SiteFile(path, make_document(title, join(header, h("main", None, body))).encode())
        for table in tables:
            yield SiteFile(f"{table.name}.csv", encode_csv(table))
    if match_path is not None:
        return
    upwards = {agent: f"../{address}" for agent, address in links.items()}
    for number, row in enumerate(data.matches):
        report("writing matches", number / len(data.matches))
        match = await load_whole_match(league, row["match_id"])
        page = render_match(match, name, upwards, "../index.html", _PROMPT_CHARS)
        yield SiteFile(_match_path(row), page.encode())


async def _load_data(league: LiveLeague, matches: int) -> _LeagueData:
    upto = league.position
    params = RequestParams({}, {})
    chosen = PageQuery(_CHOSEN_MATCHES, [matches, matches])
    try:
        criteria: CriteriaReport | str = msgspec.convert(await judge_criteria(league, params), CriteriaReport)
    except LeagueError as error:
        criteria = str(error)
    counts = await overview(league, params)
    curves = [
        await league.read(lambda connection, policy=policy: rating_curve(connection, policy))  # type: ignore[misc]
        for policy in counts["policies"]
    ]
    return _LeagueData(
        counts,
        await league.read(lambda connection: leaderboard(connection, at=upto)),
        [curve for curve in curves if curve.steps],
        await league.rows("FROM benchmark_results"),
        criteria,
        await lineage(league, params),
        await league.rows("SELECT type, count(*) AS events FROM events GROUP BY type ORDER BY events DESC, type"),
        await league.read(lambda connection: read_page(connection, chosen, upto)) if matches else [],
    )


def _header(name: str, runs: Mapping[str, str]) -> Markup:
    pages = {"League": "index.html", "Agents": "agents.html"}
    navigation = (
        h("nav", {"aria-label": label}, (h("a", {"href": path}, text) for text, path in links.items()))
        for label, links in (("Pages", pages), ("Runs", runs))
        if links
    )
    return h("header", None, h("strong", None, name), navigation)


def _overview(data: _LeagueData, links: Mapping[str, str], match_path: MatchPath) -> tuple[list[Table], Markup]:
    counts, board = data.counts, data.board
    figures = {
        "game": counts["game"],
        "gradient steps": f"{counts['step']:,}",
        "training matches": f"{counts['training_matches']:,}",
        "evaluation matches": f"{counts['evaluation_matches']:,}",
        "events": f"{counts['sequence']:,}",
    }
    curves = {f"curve {curve.policy}": _ratings_table(curve) for curve in data.curves}
    parts = [] if isinstance(data.criteria, str) else data.criteria.criteria
    figures_judged = [(criterion, figure) for criterion in parts for figure in criterion.figures]
    judged = (
        Column("criterion", lambda row: row[0].title),
        Column("figure", lambda row: row[1].figure),
        Column("measured", lambda row: row[1].measured),
        Column("expected", lambda row: row[1].expected),
        Column("met", lambda row: {True: "yes", False: "no", None: ""}[row[1].met]),
    )
    kinds = (
        Column("type", lambda row: row["type"] or "unreadable"),
        Column("events", lambda row: row["events"], is_number=True),
    )
    tables = {
        **curves,
        "benchmarks": _benchmarks_table(data.benchmarks, links),
        "leaderboard": _leaderboard_table(board, links),
        "criteria": Table("The four success criteria, judged from the history", judged, figures_judged, "criteria"),
        "matches": _matches_table(data.matches, links, match_path),
        "events": Table("Events by type", kinds, data.events, "events"),
    }
    shown = {name: render_table(table) for name, table in tables.items()}
    return list(tables.values()), join(
        h("h1", None, f"League {counts['league']}"),
        h("dl", {"class": "figures"}, (h("div", None, h("dt", None, n), h("dd", None, v)) for n, v in figures.items())),
        h("h2", None, "Is it learning?"),
        *(
            (draw_rating_curve(curve), h("details", None, h("summary", None, "the chart's values"), shown[name]))
            for curve, name in zip(data.curves, curves, strict=True)
        ),
        None if curves else h("p", None, "No version of a policy is evaluated yet."),
        shown["benchmarks"],
        h("h2", None, "Leaderboard"),
        shown["leaderboard"],
        h("h2", None, "Success criteria"),
        h("p", {"class": "problem"}, data.criteria) if isinstance(data.criteria, str) else shown["criteria"],
        h("h2", None, "Matches"),
        shown["matches"],
        h("h2", None, "Events"),
        shown["events"],
    )


def _decimal(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _ratings_table(curve: RatingCurve) -> Table:
    def rated(name: str, ratings: Sequence[float]) -> Column:
        # A baseline has no rating at evaluations before it joined.
        known = [rating if isfinite(rating) else None for rating in ratings]
        return Column(name, known.__getitem__, lambda number: _decimal(known[number]), is_number=True)

    named = {curve.policy: curve.hero, "past best": curve.past_best, **curve.baselines}
    columns = (
        Column("gradient step", lambda number: curve.steps[number], is_number=True),
        *(rated(name, ratings) for name, ratings in named.items()),
    )
    name = re.sub(r"[^A-Za-z0-9_-]", "_", curve.policy)
    caption = f"Ratings of {curve.policy} and its baselines, at the end of each version's evaluation"
    return Table(caption, columns, range(len(curve.steps)), f"ratings-{name}")


def _benchmarks_table(rows: Sequence[Mapping[str, Any]], links: Mapping[str, str]) -> Table:
    columns = (
        Column("opponents", lambda row: row["opponent"]),
        Column("agent", lambda row: row["agent"], lambda row: agent_link(row["agent"], links)),
        Column("games", lambda row: row["games"], is_number=True),
        Column("won", lambda row: row["wins"], is_number=True),
        *_interval_columns("share", 3, itemgetter),
        Column("mean rank", lambda row: row["mean_rank"], lambda row: f"{row['mean_rank']:.2f}", is_number=True),
    )
    # Stable: under each opponent, the base model's comes first.
    sorted_rows = sorted(rows, key=lambda row: row["opponent"])
    return Table("Games won against each opponent, before training first", columns, sorted_rows, "benchmarks")


def _leaderboard_table(board: Leaderboard, links: Mapping[str, str]) -> Table:
    columns = (
        Column("#", lambda row: row.rank, is_number=True),
        Column("agent", lambda row: row.agent, lambda row: agent_link(row.agent, links)),
        Column("kind", lambda row: row.kind),
        *_interval_columns("rating", 1, attrgetter),
        Column(board.system, lambda row: row.online, lambda row: _decimal(row.online), is_number=True),
        Column("games", lambda row: row.rated_games, is_number=True),
        Column("wins", lambda row: row.wins, is_number=True),
    )
    caption = f"Bradley–Terry ratings in {board.game}, {board.matches:,} rated matches"
    return Table(caption, columns, board.rows, "leaderboard")


def _interval_columns(name: str, digits: int, getter: Callable[[str], Callable[[Any], Any]]) -> tuple[Column, ...]:
    """Columns with a number, which is the field ``name`` of rows, and the ends of its 95 % interval."""

    def column(title: str, field: str) -> Column:
        return Column(title, getter(field), lambda row: _decimal(getter(field)(row), digits), is_number=True)

    return column(name, name), column("95 % from", "low"), column("to", "high")


def _matches_table(rows: Sequence[Mapping[str, Any]], links: Mapping[str, str], match_path: MatchPath) -> Table:
    columns = (
        Column("match", lambda row: row["match_id"], lambda row: h("a", {"href": match_path(row)}, row["match_id"])),
        Column("event", lambda row: row["sequence"], is_number=True),
        Column("time", lambda row: f"{row['time']:%Y-%m-%d %H:%M:%S}"),
        Column("purpose", lambda row: row["purpose"] + (", voided" if row["voided"] else "")),
        Column("won by", _winner, lambda row: agent_link(_winner(row), links)),
        Column("seats", lambda row: ", ".join(seat["agent"] for seat in row["seats"])),
    )
    return Table("Newest matches, and the newest of each benchmark", columns, rows, "matches")


def _winner(row: Mapping[str, Any]) -> str:
    return next((seat["agent"] for seat in row["seats"] if seat["seat"] == row["winner"]), "")


def _match_path(row: Mapping[str, Any]) -> str:
    return f"{MATCH_FOLDER}/{match_file_name(row['match_id'])}"


def _agents(rows: Sequence[Mapping[str, Any]], links: Mapping[str, str]) -> tuple[list[Table], Markup]:
    def named(row: Mapping[str, Any]) -> Markup:
        return h("span", {"id": links[row["agent"]].partition("#")[2]}, row["agent"])

    columns = (
        Column("agent", lambda row: row["agent"], named),
        Column("kind", lambda row: row["kind"]),
        Column("parent", lambda row: row.get("parent"), lambda row: agent_link(row.get("parent") or "", links)),
        Column("first step", lambda row: row.get("first_step") if row.get("parent") else None, is_number=True),
        Column("last step", lambda row: row.get("version"), is_number=True),
        Column("reason", lambda row: row["reason"]),
        Column("drawn", lambda row: "yes" if row["active"] else "no"),
        Column("rating", lambda row: row["rating"], lambda row: _decimal(row["rating"]), is_number=True),
        Column("rated games", lambda row: row["rated_games"], is_number=True),
        Column("event", lambda row: row.get("joined_sequence"), is_number=True),
    )
    table = Table("Agents by rating, with the parents of checkpoints and the steps between", columns, rows, "agents")
    return [table], join(h("h1", None, "Agents"), render_table(table))
