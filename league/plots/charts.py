"""Charts of ``league plot``, each with a title and a caption that explains how to read it.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which are distinguishable with any colour vision;
lines also differ by marker and stroke.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from league.analysis.leaderboard import Leaderboard, LeaderboardEntry
from league.plots.render import Picture, escape_label
from league.plots.series import DrawWindow, FrequencySeries, Throughput, WinRateSeries
from schemas.ids import split_agent
from schemas.numbers import wilson_interval

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINE_STYLES = ("-", "--", "-.", ":")


class _LineStyle(NamedTuple):
    colour: str
    marker: str
    stroke: str


def _line_style(number: int) -> _LineStyle:
    return _LineStyle(COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)], _LINE_STYLES[number // 7 % 4])


def ratings_picture(board: Leaderboard, agents: Sequence[str] = ()) -> Picture:
    """Draw the ratings of all versions of policies over gradient steps; agents without versions are level lines.

    Without ``agents`` that were requested explicitly, level lines are drawn for those with the most matches only.
    """
    title = f"Ratings in {board.game}, up to event {board.sequence:,}"
    figure, (axes,) = _make_figure(title, ("rating",))
    level = [row for row in board.rows if split_agent(row.agent) is None and row.rating is not None]
    if not agents:
        level = sorted((row for row in level if row.rated_games), key=lambda row: -row.rated_games)[:5]
    curves = _curves(board.rows)
    for number, (policy, rows) in enumerate(curves.items()):
        _draw_curve(axes, _line_style(number), policy, rows)
    for number, row in enumerate(level, start=len(curves)):
        look = _line_style(number)
        axes.axhline(row.rating or 0.0, color=look.colour, linestyle="--", linewidth=1.2, label=escape_label(row.agent))
        # Side by side at the right edge: as bands they would overlap.
        right_edge = 0.985 - 0.012 * (number - len(curves))
        axes.vlines(
            right_edge, row.low or 0.0, row.high or 0.0, look.colour, linewidth=2, transform=axes.get_yaxis_transform()
        )
    axes.set_xlabel("gradient step of the version")
    _finish_axes(figure, axes)
    return Picture(
        figure,
        title,
        f"Bradley–Terry ratings over {board.matches:,} rated matches. A mark is a version in the league; dashed level "
        "lines are agents without versions. Shades and bars, at the right for level lines: 95 % intervals.",
    )


def _curves(rows: Sequence[LeaderboardEntry]) -> dict[str, list[tuple[int, LeaderboardEntry]]]:
    curves: dict[str, list[tuple[int, LeaderboardEntry]]] = {}
    for row in rows:
        if (named := split_agent(row.agent)) is not None and row.rating is not None:
            curves.setdefault(named[0], []).append((named[1], row))
    return {policy: sorted(points, key=lambda point: point[0]) for policy, points in sorted(curves.items())}


def _draw_curve(axes: Axes, look: _LineStyle, policy: str, rows: Sequence[tuple[int, LeaderboardEntry]]) -> None:
    steps, ratings = [step for step, _ in rows], [row.rating or 0.0 for _, row in rows]
    axes.plot(steps, ratings, color=look.colour, marker=look.marker, markersize=4, label=escape_label(policy))
    _draw_interval(axes, look, steps, [row.low or 0.0 for _, row in rows], [row.high or 0.0 for _, row in rows])


def _draw_interval(
    axes: Axes, look: _LineStyle, xs: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> None:
    axes.fill_between(xs, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.vlines(xs, low, high, color=look.colour, linewidth=0.8, alpha=0.7)


def wins_picture(series: Sequence[WinRateSeries], game: str, upto: int) -> Picture:
    """Draw shares of games won over a policy's versions, up to an event: one line per series, at least one."""
    title = f"Share of games won in {game}, up to event {upto:,}"
    figure, (axes,) = _make_figure(title, ("share of games won",))
    for number, line in enumerate(series):
        look, steps = _line_style(number), [(w.first_step + w.last_step) / 2 for w in line.windows]
        shares = [w.share for w in line.windows]
        name = escape_label(f"{line.policy}: {line.against}")
        axes.plot(steps, shares, color=look.colour, marker=look.marker, markersize=4, linestyle=look.stroke, label=name)
        _draw_interval(axes, look, steps, [w.low for w in line.windows], [w.high for w in line.windows])
        axes.axhline(line.chance, color=look.colour, linestyle=":", linewidth=1.2)
    axes.set(ylim=(-0.02, 1.02), xlabel="gradient step of the version")
    _finish_axes(figure, axes)
    games = sum(w.games for line in series for w in line.windows)
    return Picture(
        figure,
        title,
        f"{games:,} games, neighbouring versions together; won: strictly first, so that ties are not. Shades and bars: "
        "95 % intervals (Wilson). Dotted, in a line's colour: the share of the seats that its versions held, which is "
        "what chance would give them.",
    )


def payoff_picture(agents: Sequence[str], pairs: Sequence[dict[str, Any]], game: str, upto: int) -> Picture:
    """Draw shares of points up to an event as a heat map of rows against columns; grey for agents that never met."""
    title = f"Payoffs in {game}: rows against columns, up to event {upto:,}"
    size = len(agents)
    figure = Figure(figsize=(4 + 0.9 * size, 2 + 0.75 * size), layout="constrained")
    figure.suptitle(escape_label(title), fontsize="large")
    axes = figure.add_subplot(facecolor="lightgrey")
    met = {(pair["agent"], pair["opponent"]): pair for pair in pairs}
    shares = [
        [met[row, column]["share"] if (row, column) in met else float("nan") for column in agents] for row in agents
    ]
    edges = [edge - 0.5 for edge in range(size + 1)]
    mesh = axes.pcolormesh(edges, edges, shares, cmap="RdBu", vmin=0.0, vmax=1.0)
    axes.invert_yaxis()
    figure.colorbar(mesh, ax=axes, label="share of the points that the row's agent took")
    names = [escape_label(agent) for agent in agents]
    axes.set_xticks(range(size), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), names)
    for row, column in product(range(size), repeat=2):
        if (pair := met.get((agents[row], agents[column]))) is not None:
            games = f"{pair['games']:,} game{'' if pair['games'] == 1 else 's'}"
            text = f"{pair['share']:.2f}\n{pair['low']:.2f}–{pair['high']:.2f}\n{games}"
            color = "white" if abs(pair["share"] - 0.5) > 0.3 else "black"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize="x-small")
    return Picture(
        figure,
        title,
        "Share of the points between the two that the row's agent took, its 95 % interval (Wilson), and matches. "
        "Grey: never met, or the same agent. Best mean share first.",
    )


def draws_picture(windows: Sequence[DrawWindow], upto: int) -> Picture:
    """Draw the shares of the opponents drawn by bucket over gradient steps."""
    title = f"Opponents drawn, up to event {upto:,}"
    figure, (axes,) = _make_figure(title, ("share of the opponents drawn",))
    for number, bucket in enumerate(sorted({bucket for window in windows for bucket in window.picks})):
        look = _line_style(number)
        middles = [(window.first_step + window.last_step) / 2 for window in windows]
        counts = [(window.picks.get(bucket, 0), sum(window.picks.values())) for window in windows]
        shares = [drawn / picks for drawn, picks in counts]
        axes.plot(middles, shares, color=look.colour, marker=look.marker, markersize=4, label=escape_label(bucket))
        low, high = zip(*(wilson_interval(drawn, picks) for drawn, picks in counts), strict=True)
        _draw_interval(axes, look, middles, low, high)
    axes.set(ylim=(-0.02, 1.02), xlabel="gradient step")
    _finish_axes(figure, axes)
    picks = sum(sum(window.picks.values()) for window in windows)
    return Picture(
        figure, title, f"{picks:,} opponents by bucket of the sampler. Shades and bars: 95 % intervals (Wilson)."
    )


def throughput_picture(throughput: Throughput, upto: int) -> Picture:
    """Draw a league's throughput over time, up to an event: matches, tokens and gradient steps."""
    title = f"Throughput, up to event {upto:,}"
    names = ("matches per minute", "tokens per second", "gradient steps per minute")
    figure, axes = _make_figure(title, names)
    hours = max(throughput.token_hours)
    unit, in_hour = ("hours", 1) if hours > 3 else ("minutes", 60) if hours > 0.1 else ("seconds", 3600)
    _draw_frequencies(axes[0], throughput.matches, in_hour, shaded=True)
    times = [hour * in_hour for hour in throughput.token_hours]
    axes[1].plot(times, throughput.tokens_s, color=COLOURS[0], drawstyle="steps-mid")
    _draw_frequencies(axes[2], throughput.steps, in_hour, shaded=False)
    axes[2].set_xlabel(f"{unit} since the first event")
    for panel in axes:
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return Picture(
        figure,
        title,
        "Equal parts of the time from the first event to the last, pauses included. Tokens: what models wrote in "
        "finished matches. Shades: 95 % intervals of matches (Poisson); tokens and steps have none.",
    )


def _draw_frequencies(axes: Axes, paces: Sequence[FrequencySeries], in_hour: float, shaded: bool) -> None:
    for number, pace in enumerate(paces):
        look, xs = _line_style(number), [hour * in_hour for hour in pace.hours]
        axes.plot(
            xs,
            pace.per_minute,
            color=look.colour,
            linestyle=look.stroke,
            marker=look.marker,
            markersize=2.5,
            drawstyle="steps-mid",
            label=escape_label(pace.what),
        )
        if shaded:
            axes.fill_between(xs, pace.low, pace.high, step="mid", color=look.colour, alpha=0.15, linewidth=0)


def _make_figure(title: str, names: Sequence[str]) -> tuple[Figure, list[Axes]]:
    # A figure of its own rather than pyplot's, which keeps global state and may look for a display.
    figure = Figure(figsize=(9, 5.5 if len(names) == 1 else 8), layout="constrained")
    figure.suptitle(escape_label(title), fontsize="large")
    all_axes = figure.subplots(len(names), sharex=True, squeeze=False)[:, 0].tolist()
    for axes, name in zip(all_axes, names, strict=True):
        axes.set_ylabel(name)
    return figure, all_axes


def _finish_axes(figure: Figure, axes: Axes) -> None:
    low, high = axes.get_xlim()
    if high - low < 1:
        # With a single step the ticks would be fractions.
        axes.set_xlim(low - 1, high + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if any(axes.get_legend_handles_labels()[1] for axes in figure.axes):
        figure.legend(loc="outside lower center", ncols=3, fontsize="small")
