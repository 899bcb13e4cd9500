"""A real language model, SmolLM2-135M-Instruct: its learner against the usual ways, and its league.

- *learner*: a step of the league's learner on ``peft`` and ``native`` against a plain loop of PEFT over padded batches,
  and against the loss of TRL's ``GRPOTrainer`` (where ``trl`` is installed), on the same tokens and adapter; gradient
  norms are compared, so that all are known to compute the same step
- *busy*: tokens of a step per processor second with two threads, alone and beside a busy process on each core, with
  the environment of the league's workers and without it
- *league*: steps per hour of ``configs/smollm2-kuhn.toml``

``python -m benchmarks smollm2`` runs all, ``--parts learner`` some. The engine is measured by ``python -m benchmarks
inference --shape smollm2 --adapters 1 4 --peers generate``.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.bench_backends import make_model
from benchmarks.sizes import is_installed, is_miniature, size, skip
from models import find_base
from models.gguf import PACKAGED_MODELS
from schemas.config import Plugin, TrainerConfig
from schemas.errors import LeagueError
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends import AdapterSpec, load_backend
from trainer.learner import Learner
from workers.process import THREAD_ENVIRONMENT

NAME = next(iter(PACKAGED_MODELS))
CONFIG = Path(__file__).parents[1] / "configs" / "smollm2-kuhn.toml"
PARTS = ("learner", "busy", "league")
USUAL_PARTS = size(PARTS, PARTS[:1])
"""In miniature the part that starts no processes."""
ADAPTER = AdapterSpec(rank=16, alpha=32.0, targets=())
PADDED_ROWS = 8
"""Rows of a padded batch of the peers."""
TOLERANCE = 2e-2
"""Largest relative difference of the gradient norms."""
BUSY_ROUNDS = 3
LEAGUE_STEPS = 4


class Workload(NamedTuple):
    """The decisions of one step."""

    name: str
    prompts: int
    prompt: int
    """Tokens of a prompt."""
    shared: int
    """Of them those that all prompts begin with."""
    decisions: int
    completion: int

    def trajectories(self, vocabulary: int) -> list[Trajectory]:
        """One decision a trajectory, won and lost in turn; every token of a reply is free."""
        rng = np.random.default_rng(0)

        def tokens(count: int) -> list[int]:
            return list(map(int, rng.integers(3, vocabulary, size=count)))

        common = tokens(self.shared)
        prompts = [common + tokens(self.prompt - self.shared) for _ in range(self.prompts)]
        places, played = list(range(self.completion)), []
        for number in range(self.decisions):
            free: list[list[int]] = [[] for _ in places]
            call = ModelCall(
                prompts[number % self.prompts],
                tokens(self.completion),
                places,
                [-1.0] * self.completion,
                free,
                0,
                0,
                0.0,
            )
            score = float(1 - 2 * (number % 2))
            played.append(Trajectory(f"m{number}", "game", "main", 0, "A", "A", [call], 1, 0.0, score, 1))
        return played


WORKLOADS = (
    Workload("Kuhn poker", prompts=12, prompt=110, shared=70, decisions=size(136, 12), completion=2),
    Workload("groups of 8", prompts=size(4, 2), prompt=110, shared=0, decisions=size(32, 16), completion=24),
    Workload("groups of 8, short", prompts=size(4, 2), prompt=110, shared=0, decisions=size(32, 16), completion=6),
)


class StepCost(NamedTuple):
    """What a step took."""

    cpu_s: float
    wall_s: float
    norm: float
    """Of the gradient."""


Step = Callable[[Sequence[Trajectory]], float]
"""Accumulates the gradient of a step and returns its norm."""


def find_model(folder: Path) -> Path:
    """The model's folder; in miniature one of random weights. Ends the benchmark as skipped without its package."""
    if is_miniature():
        return make_model(folder / "base", 64, 2)
    try:
        return find_base(NAME)
    except LeagueError as error:
        skip(str(error))


def league_learner(base: Path, backend: str) -> Learner:
    """A learner whose gradient is that of ``A * log p`` over the mean of all sampled tokens."""
    config = TrainerConfig(
        reward=Plugin("outcome"),
        advantage=Plugin("episodic"),
        loss=Plugin("cross_entropy"),
        learner={"epochs": 1, "minibatch_sequences": 10**6, "minibatch_tokens": 10**9, "learning_rate": 1e-9},
    )
    return Learner(load_backend(Plugin(backend), base, "cpu", "float32").new_adapter(ADAPTER, 0), config, seed=0)


class PaddedPeft:
    """Transformers and PEFT as they are used: padded batches, logits of the completions only."""

    def __init__(self, base: Path, adapter: Path) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.model: Any = PeftModel.from_pretrained(plain, adapter, is_trainable=True)
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-9)

    def step(self, played: Sequence[Trajectory]) -> float:
        """Take a step and return the norm of its gradient."""
        self.optimizer.zero_grad()
        for rows in padded_batches(played):
            torch.autograd.backward(self.loss(rows) * rows.share)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, 1e9))
        self.optimizer.step()
        return norm

    def loss(self, rows: "PaddedRows") -> torch.Tensor:
        """Mean over the tokens of a batch."""
        ids = torch.cat([rows.prompt_ids, rows.completion_ids], 1)
        mask = torch.cat([rows.prompt_mask, rows.completion_mask], 1)
        count = rows.completion_ids.shape[1]
        logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=count + 1).logits[:, :-1]
        logprobs = torch.log_softmax(logits, -1).gather(-1, rows.completion_ids[..., None])[..., 0]
        return -(logprobs * rows.advantages[:, None] * rows.completion_mask).sum() / rows.completion_mask.sum()


class TrlGrpo(PaddedPeft):
    """The loss of TRL's ``GRPOTrainer``, which generates nothing here."""

    def __init__(self, base: Path, adapter: Path, folder: Path) -> None:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        super().__init__(base, adapter)
        config = GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=PADDED_ROWS,
            num_generations=PADDED_ROWS,
            beta=0.0,
            loss_type="bnpo",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
        )
        self.trainer: Any = GRPOTrainer(
            self.model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "?"}] * PADDED_ROWS),
            processing_class=AutoTokenizer.from_pretrained(base),
        )
        self.trainer.current_gradient_accumulation_steps = 1

    def loss(self, rows: "PaddedRows") -> torch.Tensor:
        """See ``PaddedPeft.loss``."""
        loss: torch.Tensor = self.trainer._compute_loss(self.model, dict(rows._asdict()))
        return loss


class PaddedRows(NamedTuple):
    """A padded batch, by the names that TRL has for its parts."""

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor
    advantages: torch.Tensor
    share: float
    """Share of the step's sampled tokens."""


def padded_batches(played: Sequence[Trajectory]) -> Iterator[PaddedRows]:
    """A step's decisions, some rows at a time; all prompts and completions of a workload are of one length."""
    total = sum(len(game.steps[0].completion_ids) for game in played)
    for start in range(0, len(played), PADDED_ROWS):
        games = played[start : start + PADDED_ROWS]
        prompts = torch.tensor([game.steps[0].prompt_ids for game in games])
        completions = torch.tensor([game.steps[0].completion_ids for game in games])
        yield PaddedRows(
            prompts,
            torch.ones_like(prompts),
            completions,
            torch.ones_like(completions),
            torch.tensor([game.score for game in games]),
            completions.numel() / total,
        )


def measure_step(step: Step, played: Sequence[Trajectory]) -> StepCost:
    """Time a step, after a short one that warms up."""
    step(played[:2])
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    norm = step(played)
    return StepCost(time.process_time() - cpu_s, time.perf_counter() - wall_s, norm)


def compare_learners(base: Path, folder: Path) -> None:
    """Print what a step takes each learner, with its ratio to the league's on ``peft``."""
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    ours, native = league_learner(base, "peft"), league_learner(base, "native")
    ours.save_adapter(folder / "adapter", str(base))
    steps: dict[str, Step] = {
        "league, peft": lambda played: ours.step(played).grad_norm,
        "league, native": lambda played: native.step(played).grad_norm,
        "PEFT, padded batches": PaddedPeft(base, folder / "adapter").step,
    }
    if is_installed("trl") and not is_miniature():
        steps["TRL, GRPOTrainer"] = TrlGrpo(base, folder / "adapter", folder / "trl").step
    else:
        print("TRL is left out: the package trl is not installed")
    names = ("tokens", "cpu s", "clock s", "tokens/cpu s", "cpu time", "norm")
    print(f"{'a step':22} {'learner':22}" + "".join(f"{name:>14}" for name in names))
    for load in WORKLOADS:
        played = load.trajectories(vocabulary)
        tokens = load.decisions * (load.prompt + load.completion)
        first: StepCost | None = None
        for name, step in steps.items():
            gc.collect()
            cost = measure_step(step, played)
            first = first or cost
            assert abs(cost.norm - first.norm) < TOLERANCE * first.norm, f"gradient norms {first.norm} and {cost.norm}"
            figures = f"{tokens:14,}{cost.cpu_s:14.1f}{cost.wall_s:14.1f}{tokens / cost.cpu_s:14,.0f}"
            print(f"{load.name:22} {name:22}{figures}{cost.cpu_s / first.cpu_s:13.1f}×{cost.norm:14.4f}", flush=True)


def measure_threads(base: Path) -> None:
    """Print tokens per processor second of a step with two threads: what the subprocesses of ``compare_busy`` do."""
    torch.set_num_threads(2)
    learner = league_learner(base, "native")
    load = WORKLOADS[0]
    played = load.trajectories(learner.adapter.shape.vocab_size)
    costs = [measure_step(lambda games: learner.step(games).grad_norm, played).cpu_s for _ in range(BUSY_ROUNDS)]
    print(load.decisions * (load.prompt + load.completion) / min(costs))


def compare_busy(base: Path) -> None:
    """Print tokens per processor second alone and beside busy processes, with and without the workers' environment."""
    command = [sys.executable, "-m", "benchmarks.smollm2", "--threads-of", str(base)]
    spin = [sys.executable, "-c", "while True: pass"]
    plain = {name: value for name, value in os.environ.items() if name not in THREAD_ENVIRONMENT}
    for title, variables in (("as workers are started", THREAD_ENVIRONMENT), ("without their variables", {})):
        rates = []
        for busy in (0, os.cpu_count() or 1):
            others = [subprocess.Popen(spin) for _ in range(busy)]
            try:
                done = subprocess.run(command, env=plain | variables, capture_output=True, text=True, check=True)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            rates.append(float(done.stdout.split()[-1]))
        quiet, beside = rates
        print(
            f"two threads, {title}: {quiet:,.0f} tokens per processor second alone, {beside:,.0f} beside a busy "
            f"process a core: {beside / quiet:.2f}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def measure_league(folder: Path) -> None:
    """Print steps per hour of the league's first steps, without the start."""
    text = CONFIG.read_text()
    for old, new in (
        ("\nsteps = 50", f"\nsteps = {LEAGUE_STEPS}"),
        ("_games = 210", "_games = 2"),
        ("_games = 10", "_games = 2"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "league.toml").write_text(text)
    command = [sys.executable, "-m", "ui", "up", "--config", str(folder / "league.toml"), "--run", str(folder / "run")]
    subprocess.run(command, check=True, capture_output=True)
    listed = [sys.executable, "-m", "ui", "sql", "--run", str(folder / "run"), "--json"]
    statement = "SELECT epoch(time) AS at, metrics['seconds'] AS seconds FROM gradient_steps ORDER BY step"
    rows = json.loads(subprocess.run([*listed, statement], check=True, capture_output=True, text=True).stdout)
    apart = [after["at"] - before["at"] for before, after in pairwise(rows)]
    seconds = sum(apart) / len(apart)
    computing = sum(row["seconds"] for row in rows[1:]) / len(apart)
    figures = f"a step in {seconds:.0f} s, {computing:.0f} s of it in the learner: {3600 / seconds:.0f} steps an hour"
    print(f"league of {CONFIG.stem}: {figures}")


def main() -> None:
    """Measure the chosen parts and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks smollm2")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=USUAL_PARTS)
    parser.add_argument("--threads-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads_of is not None:
        measure_threads(options.threads_of)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        base = find_model(folder)
        print(f"{base.name}, float32, rank {ADAPTER.rank} on all linears; load {os.getloadavg()[0]:.1f}", flush=True)
        if "learner" in options.parts:
            compare_learners(base, folder)
        if "busy" in options.parts:
            compare_busy(base)
        if "league" in options.parts:
            measure_league(folder)


if __name__ == "__main__":
    main()
