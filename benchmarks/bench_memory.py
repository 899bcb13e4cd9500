"""Resident memory of a trainer's process, and of whole leagues, beside the estimate of ``league config check``.

Each case of a trainer is a process of its own: it imports what a trainer imports, loads a random model from its files,
takes two steps on sequences that fill whole rectangles, and reports its peak. Run: ``python -m benchmarks memory``.
``python -m benchmarks.bench_memory --league CONFIG`` runs a league and adds up all its processes, those that share
libraries counting them each, every second.
"""

import contextlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import psutil
import torch

from benchmarks.sizes import is_miniature, size
from lifecycle.resource_estimate import estimate_resources, trainer_host_memory
from models import BaseShape, make_base
from models.tokenizer import SPECIAL
from schemas.config import LeagueConfig, convert, load_config
from schemas.trajectories import ModelCall, Trajectory

TOLERANCE = size(0.10, float("inf"))
"""Largest relative difference of estimate and measurement."""


class MemoryCase(msgspec.Struct, frozen=True):
    """A model, and how it is trained."""

    hidden: int
    layers: int
    backend: str = "native"
    dtype: str = "float32"
    rank: int = 16
    tokens: int = 2_048
    """Of a rectangle."""
    length: int = 256
    """Of every sequence; all but an eighth of it is chosen freely from the vocabulary."""
    layout: str = "rectangles"
    recompute: bool = False
    vocabulary: int = 8_192

    def name(self) -> str:
        """One line for a table."""
        more = f"{self.layout}{', recomputed' if self.recompute else ''}"
        return f"{self.backend}, {self.hidden} × {self.layers}, {self.dtype}, rank {self.rank}, {self.tokens} in {more}"

    def config(self, base: str) -> LeagueConfig:
        """A league that trains it."""
        learner = {"epochs": 1, "rectangle_tokens": self.tokens, "layout": self.layout}
        trainer = {
            "backend": {"name": self.backend},
            "dtype": self.dtype,
            "learner": learner | {"recompute_layers": self.recompute},
            "advantage": {"name": "episodic"},
        }
        return convert({"model": {"base": base, "lora_rank": self.rank}, "trainer": trainer}, LeagueConfig, "")


CASES = size(
    (
        MemoryCase(128, 4),
        MemoryCase(256, 8),
        MemoryCase(256, 8, layout="packed"),
        MemoryCase(256, 8, tokens=4_096),
        MemoryCase(512, 8),
        MemoryCase(512, 8, tokens=1_024, rank=64),
        MemoryCase(512, 8, recompute=True),
        MemoryCase(512, 8, layout="packed", recompute=True),
        MemoryCase(512, 8, tokens=1_024, vocabulary=32_768),
        MemoryCase(768, 12, tokens=1_024, recompute=True),
        MemoryCase(128, 4, "peft"),
        MemoryCase(256, 8, "peft"),
        MemoryCase(512, 8, "peft"),
        MemoryCase(512, 8, "peft", recompute=True),
        MemoryCase(512, 8, "peft", layout="packed"),
        MemoryCase(768, 12, "peft", tokens=1_024, recompute=True),
    ),
    (MemoryCase(32, 1, tokens=256, length=64, vocabulary=512),),
)


def write_model(folder: Path, case: MemoryCase) -> Path:
    """A Qwen3 of the case's shape with random weights, as a Hugging Face directory."""
    heads = max(case.hidden // 64, 1)
    shape = BaseShape(case.hidden, case.layers, heads, max(heads // 2, 1), 64, 3 * case.hidden, 4_096)
    return make_base(folder, [f"w{number}" for number in range(case.vocabulary - len(SPECIAL))], shape)


def trajectories(case: MemoryCase) -> list[Trajectory]:
    """Two rectangles of random tokens."""
    rng, prompted = np.random.default_rng(0), case.length // 8
    every = list(range(case.length - prompted))
    found = []
    for game in range(max(2 * case.tokens // case.length, 2)):
        ids = rng.integers(1, case.vocabulary, size=case.length).tolist()
        prompt, completion = ids[:prompted], ids[prompted:]
        logprobs = [-float(np.log(case.vocabulary))] * len(every)
        allowed: list[list[int]] = [[] for _ in every]
        call = ModelCall(prompt, completion, every, logprobs, allowed, 0, 1, 0.0)
        found.append(Trajectory(f"m{game}", "game", "main", 0, "A", "A", [call], 2, float(game % 3), 0.5, 1))
    return found


def peak_gb(case: MemoryCase, base: Path) -> float:
    """Peak resident memory of this process after two steps."""
    import workers.trainer  # noqa: F401  (a trainer's imports)
    from trainer.backends import load_backend
    from trainer.learner import Learner
    from workers.learner_state import make_adapter_spec

    torch.set_num_threads(1)
    config = case.config(str(base))
    backend = load_backend(config.trainer.backend, base, "cpu", case.dtype)
    learner = Learner(backend.new_adapter(make_adapter_spec(config), 0), config.trainer, 0)
    for _ in range(2):
        report = learner.step(trajectories(case))
        assert not report.skipped, report.skipped
        with tempfile.TemporaryDirectory() as folder:
            learner.save_state(Path(folder))
    status = Path("/proc/self/status")
    if status.exists():
        # ``ru_maxrss`` begins with the peak of the process that started this one.
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def measure(case: MemoryCase) -> tuple[float, float]:
    """Estimated and measured GB; in miniature nothing is estimated, and this process measures itself."""
    with tempfile.TemporaryDirectory() as folder:
        base = write_model(Path(folder) / "model", case)
        if is_miniature():
            return 0.0, peak_gb(case, base)
        command = [sys.executable, "-m", "benchmarks.bench_memory", str(base), msgspec.json.encode(case).decode()]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{case.name()}: {result.stderr[-2_000:]}")
        estimate = sum(part.gb for part in trainer_host_memory(case.config(str(base))))
    return estimate, float(result.stdout.split()[-1])


def measure_league(file: Path) -> int:
    """Run a league to its end and print its largest memory beside the estimate; 1 where that is too far off."""
    with tempfile.TemporaryDirectory() as folder:
        up = subprocess.Popen(
            [sys.executable, "-m", "ui", "up", "--config", str(file), "--run", f"{folder}/run"],
            stdout=subprocess.DEVNULL,
        )
        largest: dict[str, float] = {}
        while up.poll() is None:
            found: dict[str, float] = {}
            with contextlib.suppress(psutil.Error):
                supervisor = psutil.Process(up.pid)
                for process in (supervisor, *supervisor.children(recursive=True)):
                    words = process.cmdline()
                    role = words[words.index("worker") + 1] if "worker" in words else process.name()
                    found[role] = found.get(role, 0.0) + process.memory_info().rss / 1e9
                largest = max(largest, found, key=lambda parts: sum(parts.values()))
            time.sleep(1.0)
    estimate, measured = estimate_resources(load_config(file)).memory_gb, sum(largest.values())
    print("\n".join(f"{role:12} {gb:6.3f} GB" for role, gb in sorted(largest.items())))
    print(f"{file.stem:12} {measured:6.3f} GB, estimate {estimate:.3f} GB, {estimate / measured - 1:+.0%}")
    return int(up.returncode != 0 or abs(estimate / measured - 1) > TOLERANCE)


def main() -> int:
    """Print a table; 1 where an estimate is too far off."""
    print(f"{'case':78} {'estimate':>9} {'measured':>9}")
    far = 0
    with ThreadPoolExecutor(2) as pool:
        for case, (estimate, found) in zip(CASES, pool.map(measure, CASES), strict=True):
            far += abs(estimate / found - 1) > TOLERANCE
            print(f"{case.name():78} {estimate:6.2f} GB {found:6.2f} GB {estimate / found - 1:+6.0%}", flush=True)
    return int(far > 0)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    if sys.argv[1] == "--league":
        sys.exit(measure_league(Path(sys.argv[2])))
    print(peak_gb(msgspec.json.decode(sys.argv[2], type=MemoryCase), Path(sys.argv[1])))
