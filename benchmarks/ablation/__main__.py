"""``python -m benchmarks.ablation``: train all arms from all seeds, search over the grid, and report."""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ablation.arms import ARMS, Tuned
from benchmarks.ablation.games import BENCHES
from benchmarks.ablation.runs import Job, run_all
from benchmarks.ablation.tuning import GRID, chosen, load, write

SEEDS = (1, 2, 3, 4, 5)
TUNING_SEEDS = (101, 102)
SHORT_GAMES, SHORT_ARMS, SHORT_SHARE = ("rps", "kuhn"), ("mirror", "alphastar", "league"), 0.5


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("command", choices=("run", "short", "tune", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--games", nargs="*", choices=list(BENCHES), default=list(BENCHES))
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, help="by default five to train, two others to tune")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=Path, default=None, help="where the report's charts go; by default FOLDER")
    return parser.parse_args(given)


def jobs_of(asked: argparse.Namespace, share: float = 1.0) -> list[Job]:
    """Seed by seed, so that what is there of a game at any time is there for all arms."""
    tuned = load()
    return [
        Job(asked.folder / game / arm / str(seed), asked.folder / "models", game, arm, seed, tuned[game][arm], share)
        for game, seed, arm in itertools.product(asked.games, asked.seeds or SEEDS, asked.arms)
    ]


def tune(asked: argparse.Namespace) -> None:
    """Search over the grid, the same for every arm, from seeds of their own; write what was found."""
    from benchmarks.ablation.measures import Reader

    def job(game: str, seed: int, tuned: Tuned, arm: str) -> Job:
        folder = asked.folder / "tuning" / game / arm / f"{tuned.learning_rate}-{tuned.entropy}" / str(seed)
        return Job(folder, asked.folder / "models", game, arm, seed, tuned, 0.5)

    seeds = asked.seeds or TUNING_SEEDS
    jobs = [job(*one) for one in itertools.product(asked.games, seeds, GRID, asked.arms)]
    run_all(jobs, asked.processes)
    found = load()
    for game, arm in itertools.product(asked.games, asked.arms):
        reader = Reader(asked.folder / "models", game)
        losses = {
            tuned: statistics.fmean(reader.read(job(game, seed, tuned, arm).folder, seed).late for seed in seeds)
            for tuned in GRID
        }
        found.setdefault(game, {})[arm] = chosen(losses)
        said = ", ".join(f"{tuned.learning_rate:g}/{tuned.entropy:g} {loss:.3f}" for tuned, loss in losses.items())
        print(f"{game} {arm}: {said}")
    write(found)


def main() -> int:
    """Do what the command line says."""
    asked = arguments(sys.argv[1:])
    if asked.command == "tune":
        tune(asked)
        return 0
    if asked.command == "short":
        asked.games, asked.arms = SHORT_GAMES, SHORT_ARMS
    if asked.command != "report":
        run_all(jobs_of(asked, SHORT_SHARE if asked.command == "short" else 1.0), asked.processes)
    from benchmarks.ablation.tables import report

    report(asked.folder, asked.images or asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
