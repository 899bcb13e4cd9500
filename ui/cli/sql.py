"""``league sql`` and ``export``: the history as tables, for SQL and as files.

The prompt takes statements up to their semicolons, from a terminal or a pipe. The projection's file is open only while
a statement runs, so an open prompt does not lock it.
"""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from typer import Argument, Option

from league.projections.query import QueryLimits, QueryResult
from league.queries.tables import TABLE_COMMENTS, query_history, query_run, unreadable_warning
from league.queries.terminal import Console
from league.queries.text_table import render_rows
from league.run import Run
from schemas.errors import LeagueError, UsageError
from ui.cli.options import JsonOption
from ui.output import format_bytes, print_error, print_json, terminal_width

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from league.log.jetstream import JetStreamLog

_HELP = """\
Statements end with a semicolon and may take several lines; SHOW TABLES; and DESCRIBE matches; list tables and columns.
.tables lists tables and views    .help shows this    .quit leaves, as Ctrl-D does    Ctrl-C clears the line
"""

_COMMANDS = (".tables", ".help", ".quit")

_TABLES = f"SELECT name, comment FROM ({TABLE_COMMENTS}) ORDER BY name"

_COMPLETIONS = """
    SELECT table_name FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal
    UNION SELECT column_name FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal
    UNION SELECT function_name FROM duckdb_functions() WHERE schema_name = 'main' AND (NOT internal OR
             function_name IN ('count', 'sum', 'avg', 'min', 'max', 'median', 'round', 'unnest', 'arg_max'))
    UNION SELECT upper(keyword_name) FROM duckdb_keywords() WHERE keyword_category = 'reserved'
                 AND keyword_name ~ '^[a-z]+$'
    UNION SELECT unnest(['BY', 'IS', 'LIKE', 'BETWEEN', 'JOIN', 'LEFT', 'EXISTS', 'OVER', 'PARTITION', 'EXPLAIN'])
"""
_TOKEN = re.compile(r"""'[^']*'?|"[^"]*"?|--[^\n]*|/\*.*?(?:\*/|\Z)|.""", re.DOTALL)
"""A quotation or comment, which without an end continues on the next line; or any other character."""


class RowFormat(StrEnum):
    """Format of printed rows."""

    table = "table"
    csv = "csv"
    json = "json"


async def sql(
    statement: Annotated[
        str | None, Argument(help="A query; `SHOW TABLES` lists the tables. Without one: a prompt.")
    ] = None,
    *,
    run: Run,
    form: Annotated[RowFormat, Option("--format", help="Format of the rows.")] = RowFormat.table,
    as_json: JsonOption = False,
    timeout_s: Annotated[float, Option("--timeout", help="Seconds that a query may run.")] = 30.0,
    memory: Annotated[str, Option(help="Memory that a query may use, e.g. 512MB or 4GB.")] = "1GB",
) -> None:
    """Query the history in SQL; read-only, over tables rebuilt from the events.

    Without a statement, a terminal gets a prompt; otherwise statements are read from standard input, each up to its
    semicolon.
    """
    how = "json" if as_json else form.value
    limits = QueryLimits(timeout_s, memory)
    if statement is None:
        await SqlPrompt(run, how, limits).run(sys.stdin)
        return
    result = await query_run(run, statement, limits)
    if text := unreadable_warning(result):
        print(text, file=sys.stderr)
    print(render_rows(result.columns, result.types, result.rows, how, terminal_width()), end="")


async def export(
    to: Annotated[Path, Option(help="Folder; empty or not existing yet.")], *, run: Run, as_json: JsonOption = False
) -> None:
    """Write every table as partitioned Parquet files, for DuckDB or pandas."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"--to {to}: is not empty; expected a folder that is empty or not there yet")
    from league.projections.export import export_tables
    from league.queries.tables import update_projection

    def report(table: str, rows: int, seconds: float) -> None:
        print(f"{table:<20} {rows:>12,} rows {seconds:>7.1f} s", file=sys.stderr, flush=True)

    async with run.open_log() as history:
        await update_projection(run, history, decisions=True)
    exported = export_tables(run.projection, to, report)
    if as_json:
        print_json(exported)
    else:
        print(f"{to}: {len(exported.tables)} tables up to event {exported.position:,}, {format_bytes(exported.bytes)}")


def split_statements(text: str) -> tuple[list[str], str]:
    """Complete statements, and the rest; semicolons in quotes and comments do not end a statement."""
    ends = [token.start() for token in _TOKEN.finditer(text) if token[0] == ";"]
    starts = [0, *(end + 1 for end in ends)]
    *statements, rest = (text[start:end].strip() for start, end in zip(starts, [*ends, len(text)], strict=True))
    return list(filter(None, statements)), rest


class SqlPrompt:
    """The prompt of a run. ``form`` is ``table``, ``csv`` or ``json``."""

    def __init__(self, run: Run, form: str, limits: QueryLimits) -> None:
        self._run = run
        self._form = form
        self._limits = limits
        self._errors = Console(stderr=True)
        self._last_warning = ""
        self._is_terminal = False

    async def run(self, source: TextIO) -> None:
        """Answer until the input ends.

        Raises:
            LeagueError: a statement from a pipe failed; those after it are not run.
        """
        async with self._run.open_log("sql") as history:
            if not source.isatty():
                for statement in _read_piped(source):
                    await self._print_answer(history, statement)
                return
            self._is_terminal = True
            print(_HELP, end="")
            async for statement in self._read_interactive(history):
                await self._print_answer(history, statement)

    async def _read_interactive(self, history: "JetStreamLog") -> AsyncIterator[str]:
        try:
            words = [word for (word,) in (await query_history(self._run, history, _COMPLETIONS)).rows]
        except LeagueError as error:
            print_error(error)
            words = []
        session = _make_session(words, self._run.folder / "sql_history")
        while True:
            try:
                text = (await session.prompt_async("league> ")).strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text == ".quit":
                return
            statements, rest = split_statements(text)
            for statement in [*statements, rest]:
                if statement:
                    yield statement

    async def _print_answer(self, history: "JetStreamLog", statement: str) -> None:
        if statement == ".help":
            print(_HELP, end="")
            return
        try:
            result = await self._run_interruptible(history, _TABLES if statement == ".tables" else statement)
        except asyncio.CancelledError:
            self._errors.print("interrupted", style="red")
            return
        except LeagueError as error:
            if not self._is_terminal:
                raise
            print_error(error)
            return
        if (text := unreadable_warning(result)) != self._last_warning:
            print(text, file=sys.stderr)
            self._last_warning = text
        print(render_rows(result.columns, result.types, result.rows, self._form, terminal_width()), end="", flush=True)

    async def _run_interruptible(self, history: "JetStreamLog", sql: str) -> QueryResult:
        """Run a statement; Ctrl-C at a terminal ends the statement and its process, not the prompt."""
        asking = asyncio.ensure_future(query_history(self._run, history, sql, self._limits))
        if self._is_terminal:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asking.cancel)
        try:
            return await asking
        finally:
            if self._is_terminal:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def _read_piped(source: Iterable[str]) -> Iterator[str]:
    """Statements of a pipe, each as soon as it is complete."""
    text = ""
    for line in source:
        if not text.strip() and line.strip() in _COMMANDS:
            if line.strip() == ".quit":
                return
            yield line.strip()
            continue
        statements, text = split_statements(text + line)
        yield from statements
        text += "\n" if text else ""
    if text.strip():
        yield text.strip()


def _make_session(words: Sequence[str], history: Path) -> "PromptSession[str]":
    """A prompt that completes words, on which Enter submits a complete statement or a command."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import SqlLexer

    keys = KeyBindings()

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if not text.strip() or text.strip() in _COMMANDS or (";" in text and not split_statements(text)[1]):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return PromptSession(
        history=FileHistory(str(history)),
        lexer=PygmentsLexer(SqlLexer),
        completer=WordCompleter(sorted({*words, *_COMMANDS}), ignore_case=True),
        auto_suggest=AutoSuggestFromHistory(),
        complete_while_typing=False,
        multiline=True,
        key_bindings=keys,
        prompt_continuation="   ... ",
    )
