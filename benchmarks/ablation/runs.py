"""Trains many runs, in processes that each train one after the other; a finished one is kept."""

import logging
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec
import structlog
import uvloop

from benchmarks.ablation.arms import ARMS, SETTINGS, run_config
from benchmarks.ablation.driver import DONE, ensure_base_model, train_run
from benchmarks.ablation.examination import examinations
from benchmarks.ablation.exploiters import exploiter_trials
from benchmarks.ablation.games import BENCHMARKS
from benchmarks.ablation.heldout import held_out_trials
from benchmarks.ablation.trials import Trial
from schemas.config import LeagueConfig


class TrainingJob(msgspec.Struct, frozen=True):
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
        return run_config(BENCHMARKS[self.game], ARMS[self.arm], self.seed, SETTINGS[self.setting])

    @property
    def trials(self) -> list[Trial]:
        """What it is still to be put to, once it is trained."""
        of = BENCHMARKS[self.game], ARMS[self.arm], SETTINGS[self.setting], self.seed, self.folder
        return [one for one in (*exploiter_trials(*of), *held_out_trials(*of), *examinations(*of)) if not one.is_done]

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is left to do."""
        return (self.folder / DONE).exists() and not self.trials


def prepare_model(job: TrainingJob) -> str:
    """Make a run's base model, where it is not there yet."""
    BENCHMARKS[job.game].prepare()
    return f"{ensure_base_model(job.model, job.config)} is there"


def train_job(job: TrainingJob) -> str:
    """Train one run; what it cost in a line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    BENCHMARKS[job.game].prepare()
    costs = [] if (job.folder / DONE).exists() else [uvloop.run(train_run(job.folder, job.config, job.model))]
    costs += [uvloop.run(one.run_trial(job.model)) for one in job.trials]
    return f"{job.folder}: {sum(c.seconds for c in costs):.0f} s of CPU, {sum(c.wall_s for c in costs):.0f} s"


def run_all(jobs: Iterable[TrainingJob], processes: int) -> None:
    """Train what was not trained to its end before."""
    left = [job for job in jobs if not job.is_done]
    print(f"{len(left)} runs to train, {processes} at a time", flush=True)
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        # Before any run: two that make the same would be in each other's way.
        list(pool.map(prepare_model, {job.model: job for job in left}.values()))
        for nth, future in enumerate(as_completed([pool.submit(train_job, job) for job in left]), 1):
            try:
                print(f"{nth}/{len(left)} {future.result()}", flush=True)
            except Exception:  # raised again, before all the others have failed the same way
                pool.shutdown(wait=False, cancel_futures=True)
                raise
