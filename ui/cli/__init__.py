"""The ``league`` command. Each module holds the commands of one subject; ``COMMANDS`` names all of them.

- ``machines``      ``up``, ``worker``, ``join``: processes; ``auth``, ``nats``: credentials, brokers
- ``arena``         ``arena``: episodes in one process, without a league
- ``config``        ``doctor``, ``config init|check``, ``game check``: before there is a league
- ``docs``          ``docs``: the documentation
- ``watch``         ``dash``, ``web``, ``status``, ``metrics``, ``play``: the league as it is now
- ``control``       ``pause``, ``resume``, ``config set``, ``agent``, ``match request``: changes
- ``history``       ``leaderboard``, ``events``, ``ledger``, ``replay``: the history as text
- ``sql``           ``sql``, ``export``: the history as tables
- ``provenance``    ``match list|show|explain|export``, ``lineage``: origins
- ``charts``        ``plot``: pictures of the history
- ``evaluation``    ``criteria``, ``benchmark``: the success criteria, and games against one opponent
- ``corrections``   ``void``, ``dead-letters``: what should not count
- ``integrity``     ``verify``, ``archive``, ``gc``: whether the history is whole, and its size
- ``runs``          ``branch``, ``import``: runs made from other runs; ``match import``
- ``models``        ``release``, ``restore``, ``model export|import``
- ``main``          entry point: logging, and errors as text
- ``options``       options that several commands share

A command parses its options, calls ``league.queries``, ``lifecycle`` or ``workers``, and prints the answer. To add one,
write a function or coroutine with typer's annotations, and name it in its panel of ``_PANELS``.

Only the module of the command that is called is imported: groups list the others by their docstrings. What takes long
to import and not all commands of a module need (torch, DuckDB, Matplotlib, prompt_toolkit, servers) is imported inside
the function that needs it.
"""

import ast
import functools
import importlib
from collections import UserDict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from schemas.errors import ExitCode

GROUPS = {
    "model": "Base models.",
    "game": "Games: checked before a league plays them.",
    "match": "Matches: list, read or play again, explain, request, export, import.",
    "config": "Settings: a file to begin with, and changes of an open league.",
    "agent": "The agents in the league.",
    "auth": "Credentials and permissions on a league's brokers.",
}

_PANELS = {
    "Begin": {
        "docs": "docs:docs",
        "doctor": "config:doctor",
        "config init": "config:init",
        "config check": "config:check",
        "game check": "config:check_game",
        "config set": "control:config_set",
        "up": "machines:up",
        "arena": "arena:arena",
    },
    "Watch and play": {
        "dash": "watch:dash",
        "web": "watch:web",
        "status": "watch:status",
        "leaderboard": "history:leaderboard",
        "events": "history:events",
        "plot": "charts:plot",
        "play": "watch:play",
    },
    "Steer": {
        "pause": "control:pause",
        "resume": "control:resume",
        "agent add": "control:agent_add",
        "agent retire": "control:agent_retire",
        "void": "corrections:void",
    },
    "Ask the history": {
        "sql": "sql:sql",
        "criteria": "evaluation:criteria",
        "benchmark": "evaluation:benchmark",
        "match list": "provenance:list_newest",
        "match show": "provenance:show",
        "match explain": "provenance:explain",
        "match request": "control:match_request",
        "match export": "provenance:export_matches",
        "match import": "runs:import_match_results",
        "lineage": "provenance:lineage",
        "ledger": "history:ledger",
        "replay": "history:replay",
        "export": "sql:export",
    },
    "More machines": {
        "join": "machines:join",
        "worker": "machines:worker",
        "nats": "machines:nats",
        "auth init": "machines:init",
        "auth add": "machines:add",
        "auth revoke": "machines:revoke",
        "auth list": "machines:list_users",
        "dead-letters": "corrections:dead_letters",
        "metrics": "watch:metrics",
    },
    "Guard, mend and branch": {
        "verify": "integrity:verify",
        "archive": "integrity:archive",
        "gc": "integrity:gc",
        "restore": "models:restore_league",
        "branch": "runs:branch_league",
        "import": "runs:import_league",
    },
    "Models": {
        "model export": "models:model_export",
        "model import": "models:model_import",
        "release": "models:release",
    },
}
"""Module and function of every command, by panel and by the words that call it."""

COMMANDS = {words: target for commands in _PANELS.values() for words, target in commands.items()}
"""Module and function of every command, by the words that call it."""

PANELS = {panel: tuple(dict.fromkeys(words.split()[0] for words in commands)) for panel, commands in _PANELS.items()}

EPILOGUE = """\
[bold]The first three[/bold]
  league config init league.toml        write a settings file, from four questions
  league up --config league.toml        open the league, train until done
  league dash                           watch it, from another terminal

league COMMAND --help explains a command. Tab completes, after league --install-completion."""


class LazyCommands(UserDict[str, Any]):
    """The commands of a group by name, or their module and function until they are looked up."""

    def __getitem__(self, name: str) -> Any:
        """The command, imported if it was not; KeyError where there is none of this name."""
        command = self.data[name]
        if isinstance(command, str):
            # What reads a command's options; it imports what most commands need.
            from ui.cli.options import make_command

            module, _, function = command.partition(":")
            command = make_command(name, getattr(importlib.import_module(f"{__name__}.{module}"), function))
            self.data[name] = command
        return command

    def summarise(self, name: str) -> Any:
        """The command as lists show it, with its docstring and without its options, if it is not imported yet."""
        command = self.data.get(name)
        if not isinstance(command, str):
            return command
        module, _, function = command.partition(":")
        return TyperCommand(name, help=_docstrings(module)[function])


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    """Docstrings of a module's functions, read from its source: importing all of them takes far longer."""
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


class LeagueCommands(TyperGroup):
    """A group of commands, which are imported when they are called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        split = ((words.rpartition(" "), target) for words, target in COMMANDS.items())
        own = {name: target for (group, _, name), target in split if group == self.name}
        self.commands = self._lazy = LazyCommands({**self.commands, **own})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands in their order."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command as help and completion list it."""
        return self._lazy.summarise(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments call, and the arguments left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.commands[name] if name else command, rest


class LeaguePanels(LeagueCommands):
    """The ``league`` command, its commands in panels."""

    exit_code = ExitCode.INTERRUPTED
    """Exit code of a command that a signal interrupted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._panels = {name: panel for panel, names in PANELS.items() for name in names}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands in the order of the panels."""
        return list(self._panels)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command as help lists it, in its panel."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = self._panels.get(cmd_name)
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An interrupt is not an error and has its own exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(self.exit_code) from None


app = typer.Typer(
    cls=LeaguePanels,
    help="An event-sourced league for training language-model agents by self-play.",
    epilog=EPILOGUE,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _help in GROUPS.items():
    app.add_typer(typer.Typer(help=_help, no_args_is_help=True, cls=LeagueCommands), name=_name)


def _print_version(value: bool) -> None:
    if value:
        # Imported on use: finding the metadata of packages takes as long as a third of the help.
        from importlib.metadata import version as installed_version

        typer.echo(f"league {installed_version('event-sourced-league')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the installed version.")
    ] = False,
) -> None:
    """Options of ``league`` itself."""
