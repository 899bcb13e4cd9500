"""The view interface, and tables, texts and bars that fit a terminal."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from league.queries.live_league import LiveLeague
from league.queries.pages import QueryHandler, RequestParams
from schemas.errors import escape_unprintable

MAX_SECTIONS = 3
_BAR_BLOCKS = " ▏▎▍▌▋▊▉█"


async def query_page(league: LiveLeague, handler: QueryHandler, **parameters: Any) -> Any:
    """Run the query behind a web page; parameters that are None are left out. Raises ``LeagueError`` as it does."""
    params = {name: str(value) for name, value in parameters.items() if value is not None}
    return await handler(league, RequestParams(params, {}))


class ViewOptions(NamedTuple):
    """Size, filter and order of a view."""

    width: int
    """Cells of a line."""
    height: int
    """Visible lines."""
    search: str = ""
    """Text that rows must contain; case-insensitive."""
    sort: str = ""
    """Field to sort by; empty for the view's own order."""
    backwards: bool = False

    def select_rows(self, rows: Sequence[dict[str, Any]], *fields: str) -> list[dict[str, Any]]:
        """The rows with the searched text in one of ``fields``, in the chosen order."""
        words = self.search.lower()
        selected = [row for row in rows if any(words in str(row.get(field, "")).lower() for field in fields)]
        if self.sort:
            # Missing values come last in both orders.
            present = [row for row in selected if row.get(self.sort) is not None]
            # Numbers are sorted from the largest.
            down = bool(present) and not isinstance(present[0][self.sort], str)
            present.sort(key=lambda row: row[self.sort], reverse=down != self.backwards)
            selected = present + [row for row in selected if row.get(self.sort) is None]
        return selected


class Column(NamedTuple):
    """A column of a table."""

    name: str
    number: bool = False
    most: int | None = None
    """Maximum width in cells; None for that of the texts."""


class Table(NamedTuple):
    """Rows of cells, untrusted texts among them: markup is not interpreted."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]


class Section(NamedTuple):
    """A part of a view: a text, and a table below it."""

    text: RenderableType | None
    table: Table | None = None


class TableWidget(DataTable[Text]):
    """A table that keeps its cursor and scroll position while its rows change."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row")
        self._shown: Sequence[Column] = ()

    def fill(self, table: Table) -> None:
        """Show the rows of a table."""
        if table.columns != self._shown:
            self.clear(columns=True)
            self._shown = table.columns
            for number, column in enumerate(table.columns):
                self.add_column(_cell(column.name, column), key=str(number))
        for number in reversed(range(len(table.rows), self.row_count)):
            self.remove_row(str(number))
        for number, row in enumerate(table.rows):
            cells = [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
            if number >= self.row_count:
                self.add_row(*cells, key=str(number))
                continue
            for place, cell in enumerate(cells):
                if cell != self.get_cell_at(Coordinate(number, place)):
                    self.update_cell_at(Coordinate(number, place), cell, update_width=True)

    def forget(self) -> None:
        """Remove all rows and columns."""
        self.clear(columns=True)
        self._shown = ()


def _cell(value: str | Text, column: Column) -> Text:
    cell = value.copy() if isinstance(value, Text) else Text(value)
    cell.justify = "right" if column.number else "left"
    if column.most is not None:
        cell.truncate(column.most, overflow="ellipsis")
    return cell


class View(ABC):
    """A tab of the terminal application."""

    title: ClassVar[str]
    """Title of the tab, one word."""
    sorts: ClassVar[Sequence[str]] = ()
    """Fields that rows can be sorted by."""
    pace_s: ClassVar[float] = 1.0
    """Minimum interval between two refreshes."""

    @abstractmethod
    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """Load the data as of the event ``at``, or of now; raises ``LeagueError`` where they are not available."""

    @abstractmethod
    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """Render the view in at most ``MAX_SECTIONS``; the last table has the cursor and takes the remaining lines."""


def single_line(text: str, most: int = 200) -> str:
    """Untrusted text as one line of visible characters, without escape sequences or changes of direction.

    A text wider than ``most`` cells is cut and ends in an ellipsis.
    """
    # Cut before escaping: escapes make a text up to six times as long, and it may have megabytes.
    escaped = escape_unprintable(text[: most + 1])
    return escaped if cell_len(escaped) <= most else set_cell_size(escaped, most - 1) + "…"


def share_bar(share: float | None, width: int) -> str:
    """A share of 1 as a bar with a resolution of an eighth of a cell."""
    eighths = round(8 * width * min(max(share or 0.0, 0.0), 1.0))
    return ("█" * (eighths // 8) + _BAR_BLOCKS[eighths % 8].strip()).ljust(width)
