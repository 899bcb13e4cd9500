"""Rendering of figures and labels, and image files."""

import html
import io
import warnings
from collections.abc import Mapping
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from league.analysis.summary import RatingCurve

if TYPE_CHECKING:
    from league.analysis.payoff import PayoffMatrix

_STYLES = ("--", ":", "-.")
_MOST_LETTERS = 120


def draw_rating_curve(curve: RatingCurve, path: Path) -> None:
    """Draw a policy's rating over its gradient steps, with baselines and the best so far, as a PNG; may be empty."""
    figure, axes = _make_figure(f"Rating of {curve.policy}")
    for name, ratings in curve.baselines.items():
        axes.plot(curve.steps, ratings, linestyle="--", linewidth=1, label=escape_label(name))
    axes.step(curve.steps, curve.past_best, where="post", color="grey", linewidth=1, label="past best")
    axes.plot(curve.steps, curve.hero, marker="o", color="black", label=escape_label(curve.policy))
    _save(figure, axes, path)


def draw_comparison(curves: Mapping[str, RatingCurve], path: Path) -> None:
    """Draw several runs' ratings over their gradient steps, by the run's name, as a PNG; may be empty."""
    figure, axes = _make_figure("Ratings side by side")
    for number, (run, curve) in enumerate(curves.items()):
        color = f"C{number}"
        axes.plot(curve.steps, curve.hero, marker="o", color=color, label=escape_label(f"{run}: {curve.policy}"))
        for style, (name, ratings) in zip(cycle(_STYLES), curve.baselines.items(), strict=False):
            label = escape_label(f"{run}: {name}")
            axes.plot(curve.steps, ratings, linestyle=style, linewidth=1, color=color, label=label)
    _save(figure, axes, path)


def draw_payoff(payoff: "PayoffMatrix", title: str, path: Path) -> None:
    """Draw a payoff matrix as a PNG; see ``payoff_figure``."""
    payoff_figure(payoff, title).savefig(path, format="png", dpi=120)


def payoff_figure(payoff: "PayoffMatrix", title: str) -> Figure:
    """A heat map of rows against columns with shares, 95 % intervals and games; grey for agents that never met."""
    size = len(payoff.agents)
    figure = Figure(figsize=(4 + 0.9 * size, 2 + 0.75 * size), layout="constrained")
    figure.suptitle(escape_label(title), fontsize="large")
    axes = figure.add_subplot(facecolor="lightgrey")
    shares = [[float("nan") if share is None else share for share in row] for row in payoff.share]
    edges = [place - 0.5 for place in range(size + 1)]
    mesh = axes.pcolormesh(edges, edges, shares, cmap="RdBu", vmin=0.0, vmax=1.0)
    axes.invert_yaxis()
    bar = figure.colorbar(mesh, ax=axes, label="share of the points that the row's agent took")
    # As shapes too: an SVG would otherwise contain pixels, which a page without external content refuses.
    if bar.solids is not None:
        bar.solids.set(rasterized=False, edgecolor="face")
    names = [escape_label(agent) for agent in payoff.agents]
    axes.set_xticks(range(size), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), names)
    for row, column in product(range(size), repeat=2):
        share, games = payoff.share[row][column], payoff.matches[row][column]
        if share is not None:
            ends = f"{payoff.low[row][column]:.2f}–{payoff.high[row][column]:.2f}"
            text = f"{share:.2f}\n{ends}\n{games:,} game{'' if games == 1 else 's'}"
            color = "white" if abs(share - 0.5) > 0.3 else "black"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize="x-small")
    return figure


def to_printable(text: str) -> str:
    """Make untrusted text visible on one line: no control characters, no change of direction."""
    cut = text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut)


def escape_label(text: str) -> str:
    """Escape untrusted text so that Matplotlib shows it literally: neither parsed as a formula nor left out."""
    printable = to_printable(text).replace("$", r"\$")
    # A legend omits labels that begin with an underscore.
    return f"\u200b{printable}" if printable.startswith("_") else printable


def _make_figure(title: str) -> tuple[Figure, Axes]:
    # A figure of its own rather than pyplot's, which keeps global state and may look for a display.
    figure = Figure(figsize=(8, 5), layout="constrained")
    return figure, figure.add_subplot(xlabel="gradient step", ylabel="Elo rating", title=escape_label(title))


def _save(figure: Figure, axes: Axes, path: Path) -> None:
    if axes.lines:
        # Below the picture, where it covers no curve.
        figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)


class Picture(msgspec.Struct, frozen=True):
    """A figure with its title and caption."""

    figure: Figure
    title: str
    caption: str
    """Explanation of the intervals and of what is left out."""


def write_picture(picture: Picture, path: Path) -> None:
    """Write a picture as ``.png``, ``.svg`` or ``.html`` by the file's extension; the same bytes each time.

    The page contains the drawing itself and loads nothing.

    Raises:
        KeyError: another extension.
        OSError: the file cannot be written.
    """
    draw = {".png": png_bytes, ".svg": _svg, ".html": _html}[path.suffix.lower()]
    with warnings.catch_warnings():
        # Letters missing from the font are drawn as boxes; there is no better substitute.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw(picture)
    path.write_bytes(figure)


def png_bytes(picture: Picture) -> bytes:
    """A picture as PNG, with its title and caption as metadata."""
    out = io.BytesIO()
    about = {"Title": to_printable(picture.title), "Description": picture.caption, "Software": None}
    picture.figure.savefig(out, format="png", dpi=120, metadata=about)
    return out.getvalue()


def _svg(picture: Picture) -> bytes:
    out = io.BytesIO()
    about = {"Title": to_printable(picture.title), "Description": picture.caption, "Date": None, "Creator": None}
    # Letters become shapes, so that every machine shows the same; the salt makes the ids within reproducible.
    with rc_context({"svg.hashsalt": "league", "svg.fonttype": "path"}):
        picture.figure.savefig(out, format="svg", metadata=about)
    return out.getvalue()


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ margin: 1rem auto; max-width: 70rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
body {{ background: white; color: #222; }}
figure {{ margin: 0; }}
svg {{ width: 100%; height: auto; }}
</style>
<figure role="img" aria-label="{title}">
{drawing}
</figure>
<p>{caption}</p>
</html>
"""


def _html(picture: Picture) -> bytes:
    drawing = _svg(picture).decode()
    # An embedded drawing has neither an XML declaration nor a document type.
    drawing = drawing[drawing.index("<svg") :]
    title, caption = html.escape(to_printable(picture.title)), html.escape(picture.caption)
    return _PAGE.format(title=title, caption=caption, drawing=drawing).encode()
