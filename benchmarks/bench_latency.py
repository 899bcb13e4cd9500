"""Latency of commands on a small run that is stopped: from the start of the process to its end, whatever it prints.

Every round runs each command once, so that what else the machine does meets all of them alike. Processor time is the
least of all rounds, of the command and of the processes that it waits for; so are its ratios to an interpreter that
does nothing and to one that imports the two libraries no command can do without. "First use" is without the tables
that an earlier command left in the run's folder.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.sizes import is_miniature, size
from benchmarks.web_history import store_events
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.errors import ExitCode
from tests.simulated_history import Simulation

ROUNDS = size(9, 1)
WARM_UP_ROUNDS = size(1, 0)
"""Rounds that only fill the caches of files and compiled modules."""
VERSIONS, MATCHES = 3, 14
"""Versions of the simulated league, and training matches of each."""
BARE, LIBRARIES = "python -c pass", "import duckdb, msgspec"


class Case(msgspec.Struct, frozen=True):
    """A process to measure."""

    arguments: list[str]
    target_s: float | None = None
    """Processor seconds that it should take at most on a quiet core."""
    first_use: bool = False


class Sample(msgspec.Struct, frozen=True):
    """One run of a process."""

    processor_s: float
    wall_s: float


def make_cases(run: Path) -> dict[str, Case]:
    """The processes by name."""

    def command(*words: str, target_s: float | None = 0.6, first_use: bool = False) -> Case:
        return Case(["-m", "ui", *words, "--run", str(run)], target_s, first_use)

    cases = {
        BARE: Case(["-c", "pass"]),
        LIBRARIES: Case(["-c", LIBRARIES]),
        "--help": Case(["-m", "ui", "--help"], 0.3),
        "leaderboard": command("leaderboard"),
        "events": command("events"),
        "ledger": command("ledger"),
        "verify": command("verify"),
        "sql": command("sql", "SELECT count(*) FROM matches"),
        "status": command("status", target_s=None),
        "leaderboard, first use": command("leaderboard", target_s=None, first_use=True),
    }
    # Each takes a second, and all of them start alike.
    return cases if not is_miniature() else {name: cases[name] for name in (BARE, LIBRARIES, "--help", "events")}


def make_run(folder: Path) -> Path:
    """A small run of a simulated league, under 50 rated matches."""
    evaluation = EvaluationConfig(gatekeeper_games=2, benchmark_games=2)
    league = Simulation(LeagueConfig(name="league", seed=4, evaluation=evaluation), seats=2)
    league.run(VERSIONS, MATCHES)
    asyncio.run(store_events(folder, league.history))
    return folder


def measure(case: Case, run: Path) -> Sample:
    """Run a process once.

    Raises:
        RuntimeError: it failed.
    """
    if case.first_use:
        for file in run.glob("projection.*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *case.arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    # Verifying has codes of its own: what is simulated is neither sealed nor complete.
    if process.returncode in (ExitCode.ERROR, ExitCode.USAGE):
        raise RuntimeError(f"{case.arguments}: exit code {process.returncode}: {errors}")
    return Sample(usage.ru_utime + usage.ru_stime, time.perf_counter() - began)


def measure_all(cases: dict[str, Case], run: Path) -> dict[str, list[Sample]]:
    """Run all of them in turns."""
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for _ in range(WARM_UP_ROUNDS + ROUNDS):
        for name, case in cases.items():
            samples[name].append(measure(case, run))
    return {name: found[WARM_UP_ROUNDS:] for name, found in samples.items()}


def main() -> None:
    """Measure and print a row for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="folder of a stopped run; by default a simulated one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or make_run(Path(folder))
        cases = make_cases(run)
        samples = measure_all(cases, run)
    least = {name: min(sample.processor_s for sample in found) for name, found in samples.items()}
    print(f"| command | processor s, least of {ROUNDS} | by the clock, median | target | × {BARE} | × {LIBRARIES} |")
    print("|---" * 6 + "|")
    for name, case in cases.items():
        wall_s, target = median(sample.wall_s for sample in samples[name]), case.target_s or ""
        ratios = f"{least[name] / least[BARE]:.1f} | {least[name] / least[LIBRARIES]:.1f}"
        print(f"| {name} | {least[name]:.2f} | {wall_s:.2f} | {target} | {ratios} |")
    print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
