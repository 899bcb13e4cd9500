"""Every benchmark runs, with counts so small that its figures mean nothing, in a process of its own."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import LONG_BENCHMARKS, MINIATURE_OPTION, benchmark_names, miniature_options, module_of
from benchmarks.sizes import MINIATURE_VARIABLE, SKIPPED_CODE
from tests.forks import FORKS

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900.0


def run_module(module: str, options: list[str], output: Path) -> None:
    """Run a module as ``python -m`` does, in a process that is its own."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ[MINIATURE_VARIABLE] = "1"
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@pytest.mark.parametrize("name", [*LONG_BENCHMARKS, *benchmark_names()])
def test_a_benchmark_runs_in_miniature(name: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    arguments = module_of(name), miniature_options(name, tmp_path), output
    process = FORKS.Process(target=run_module, args=arguments)
    process.start()
    try:
        process.join(TIMEOUT_S)
    finally:
        process.kill()
        process.join()
    assert process.exitcode in (0, SKIPPED_CODE), output.read_text()[-6000:]
    assert output.read_text()


def test_the_command_runs_a_benchmark_in_miniature_and_says_what_it_took() -> None:
    command = [sys.executable, "-m", "benchmarks", "samplers", MINIATURE_OPTION]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    last = done.stdout.splitlines()[-1]
    assert re.match(r"── samplers (done|skipped): [\d.]+ s, [\d.]+ s of processor time; load ", last), last


def test_an_unknown_benchmark_is_refused_with_the_names_of_the_known_ones() -> None:
    command = [sys.executable, "-m", "benchmarks", "logs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert "no benchmark called logs; expected some of " in done.stderr


def test_no_benchmark_asserts_a_duration() -> None:
    judged = re.compile(r"assert [^#\n]*(_s|_ms|_us|seconds)\b *[<>]|MAX_US|LIMIT_S")
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        for line in path.read_text().splitlines()
        if judged.search(line)
    ]
    assert not found
