"""HTML elements, tables and charts: texts of agents, models and events are escaped, control characters spelled out."""

import base64
import csv
import hashlib
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from league.plots.series import RatingCurve

_STATIC = Path(__file__).parents[1] / "static"
_VOID = {"input", "link", "meta"}
# As in static/dom.js: bidirectional overrides could make a name look like another. No file can hold lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
_CELL_ATTRIBUTES: dict[bool, dict[str, object]] = {False: {}, True: {"class": "number"}}
_WIDTH, _HEIGHT = 900, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 150, 12, 36
_COLORS = 8
"""Colours ``--series-N`` of the pages' styles."""
_LABEL_PX = 13
Point = tuple[int, float]
"""Gradient step and rating."""


class Markup(str):
    """HTML that is inserted as it is. Everything else is text."""

    __slots__ = ()


Child = Markup | str | int | float | None | Iterable["Child"]


def escape(value: object) -> str:
    """A value as text inside HTML, quotes included."""
    return html.escape(_UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", str(value)))


def h(tag: str, attributes: Mapping[str, object] | None = None, *children: Child) -> Markup:
    """An element. Attributes that are None or False are left out, those that are True have no value."""
    rendered = "".join(
        f" {name}" if value is True else f' {name}="{escape(value)}"'
        for name, value in (attributes or {}).items()
        if value is not None and value is not False
    )
    return Markup(f"<{tag}{rendered}>" if tag in _VOID else f"<{tag}{rendered}>{join(*children)}</{tag}>")


def agent_link(name: str, links: Mapping[str, str]) -> Markup:
    """An agent's name, with the address of its page among ``links`` if it has one."""
    return h("a", {"href": links[name]}, name) if name in links else join(name)


def join(*children: Child) -> Markup:
    """Children one after the other; None is nothing."""
    parts = []
    for child in children:
        if child is not None and not isinstance(child, Markup):
            child = Markup(escape(child)) if isinstance(child, str | int | float) else join(*child)
        parts.append(child or "")
    return Markup("".join(parts))


class Column(NamedTuple):
    """A column of a table."""

    name: str
    value: Callable[[Any], object]
    """A row's value, as the CSV file has it."""
    show: Callable[[Any], Child] | None = None
    """The content of its cell; None for the value."""
    is_number: bool = False


class Table(NamedTuple):
    """A table and its rows."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    name: str = ""
    """Name of the CSV file beside the page, without ``.csv``; empty for a table without one."""


def render_table(table: Table) -> Markup:
    """A table, with the address of its CSV file below it."""

    def cell(column: Column, row: Any) -> Markup:
        shown = column.show(row) if column.show is not None else column.value(row)
        return h("td", _CELL_ATTRIBUTES[column.is_number], shown if isinstance(shown, Markup | None) else str(shown))

    head = (h("th", {"scope": "col", **_CELL_ATTRIBUTES[column.is_number]}, column.name) for column in table.columns)
    body = (h("tr", None, (cell(column, row) for column in table.columns)) for row in table.rows)
    caption = h("caption", None, table.caption)
    return join(
        h(
            "div",
            {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": table.caption},
            h("table", None, caption, h("thead", None, h("tr", None, head)), h("tbody", None, body)),
        ),
        h("p", None, h("a", {"href": f"{table.name}.csv"}, f"{table.name}.csv")) if table.name else None,
    )


def encode_csv(table: Table) -> bytes:
    """The values of a table as CSV, RFC 4180, with a line of column names."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(column.name for column in table.columns)
    writer.writerows([column.value(row) for column in table.columns] for row in table.rows)
    return out.getvalue().encode(errors="backslashreplace")


def make_document(title: str, body: Markup, styles: str = "") -> str:
    """A whole page with the pages' styles, ``styles`` and the script inside it."""
    css, script = _static("style.css") + _static("offline.css") + styles, _static("export.js") + _static("offline.js")
    policy = (
        f"default-src 'none'; style-src {_hash_source(css)}; script-src {_hash_source(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = h(
        "head",
        None,
        h("meta", {"charset": "utf-8"}),
        h("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        h("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        h("meta", {"name": "color-scheme", "content": "light dark"}),
        h("meta", {"name": "referrer", "content": "no-referrer"}),
        # Without it, browsers ask a server for one.
        h("link", {"rel": "icon", "href": "data:,"}),
        h("title", None, title),
        h("style", None, Markup(css)),
    )
    content = h("body", None, body, h("script", {"type": "module"}, Markup(script)))
    return f"<!doctype html>\n{h('html', {'lang': 'en'}, head, content)}\n"


def document_policy(page: str) -> str:
    """The content security policy that a page names."""
    match = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    return html.unescape(match[1]) if match else "default-src 'none'"


@cache
def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Scale(NamedTuple):
    last: int
    low: float
    high: float

    def x(self, step: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(self.last, 1), 1)

    def y(self, rating: float) -> float:
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (self.high - rating) / (self.high - self.low), 1)


def draw_rating_curve(curve: RatingCurve) -> Markup:
    """The chart of a policy's curve, with at least one version: these, the best so far and baselines."""
    named = {curve.policy: curve.hero, "past best": curve.past_best, **curve.baselines}
    lines = {
        name: points
        for name, ratings in named.items()
        if (points := [point for point in zip(curve.steps, ratings, strict=True) if isfinite(point[1])])
    }
    ratings = [rating for points in lines.values() for _, rating in points]
    margin = max((max(ratings) - min(ratings)) * 0.05, 10.0)
    scale = _Scale(curve.steps[-1], min(ratings) - margin, max(ratings) + margin)
    label = f"Rating of {curve.policy} over gradient steps, beside its baselines; the table below has the values"
    return h(
        "svg",
        {"class": "chart", "viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": label},
        *_axes(scale),
        *_lines(scale, lines, _label_heights(scale, lines)),
    )


def _axes(scale: _Scale) -> Iterator[Markup]:
    for part in range(5):
        rating = scale.low + (scale.high - scale.low) * part / 4
        x, y = _WIDTH - _RIGHT, scale.y(rating)
        yield h("line", {"class": "axis", "x1": _LEFT, "y1": y, "x2": x, "y2": y})
        yield _text(_LEFT - 6, y + 4, f"{rating:,.0f}", "end")
    for step in sorted({round(scale.last * part / 4) for part in range(5)}):
        yield _text(scale.x(step), _HEIGHT - _BOTTOM + 16, f"{step:,}", "middle")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, "gradient step", "middle")


def _label_heights(scale: _Scale, lines: dict[str, list[Point]]) -> dict[str, float]:
    """Heights of the names at the ends of the lines, apart from each other."""
    heights: dict[str, float] = {}
    below = float(_TOP)
    for name in sorted(lines, key=lambda name: -lines[name][-1][1]):
        below = max(scale.y(lines[name][-1][1]), below + _LABEL_PX)
        heights[name] = below
    return heights


def _lines(scale: _Scale, lines: dict[str, list[Point]], heights: dict[str, float]) -> Iterator[Markup]:
    for number, (name, points) in enumerate(lines.items()):
        places = [(scale.x(step), scale.y(rating)) for step, rating in points]
        yield h(
            "g",
            {"class": f"series s{number % _COLORS}{' level' if number else ''}"},
            h("polyline", {"points": " ".join(f"{x},{y}" for x, y in places)}),
            (h("circle", {"cx": x, "cy": y, "r": 2 if number else 3.5}) for x, y in places),
            _text(_WIDTH - _RIGHT + 8, heights[name] + 4, name, "start"),
        )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    short = text if len(text) <= 20 else f"{text[:19]}…"
    return h("text", {"x": x, "y": y, "text-anchor": anchor}, short)
