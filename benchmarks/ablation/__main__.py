"""``python -m benchmarks.ablation``: train all arms from all seeds, report, predict matches."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ablation.arms import ARMS, SETTINGS
from benchmarks.ablation.exports import export_runs, unpack_export
from benchmarks.ablation.games import BENCHMARKS
from benchmarks.ablation.plan import FIVE_SEEDS, planned_runs
from benchmarks.ablation.runs import TrainingJob, run_all

SHORT_GAMES, SHORT_ARMS, SHORT_SETTINGS = ("rps", "kuhn"), ("mirror", "lagged", "league"), ("entropy",)
"""A part of the whole, with the same budgets: in the same folder the whole goes on where it was."""


def parse_arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("command", choices=("run", "short", "report", "predict", "export"))
    parser.add_argument("folder", type=Path, help="of the runs; to report also a file that `export` wrote")
    parser.add_argument("--games", nargs="*", choices=list(BENCHMARKS), help="by default those of the plan")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), help="by default those of the plan")
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), help="by default those of the plan")
    parser.add_argument("--seeds", nargs="*", type=int, help="by default those of the plan")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--logs", nargs="*", type=Path, default=[], help="of `league events --json`, to predict too")
    parser.add_argument("--to", type=Path, default=Path("ablation.tar"), help="the file that `export` writes")
    parser.add_argument("--images", type=Path, default=None, help="where the report's charts go; by default FOLDER")
    return parser.parse_args(given)


def plan_jobs(arguments: argparse.Namespace) -> list[TrainingJob]:
    """What the command line asks to be trained, told by ``plan.planned_runs``."""
    return [
        TrainingJob(arguments.folder, *run)
        for run in planned_runs(arguments.games, arguments.settings, arguments.arms, arguments.seeds)
    ]


def _predict(arguments: argparse.Namespace) -> None:
    from benchmarks.ablation.prediction import ablation_table, log_table

    # Teachers and students are no opponents.
    contests = [game for game, bench in BENCHMARKS.items() if bench.config is None]
    tables = [
        ablation_table(arguments.folder, game, arguments.seeds or FIVE_SEEDS) for game in arguments.games or contests
    ] + [log_table(one) for one in arguments.logs]
    print("\n\n".join(filter(None, tables)))


def _report(arguments: argparse.Namespace) -> None:
    from benchmarks.ablation.tables import write_report

    if arguments.folder.is_dir():
        write_report(arguments.folder, arguments.folder, arguments.images or arguments.folder)
        return
    beside = arguments.folder.parent
    with tempfile.TemporaryDirectory() as workshop:
        unpack_export(arguments.folder, Path(workshop))
        write_report(Path(workshop), beside, arguments.images or beside)


def main() -> int:
    """Do what the command line says."""
    arguments = parse_arguments(sys.argv[1:])
    if arguments.command == "short":
        arguments.games, arguments.arms, arguments.settings = SHORT_GAMES, SHORT_ARMS, SHORT_SETTINGS
        arguments.seeds = arguments.seeds or FIVE_SEEDS
    if arguments.command == "predict":
        _predict(arguments)
    elif arguments.command == "export":
        print(export_runs(plan_jobs(arguments), arguments.to))
    else:
        if arguments.command != "report":
            run_all(plan_jobs(arguments), arguments.processes)
        _report(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
