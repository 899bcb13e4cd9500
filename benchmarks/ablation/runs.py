"""Trains many runs, in processes that each train one after the other; a finished one is kept."""

import logging
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec
import structlog
import uvloop

from benchmarks.ablation.arms import ARMS, SETTINGS, config_of
from benchmarks.ablation.driver import DONE, model_of, train
from benchmarks.ablation.exploiters import Exploiter, exploiters_of
from benchmarks.ablation.games import BENCHES
from schemas.config import LeagueConfig


class Job(msgspec.Struct, frozen=True):
    """One run."""

    root: Path
    """Of all runs and base models."""
    game: str
    setting: str
    arm: str
    seed: int

    @property
    def folder(self) -> Path:
        """What it leaves behind."""
        return self.root / self.game / self.setting / self.arm / str(self.seed)

    @property
    def model(self) -> Path:
        """Folder of the base model, which all arms share."""
        return self.root / "models" / f"{self.game}-{self.seed}"

    @property
    def config(self) -> LeagueConfig:
        """What is trained."""
        return config_of(BENCHES[self.game], ARMS[self.arm], self.seed, SETTINGS[self.setting])

    @property
    def exploiters(self) -> list[Exploiter]:
        """What is still to be trained against it, once it is trained itself."""
        bench, arm, setting = BENCHES[self.game], ARMS[self.arm], SETTINGS[self.setting]
        every = exploiters_of(bench, arm, setting, self.seed, self.folder)
        return [one for one in every if not (one.folder / DONE).exists()]

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is left to train."""
        return (self.folder / DONE).exists() and not self.exploiters


def made(job: Job) -> str:
    """Make a run's base model, where it is not there yet."""
    BENCHES[job.game].prepare()
    return f"{model_of(job.model, job.config)} is there"


def trained(job: Job) -> str:
    """Train one run; what it cost in a line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    BENCHES[job.game].prepare()
    costs = [] if (job.folder / DONE).exists() else [uvloop.run(train(job.folder, job.config, job.model))]
    costs += [uvloop.run(train(one.folder, one.config, job.model, one.frozen())) for one in job.exploiters]
    return f"{job.folder}: {sum(c.seconds for c in costs):.0f} s of CPU, {sum(c.wall_s for c in costs):.0f} s"


def run_all(jobs: Iterable[Job], processes: int) -> None:
    """Train what was not trained to its end before."""
    left = [job for job in jobs if not job.is_done]
    print(f"{len(left)} runs to train, {processes} at a time", flush=True)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        # Before any run: two that make the same would be in each other's way.
        list(pool.map(made, {job.model: job for job in left}.values()))
        for nth, future in enumerate(as_completed([pool.submit(trained, job) for job in left]), 1):
            try:
                print(f"{nth}/{len(left)} {future.result()}", flush=True)
            except Exception:
                # Said now, not after all the others have failed the same way.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
