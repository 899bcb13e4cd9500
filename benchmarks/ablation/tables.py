"""Intervals over seeds, tables and charts of what runs came to."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.ablation import examination, exploiters, heldout
from benchmarks.ablation.arms import ARMS, BASELINE_ARM, SETTINGS
from benchmarks.ablation.driver import DONE
from benchmarks.ablation.games import BENCHMARKS
from benchmarks.ablation.intervals import Interval, mean_interval
from benchmarks.ablation.measures import MeasureReader, RunMeasures

_CURVE_POINTS = 200

Runs = Mapping[str, Mapping[int, RunMeasures]]
"""Of a game: by arm and seed."""
MEASURES = {
    "late": "newest policy, second half",
    "alike": "newest policy, by equal steps",
    "last": "newest policy, at the end",
    "mean": "mean of its checkpoints",
    "nash": "equilibrium of its population",
}
GENERAL_SUM_MEASURES = {
    **{name: title for name, title in MEASURES.items() if name != "nash"},
    "own_late": "newest policy wins from itself, second half",
}
"""Where one's gain is not the other's loss; the last is no exploitability, and more is better for both players."""
_OF_WHOLE_RUN = ("late", "alike", "own_late")


class ArmRow(msgspec.Struct, frozen=True):
    """An arm in a game."""

    arm: str
    seeds: int
    found: dict[str, Interval]
    """By measure: exploitability."""
    less: dict[str, Interval]
    """By measure: mirror's minus the arm's, seed by seed; empty for mirror itself."""
    games: float
    steps: float
    """Of the main policy."""
    seconds: float
    """Of CPU."""

    def is_below(self, mirror: "ArmRow", measure: str) -> bool:
        """Whether the arm's whole interval lies below mirror's."""
        return self.found[measure].high < mirror.found[measure].low


def measure_of(run: RunMeasures, measure: str) -> float:
    """One of the measures of a run."""
    return float(getattr(run if measure in _OF_WHOLE_RUN else run.curve[-1], measure))


def measure_titles(game: str) -> Mapping[str, str]:
    """The measures of a game's runs, with the titles of their columns."""
    return MEASURES if BENCHMARKS[game].is_zero_sum else GENERAL_SUM_MEASURES


def read_measures(folder: Path, game: str, setting: str, reader: MeasureReader) -> dict[str, dict[int, RunMeasures]]:
    """All finished runs of a game with a setting, by arm and seed."""
    found: dict[str, dict[int, RunMeasures]] = {}
    for arm in ARMS:
        runs = sorted((folder / game / setting / arm).glob(f"*/{DONE}"), key=lambda path: int(path.parent.name))
        for done in runs:
            found.setdefault(arm, {})[int(done.parent.name)] = reader.read(done.parent, int(done.parent.name))
    return found


def arm_rows(runs: Runs, measures: Iterable[str] = MEASURES) -> list[ArmRow]:
    """The table of a game."""
    return [_arm_row(arm, runs, tuple(measures)) for arm in runs]


def _arm_row(arm: str, runs: Runs, measures: Sequence[str]) -> ArmRow:
    mine, mirrors = runs[arm], runs.get(BASELINE_ARM, {})
    both = [seed for seed in mine if seed in mirrors and arm != BASELINE_ARM]
    return ArmRow(
        arm,
        len(mine),
        {name: mean_interval([measure_of(run, name) for run in mine.values()]) for name in measures},
        {
            name: mean_interval([measure_of(mirrors[s], name) - measure_of(mine[s], name) for s in both])
            for name in measures
        }
        if both
        else {},
        games=statistics.fmean(run.games for run in mine.values()),
        steps=statistics.fmean(run.steps for run in mine.values()),
        seconds=statistics.fmean(run.seconds for run in mine.values()),
    )


def render_table(game: str, setting: str, table: Sequence[ArmRow]) -> str:
    """A game's table in Markdown. In bold: the whole interval is below mirror's."""
    bench, by_arm, titles = BENCHMARKS[game], {row.arm: row for row in table}, measure_titles(game)
    lines = [
        f"**{bench.title}, {SETTINGS[setting].title}** ({bench.unit} a game that a best response wins; "
        f"{table[0].games:,.0f} games a run)",
        "",
        f"| arm | seeds | {' | '.join(titles.values())} | steps | CPU s |",
        "|---|" + "---|" * (len(titles) + 3),
    ]
    for row in table:
        mirror = by_arm.get(BASELINE_ARM)
        cells = [
            f"**{one}**" if name != "own_late" and mirror is not None and row.is_below(mirror, name) else str(one)
            for name, one in row.found.items()
        ]
        lines.append(
            f"| {ARMS[row.arm].title} | {row.seeds} | {' | '.join(cells)} | {row.steps:.0f} | {row.seconds:.0f} |"
        )
    return "\n".join([*lines, "", *_difference_lines(table), ""])


def _difference_lines(table: Sequence[ArmRow]) -> list[str]:
    """Mirror's exploitability minus each arm's, seed by seed, over the seeds that both have."""
    differences = [f"{ARMS[row.arm].title} {row.less['late']} and {row.less['mean']}" for row in table if row.less]
    return (
        [f"Less than mirror's, seed by seed (newest policy, mean of checkpoints): {'; '.join(differences)}."]
        if differences
        else []
    )


def mean_curves(runs: Mapping[int, RunMeasures], measure: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Games, and mean and half-width of the exploitability over seeds there; between checkpoints it is the older's."""
    most = min(run.games for run in runs.values())
    games = np.linspace(0, most, _CURVE_POINTS)
    values = []
    for run in runs.values():
        at = np.searchsorted([point.games for point in run.curve], games, side="right") - 1
        values.append([getattr(run.curve[place], measure) for place in at])
    found = [mean_interval(column) for column in zip(*values, strict=True)]
    half = np.array([one.half for one in found])
    return games, np.array([one.mean for one in found]), np.where(np.isfinite(half), half, 0.0)


PANELS = (("last", "newest policy"), ("mean", "mean of its checkpoints"), ("nash", "equilibrium of its population"))
GENERAL_SUM_PANELS = PANELS[:2]


def draw_chart(game: str, by_setting: Mapping[str, Runs], path: Path) -> None:
    """Learning curves of all arms: a row of panels per setting."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = PANELS if BENCHMARKS[game].is_zero_sum else GENERAL_SUM_PANELS
    shape = len(by_setting), len(panels)
    whole, axes = plt.subplots(
        *shape, figsize=(13, 3.6 * shape[0]), squeeze=False, sharey=True, constrained_layout=True
    )
    for row, (setting, runs) in zip(axes, by_setting.items(), strict=True):
        for axis, (measure, title) in zip(row, panels, strict=True):
            _draw_panel(axis, runs, measure)
            axis.set_title(f"{title}\n{SETTINGS[setting].title}", fontsize=9)
            axis.set(xlabel="training games, thousands")
        row[0].set_ylabel(f"exploitability, {BENCHMARKS[game].unit} a game")
    axes[0][-1].legend(fontsize=8, loc="upper right")
    seeds = sorted({len(of_arm) for runs in by_setting.values() for of_arm in runs.values()})
    whole.suptitle(f"{BENCHMARKS[game].title}: mean and 95 % interval over {' or '.join(map(str, seeds))} seeds")
    whole.savefig(path, dpi=110)
    plt.close(whole)


def _draw_panel(axis: Any, runs: Runs, measure: str) -> None:
    colours = list(ARMS)
    for arm, of_arm in runs.items():
        games, mean, half = mean_curves(of_arm, measure)
        colour = f"C{colours.index(arm)}"
        axis.plot(games / 1000, mean, color=colour, label=ARMS[arm].title)
        axis.fill_between(games / 1000, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def write_report(folder: Path, to: Path, images: Path) -> None:
    """Compute every figure from what runs left behind.

    Args:
        folder: Of the runs.
        to: Where ``report.md`` and ``report.json`` go.
        images: Where a chart per game goes.
    """
    texts: list[str] = []
    figures: dict[str, object] = {}
    images.mkdir(parents=True, exist_ok=True)
    for game, bench in BENCHMARKS.items():
        if bench.deals is None:
            for measure in (exploiters, heldout, examination):
                texts += measure.render_tables(folder, game)
            continue
        reader = MeasureReader(folder / "models", game)
        found = {setting: read_measures(folder, game, setting, reader) for setting in SETTINGS}
        found = {setting: runs for setting, runs in found.items() if runs}
        tables = {setting: arm_rows(runs, measure_titles(game)) for setting, runs in found.items()}
        texts += [render_table(game, setting, table) for setting, table in tables.items()]
        if found:
            figures[game] = {"rows": tables, "curves": found}
            draw_chart(game, found, images / f"ablation-{game}.png")
    (to / "report.md").write_text("\n".join(texts))
    (to / "report.json").write_bytes(msgspec.json.encode(figures))
    print("\n".join(texts))
