"""``python -m benchmarks.ablation``: train all arms from all seeds, report, predict matches."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ablation.arms import ARMS, SETTINGS
from benchmarks.ablation.games import BENCHES
from benchmarks.ablation.runs import Job, run_all

SEEDS = (1, 2, 3, 4, 5)
SHORT_GAMES, SHORT_ARMS, SHORT_SETTINGS = ("rps", "kuhn"), ("mirror", "lagged", "league"), ("entropy",)
"""A part of the whole, with the same budgets: in the same folder the whole goes on where it was."""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("command", choices=("run", "short", "report", "predict"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--games", nargs="*", choices=list(BENCHES), default=list(BENCHES))
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=Path, default=None, help="where the report's charts go; by default FOLDER")
    return parser.parse_args(given)


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """Seed by seed, so that what is there of a game at any time is there for all arms."""
    wanted = itertools.product(asked.games, asked.settings, asked.seeds, asked.arms)
    return [Job(asked.folder, game, setting, arm, seed) for game, setting, seed, arm in wanted]


def main() -> int:
    """Do what the command line says."""
    asked = arguments(sys.argv[1:])
    if asked.command == "short":
        asked.games, asked.arms, asked.settings = SHORT_GAMES, SHORT_ARMS, SHORT_SETTINGS
    if asked.command == "predict":
        from benchmarks.ablation.prediction import table

        print("\n\n".join(filter(None, (table(asked.folder, game, asked.seeds) for game in asked.games))))
        return 0
    if asked.command != "report":
        run_all(jobs_of(asked), asked.processes)
    from benchmarks.ablation.tables import report

    report(asked.folder, asked.images or asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
