"""A league in simulated processes: the production supervisor, and the production workers that it starts."""

import asyncio
import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import structlog
import torch

from league.auth.authority import Authority
from league.log.access import BrokerCredentials
from league.run import Run
from lifecycle.league_models import make_base_model
from lifecycle.open import open_league
from schemas.config import LeagueConfig, convert
from schemas.errors import LeagueError
from tests.simulation.broker.server import URL
from workers.run_worker import worker_main
from workers.runtime import Context, beside
from workers.supervisor import LeagueWorkerPool, Supervisor

log = structlog.get_logger()

NAME = "sim"
_KEYS, _DAYS = "auth", 365.0
_SHAPE = {"hidden": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "mlp": 8, "max_positions": 256}


def use_exact_square_roots() -> None:
    """Give tensors square roots that are equal on all processors: those of MKL's vector library are not, to the bit."""
    library = torch.Tensor.sqrt

    def sqrt(x: torch.Tensor) -> torch.Tensor:
        return library(x) if x.requires_grad else torch.from_numpy(np.asarray(np.sqrt(x.numpy())))

    torch.Tensor.sqrt = sqrt  # type: ignore[assignment, method-assign]
    torch._foreach_sqrt = lambda tensors: tuple(map(sqrt, tensors))  # type: ignore[assignment]


def make_config(seed: int, steps: int) -> LeagueConfig:
    """A league of Nim with a model of some hundred parameters; some settings are drawn by the seed."""
    drawn = Random(f"settings:{seed}")
    settings: dict[str, Any] = {
        "name": NAME,
        "seed": seed,
        "game": {"name": "nim", "settings": {"seats": 2, "heaps": [2, 2]}},
        "agents": {
            "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
            "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
        },
        "model": {"shape": _SHAPE, "cloning": {"sequences": 32, "batch": 16}, "lora_rank": 2},
        "rollout": {"workers": drawn.choice([1, 1, 1, 2]), "games_in_flight": 3},
        "evaluation": {"every": 5, "gatekeeper_games": 2, "benchmark_games": 2, "games_in_flight": 2},
        "schedule": {"recent_every": 5, "recent_window": 10, "landmark_every": 10},
        "trainer": {"rollouts_per_step": 4},
        "experience": {"max_messages": 24},
        "history": {"archive_events": 200, "snapshot_events": 80},
        "stop": {"steps": steps},
    }
    return convert(settings, LeagueConfig, "")


def make_model(folder: Path) -> Path:
    """The base model of all simulated leagues; it depends on no seed."""
    return make_base_model(folder, make_config(0, 1), lambda text, share: None)


def issue_credentials(folder: Path, workers: Sequence[str]) -> None:
    """Give each worker, named ``ROLE-NUMBER``, credentials of its role; the supervisor is the operator and has none."""
    authority = Authority.create(folder / _KEYS, NAME)
    for worker in workers:
        authority.add(worker.partition("-")[0], [worker], _DAYS)


def _credentials(folder: Path, worker: str) -> BrokerCredentials:
    path = folder / _KEYS / "creds" / f"{worker}.creds"
    return BrokerCredentials(path if path.exists() else None)


async def run_program(folder: Path, args: list[str]) -> int:
    """The command line of a worker, ``-m ui worker ROLE --name NAME``, as ``workers.runtime.run_worker`` runs it."""
    role, name = args[args.index("worker") + 1], args[args.index("--name") + 1]
    run = Run(folder, nats=URL, name=NAME, access=_credentials(folder, name))
    serve = importlib.import_module(f"workers.{role}").serve
    policy = args[args.index("--policy") + 1] if "--policy" in args else None
    supervisor = int(args[args.index("--supervisor") + 1]) if "--supervisor" in args else None
    if policy is not None:
        serve = partial(serve, policy=policy)
    try:
        return await worker_main(run, role, name, serve, supervisor, policy)
    except LeagueError as error:
        log.error("the process has ended with an error", error=str(error))
        return 1
    except Exception:
        log.exception("the process has failed")
        return 1


async def run_supervisor(folder: Path, config: LeagueConfig) -> int:
    """What ``league up`` does, but for the terminal and the report; returns 0 once all work is done."""
    run = Run(folder, nats=URL)
    try:
        async with run.connect("supervisor") as client:
            history = await open_league(run, client, config, lambda text, share: None)
            context = Context(run, client, history, "supervisor")
            await context.load_snapshot()
            async with beside(context.follow()):
                await context.wait_for_sequence(await history.last_sequence())
                supervisor = Supervisor(context, LeagueWorkerPool(context), lambda text: None)
                asyncio.get_running_loop().add_signal_handler(15, context.stop)
                return 0 if await supervisor.run() else 1
    except LeagueError as error:
        log.error("the supervisor has ended with an error", error=str(error))
        return 1
    except Exception:
        log.exception("the supervisor has failed")
        return 1
