"""What views are drawn with: sections of a text and a table, in widgets that keep their place while rows change."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Static

MAX_SECTIONS = 3
_MIN_HEIGHT = 12
"""Lines from which on the last table scrolls under its header; with fewer, all sections scroll together."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    number: bool = False
    most: int | None = None
    """Maximum width in cells; None for the texts' width."""


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

    def reset(self) -> None:
        """Remove all rows and columns."""
        self.clear(columns=True)
        self._shown = ()


class Sections(VerticalScroll):
    """The sections of a view; the last table has the cursor and takes the remaining lines."""

    DEFAULT_CSS: ClassVar[str] = """
    Sections { height: 1fr; scrollbar-size-vertical: 1; }
    Sections Static { height: auto; }
    TableWidget, TableWidget:focus, TableWidget > .datatable--header, TableWidget:ansi > .datatable--header,
    TableWidget > .datatable--even-row, TableWidget > .datatable--odd-row { background: ansi_default; }
    TableWidget { height: auto; max-height: 1000; scrollbar-size: 0 0; margin-bottom: 1; }
    TableWidget.last { height: 1fr; scrollbar-size: 0 1; margin-bottom: 0; }
    """

    def compose(self) -> ComposeResult:
        """Compose the widgets of as many sections as a view can have."""
        for _ in range(MAX_SECTIONS):
            yield Static()
            yield TableWidget()

    def show(self, sections: Sequence[Section]) -> None:
        """Show sections in place of those before."""
        is_tall = self.size.height >= _MIN_HEIGHT
        last = max((number for number, section in enumerate(sections) if section.table is not None), default=None)
        for number, (static, table) in enumerate(zip(self.query(Static), self.query(TableWidget), strict=True)):
            text, rows = sections[number] if number < len(sections) else Section(None)
            static.display, table.display = text is not None, rows is not None
            static.update(text or "")
            if rows is not None:
                table.fill(rows)
            table.can_focus = table.show_cursor = number == last and is_tall
            table.set_class(table.can_focus, "last")

    def reset(self) -> None:
        """Forget columns, cursor and scroll position."""
        self.scroll_home(animate=False)
        for table in self.query(TableWidget):
            table.reset()

    def focus_rows(self) -> None:
        """Give the keys to the table with the cursor, or to the whole if there is none."""
        focusable = [table for table in self.query(TableWidget) if table.can_focus]
        (focusable[0] if focusable else self).focus(scroll_visible=False)


def _cell(value: str | Text, column: Column) -> Text:
    cell = value.copy() if isinstance(value, Text) else Text(value)
    cell.justify = "right" if column.number else "left"
    if column.most is not None:
        cell.truncate(column.most, overflow="ellipsis")
    return cell
