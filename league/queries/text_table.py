"""Rows as text: tables that fit a terminal, CSV and JSON.

Numbers stay whole. A table that is too wide folds its texts, then leaves out the columns that can be missed, and is
printed as a list of fields if that does not suffice.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from league.queries.terminal import Console
from schemas.errors import UsageError, escape_unprintable, format_choices

Rows = Sequence[Sequence[Any]]

_NUMERIC = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL")
_READABLE, _SHORTEST = 24, 20
"""Least width of a folded text: while columns can be left out instead, and after that, for long words."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    is_number: bool = False
    """Whether cells are aligned right and never folded."""


def number_columns(*names: str) -> list[Column | str]:
    """Columns of numbers."""
    return [Column(name, True) for name in names]


def table_width(console: Console) -> int | None:
    """Characters of a line of a terminal; None for a file or a pipe, where tables take the width that they need."""
    return console.width if console.is_terminal else None


def print_table(
    console: Console, columns: Sequence[Column | str], rows: Rows, optional: Sequence[str] = (), title: str = ""
) -> None:
    """Print the table of ``render_table`` in the width of a terminal."""
    # Written directly: a console would fold the table of a file, which is as wide as it needs.
    console.file.write(render_table(columns, rows, table_width(console), optional, title))


def render_table(
    columns: Sequence[Column | str],
    rows: Rows,
    width: int | None = None,
    optional: Sequence[str] = (),
    title: str = "",
    has_lines: bool = False,
) -> str:
    """A table with a final newline, of at most ``width`` characters a line; ``has_lines`` draws a line between rows.

    ``optional`` names the columns that may be left out, in the order in which they go.
    """
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    heads = [head._replace(name=escape_unprintable(head.name)) for head in heads]
    cells = [[_cell(value) for value in row] for row in rows]
    above = f"{escape_unprintable(title)}\n" if title else ""
    indices = list(range(len(heads)))
    for name, floor in ((None, _READABLE), *((name, _READABLE) for name in optional), (None, 0)):
        indices = [i for i in indices if heads[i].name != name]
        part, values = [heads[i] for i in indices], [[row[i] for i in indices] for row in cells]
        if (widths := _fit(part, values, width, floor)) is not None:
            return above + _boxed_text(part, values, widths, has_lines)
    assert width is not None
    return above + _fields_text(heads, cells, width)


def _fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int | None, floor: int) -> list[int] | None:
    """Widths of the columns; None where the table cannot have ``width`` without cutting a number."""
    texts = [[row[i] for row in cells] for i in range(len(columns))]
    widths = [
        max(_widest(text.splitlines()) for text in (column.name, *own))
        for column, own in zip(columns, texts, strict=True)
    ]
    if width is None:
        return widths
    least = []
    for column, own in zip(columns, texts, strict=True):
        longest_word = _widest([word for text in own for word in text.split()])
        folded = max(min(longest_word, _SHORTEST), min(_widest(own), floor))
        least.append(max(min(_widest(column.name.split()), _SHORTEST), _widest(own) if column.is_number else folded))
    excess = sum(widths) + 3 * len(widths) + 1 - width
    while excess > 0:
        i = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        if widths[i] <= least[i]:
            return None
        widths[i] -= 1
        excess -= 1
    return widths


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _boxed_text(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int], has_lines: bool
) -> str:
    table = Table(show_lines=has_lines)
    for column, width in zip(columns, widths, strict=True):
        justify = "right" if column.is_number else "left"
        table.add_column(Text(column.name), justify=justify, overflow="fold", width=width)  # type: ignore[arg-type]
    for row in cells:
        # Text, so that a value with square brackets is not taken for markup.
        table.add_row(*map(Text, row))
    return _table_text(table, sum(widths) + 3 * len(widths) + 1)


def _fields_text(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> str:
    """The rows below each other, a line each field."""
    table = Table(show_header=False)
    names = _widest([column.name for column in columns])
    table.add_column(overflow="fold", width=names)
    table.add_column(overflow="fold", width=max(width - names - 7, 1))
    for row in cells:
        for column, value in zip(columns, row, strict=True):
            table.add_row(Text(column.name), Text(value))
        table.add_section()
    return _table_text(table, width)


def _table_text(table: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(table)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else escape_unprintable(str(value), lines=True)


def print_benchmarks(console: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print rows of ``benchmark_results``: games won, with 95 % intervals, and the mean score."""
    cells = []
    for row in rows:
        won, share = f"{row['wins']} of {row['games']}", f"{100 * row['share']:.1f} %"
        interval, score = f"{100 * row['low']:.1f} – {100 * row['high']:.1f} %", f"{row['mean_score']:.2f}"
        cells.append([row["agent"], row["opponent"], won, share, interval, score])
    columns = ["agent", "against", *number_columns("won", "share", "95 % interval", "mean score")]
    print_table(console, columns, cells, title=title)


def render_rows(
    columns: Sequence[str], types: Sequence[str], rows: Rows, form: str = "table", width: int | None = None
) -> str:
    """The result of a query as text, with a final newline.

    ``types`` are DuckDB's names of the columns' types: numbers are set to the right in a table. ``form`` is ``table``,
    ``csv`` (RFC 4180, empty for NULL, no formulas) or ``json`` (an array of objects). ``width`` is that of a table's
    lines.
    """
    if form == "table":
        heads = [Column(name, kind.endswith(_NUMERIC)) for name, kind in zip(columns, types, strict=True)]
        return render_table(heads, rows, width)
    if form == "json":
        objects = [dict(zip(columns, row, strict=True)) for row in rows]
        return json.dumps(objects, default=str, indent=1) + "\n"
    if form != "csv":
        raise UsageError(f"format {form!r}; expected {format_choices(['table', 'csv', 'json'])}")
    out = io.StringIO()
    # Lines end as other tools expect: a shell would keep the other half of an ending of two characters.
    csv.writer(out, lineterminator="\n").writerows([[_defuse(cell) for cell in row] for row in (columns, *rows)])
    return out.getvalue()


def _defuse(cell: Any) -> Any:
    """A cell that a spreadsheet takes for a formula, as text: an apostrophe in front. Numbers remain numbers."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if is_formula and not _NUMBER.fullmatch(cell) else cell


_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
