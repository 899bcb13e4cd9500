"""Curves of braille dots, for terminals."""

from collections.abc import Sequence
from math import isfinite

from rich.text import Text

from league.analysis.summary import RatingCurve

_AXIS_WIDTH = 6
_STYLES = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column."""

Points = Sequence[Sequence[float]]


class BrailleCanvas:
    """A canvas of braille dots, two across and four down in each cell. Its size is in cells."""

    def __init__(self, width: int, height: int) -> None:
        self._dots = [[0] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]
        self._letters = [[""] * width for _ in range(height)]
        self.across, self.down = 2 * width - 1, 4 * height - 1

    def draw_line(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        """Draws a line between two points; x counts from the left, y from the bottom."""
        (x, y), (to_x, to_y) = start, end
        steps = max(abs(to_x - x), abs(to_y - y), 1)
        for i in range(steps + 1):
            across, down = x + round(i * (to_x - x) / steps), self.down - y - round(i * (to_y - y) / steps)
            self._dots[down // 4][across // 2] |= _DOTS[down % 4][across % 2]
            self._styles[down // 4][across // 2] = style

    def draw_letter(self, x: int, y: int, letter: str) -> None:
        """Draws a letter instead of the dots of a cell."""
        self._letters[(self.down - y) // 4][x // 2] = letter

    def render_lines(self) -> list[Text]:
        """Returns the lines from top to bottom."""
        lines = []
        for dots, styles, letters in zip(self._dots, self._styles, self._letters, strict=True):
            line = Text(no_wrap=True)
            for dot, style, letter in zip(dots, styles, letters, strict=True):
                line.append(letter or (chr(0x2800 + dot) if dot else " "), f"bold {style}" if letter else style)
            lines.append(line)
        return lines


def rating_chart(series: Sequence[Points], width: int, height: int) -> list[Text]:
    """Renders curves with letters at their ends, and the largest and smallest value on the axis."""
    xs = [point[0] for points in series for point in points]
    ys = [point[1] for points in series for point in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    canvas = BrailleCanvas(max(width - _AXIS_WIDTH - 2, 10), height)

    def place(point: Sequence[float]) -> tuple[int, int]:
        # The last two columns of dots are for the letters.
        x = (point[0] - left) / (right - left or 1) * (canvas.across - 2)
        return round(x), round((point[1] - low) / (high - low or 1) * canvas.down)

    for number, points in enumerate(series):
        before = place(points[0])
        for point in points:
            # A rating is constant until the next match.
            canvas.draw_line(before, (place(point)[0], before[1]), series_style(number))
            canvas.draw_line((place(point)[0], before[1]), place(point), series_style(number))
            before = place(point)
        canvas.draw_line(before, (canvas.across - 2, before[1]), series_style(number))
    for number, points in enumerate(series):
        canvas.draw_letter(canvas.across, place(points[-1])[1], series_letter(number))
    marks = [f"{high:.0f}", *[""] * (height - 2), f"{low:.0f}"]
    lines = [
        Text(no_wrap=True).append(f"{mark:>{_AXIS_WIDTH}} │", "dim").append_text(line)
        for mark, line in zip(marks, canvas.render_lines(), strict=True)
    ]
    foot = f"{left:,.0f}".ljust(canvas.across // 2 - len(f"{right:,.0f}")) + f"{right:,.0f}"
    return [*lines, Text(" " * (_AXIS_WIDTH + 2) + foot, "dim", no_wrap=True)]


def series_style(number: int) -> str:
    """Colour of the curve with this number."""
    return _STYLES[number % len(_STYLES)]


def series_letter(number: int) -> str:
    """Letter at the end of the curve with this number."""
    return chr(ord("a") + number)


def training_chart(curve: RatingCurve, width: int, height: int) -> list[Text]:
    """Renders a policy's rating and the baselines' over its gradient steps, with a legend; empty below two versions."""
    if len(curve.steps) < 2:
        return []
    series = {curve.policy: curve.hero} | curve.baselines
    legend = Text("rating over gradient steps: ", "dim")
    for number, name in enumerate(series):
        legend.append(f"{series_letter(number)} {name}  ", series_style(number))
    # A baseline has no rating at evaluations before it joined.
    points = [[p for p in zip(curve.steps, ratings, strict=True) if isfinite(p[1])] for ratings in series.values()]
    return [legend, *rating_chart(points, width, height)]
