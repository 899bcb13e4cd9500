"""The simulator: the same trace for the same seed, and leagues that hold every invariant."""

import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.simulation.faults import KINDS, draw_faults
from tests.simulation.league import use_exact_square_roots

ROOT = Path(__file__).parents[2]


def run_simulation(*args: str, cwd: Path = ROOT, **environment: str) -> str:
    """The output of ``python -m tests.simulation``."""
    command = [sys.executable, "-m", "tests.simulation", *args]
    done = subprocess.run(
        command, env=os.environ | environment, cwd=cwd, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def traces(output: str) -> list[str]:
    return re.findall(r"trace ([0-9a-f]{16})", output)


# What differs between machines, as far as one machine has it.
ELSEWHERE = {
    **{"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "3"},
    **{"ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
}


def test_a_seed_has_one_trace_whatever_the_environment_and_holds_every_invariant(tmp_path: Path) -> None:
    output = run_simulation("--seeds", "5", "--first", "109", "--steps", "5", PYTHONHASHSEED="1")
    assert "5 of 5 seeds, 0 broken" in output
    # From another folder, too.
    (tmp_path / "checkout").symlink_to(ROOT)
    environment = ELSEWHERE | {"PYTHONPATH": str(tmp_path / "checkout"), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    again = run_simulation("--seeds", "1", "--first", "110", "--steps", "5", cwd=tmp_path, **environment)
    assert len(set(traces(output))) == 5
    assert traces(again) == traces(output)[1:2]


def test_square_roots_are_those_of_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in ((torch.Tensor, "sqrt"), (torch, "_foreach_sqrt")):
        monkeypatch.setattr(place, name, getattr(place, name))
    use_exact_square_roots()
    numbers = torch.rand(10_000, generator=torch.Generator().manual_seed(1))
    exact = torch.tensor([math.sqrt(number) for number in numbers.tolist()], dtype=torch.float32)
    assert torch.equal(numbers.sqrt(), exact)
    assert all(
        torch.equal(*pair) for pair in zip(torch._foreach_sqrt([numbers, numbers[0]]), [exact, exact[0]], strict=True)
    )


def test_short_leagues_hold_every_invariant_under_every_kind_of_fault() -> None:
    seeds, steps = 40, 1
    drawn = Counter(kind for seed in range(1, seeds + 1) for kind in {f.kind for f in draw_faults(seed, steps, None)})
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) >= 3, "each kind in several leagues"
    output = run_simulation("--seeds", str(seeds), "--steps", str(steps))
    assert f"{seeds} of {seeds} seeds, 0 broken" in output


def test_one_kind_of_fault_can_be_chosen_and_an_unknown_one_is_refused() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "1", "--kinds", "gremlins"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, "--kinds: gremlins; expected some of kill," in done.stderr) == (2, True)


@pytest.mark.slow
def test_defects_of_earlier_versions_are_found_within_their_number_of_seeds() -> None:
    output = run_simulation("--bugs", "tests.simulation.bugs", "--steps", "5")
    assert output.count("found by seed") == 23
