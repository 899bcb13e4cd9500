"""Connects this machine to a league that is open elsewhere: checks whether it can work, then runs workers.

Every check comes before the first worker, so that a missing key, package or gigabyte is an error of the command and not
a line in the log of a worker that restarts. The memory of one worker is measured, since it depends on model, backend
and device: as many workers are started as fit.
"""

import asyncio
import multiprocessing
import os
import platform
import shutil
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from arena.environments import make_environment
from league.log.access import BrokerCredentials
from league.log.jetstream import JetStreamLog, find_league, list_leagues
from league.queries.terminal import Console
from league.run import Run
from players.remote.remote_player import check_api_keys, remote_agents_in_evaluation, remote_agents_in_training
from schemas.errors import AccessError, UsageError, format_choices
from workers.compatibility import check_rules, check_versions, older_deciders, resolve_policy
from workers.discover_servers import uses_inference_servers
from workers.logs import configure_logging
from workers.membership import has_ended_here, machine_digest
from workers.process import (
    WorkerProcess,
    WorkerSpec,
    lock_folder,
    memory_limit_bytes,
    read_credentials,
    read_machine_token,
)
from workers.progress import show_progress
from workers.runtime import Context, beside
from workers.supervisor import Supervisor, make_announcer, stop_on_signals

_MODEL_ROLES = ("evaluator", "inference", "rollout", "trainer")
_SCALABLE_ROLES = ("evaluator", "rollout")
"""Roles that a machine runs as many workers of as fit."""
_LEAGUE_INTERVAL_S = 2.0
_MEMORY_FACTOR = 1.5
"""Peak memory of a worker, relative to its memory once the model is loaded."""


class ConnectOptions(msgspec.Struct, frozen=True):
    """Options of ``connect_machine``."""

    role: str
    workers: int | None
    """Number of workers; None for as many as fit."""
    policy: str | None = None
    creds: Path | None = None
    """A credentials file, or a folder of them."""
    folder: Path | None = None
    """Folder for the machine's files; None for one in the user's cache."""
    room_gb: float = 2.0
    """Free disk space that is required."""


class ModelFootprint(NamedTuple):
    """Cost of loading a model."""

    memory_bytes: int
    """Memory of the whole process."""
    gpus: int


class ConnectedWorkerPool:
    """Workers of one role, run until there is no work left for them."""

    def __init__(self, specs: list[WorkerSpec]) -> None:
        self.specs = specs

    def is_done(self, children: Collection[WorkerProcess]) -> bool:
        """Whether all workers have ended by themselves."""
        return all(child.has_ended for child in children)


def make_specs(
    role: str, policy: str | None, creds: Mapping[str, Path] | None, token: str, count: int
) -> list[WorkerSpec]:
    """Make the specifications of ``count`` workers, named by their credentials.

    Where workers need none, names are generated with a ``token``, which is different on every machine.
    """
    if creds is None:
        kind = role if policy is None else f"{role}-{policy}"
        return [WorkerSpec(role, f"{kind}-{token}-{number}", policy) for number in range(1, count + 1)]
    return [WorkerSpec(role, name, policy, path) for name, path in [*creds.items()][:count]]


async def connect_machine(
    nats: str, league: str | None, ca: Path | None, options: ConnectOptions, console: Console
) -> int:
    """Check whether this machine can work for a league, and run workers until no work is left; return the exit code."""
    creds = read_credentials(options.creds, options.role) if options.creds is not None else None
    if options.workers is not None and creds is not None and options.workers > len(creds):
        raise UsageError(
            f"--workers {options.workers}: found credentials for {len(creds)}; expected a file for each worker"
        )
    name, file = next(iter(creds.items())) if creds else ("join", None)
    access = BrokerCredentials(file, ca)
    async with Run(Path(), nats=nats, name=league, access=access).connect(name) as client:
        bearer = "without credentials" if creds is None else f"as {', '.join(creds)}"
        _print_check(console, "broker", f"{nats}, {bearer}")
        leagues = await list_leagues(client)
        if not leagues:
            console.print(f"no league at {nats} yet: waiting for `league up`", highlight=False, markup=False)
        while not leagues:
            await asyncio.sleep(_LEAGUE_INTERVAL_S)
            leagues = await list_leagues(client)
        if league is not None and league not in leagues:
            raise UsageError(f"--league {league}: no such league at {nats}; expected {format_choices(leagues)}")
        resolved = league or await find_league(client)
        assert resolved is not None, "one is open"
        folder = (options.folder or default_folder(resolved)).resolve()
        with lock_folder(folder, options.role):
            configure_logging("join", folder / "logs" / f"join-{options.role}.log", terminal=False)
            run = Run(folder, nats=nats, name=resolved, access=access)
            context = Context(run, client, JetStreamLog(client, resolved, name), name)
            return await _connect_workers(context, options, creds, console)


def _print_check(console: Console, label: str, value: str) -> None:
    console.print(f"ok   {label}: {value}", highlight=False, soft_wrap=True, markup=False)


async def _connect_workers(
    context: Context, options: ConnectOptions, creds: dict[str, Path] | None, console: Console
) -> int:
    context.refuses_newer = True
    await context.load_snapshot()
    async with beside(context.follow()):
        await context.wait_for_sequence(await context.log.last_sequence())
        _print_check(console, "league", f"{context.log.league}, {context.state.sequence:,} events")
        loaded = await _check_machine(context, options, console)
        context.refuses_newer = False
        count = options.workers
        if count is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            count = worker_capacity(options.role, loaded, cores, _free_memory_bytes())
            count = count if creds is None else min(count, len(creds))
        token = read_machine_token(context.run.folder)
        pool = ConnectedWorkerPool(make_specs(options.role, options.policy, creds, token, count))
        _check_names(context, [spec.name for spec in pool.specs])
        text = f"{count} {'workers' if count > 1 else 'worker'} {options.role}; logs in {context.run.logs}"
        console.print(text, highlight=False, soft_wrap=True)
        supervisor = Supervisor(context, pool, make_announcer(console), alarms=False)
        with stop_on_signals(context, supervisor, console):
            done = await supervisor.run()
    if refused := [child.name for child in supervisor.workers if child.is_refused]:
        raise AccessError(f"the broker rejects the credentials of {', '.join(refused)}; expected others with --creds")
    console.print("done: nothing left to do" if done else "stopped; the same command continues", highlight=False)
    return 0


def _check_names(context: Context, names: Sequence[str]) -> None:
    """Raise UsageError if a process that has not left has one of the names.

    One that ended here, or before this machine was started again, is replaced.
    """
    for name in names:
        worker = context.state.workers.get(name)
        if worker is None or worker.left is not None or has_ended_here(other := worker.joined):
            continue
        if other.machine == machine_digest() or other.host != platform.node():
            raise UsageError(
                f"{name} is the name of process {other.pid} on {other.host}, which has not left; expected a name for "
                "each running worker: issue credentials with names that tell the machine (`league auth add`), or end "
                "that process first"
            )


async def _check_machine(context: Context, options: ConnectOptions, console: Console) -> ModelFootprint | None:
    """Check whether workers of the role can run here; return the footprint of one, if it loads a model."""
    config = context.config
    check_versions(context.name, older_deciders(context.state, context.name))
    check_rules(context.state, options.role, context.name)
    _print_check(console, "versions", "all processes of the league work with this version")
    if options.policy is not None:
        resolve_policy(config, options.policy)
    seats = make_environment(config.game.name, config.game.settings).seats
    _print_check(console, "play", f"{config.game.name}, {len(seats)} seats")
    remotes = {"rollout": remote_agents_in_training, "evaluator": remote_agents_in_evaluation}
    if options.role in remotes and (remote_agents := remotes[options.role](config)):
        check_api_keys(config, remote_agents)
        _print_check(console, "play", f"keys of {', '.join(remote_agents)}")
    free_gb = shutil.disk_usage(context.run.folder).free / 1e9
    if free_gb < options.room_gb:
        raise UsageError(
            f"--folder {context.run.folder}: {free_gb:.1f} GB of disk are free; expected {options.room_gb:g} or more "
            "(--room-gb)"
        )
    _print_check(console, "space", f"{free_gb:.1f} GB of disk, {_free_memory_bytes() / 1e9:.1f} GB of memory free")
    return await _check_model(context, options.role, console)


def _free_memory_bytes() -> int:
    return min(int(psutil.virtual_memory().available), memory_limit_bytes())


async def _check_model(context: Context, role: str, console: Console) -> ModelFootprint | None:
    config = context.config
    if role not in _MODEL_ROLES:
        return None
    # Imported late: torch takes seconds to import, and a rejection should be shown at once.
    from inference import backend_settings
    from workers.policy_weights import fetch_base_model

    with show_progress(console, "the base model") as report:
        folder = await fetch_base_model(context, report)
    if role in _SCALABLE_ROLES and uses_inference_servers(config):
        _print_check(console, "model", "inference processes have it")
        return None
    # In a process of its own, so that all its memory is released afterwards, on a GPU too.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        loaded = await asyncio.get_running_loop().run_in_executor(
            pool, measure_model, config.inference.backend, folder, backend_settings(config)
        )
    memory = f"{loaded.memory_bytes / 1e6:,.0f} MB"
    _print_check(console, "model", f"{context.state.model[:25]} loads, {memory} in a process")
    return loaded


def measure_model(backend: str, folder: Path, settings: dict[str, Any]) -> ModelFootprint:
    """Load a base model in this process as workers do, and return its cost.

    Only the built-in backend is started; others take minutes.
    """
    import torch

    from inference import make_backend
    from inference.base import backend_config
    from models import load_base

    load_base(folder)
    backend_config(backend, settings)
    if backend == "local":
        model = make_backend(backend, folder, **settings)
        asyncio.run(model.close())
    on_gpus = settings.get("device") != "cpu" and torch.cuda.is_available()
    return ModelFootprint(psutil.Process().memory_info().rss, torch.cuda.device_count() if on_gpus else 0)


def worker_capacity(role: str, loaded: ModelFootprint | None, cores: int, free_bytes: int) -> int:
    """Number of workers of a role for which a machine has cores and free memory.

    ``loaded`` is the footprint of one worker, None where it loads no model.
    """
    if role not in _SCALABLE_ROLES:
        return max(loaded.gpus, 1) if loaded is not None and role == "inference" else 1
    if loaded is None:
        return cores
    if loaded.gpus:
        return loaded.gpus
    return max(min(cores, int(free_bytes / (_MEMORY_FACTOR * loaded.memory_bytes))), 1)


def default_folder(league: str) -> Path:
    """Cache folder for the copies of a league's models; safe to delete."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "event-sourced-league" / league
