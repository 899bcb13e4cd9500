"""Pictures for people, drawn without a display."""

from collections.abc import Mapping
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from league.analytics import EloCurve

if TYPE_CHECKING:
    from league.boards.payoff import Payoff

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


def draw_payoff(payoff: "Payoff", title: str, path: Path) -> None:
    """Draw a payoff matrix as a heat map with its shares and games in the cells, as a PNG.

    Args:
        payoff: Rows against columns; cells of who never met stay grey.
        title: Above it.
        path: Where the PNG goes.
    """
    size = len(payoff.agents)
    figure = Figure(figsize=(3 + 0.8 * size, 2 + 0.7 * size), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title, facecolor="lightgrey")
    shares = [[float("nan") if share is None else share for share in row] for row in payoff.share]
    image = axes.imshow(shares, cmap="RdBu", vmin=0.0, vmax=1.0, aspect="auto")
    figure.colorbar(image, ax=axes, label="share of the points that the row's agent took")
    axes.set_xticks(range(size), payoff.agents, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), payoff.agents)
    for row, column in product(range(size), repeat=2):
        share, games = payoff.share[row][column], payoff.matches[row][column]
        if share is not None:
            color = "white" if abs(share - 0.5) > 0.3 else "black"
            text = f"{share:.2f}\n{games:,} game{'' if games == 1 else 's'}"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize="x-small")
    figure.savefig(path, format="png", dpi=120)


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
