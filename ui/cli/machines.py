"""``league up``, ``worker``, ``join``, ``auth`` and ``nats``: processes, credentials and brokers."""

import importlib
import os
import re
import secrets
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from typer import Argument, Option

from league.auth.authority import Authority
from league.log.cluster import NODES, LocalCluster
from league.queries.terminal import Console, say
from league.queries.text_table import print_table
from league.run import Run
from schemas.errors import UsageError, format_choices
from schemas.subjects import check_name
from ui.cli.options import CaOption, JsonOption, LeagueOption, TrustOption, load_settings
from ui.output import print_json
from workers.compatibility import POLICY_ROLES
from workers.logs import configure_logging
from workers.process import THREAD_ENVIRONMENT
from workers.progress import show_progress
from workers.run_worker import ServeFunction, run_worker

ROLE_MODULES = {
    "rollout": "rollout",
    "evaluator": "evaluator",
    "inference": "inference_server",
    "rater": "rater",
    "trainer": "trainer",
    "archivist": "archivist",
    "tracker": "tracker",
}
"""Module of ``workers`` by role; each has a ``serve``."""
_DirOption = Annotated[Path, Option("--dir", help="Folder of the keys that issue credentials.")]
_DEFAULT_DIR = Path(".league-auth")


def up(
    config: Annotated[
        list[Path] | None,
        Option(help="The league's settings, a TOML file; repeated: stages of training, one after the other."),
    ] = None,
    *,
    run: Run,
    port: Annotated[int, Option(help="Port of the run's own broker; 0 takes a free one.")] = 0,
    max_store_mb: Annotated[int | None, Option(help="Limit of the run's own store; by default the disk.")] = None,
    workers: Annotated[
        bool, Option("--workers/--no-workers", help="Without: only open the league, or change an open one's settings.")
    ] = True,
    trust: TrustOption = None,
) -> None:
    """Open or continue a league, and run all its workers on this machine until training is done."""
    if not workers:
        _open_league(run, config or [], trust)
        return
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: expected 0 to 65535")
    console = Console(stderr=True)
    with show_progress(console, "loading the libraries"):
        from lifecycle.run_league import run_league

    stages = [load_settings(path, trust) for path in config or ()]
    if max_store_mb is not None and max_store_mb < 1:
        raise UsageError(f"--max-store-mb {max_store_mb}: expected 1 or more")
    own = Run(run.folder, nats=run.nats, port=port, name=run.name, max_store_mb=max_store_mb)
    raise typer.Exit(uvloop.run(run_league(own, stages, console)))


def _open_league(run: Run, files: Sequence[Path], trust: list[str] | None) -> None:
    if len(files) != 1:
        raise UsageError(f"--no-workers: {len(files)} settings files; expected one --config FILE")
    from lifecycle.run_league import open_without_workers

    settings = load_settings(files[0], trust)
    console = Console(stderr=True)
    uvloop.run(open_without_workers(run, settings, console))
    console.print(f"league {settings.name!r} is open", highlight=False)


def worker(
    role: Annotated[str, Argument(help="rollout, evaluator, inference, rater, trainer, archivist or tracker.")],
    *,
    run: Run,
    name: Annotated[
        str | None, Option(help="Name of this worker, unique in the league; by default the name in its credentials.")
    ] = None,
    policy: Annotated[
        str | None, Option(help="For rollout workers and trainers: the policy; by default the league's main one.")
    ] = None,
    port: Annotated[
        int | None, Option(help="For inference workers: the port to listen on; by default a free one.")
    ] = None,
    host: Annotated[
        str | None, Option(help="For inference workers: the address to listen on; by default inference.host.")
    ] = None,
    sink: Annotated[
        list[str] | None, Option(help="For trackers: jsonl, stdout or wandb; repeatable. By default tracker.sinks.")
    ] = None,
    supervised: Annotated[
        bool, Option("--supervised", help="Log to the run's folder only; exit when the parent process ends.")
    ] = False,
    supervisor: Annotated[int | None, Option(hidden=True, help="With --supervised: the parent's id.")] = None,
) -> None:
    """Run one worker process for an open league; start as many as you like."""
    _check_role(f"worker {role!r}", role, policy)
    # As under a supervisor; the libraries that read it are loaded below.
    for variable, value in THREAD_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    if port is not None and (role != "inference" or not 0 <= port <= 65535):
        raise UsageError(f"--port {port}: expected 0 to 65535, and for a worker 'inference' only")
    if host is not None and role != "inference":
        raise UsageError(f"--host {host}: worker {role!r}; expected a worker 'inference'")
    from workers.trackers.sinks import SINKS

    if sink and role != "tracker":
        raise UsageError(f"--sink: expected for a worker 'tracker' only, not for {role!r}")
    if unknown := [each for each in sink or () if each not in SINKS.names()]:
        raise UsageError(f"--sink {unknown[0]}: no such sink; expected {format_choices(SINKS.names())}")
    if not name and (bearer := run.access.identity()) is not None:
        # The broker accepts a worker's results under no other name than that of its credentials.
        name = bearer.name
    kind = role if policy is None else f"{role}-{policy}"
    name = check_name("--name", name or f"{kind}-{secrets.token_hex(3)}")
    configure_logging(name, run.logs / f"{name}.log", terminal=not supervised)
    module = importlib.import_module(f"workers.{ROLE_MODULES[role]}")
    if role == "trainer" and module.serve_as_rank():
        return
    options: dict[str, Any] = {"policy": policy} if role in POLICY_ROLES else {}
    if role == "inference":
        options = {"port": port or 0, "host": host}
    elif role == "tracker":
        options = {"sinks": sink or []}
    serve: ServeFunction = partial(module.serve, **options)
    parent = (supervisor or os.getppid()) if supervised else None
    raise typer.Exit(run_worker(run, role, name, serve, parent, policy))


def _check_role(where: str, role: str, policy: str | None) -> None:
    if role not in ROLE_MODULES:
        raise UsageError(f"{where}: no such role; expected {format_choices(ROLE_MODULES, role)}")
    if policy is not None and role not in POLICY_ROLES:
        raise UsageError(
            f"--policy {policy}: a worker {role!r} serves all policies; expected {format_choices(POLICY_ROLES)}"
        )


def join(
    url: Annotated[str, Argument(metavar="URL", help="Address of the broker, or of a cluster's brokers with commas.")],
    creds: Annotated[
        Path | None,
        Option(
            envvar="LEAGUE_CREDS",
            help="Credentials from `league auth add`: a file for one worker, or a folder of *.creds, one for each.",
        ),
    ] = None,
    ca: CaOption = None,
    role: Annotated[str, Option(help="Role of its workers; see `league worker`.")] = "rollout",
    workers: Annotated[str, Option(help="Their number, or auto: as many as the machine can run.")] = "auto",
    folder: Annotated[
        Path | None, Option(help="For logs and copies of models; by default in the user's cache. May be deleted.")
    ] = None,
    league: LeagueOption = None,
    policy: Annotated[str | None, Option(help="The policy to serve; by default the league's main one.")] = None,
    room_gb: Annotated[float, Option(help="Free disk space that is required, in GB.")] = 2.0,
) -> None:
    """Connect this machine to a league: check that it can work for it, then run workers until stopped."""
    _check_role(f"--role {role}", role, policy)
    count = parse_worker_count(workers)
    from lifecycle.connect_machine import ConnectOptions, connect_machine

    options = ConnectOptions(role, count, policy, creds, folder, room_gb)
    raise typer.Exit(uvloop.run(connect_machine(url, league, ca, options, Console(stderr=True))))


def parse_worker_count(text: str) -> int | None:
    """Number of workers; None for ``auto``."""
    if text == "auto":
        return None
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}", text, re.ASCII):
        raise UsageError(f"--workers {text}: expected a number from 1 to 999,999, or auto")
    return int(text)


def init(
    folder: _DirOption = _DEFAULT_DIR,
    league: Annotated[str, Option(help="Name of the league; * for all on the broker.")] = "*",
) -> None:
    """Make the keys that issue credentials, and the brokers' configuration for them."""
    authority = Authority.create(folder, league)
    say(f"keys in {folder}: keep them only where credentials are issued")
    if league == "*":
        say("they open every league of a broker; --league NAME, here or of `league auth add`, confines them to one")
    say(f"every broker's configuration includes {authority.broker_config_path}; `league nats --auth {folder}` does")


def add(
    role: Annotated[
        str,
        Argument(
            help="rollout, evaluator, inference, rater, trainer, archivist, tracker, dashboard (reads), operator (all)."
        ),
    ],
    name: Annotated[str, Argument(help="Name of the user; for a worker its --name.")],
    days: Annotated[float, Option(help="Days for which they are valid.")] = 90.0,
    count: Annotated[
        int | None, Option(min=1, help="Number of workers: NAME-1, NAME-2, … after existing ones.")
    ] = None,
    league: Annotated[str | None, Option(help="The only league that they open; by default the keys' league.")] = None,
    to: Annotated[Path | None, Option(help="Folder to write NAME.creds to, for another machine.")] = None,
    folder: _DirOption = _DEFAULT_DIR,
) -> None:
    """Issue credentials to a worker or a person: a secret file for --creds.

    With --count a folder of them, for `league join --creds FOLDER`.
    """
    authority = Authority(folder)
    names = [name] if count is None else authority.free_names(name, count)
    for path in authority.add(role, names, days, folder=to, league=league):
        print(path)


def revoke(name: Annotated[str, Argument(help="Name of the user.")], folder: _DirOption = _DEFAULT_DIR) -> None:
    """Revoke a user's credentials; brokers end its connections when they reload their configuration."""
    authority = Authority(folder)
    count = authority.revoke(name)
    say(f"{count} credentials of {name} revoked in {authority.broker_config_path}")
    say("a broker reloads it on SIGHUP (nats-server --signal reload); `league nats --auth` does so by itself")


def list_users(folder: _DirOption = _DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """List the users with credentials, and their standing: good, expired or revoked."""
    now = time.time()
    users = Authority(folder).users
    if as_json:
        print_json([msgspec.structs.asdict(user) | {"standing": user.status(now)} for user in users])
        return
    rows = []
    for user in users:
        until = f"{datetime.fromtimestamp(user.expires, UTC):%Y-%m-%d %H:%M}"
        rows.append((user.name, user.role, user.league, user.status(now), until, user.public))
    columns = ["name", "role", "league", "standing", "until (UTC)", "public key"]
    print_table(Console(), columns, rows, ("public key", "role"))


def nats(
    folder: Annotated[Path, Option(help="Folder for the nodes' streams.")] = Path(".league-nats"),
    nodes: Annotated[int, Option(help="Number of nodes; odd.")] = NODES,
    port: Annotated[int, Option(help="Port of the first node, the others follow; 0 takes free ones.")] = 0,
    auth: Annotated[Path | None, Option(help="Folder of `league auth`: credentials are required.")] = None,
) -> None:
    """Run a NATS cluster on this machine until Ctrl-C; nodes that die are restarted."""
    console = Console(stderr=True)
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: stopping.append(caught))
    access = Authority(auth).broker_config_path if auth is not None else None
    with LocalCluster(folder, nodes, port, access=access) as cluster:
        print(cluster.url, flush=True)
        console.print(f"{nodes} nodes; pass the line above as --nats to workers and commands", highlight=False)
        loaded = _modified_ns(access)
        while not stopping:
            if (written := _modified_ns(access)) != loaded:
                loaded = written
                cluster.reload()
            for node in sorted({*range(nodes)} - {*cluster.running}):
                console.print(f"node {node} has died; restarting it", highlight=False)
                cluster.start(node)
            time.sleep(0.5)


def _modified_ns(access: Path | None) -> int:
    return access.stat().st_mtime_ns if access is not None else 0
