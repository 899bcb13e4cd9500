"""Pictures for people, drawn without a display."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from league.analytics import EloCurve


def draw_elo(curve: EloCurve, path: Path) -> None:
    """Draw a policy's rating over its gradient steps, with the baselines and the best so far, as a PNG.

    Args:
        curve: From ``analytics.elo_curve``; may be empty.
        path: Where the PNG goes.
    """
    # A figure of its own rather than pyplot's, which keeps global state and may look for a display.
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="gradient step", ylabel="Elo rating", title=f"Rating of {curve.policy}")
    for name, ratings in curve.baselines.items():
        axes.plot(curve.steps, ratings, linestyle="--", linewidth=1, label=name)
    axes.step(curve.steps, curve.past_best, where="post", color="grey", linewidth=1, label="past best")
    axes.plot(curve.steps, curve.hero, marker="o", color="black", label=curve.policy)
    axes.legend(loc="best")
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)
