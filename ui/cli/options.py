"""Options that several commands share, and commands made from functions.

Every command that takes ``--nats`` takes ``--creds`` and ``--ca`` too: ``make_command`` adds them.
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from typer import Option
from typer.main import get_command

from league.queries.terminal import Console
from league.run import DEFAULT_RUN, Run
from lifecycle.trust import is_released, trusted_settings
from schemas.config import LeagueConfig, load_config
from schemas.errors import UsageError, escape_unprintable, format_choices
from schemas.events import EVENT_TYPES
from ui.output import print_line

RunOption = Annotated[Path, Option("--run", help="The run's folder: store, artifacts, logs.")]
RunsOption = Annotated[list[Path], Option("--run", help="A run's folder; may be repeated, to show runs side by side.")]
NatsOption = Annotated[
    str | None,
    Option(
        "--nats",
        envvar="LEAGUE_NATS",
        help="Address of a broker, or of a cluster's brokers with commas; by default the run has its own.",
    ),
]
LeagueOption = Annotated[str | None, Option("--league", help="The league's name, if the broker holds several.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, one value for programs.")]
AtOption = Annotated[
    str | None, Option("--at", help="As of a sequence or a time (ISO 8601, UTC unless an offset is given).")
]
TrustOption = Annotated[
    list[str] | None,
    Option(
        "--trust", metavar="KEY", help="Key of a release's settings that may reach beyond the run's folder; repeatable."
    ),
]
EventTypeOption = Annotated[list[str] | None, Option("--type", help="Only events of this type; may be repeated.")]
ManifestOption = Annotated[
    str, Option("--expect", help="Digest of an archive's manifest that you kept: the newest one must continue it.")
]


def load_settings(file: Path, trust: list[str] | None) -> LeagueConfig:
    """Read a league's settings.

    A release's are data: what they would reach beyond the run's folder is printed and left off, except what ``trust``
    names by key. Any other file is the user's word.
    """
    config = load_config(file)
    if not is_released(file):
        if trust:
            raise UsageError(f"--trust {trust[0]}: expected it with a release's own settings, not with {file}")
        return config
    config, left_off = trusted_settings(config, trust or ())
    print_left_off(dict(left_off))
    return config


def print_left_off(left_off: Mapping[str, str]) -> None:
    """Say what the settings of a release would have reached, by key."""
    for name, what in left_off.items():
        print_line(
            Console(stderr=True), f"left off: {name}, which {escape_unprintable(what)}; to take it: --trust {name}"
        )


def check_event_types(names: list[str] | None) -> list[str]:
    """The names of ``--type``; UsageError where one is no type of events."""
    for name in names or ():
        if name not in EVENT_TYPES:
            raise UsageError(f"--type {name}: no such event; expected {format_choices(EVENT_TYPES, name)}")
    return names or []


def check_manifest(digest: str) -> None:
    """Check that the text of ``--expect`` is empty or a digest; UsageError if not."""
    if digest and not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise UsageError(f"--expect {digest!r}: not the digest of a manifest; expected 64 of 0-9 a-f")


def _with_run_options(command: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    run: Any = (RunsOption, (DEFAULT_RUN,)) if "runs" in signature.parameters else (RunOption, DEFAULT_RUN)
    options = {"run": run, "nats": (NatsOption, None), "league": (LeagueOption, None)}
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    @wraps(command)
    def call(*, run: Path | list[Path], nats: str | None, league: str | None, **own: Any) -> Any:
        if not isinstance(run, list):
            return command(run=Run(run, nats=nats, name=league), **own)
        if len(run) > 1 and nats is not None:
            raise UsageError("--run: several runs have separate brokers; expected a single --run with --nats")
        return command(runs=[Run(folder, nats=nats, name=league) for folder in run], **own)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += shared if parameter.name in ("run", "runs") else [own]
    # What typer reads; the command itself keeps its own.
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    return call


def _export_file(option: str, variable: str) -> Callable[[Path | None], Path | None]:
    """Pass a file's path in the environment, to this process and its children."""

    def export(path: Path | None) -> Path | None:
        if path is not None:
            if not path.is_file():
                raise UsageError(f"{option} {path}: no such file")
            os.environ[variable] = str(path.resolve())
        return path

    return export


def _ca_option(expose_value: bool) -> Any:
    return Option(
        "--ca",
        envvar="LEAGUE_CA",
        callback=_export_file("--ca", "LEAGUE_CA"),
        expose_value=expose_value,
        help="Certificate authority of the broker, a PEM file; the connection must then be encrypted.",
    )


CaOption = Annotated[Path | None, _ca_option(expose_value=True)]


def _credential_options(
    creds: Annotated[
        Path | None,
        Option(
            envvar="LEAGUE_CREDS",
            callback=_export_file("--creds", "LEAGUE_CREDS"),
            expose_value=False,
            help="Credentials for the broker, from `league auth add`.",
        ),
    ] = None,
    ca: Annotated[Path | None, _ca_option(expose_value=False)] = None,
) -> None:
    """Define the options; their values go into the environment."""


def make_command(name: str, function: Callable[..., Any]) -> Any:
    """The command that calls a function, with the options of its annotations, and credentials beside ``--nats``.

    A function that takes ``run: Run`` gets the options --run, --nats and --league in its place; one that takes
    ``runs: list[Run]`` a ``--run`` that may be repeated. A coroutine is run to its end.
    """
    signature = inspect.signature(function)
    if any(parameter.annotation in (Run, list[Run]) for parameter in signature.parameters.values()):
        function = _with_run_options(function, signature)

    @wraps(function)
    def call(**options: Any) -> None:
        if inspect.isawaitable(work := function(**options)):
            uvloop.run(work)

    command = _parser_of(name, call)
    if any(param.name == "nats" for param in command.params):
        command.params += _parser_of("credentials", _credential_options).params
    return command


def _parser_of(name: str, function: Callable[..., Any]) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(name)(function)
    return get_command(alone)
