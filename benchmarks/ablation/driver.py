"""Trains one run in this process with the workers that any league has, and keeps what figures are computed from."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import torch
import zstandard

from benchmarks.ablation.local import FrozenPolicy, LocalLeague
from lifecycle.league_models import make_base_model
from models.decoder import Decoder
from schemas.config import LeagueConfig
from schemas.errors import GameError
from schemas.events import CheckpointAdded, MatchFailed
from schemas.jobs import PlayMatch
from trainer.backends.native import NativeBackend
from workers import rater
from workers.match_runner import between_agents
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager, fetch_base_model
from workers.rollout import RolloutWorker
from workers.runtime import Context, beside
from workers.trainer import TrainerWorker

HISTORY, ADAPTERS, DONE = "events.jsonl.zst", "adapters", "done.json"


class RunCost(msgspec.Struct, frozen=True):
    """What a run cost; written last, so that a run without it is begun again."""

    seconds: float
    """Of this process's CPU, playing and training."""
    wall_s: float


class StoredEvent(msgspec.Struct, frozen=True):
    """An event as it lies in a run's ``events.jsonl.zst``."""

    sequence: int
    time_ns: int
    subject: str
    producer: str
    event: msgspec.Raw


def ensure_base_model(folder: Path, config: LeagueConfig) -> Path:
    """The base model of a game and seed, the same for all arms; made once."""
    if not (folder / "config.json").exists():
        make_base_model(folder, config, lambda *_: None)
    return folder


async def train_run(folder: Path, config: LeagueConfig, model: Path, frozen: FrozenPolicy | None = None) -> RunCost:
    """Play and train until the run's budget of games is spent.

    Args:
        folder: Of the run; what an unfinished one left there is removed.
        config: Of the league.
        model: Folder of the base model.
        frozen: A policy that is there to be met and is not trained.
    """
    return await _run_league(folder, config, model, frozen, _train_policies, config.trained_policies)


async def play_held_out(
    folder: Path, config: LeagueConfig, model: Path, frozen: FrozenPolicy, matches: Sequence[PlayMatch]
) -> RunCost:
    """Play matches in a league in which nothing is trained.

    Args:
        folder: Of what is kept; what an unfinished one left there is removed.
        config: Of the league, with the agents that are met.
        model: Folder of the base model.
        frozen: The policy that plays.
        matches: Who plays.

    Raises:
        GameError: one came to no end.
    """
    return await _run_league(folder, config, model, frozen, lambda league: _play_matches(league, matches), ())


async def _run_league(
    folder: Path,
    config: LeagueConfig,
    model: Path,
    frozen: FrozenPolicy | None,
    work: Callable[[LocalLeague], Awaitable[None]],
    trained: Iterable[str],
) -> RunCost:
    _reset_folder(folder)
    torch.set_num_threads(1)
    began = time.process_time(), time.monotonic()
    league = LocalLeague(config, folder)
    await league.open(model, frozen)
    async with beside(league.follow()):
        await work(league)
    done = RunCost(time.process_time() - began[0], time.monotonic() - began[1])
    await _save_run(league, folder, trained)
    (folder / DONE).write_bytes(msgspec.json.encode(done))
    return done


def _reset_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


async def _train_policies(league: LocalLeague) -> None:
    hero = league.config.trainer.policy
    main = league.context(hero)
    models = await ModelManager.load(main)
    backend = NativeBackend(Decoder.load(await fetch_base_model(main)))
    async with AsyncExitStack() as stack:
        if "training" in league.config.ratings.purposes:
            await stack.enter_async_context(beside(rater.serve(league.context("rater"))))
        contexts = {
            policy: main if policy == hero else league.context(policy) for policy in league.config.trained_policies
        }
        trainers = {policy: TrainerWorker(context, backend, policy) for policy, context in contexts.items()}
        for trainer in trainers.values():
            await trainer.resume()
        await models.load_newest()
        players = [_RationedRolloutWorker(context, models, policy) for policy, context in contexts.items()]
        await stack.enter_async_context(
            beside(models.follow(), *(one.experience_reader.receive() for one in trainers.values()))
        )
        loops = [one.play_matches() for one in players for _ in range(league.config.rollout.games_in_flight)]
        await asyncio.gather(*(one.train() for one in trainers.values()), *loops)
    await models.close()


async def _play_matches(league: LocalLeague, jobs: Sequence[PlayMatch]) -> None:
    context = league.context("held-out")
    models = await ModelManager.load(context)
    matches, together = MatchExecutor(context, between_agents(context, models)), league.config.rollout.games_in_flight
    for first in range(0, len(jobs), together):
        for played in await asyncio.gather(*map(matches.run, jobs[first : first + together])):
            if played is None:
                raise GameError(f"held-out matches: {await _first_failure(league)}; expected all of them to be played")
            await matches.append_result(played)
    await matches.close()
    await models.close()


async def _first_failure(league: LocalLeague) -> str:
    failed = [r.event async for r in league.log.read() if isinstance(r.event, MatchFailed)]
    return f"{failed[0].match_id} failed ({failed[0].error})"


class _RationedRolloutWorker(RolloutWorker):
    """Of a policy that has fewer workers than the main one: it takes as many fewer steps.

    Policies with seats of their own begin equally many matches, since those of one seat take longer than another's.

    Elsewhere that comes about by itself. Here all play in one process, and whoever waits for its trainer leaves the
    others more of it.
    """

    def __init__(self, context: Context, models: ModelManager, policy: str) -> None:
        super().__init__(context, models, policy)
        role = context.config.policies.get(policy)
        self._ration = 1.0 if role is None else role.rollout_workers / context.config.rollout.workers

    def _has_room(self) -> bool:
        is_next = self._is_even() if self._context.config.matchmaking.seats else self._ration >= 1 or self._is_behind()
        return super()._has_room() and is_next

    def _is_behind(self) -> bool:
        state, hero = self._context.state, self._context.config.trainer.policy
        own, main = (step.step if step else 0 for step in map(state.last_step, (self._policy, hero)))
        return own <= self._ration * main

    def _is_even(self) -> bool:
        """Whether it has begun less than a step's matches more than any other policy."""
        state, config = self._context.state, self._context.config
        fewest = min(map(state.next_match_index, config.trained_policies))
        return self._next_match_index < fewest + config.trainer.rollouts_per_step


async def _save_run(league: LocalLeague, folder: Path, trained: Iterable[str]) -> None:
    """The history, and the adapters of checkpoints and of each trained policy's newest version."""
    lines, digests = [], set()
    async for recorded in league.log.read():
        if isinstance(recorded.event, CheckpointAdded):
            digests.add(recorded.event.adapter)
        place = recorded.sequence, recorded.time_ns, recorded.subject, recorded.producer
        lines.append(msgspec.json.encode(StoredEvent(*place, msgspec.Raw(recorded.payload))))
    for policy in trained:
        digests.add(max(league.state.published[policy].items())[1].adapter)
    held = {name: await league.blobs.get(name) for name in sorted(digests)}
    _write_run(folder, b"\n".join(lines), held)


def _write_run(folder: Path, history: bytes, adapters: Mapping[str, bytes]) -> None:
    (folder / HISTORY).write_bytes(zstandard.compress(history, 9))
    (folder / ADAPTERS).mkdir()
    for name, data in adapters.items():
        (folder / ADAPTERS / name).write_bytes(data)
    shutil.rmtree(folder / "models", ignore_errors=True)
