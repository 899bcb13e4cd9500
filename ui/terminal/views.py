"""The view interface, and texts and bars that fit a terminal."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size

from league.queries.live_league import LiveLeague
from league.queries.pages import QueryHandler, RequestParams
from schemas.errors import escape_unprintable
from ui.terminal.sections import Section

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
