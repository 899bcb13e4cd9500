"""Curves in a terminal, drawn with plotext."""

from collections.abc import Collection, Sequence
from itertools import pairwise, zip_longest
from math import ceil, floor, log10

import plotext
from rich.text import Text

from league.analysis.leaderboard import Leaderboard
from schemas.ids import split_agent

_COLOURS = (6, 3, 2, 5, 4, 1, 14, 11)
"""Terminal colours of curves, by number."""
_TICKS = 5
_MIN_WIDTH = 20

Points = Sequence[Sequence[float]]


def line_chart(series: Sequence[Points], width: int, height: int, *, stepped: bool = False) -> list[Text]:
    """Draw curves of at least one point each, as lines from top to bottom.

    ``stepped`` keeps a value constant until the next point, as ratings are.
    """
    # plotext draws one figure for the whole process.
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(max(width, _MIN_WIDTH), height)
    plotext.limitsize(False, False)
    for number, points in enumerate(series):
        corners = _stepped(points) if stepped else points
        xs, ys = ([point[axis] for point in corners] for axis in (0, 1))
        plotext.plot(xs, ys, marker="braille", color=_COLOURS[number % len(_COLOURS)])
    for axis, set_ticks, most in ((0, plotext.xticks, _TICKS), (1, plotext.yticks, min(height // 2, _TICKS))):
        values = [point[axis] for points in series for point in points]
        set_ticks(*_ticks(min(values), max(values), most))
    return list(Text.from_ansi(plotext.build().rstrip("\n"), no_wrap=True).split("\n"))


def beside(charts: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Join charts side by side; each gets ``width`` cells a line."""
    lines = []
    for row in zip_longest(*charts, fillvalue=Text()):
        line = Text(no_wrap=True)
        for part in row:
            cell = part.copy()
            cell.truncate(width, pad=True)
            line.append_text(cell)
        lines.append(line)
    return lines


def series_style(number: int) -> str:
    """Colour of the curve with this number, as a style of rich."""
    return f"color({_COLOURS[number % len(_COLOURS)]})"


def training_chart(board: Leaderboard, policy: str, baselines: Collection[str], width: int, height: int) -> list[Text]:
    """Draw the ratings of a policy's versions over gradient steps, beside the baselines' as level lines.

    There is a legend above them, and nothing below two versions.
    """
    rated = [(row.agent, row.rating) for row in board.rows if row.rating is not None and row.rated_games]
    named = [(split_agent(agent), rating) for agent, rating in rated]
    versions = sorted((version[1], rating) for version, rating in named if version and version[0] == policy)
    if len(versions) < 2:
        return []
    ends = versions[0][0], versions[-1][0]
    series = {policy: versions} | {
        agent: [(step, rating) for step in ends] for agent, rating in sorted(rated) if agent in baselines
    }
    legend = Text("rating over gradient steps: ", "dim")
    for number, name in enumerate(series):
        legend.append(f"━ {name}  ", series_style(number))
    return [legend, *line_chart(list(series.values()), width, height)]


def _stepped(points: Points) -> list[Sequence[float]]:
    corners = [points[0]]
    for before, after in pairwise(points):
        corners += [(after[0], before[1]), after]
    return corners


def _ticks(low: float, high: float, most: int) -> tuple[list[float], list[str]]:
    """Round numbers in a range, about ``most``, and their labels."""
    least = (high - low) / most or abs(low) or 1.0
    magnitude = 10.0 ** floor(log10(least))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= least)
    ticks = [number * step for number in range(ceil(low / step), floor(high / step) + 1)]
    digits = max(-floor(log10(step)), 0)
    return ticks, [f"{tick:,.{digits}f}" for tick in ticks]
