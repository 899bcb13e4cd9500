"""Lists the source files that one training match and one gradient step pass through, in the order of their first call.

``python -m benchmarks.trace_main_path`` plays a few matches of the smallest league in this process, without a broker,
and traces one of them and the gradient step that follows. Schemas and logging are left out. Behind an interface one
file counts, the first that is called: of the game and its bots, the way a model is prompted, the inference backend, the
folded state, matchmaking, the trajectory buffer, the learner, the log and the blob store. ``--all`` lists every file.

A climb is a call from a file of a lower layer into one of a higher layer, by the layers of the import contract in
pyproject.toml; each pair of files counts once.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import tomllib
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec

from benchmarks.ablation.driver import ensure_base_model
from benchmarks.ablation.local import LocalLeague
from schemas.config import load_config
from workers.match_runner import runner as _runner
from workers.policy_weights import ModelManager
from workers.rollout import RolloutWorker
from workers.runtime import beside
from workers.trainer import TrainerWorker, load_policy_base

_ROOT = Path(__file__).parent.parent
_LEFT_OUT = (".", "schemas/", "benchmarks/", "tests/", "workers/logs.py")
_STAND_INS = {
    "InMemoryBlobStore": "league/blobs/broker.py",
    "InMemoryExperience": "league/log/queues.py",
    "MemoryLog": "league/log/base.py",
}
"""By class of the league in memory: the file with which a broker is spoken to."""
_INTERFACES = {
    "game": ("arena/games/", "arena/enumerable/", "arena/bots/"),
    "prompter": ("players/reply_formats.py", "players/prompt_builder.py", "players/prompt_builder.py"),
    "backend": ("inference/",),
    "matchmaking": ("league/matchmaking/", "league/samplers/"),
    "state": ("league/state/", "league/fold_primitives.py"),
    "buffer": ("trainer/buffer/", "trainer/admission.py"),
    "learner": ("trainer/learner.py", "trainer/rank_processes.py", "trainer/report.py"),
    "log": ("league/log/",),
    "blobs": ("league/blobs/",),
}
_ORIGIN: ContextVar[str] = ContextVar("origin")
"""The file that started the current task or thread; unset where what runs is not traced."""


class CallTrace:
    """The files that a coroutine passes through, with the tasks and threads that it starts.

    Args:
        inside: Whether to list what interfaces call in turn.
    """

    def __init__(self, inside: bool) -> None:
        self.callers: dict[str, str] = {}
        """By file, in the order of first calls: the file that called it first."""
        self.climbs: dict[tuple[str, str], str] = {}
        """By caller and callee: the function that was called."""
        self._inside = inside
        self._frames: set[FrameType] = set()
        contracts = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        layers = [layer.split(" | ") for layer in reversed(contracts[0]["layers"])]
        self._heights = {package: height for height, layer in enumerate(layers) for package in layer}

    async def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine."""
        origin = _ORIGIN.set("")
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            await asyncio.create_task(work)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            _ORIGIN.reset(origin)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (origin := _ORIGIN.get(None)) is None or frame in self._frames:
            return
        file, callers = _own_file(frame), [*_callers(frame), origin]
        if not file and frame.f_code.co_name in ("create_task", "to_thread"):
            _ORIGIN.set(callers[0])
        elif file:
            # A coroutine that goes on is called again, by the event loop.
            self._frames.add(frame)
            self._count(file, callers, frame.f_code.co_qualname)

    def _count(self, file: str, callers: Sequence[str], name: str) -> None:
        caller, interface = callers[0], _interface(file)
        if caller and self._height(caller) < self._height(file):
            self.climbs.setdefault((caller, file), name)
        is_behind = any(map(_interface, callers)) or (interface and interface in map(_interface, self.callers))
        if self._inside or not is_behind:
            self.callers.setdefault(file, caller)

    def _height(self, file: str) -> int:
        return self._heights[file.partition("/")[0]]

    def report(self, title: str) -> str:
        """The files and the climbs, with their numbers."""
        files = [f"  {number:2} {file}" for number, file in enumerate(self.callers, 1)]
        climbs = [f"  {caller} -> {callee} ({name})" for (caller, callee), name in self.climbs.items()]
        return "\n".join([f"{title}: {len(files)} files, {len(climbs)} climbs", *files, *climbs])


def _interface(file: str) -> str:
    return next((name for name, places in _INTERFACES.items() if file.startswith(places)), "")


def _own_file(frame: FrameType) -> str:
    path, owner = Path(frame.f_code.co_filename), frame.f_code.co_qualname.partition(".")[0]
    file = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else "."
    return _STAND_INS.get(owner) or ("" if file.startswith(_LEFT_OUT) else file)


def _callers(frame: FrameType) -> list[str]:
    """The files that called it, innermost first."""
    files, above = [], frame.f_back
    while above is not None:
        files.append(_own_file(above))
        above = above.f_back
    return [file for file in files if file]


async def trace_main_path(folder: Path, inside: bool) -> tuple[CallTrace, CallTrace]:
    """Trace a training match and a gradient step.

    Args:
        folder: An empty folder for the base model.
        inside: Whether to list what interfaces call in turn.
    """
    config = load_config(_ROOT / "configs" / "nim-tiny.toml")
    config = msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, rollouts_per_step=3))
    league = LocalLeague(config, folder)
    await league.open(ensure_base_model(folder / "base", config))
    match, step = CallTrace(inside), CallTrace(inside)
    async with beside(league.follow()):
        context = league.context("rollout-1")
        models = await ModelManager.load(context)
        trainer = TrainerWorker(context, await load_policy_base(context), config.trainer.policy)
        await trainer.resume()
        await models.load_newest()
        cast(Any, _runner).open_blobs = lambda *_: league.blobs
        worker = RolloutWorker(context, models, config.trainer.policy)
        async with beside(trainer.experience_reader.receive()):
            for _ in range(2):
                await worker.play_training_match()
            await match.run(worker.play_training_match())
            await step.run(trainer.take_next_step())
        await models.close()
    return match, step


def main() -> None:
    """Print both traces."""
    parser = argparse.ArgumentParser(description="The files that a training match and a gradient step pass through.")
    parser.add_argument("--all", action="store_true", help="list what is behind interfaces too")
    inside = parser.parse_args().all
    with tempfile.TemporaryDirectory() as folder:
        match, step = asyncio.run(trace_main_path(Path(folder), inside))
    print(match.report("training match to MatchFinished"))
    print(step.report("trajectory to gradient step"))


if __name__ == "__main__":
    main()
