"""The terminal application: keys, time and refresh."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from league.queries.live_league import LiveLeague, Viewer
from league.queries.pages.overview import running
from schemas.errors import LeagueError
from ui.terminal.boards import LeaderboardView, OpponentsView, PayoffView, RatingsView
from ui.terminal.overview import EventsView, OverviewView, WorkersView
from ui.terminal.sections import Column, Section, Sections, Table
from ui.terminal.training import TrainingView
from ui.terminal.views import View, ViewOptions, query_page, share_bar, single_line

_FRAME_INTERVAL_S = 0.5
_IDLE_REFRESH_S = 2.0
"""Refresh interval without events: heartbeats are not events."""
_PROCESSES_INTERVAL_S = 5.0
"""Interval between two counts of the league's running processes."""
_REST_FACTOR = 4
"""Ratio of the pause after a refresh to the duration of its queries."""
_SLIDER_STEPS = 40
_SLIDER_WIDTH = 12

_KEY_HELP = (
    ("1 … 9, Tab", "another view"),
    ("[  ]", "back and forward in time"),
    ("{  }", "by one event"),
    ("n", "now"),
    ("/", "filter by a text; Esc clears it"),
    ("s  S", "sort by another column; reverse the order"),
    ("↑ ↓ ← → PgUp PgDn", "scroll"),
    ("?", "this help"),
    ("q, Ctrl-C", "leave"),
)


class DashboardApp(App[None]):
    """A league in the terminal."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layers: base; }
    #head, #tabs, #foot { height: 1; }
    #search { height: 1; border: none; padding: 0; display: none; }
    #search.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("question_mark", "help"),
        Binding("left_square_bracket", "step(-1)"),
        Binding("right_square_bracket", "step(1)"),
        Binding("left_curly_bracket", "event(-1)"),
        Binding("right_curly_bracket", "event(1)"),
        Binding("n", "now"),
        Binding("slash", "search"),
        Binding("escape", "leave"),
        Binding("s", "sort"),
        Binding("S,upper_s", "backwards"),
        Binding("tab", "next(1)", priority=True),
        Binding("shift+tab", "next(-1)", priority=True),
        *(Binding(str(number), f"view({number - 1})") for number in range(1, 10)),
    ]

    def __init__(self, league: LiveLeague) -> None:
        # The terminal's own colours fit its theme, dark or light.
        super().__init__(ansi_color=True)
        self._league = league
        # Held, not looked up: a timer may still fire when the screen's widgets are already gone.
        self._head, self._tabs, self._foot = Static(id="head"), Static(id="tabs"), Static(id="foot")
        self._body = Sections(id="body")
        self._search_box = Input(id="search", placeholder="filter by this text", compact=True)
        kinds = (
            *(OverviewView, TrainingView, LeaderboardView, RatingsView, PayoffView),
            *(OpponentsView, WorkersView, EventsView),
        )
        self.views: list[View] = [kind() for kind in kinds]
        self._view_index = 0
        self.as_of: int | None = None
        """Sequence of the event at which the league is shown; None for the present."""
        self._search = ""
        self._sort_orders = [(0, False)] * len(self.views)
        self._help_visible = False
        self._view_data: Any = None
        self._view_error = ""
        self._view_changed = asyncio.Event()
        self._processes: int | None = None
        """Number of the league's running processes; None until it is known."""

    def compose(self) -> ComposeResult:
        """Compose header, tabs, the view, the search box and a line of keys."""
        yield from (self._head, self._tabs, self._body, self._search_box, self._foot)

    def on_mount(self) -> None:
        """Start the refresh."""
        self.theme = "ansi-dark"
        self.run_worker(self._refresh_loop())
        self.run_worker(self._count_processes())
        self.set_interval(_FRAME_INTERVAL_S, self._update_frame)
        self._update_frame()

    def on_resize(self) -> None:
        """Redraw at the new size."""
        self.call_after_refresh(self._redraw)

    @property
    def view(self) -> View:
        """The current view."""
        return self.views[self._view_index]

    # Refresh and drawing

    async def _refresh_loop(self) -> None:
        with self._league.subscribe() as viewer:
            while True:
                self._view_changed.clear()
                began = time.monotonic()
                # Keys interrupt the pause; events wait for its end.
                if await self._run_unless_changed(self._load_view()):
                    rest_s = max(self.view.pace_s, _REST_FACTOR * (time.monotonic() - began))
                    if await self._run_unless_changed(asyncio.sleep(rest_s)):
                        await self._run_unless_changed(self._wait_for_events(viewer))

    async def _count_processes(self) -> None:
        while True:
            # While the broker is away, the header shows that alone.
            with contextlib.suppress(LeagueError):
                self._processes = (await query_page(self._league, running))["processes"]
            await asyncio.sleep(_PROCESSES_INTERVAL_S)

    async def _run_unless_changed(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run work to its end or until another view or time is chosen; return whether it was completed."""
        task, changed = asyncio.create_task(work), asyncio.create_task(self._view_changed.wait())
        try:
            await asyncio.wait([task, changed], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            task.cancel()
            changed.cancel()

    async def _wait_for_events(self, viewer: Viewer) -> None:
        if self.as_of is not None:
            # The past does not change: wait for a key.
            await asyncio.Event().wait()
        await viewer.next_messages(_IDLE_REFRESH_S)

    async def _load_view(self) -> None:
        view, at = self.view, self.as_of
        try:
            page, problem = await view.load(self._league, at), ""
        except LeagueError as error:
            page, problem = None, str(error)
        if (view, at) == (self.view, self.as_of):
            self._view_data, self._view_error = page, problem
            self._redraw()

    def _redraw(self) -> None:
        self._update_body()
        self._update_frame()

    def _update_body(self) -> None:
        size = self._body.size
        self._body.show(self._sections(max(size.width - 1, 20), size.height))
        if not self._search_box.has_focus:
            self._body.focus_rows()

    def _sections(self, width: int, height: int) -> Sequence[Section]:
        if self._help_visible:
            views = ", ".join(f"{number + 1} {view.title}" for number, view in enumerate(self.views))
            return [Section(Text(f"views: {views}\n"), Table((Column("key"), Column("what it does")), _KEY_HELP))]
        if self._view_error:
            return [Section(Text(single_line(self._view_error, 600)))]
        if self._view_data is None:
            return [Section(Text("loading …", "dim"))]
        number, backwards = self._sort_orders[self._view_index]
        sort = ("", *self.view.sorts)[number]
        return self.view.draw(self._view_data, ViewOptions(width, height, self._search, sort, backwards))

    def _update_frame(self) -> None:
        self._head.update(self._header_text())
        self._tabs.update(self._tabs_text())
        number, backwards = self._sort_orders[self._view_index]
        foot = [
            *([f"filter {single_line(self._search, 20)!r}"] if self._search else []),
            *([f"by {self.view.sorts[number - 1]}{', reversed' if backwards else ''}"] if number else []),
            "? help  q quit  / search  s sort  [ ] time  n now",
        ]
        self._foot.update(Text("  ".join(foot), "dim", no_wrap=True, overflow="ellipsis"))

    def _header_text(self) -> Text:
        log, newest = self._league.log, self._league.position
        line = Text(f"{single_line(log.league, 30)}  ", "bold", no_wrap=True, overflow="ellipsis")
        if not log.client.is_connected:
            return line.append(" connection to the broker lost; reconnecting ", "reverse")
        if self.as_of is None:
            at_rest = "training done  " if self._league.summary()["finished"] else "not running  "
            states = {None: "", 0: at_rest}
            return line.append(f"{states.get(self._processes, 'live  ')}event {newest:,}", "not bold")
        slider = share_bar(self.as_of / max(newest, 1), _SLIDER_WIDTH).replace(" ", "░")
        return line.append(f"PAST  event {self.as_of:,} of {newest:,}  {slider}", "reverse")

    def _tabs_text(self) -> Text:
        titles = [f"{number + 1} {view.title}" for number, view in enumerate(self.views)]
        # If space is short, the other tabs show only their number.
        is_wide = self.size.width > sum(map(len, titles)) + len(titles)
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, title in enumerate(titles):
            if number == self._view_index:
                line.append(f"[{title}]", "bold")
            else:
                line.append(f" {title if is_wide else title[0]}")
        return line

    # Keys

    def _reload_view(self) -> None:
        self._view_data = None
        self._view_error = ""
        self._help_visible = False
        self._view_changed.set()
        self._redraw()

    def action_view(self, number: int) -> None:
        """Show another view."""
        if number < len(self.views):
            self._view_index = number
            self._body.reset()
            self._reload_view()

    def action_next(self, by: int) -> None:
        """Show the next or previous view."""
        self.action_view((self._view_index + by) % len(self.views))

    def action_step(self, by: int) -> None:
        """Move the slider by one step."""
        self.action_event(by * max(self._league.position // _SLIDER_STEPS, 1))

    def action_event(self, by: int) -> None:
        """Move by some events; the newest event is the present."""
        newest = self._league.position
        at = max((self.as_of if self.as_of is not None else newest) + by, 1)
        self.as_of = at if at < newest else None
        self._reload_view()

    def action_now(self) -> None:
        """Go back to the live view."""
        self.as_of = None
        self._reload_view()

    def action_help(self) -> None:
        """Show the keys, or hide them."""
        self._help_visible = not self._help_visible
        self._update_body()

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, by none."""
        number, backwards = self._sort_orders[self._view_index]
        self._sort_orders[self._view_index] = (number + 1) % (len(self.view.sorts) + 1), backwards
        self._redraw()

    def action_backwards(self) -> None:
        """Reverse the order."""
        number, backwards = self._sort_orders[self._view_index]
        self._sort_orders[self._view_index] = number, not backwards
        self._redraw()

    def action_search(self) -> None:
        """Open the search box."""
        box = self._search_box
        box.add_class("open")
        box.focus()

    def action_leave(self) -> None:
        """Close the help, or clear the search."""
        if self._help_visible:
            self.action_help()
            return
        self._search_box.value = ""
        self._close_search()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter rows by the text."""
        self._search = event.value
        self._redraw()

    def on_input_submitted(self) -> None:
        """Close the search box and keep the filter."""
        self._close_search()

    def _close_search(self) -> None:
        self._search_box.remove_class("open")
        self._body.focus_rows()


async def run_dashboard(league: LiveLeague) -> int:
    """Show a league, which the caller keeps up to date, until the user quits; return the exit status."""
    app = DashboardApp(league)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
    await app.run_async()
    return app.return_code or 0
