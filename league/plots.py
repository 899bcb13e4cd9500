"""Pictures for people, drawn without a display."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from league.analytics import EloCurve

_STYLES = ("--", ":", "-.")


def draw_elo(curve: EloCurve, path: Path) -> None:
    """Draw a policy's rating over its gradient steps, with the baselines and the best so far, as a PNG.

    Args:
        curve: From ``analytics.elo_curve``; may be empty.
        path: Where the PNG goes.
    """
    figure, axes = _empty(f"Rating of {curve.policy}")
    for name, ratings in curve.baselines.items():
        axes.plot(curve.steps, ratings, linestyle="--", linewidth=1, label=name)
    axes.step(curve.steps, curve.past_best, where="post", color="grey", linewidth=1, label="past best")
    axes.plot(curve.steps, curve.hero, marker="o", color="black", label=curve.policy)
    _save(figure, axes, path)


def draw_comparison(curves: Mapping[str, EloCurve], path: Path) -> None:
    """Draw several runs' ratings over their gradient steps, as a PNG.

    Args:
        curves: By the run's name; may be empty.
        path: Where the PNG goes.
    """
    figure, axes = _empty("Ratings side by side")
    for number, (run, curve) in enumerate(curves.items()):
        color = f"C{number}"
        axes.plot(curve.steps, curve.hero, marker="o", color=color, label=f"{run}: {curve.policy}")
        for style, (name, ratings) in zip(cycle(_STYLES), curve.baselines.items(), strict=False):
            axes.plot(curve.steps, ratings, linestyle=style, linewidth=1, color=color, label=f"{run}: {name}")
    _save(figure, axes, path)


def _empty(title: str) -> tuple[Figure, Axes]:
    # A figure of its own rather than pyplot's, which keeps global state and may look for a display.
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot(xlabel="gradient step", ylabel="Elo rating", title=title)


def _save(figure: Figure, axes: Axes, path: Path) -> None:
    if axes.lines:
        # Below the picture, where it covers no curve.
        figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)
