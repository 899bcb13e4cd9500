"""Runs benchmarks, each in its own process so that none warms or crowds another.

``python -m benchmarks`` runs all but the longer ones, ``python -m benchmarks log trainer`` those that are named.
Options behind a single name are that benchmark's: ``inference --shape small``. With ``--miniature`` every one, the
longer ones included, runs in seconds; its figures mean nothing then, it only shows that the benchmark works.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import takewhile
from pathlib import Path

from benchmarks.sizes import MINIATURE_VARIABLE, SKIPPED_CODE

MINIATURE_OPTION = "--miniature"
LONG_BENCHMARKS = {"gpu": "benchmarks.gpu", "learning": "benchmarks.learning", "smollm2": "benchmarks.smollm2"}
"""Benchmarks that run only when they are named, by module."""

_ROOT = Path(__file__).parents[1]
MINIATURE_ARGUMENTS = {
    "learning": [
        *(str(_ROOT / "configs" / "nim-tiny.toml"), "--steps", "2", "--games", "3"),
        *("--set", "model.cloning={ sequences = 16 }"),
    ]
}
"""Options of benchmarks that need some; ``{folder}`` is a temporary folder."""


def benchmark_names() -> list[str]:
    """The benchmarks that run unless others are named."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def module_of(name: str) -> str:
    """The module of a benchmark, which is run as ``__main__``."""
    return LONG_BENCHMARKS.get(name, f"benchmarks.bench_{name}")


def miniature_options(name: str, folder: Path | str) -> list[str]:
    """The options of a benchmark in miniature; ``folder`` is for its files."""
    return [option.replace("{folder}", str(folder)) for option in MINIATURE_ARGUMENTS.get(name, [])]


def run_benchmark(name: str, options: list[str], miniature: bool) -> int:
    """Run one benchmark, print what it took, and return its exit status."""
    environment = {**os.environ, MINIATURE_VARIABLE: "1"} if miniature else None
    print(f"── {name} " + "─" * (70 - len(name)), flush=True)
    began, cpu_s, load = time.perf_counter(), _children_cpu_s(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        if miniature and not options:
            options = miniature_options(name, folder)
        command = [sys.executable, "-m", module_of(name), *options]
        code = subprocess.run(command, check=False, env=environment).returncode
    outcome = {0: "done", SKIPPED_CODE: "skipped"}.get(code, f"FAILED with code {code}")
    print(
        f"── {name} {outcome}: {time.perf_counter() - began:.1f} s, {_children_cpu_s() - cpu_s:.1f} s of processor "
        f"time; load {load:.1f} to {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        flush=True,
    )
    return 0 if code == SKIPPED_CODE else code


def _children_cpu_s() -> float:
    """Processor time of all processes that were started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Run what the command line names; 2 where it makes no sense, otherwise 1 where a benchmark failed."""
    given = sys.argv[1:]
    miniature = MINIATURE_OPTION in given
    given = [argument for argument in given if argument != MINIATURE_OPTION]
    names = list(takewhile(lambda argument: not argument.startswith("-"), given))
    options = given[len(names) :]
    if options and len(names) != 1:
        print(f"options {options} are for one benchmark; found {names}", file=sys.stderr)
        return 2
    short = benchmark_names()
    if unknown := sorted(set(names) - {*short, *LONG_BENCHMARKS}):
        expected = ", ".join([*short, *LONG_BENCHMARKS])
        print(f"no benchmark called {', '.join(unknown)}; expected some of {expected}", file=sys.stderr)
        return 2
    selected = names or [*short, *(LONG_BENCHMARKS if miniature else ())]
    failed = [name for name in selected if run_benchmark(name, options, miniature)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
