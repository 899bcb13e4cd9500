"""Reference of the command line, from its parser, in the panels of ``league --help``."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from docs_site.markdown import code, inline, page, render_paragraphs, table
from docs_site.structs import default_text
from ui.cli import PANELS, app

SHARED_OPTIONS = ("--run", "--nats", "--league", "--creds", "--ca", "--json")
"""Options with the same meaning in every command; explained once."""

ENVIRONMENT_VARIABLES = {
    "LEAGUE_NATS": "As ``--nats``.",
    "LEAGUE_CREDS": "As ``--creds``.",
    "LEAGUE_CA": "As ``--ca``.",
    "LEAGUE_PLUGINS": "Folders with games, bots and other plugins, laid out as the package is.",
    "LEAGUE_LOG": "Log level; ``debug`` logs every episode with its model calls, ``info`` is the default.",
    "LEAGUE_GPUS": "``1`` makes a process report the machine's GPUs.",
    "LEAGUE_INFERENCE_TOKEN": "Token that inference servers require; needed by those beyond loopback.",
    "LEAGUE_WEB_TOKEN": "As ``--token`` of ``league web``.",
    "LEAGUE_FORWARD_TOKEN": "Token of the log platform, for ``league forward``.",
}
"""Environment variables that commands and workers read."""


def render_page() -> str:
    """The page as Markdown."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    parts = [
        "# Commands",
        "`league COMMAND --help` prints the same; `league --install-completion` installs completion of "
        "names in the shell. Errors are one paragraph on standard error: exit code 2 for wrong usage or "
        "configuration, 1 for everything else. This page is generated from the parser.",
        "## Options that many commands share",
        _options_table([_find_shared_option(name, commands) for name in SHARED_OPTIONS]),
    ]
    for panel, names in PANELS.items():
        parts += [f"## {panel}", *[_command_sections(name, commands[name]) for name in names]]
    parts += ["## Environment variables"]
    parts += [
        table(("variable", "means"), [[code(name), inline(text)] for name, text in ENVIRONMENT_VARIABLES.items()])
    ]
    return page(*parts)


def _find_shared_option(name: str, commands: dict[str, Any]) -> Any:
    return next(p for _, command in _walk_commands(commands) for p in command.params if name in p.opts)


def _walk_commands(commands: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        yield before + name, command
        yield from _walk_commands(getattr(command, "commands", {}), f"{before}{name} ")


def _command_sections(name: str, command: Any) -> str:
    """A command, or a group and its commands."""
    return page(*[_command_section(path, one) for path, one in _walk_commands({name: command})])


def _command_section(path: str, command: Any) -> str:
    grouped = hasattr(command, "commands")
    own = [p for p in command.params if p.param_type_name == "option" and not set(p.opts) & set(SHARED_OPTIONS)]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    takes = [code(p.opts[0]) for p in command.params if set(p.opts) & set(SHARED_OPTIONS)]
    return page(
        f"{'####' if ' ' in path else '###'} `league {path}` {{ #{path.replace(' ', '-')} }}",
        render_paragraphs(command.help or ""),
        "" if grouped else f"```\n{_usage(path, arguments, bool(own or takes))}\n```",
        table(("argument", "is"), [[code(_metavar(p)), inline(p.help or "")] for p in arguments]),
        _options_table(own),
        f"Also {', '.join(takes)}." if takes else "",
    )


def _usage(path: str, arguments: list[Any], options: bool) -> str:
    words = [_metavar(p) if p.required else f"[{_metavar(p)}]" for p in arguments]
    return " ".join(["league", path, *(["[OPTIONS]"] if options else []), *words])


def _metavar(param: Any) -> str:
    named = str(param.metavar or param.name.upper())
    return f"{named.removesuffix('…')}…" if param.nargs == -1 else named


def _options_table(params: list[Any]) -> str:
    return table(("option", "default", "means"), [_option_row(p) for p in params if not p.hidden])


def _option_row(param: Any) -> list[str]:
    names = ", ".join(map(code, [*param.opts, *param.secondary_opts]))
    variable = f" {code('$' + param.envvar)}" if param.envvar else ""
    means = inline(param.help or "") + (f" Or by the variable{variable}." if variable else "")
    return [names, _option_default(param), means]


def _option_default(param: Any) -> str:
    if param.required:
        return "required"
    if param.is_flag and not param.default:
        return "off"
    if param.default is None or callable(param.default):
        return "none"
    return default_text(param.default if isinstance(param.default, int | float | str | list) else str(param.default))
