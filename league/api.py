"""The public Python interface: ``league.open`` reads a run, ``league.up`` trains one.

Built from ``league.queries`` alone, which the commands use too. Calls block, also inside a running event loop as in a
notebook: asynchronous work runs in a thread with a loop of its own. A stopped run's broker is started for each call
that needs it, and ends with the call.

One module: everything that a user of the interface may call is on one page.
"""

import asyncio
import importlib.util
import os
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from functools import lru_cache, partial
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from league.analysis.leaderboard import LeaderboardEntry
from league.history.lineage import LineageNode, resolve_agent, trace_lineage
from league.log.base import RecordedEvent
from league.log.jetstream import find_league
from league.projections.query import QueryLimits
from league.projections.tables import sql_identifier, sql_literal
from league.queries.leaderboard import leaderboard_heading, load_leaderboard
from league.queries.matches import MatchReplay, find_match, load_record, match_replay
from league.queries.notebook import Match, Table, struct_table
from league.queries.tables import open_tables, query_run
from league.run import DEFAULT_RUN, Run
from schemas.config import LeagueConfig, to_builtins
from schemas.config.base import toml_document
from schemas.errors import LeagueError, NoLeagueError, UsageError, format_choices, translate_missing_package
from schemas.events import EVENT_TYPES, Event
from schemas.ids import digest, split_agent
from schemas.interpreter import module_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from league.queries.plots import PlotKind

__all__ = ["Match", "RunReader", "Table", "__version__", "open_run", "up"]
__version__ = installed_version("event-sourced-league")
At = int | str | datetime | None
"""A sequence, a time (text in ISO 8601 or a datetime; UTC unless it has an offset), or None for now."""
T = TypeVar("T")


def open_run(source: str | os.PathLike[str] = DEFAULT_RUN, *, league: str | None = None) -> "RunReader":
    """Open a run for reading.

    Args:
        source: Folder of a run, live or stopped; or the address of a broker, ``nats://host:4222`` (a cluster's with
            commas). Credentials are those of ``LEAGUE_CREDS`` and ``LEAGUE_CA``.
        league: Name of the league, if the broker holds several.

    Raises:
        NoLeagueError: no league was opened there.
    """
    text = os.fspath(source)
    if "://" not in text:
        run = Run(Path(text), name=league)
        if run.nats is None and not run.exists():
            raise NoLeagueError(f"{text}: no league here; expected the folder of a run, or an address nats://…")
        return RunReader(run)
    # The tables of a broker's league lie in a folder of their own: those of another one would not fit.
    run = Run(DEFAULT_RUN / "remote" / digest(f"{text} {league or ''}".encode())[:16], nats=text, name=league)
    _wait(_find_league(run))
    run.make_folder()
    return RunReader(run)


async def _find_league(run: Run) -> None:
    """Check that a broker holds the league; without a name, take its only one."""
    async with run.connect("command") as client:
        name = await find_league(client, run.name or "*")
    if name is None:
        which = f"no league {run.name!r}" if run.name else "no league"
        raise NoLeagueError(f"{run.nats}: {which} was opened here; expected the address of one that was")
    run.name = name


def up(
    config: str | os.PathLike[str] | LeagueConfig | Mapping[str, Any] | None = None,
    run: str | os.PathLike[str] = DEFAULT_RUN,
) -> "RunReader":
    """Open or continue a league, and train it to its end on this machine, as ``league up`` does.

    Args:
        config: A TOML file, or the settings themselves; None continues the league of the folder.
        run: The run's folder.

    Raises:
        LeagueError: the command failed; the message says why, or holds the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(config, LeagueConfig | Mapping):
            settings = to_builtins(config) if isinstance(config, LeagueConfig) else config
            config = Path(folder) / "league.toml"
            config.write_text(toml_document(settings), encoding="utf-8")
        options = ["--config", os.fspath(config)] if config is not None else []
        # A process of its own: workers' signals belong to a main thread, and this package must not import the command.
        command = module_command("ui", "up", "--run", os.fspath(run), *options)
        _run_command(command)
    return open_run(run)


def _run_command(command: list[str]) -> None:
    """Run a command and print its output as it comes; an interrupt stops it as Ctrl-C does in a terminal."""
    tail: list[str] = []
    # Notebooks ask for colours, with which the command would redraw its lines as a terminal does.
    environment = {**{key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}, "NO_COLOR": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                tail = [*tail, line][-20:]
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode:
        _, is_explained, reason = f"\n{''.join(tail)}".rpartition("\nerror: ")
        name = " ".join(command[command.index("ui") + 1 :][:2]).partition(" --")[0]
        raise LeagueError(
            reason.strip() if is_explained else f"league {name}: exit code {process.returncode}\n{''.join(tail)}"
        )


class RunReader:
    """A run, as of the newest event at each call. Nothing is written to its history.

    All methods raise ``LeagueError`` with a message that says where, what was found and what was expected.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"league.open({self._run.nats or str(self._run.folder)!r})"

    def _repr_html_(self) -> str:
        return self.leaderboard()._repr_html_()

    def leaderboard(self, at: At = None, system: str | None = None, *, all_games: bool = False) -> Table:
        """Agents, best first, by Bradley–Terry rating with 95 % interval, beside their online rating.

        Args:
            at: Sequence or time; None for now.
            system: A recorded rating system to rank by, such as ``elo``; None for Bradley–Terry ratings.
            all_games: One board over all games and environments, each with the same weight.
        """
        board = _wait(load_leaderboard(self._run, _place(at), system, all_games=all_games))
        return struct_table(LeaderboardEntry, board.rows, title=leaderboard_heading(board).strip())

    def elo(self, at: At = None, system: str | None = None) -> Table:
        """Ratings by gradient step, as ``figure`` draws them: a row per version; other agents have no step."""
        rows = []
        for row in _wait(load_leaderboard(self._run, _place(at), system)).rows:
            policy, step = split_agent(row.agent) or (None, None)
            rows.append(
                RatingPoint(policy, step, row.agent, row.rating, row.low, row.high, row.online, row.rated_games)
            )
        return struct_table(RatingPoint, sorted(rows, key=lambda row: (row.policy or "", row.step or 0, row.agent)))

    def figure(self, kind: "PlotKind" = "elo", *, at: At = None) -> "Figure":
        """A Matplotlib figure, as ``league plot KIND`` draws it; by default of Elo over training."""
        # Imported here: Matplotlib takes long to load.
        with translate_missing_package():
            from league.plots.render import png_bytes
            from league.queries.plots import draw_picture

        picture = _wait(draw_picture(self._run, kind, _place(at)))
        # A notebook shows it even where pyplot, which would see to that, was not imported.
        picture.figure.__dict__["_repr_png_"] = partial(png_bytes, picture)
        return picture.figure

    def sql(self, statement: str, *, timeout_s: float = 60.0, memory: str = "1GB") -> Table:
        """Rows of one statement that reads, over the tables that ``league sql "SHOW TABLES"`` lists."""
        # Arrow keeps the types of all columns and is faster; without it, rows hold Python's values.
        arrow = importlib.util.find_spec("pyarrow") is not None
        return Table(_wait(query_run(self._run, statement, QueryLimits(timeout_s, memory, arrow=arrow))))

    @property
    def config(self) -> dict[str, Any]:
        """The settings in force, as nested dicts with the keys of a league's TOML file."""
        (row,) = self.sql("SELECT config::VARCHAR AS config FROM configuration")
        settings: dict[str, Any] = msgspec.json.decode(row["config"])
        return settings

    def agents(self) -> Table:
        """All agents that ever joined, in that order, with how they came and whether they are drawn as opponents."""
        return self.sql("FROM agents ORDER BY joined_sequence, agent")

    def steps(self, policy: str | None = None) -> Table:
        """Gradient steps, oldest first, with a column per metric; steps that lack one have None there.

        Args:
            policy: Only the steps of this policy.
        """
        known = [] if policy is None else self.sql("SELECT DISTINCT policy FROM policies ORDER BY policy")["policy"]
        if policy is not None and policy not in known:
            raise UsageError(f"policy {policy!r}: not trained in this run; expected {format_choices(known, policy)}")
        where = "" if policy is None else f"WHERE policy = {sql_literal(policy)}"
        names = self.sql(f"SELECT DISTINCT unnest(map_keys(metrics)) AS name FROM gradient_steps {where} ORDER BY name")
        columns = ["policy", "step", "sequence", "time", "len(matches) AS matches", "accepted", "stale", "skipped"]
        for name in names["name"]:
            if name not in columns:
                columns.append(f"metrics[{sql_literal(name)}] AS {sql_identifier(name)}")
        return self.sql(f"SELECT {', '.join(columns)} FROM gradient_steps {where} ORDER BY sequence")

    def adapter(self, agent: str, folder: str | os.PathLike[str]) -> Path:
        """Write an agent's adapter as a folder in PEFT's format, as ``league model export`` does; returns the folder.

        Args:
            agent: A checkpoint or published version, such as ``main@20``.
            folder: The folder to make; it must not exist.
        """
        broker = ["--nats", self._run.nats] if self._run.nats else []
        broker += ["--league", self._run.name] if self._run.nats and self._run.name else []
        _run_command(
            module_command("ui", "model", "export", agent, os.fspath(folder), "--run", str(self._run.folder), *broker)
        )
        return Path(folder)

    def matches(self) -> Table:
        """All finished matches, oldest first; voided ones have a ``voided_sequence``."""
        return self.sql("FROM matches ORDER BY sequence")

    def decisions(self, *, step: int | None = None, match: str | None = None) -> Table:
        """Decisions of the league's models: prompt, reply, move, and the credit that they were trained with.

        Args:
            step: Only the decisions that this gradient step accounted for; the lowest advantage first.
            match: Only the decisions of this match, in order.
        """
        chosen = [] if step is None else [f"step = {step:d}"]
        chosen += [] if match is None else [f"match_id = {sql_literal(match)}"]
        where = f"WHERE {' AND '.join(chosen)} " if chosen else ""
        order = "sequence, clock, call, seat" if step is None else "advantage, sequence, call"
        return self.sql(f"FROM decisions {where}ORDER BY {order}")

    def match(self, match_id: str) -> Match:
        """A match with its events, seats and moves; a notebook shows it turn by turn under a slider."""
        return _wait(self._load_match(match_id))

    async def _load_match(self, match_id: str) -> Match:
        async with self._run.open_log() as history:
            lookup = await find_match(self._run, history, match_id)
            try:
                record = await load_record(self._run, history, lookup, None)
                assert lookup.result is not None
                return Match(lookup, record, match_replay(record, lookup.result.game), "")
            except LeagueError as error:
                return Match(lookup, None, MatchReplay(), str(error))

    def events(self, *types: type[Event] | str, first: int = 1) -> Iterator[RecordedEvent]:
        """The history in order, up to the newest event when the call was made.

        Args:
            types: Only events of these types, such as ``"MatchFinished"`` or the class; all by default.
            first: Sequence to begin at.

        Yields:
            Events with ``sequence``, ``time_ns``, ``producer``, and the typed ``event``, which is None where this
            version cannot read it.
        """
        names = {kind if isinstance(kind, str) else kind.__name__ for kind in types}
        for name in sorted(names - set(EVENT_TYPES)):
            raise UsageError(f"events: no type {name!r}; expected {format_choices(EVENT_TYPES, name)}")
        return self._read_events(names, first)

    def _read_events(self, names: set[str], first: int) -> Iterator[RecordedEvent]:
        stack = AsyncExitStack()
        try:
            batches = _wait(self._open_batches(stack, first))
            while (batch := _wait(_next_batch(batches))) is not None:
                yield from (recorded for recorded in batch if not names or type(recorded.event).__name__ in names)
        finally:
            _wait(stack.aclose())

    async def _open_batches(self, stack: AsyncExitStack, first: int) -> AsyncIterator[list[RecordedEvent]]:
        history = await stack.enter_async_context(self._run.open_log())
        return history.batches(first, await history.last_sequence())

    def lineage(self, agent: str) -> Table:
        """The ancestors of an agent, from the base model: each with the gradient steps since the one before.

        ``agent`` is a name, or the beginning of an adapter's digest. ``tainted`` says that a step used matches
        that were voided later.
        """
        rows = []
        for node in _wait(self._trace_lineage(agent)):
            first, last = (node.steps[0].step, node.steps[-1].step) if node.steps else (None, None)
            matches = sum(len(step.matches) for step in node.steps)
            origin = (node.agent, node.kind, node.reason, node.adapter, node.sequence)
            rows.append(LineageRow(*origin, first, last, matches, node.tainted))
        return struct_table(LineageRow, rows)

    async def _trace_lineage(self, agent: str) -> list[LineageNode]:
        async with open_tables(self._run) as tables:
            return (await trace_lineage(tables.query, await resolve_agent(tables.query, agent))).stations


class RatingPoint(msgspec.Struct, frozen=True):
    """A row of ``RunReader.elo``."""

    policy: str | None
    step: int | None
    agent: str
    rating: float | None
    low: float | None
    high: float | None
    online: float
    games: int


class LineageRow(msgspec.Struct, frozen=True):
    """A row of ``RunReader.lineage``."""

    agent: str
    kind: str
    reason: str
    adapter: str | None
    sequence: int | None
    first_step: int | None
    last_step: int | None
    matches: int
    tainted: bool


def _place(at: At) -> str | None:
    if isinstance(at, datetime):
        return at.isoformat()
    return None if at is None else str(at)


async def _next_batch(batches: AsyncIterator[list[RecordedEvent]]) -> list[RecordedEvent] | None:
    return await anext(batches, None)


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """The result of work on the background loop; an interrupt cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _background_loop(os.getpid()))
    try:
        return future.result()
    except BaseException:  # raised again; an interruption cancels the work too
        future.cancel()
        raise


@lru_cache(maxsize=1)
def _background_loop(process: int) -> asyncio.AbstractEventLoop:
    """The event loop of a process, in a daemon thread; a forked process has a loop of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"league-{process}", daemon=True).start()
    return loop
