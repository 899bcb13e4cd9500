"""Charts of ``league plot``, each with a title and a caption that explains how to read it.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which are distinguishable with any colour vision;
lines also differ by marker and stroke.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from league.analysis.leaderboard import Leaderboard
from league.analysis.payoff import PayoffMatrix
from league.analysis.roster import LeaderboardEntry
from league.analysis.summary import wilson_interval
from league.matchmaking.audit import SamplingAudit, WindowShares
from league.plots.render import Picture, escape_label, payoff_figure
from league.plots.series import FrequencySeries, Throughput, WinRateSeries
from schemas.ids import split_agent

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
    title = f"Ratings in {board.game}: {board.system}, up to event {board.sequence:,}"
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
        if row.low is not None and row.high is not None:
            # Side by side at the right edge: as bands they would overlap.
            place = 0.985 - 0.012 * (number - len(curves))
            axes.vlines(place, row.low, row.high, look.colour, linewidth=2, transform=axes.get_yaxis_transform())
    axes.set_xlabel("gradient step of the version")
    _finish_axes(figure, axes)
    spread = f"{board.draws:,} resampled histories" if board.draws else "none were computed: too many matches"
    return Picture(
        figure,
        title,
        f"A mark is a version in the league; dashed level lines are agents without versions. Rated over "
        f"{board.matches:,} matches in all. Shades and bars, at the right for level lines: 95 % intervals ({spread}); "
        "none where there are too few matches for one.",
    )


def _curves(rows: Sequence[LeaderboardEntry]) -> dict[str, list[tuple[int, LeaderboardEntry]]]:
    curves: dict[str, list[tuple[int, LeaderboardEntry]]] = {}
    for row in rows:
        if (named := split_agent(row.agent)) is not None and row.rating is not None:
            curves.setdefault(named[0], []).append((named[1], row))
    return {policy: sorted(points, key=lambda one: one[0]) for policy, points in sorted(curves.items())}


def _draw_curve(axes: Axes, look: _LineStyle, policy: str, rows: Sequence[tuple[int, LeaderboardEntry]]) -> None:
    steps, ratings = [step for step, _ in rows], [row.rating or 0.0 for _, row in rows]
    axes.plot(steps, ratings, color=look.colour, marker=look.marker, markersize=4, label=escape_label(policy))
    known = [(step, row.low, row.high) for step, row in rows if row.low is not None and row.high is not None]
    places, low, high = zip(*known, strict=True) if known else ((), (), ())
    _draw_interval(axes, look, places, low, high)


def _draw_interval(
    axes: Axes, look: _LineStyle, places: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> None:
    axes.fill_between(places, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.vlines(places, low, high, color=look.colour, linewidth=0.8, alpha=0.7)


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


def payoff_picture(payoff: PayoffMatrix, game: str, upto: int) -> Picture:
    """Draw a payoff matrix of the history up to an event."""
    title = f"Payoffs in {game}: rows against columns, up to event {upto:,}"
    return Picture(
        payoff_figure(payoff, title),
        title,
        "Share of the points between the two that the row's agent took, its 95 % interval (Wilson), and matches. "
        "Grey: never met, or the same agent. Strongest agents first.",
    )


def shares_picture(audit: SamplingAudit, upto: int, policy: str | None) -> Picture:
    """Draw a sampler's target and realised shares by bucket over gradient steps, for one policy or all (None)."""
    whose = "" if policy is None else f" for {policy}"
    title = f"Opponents drawn{whose}: target against realised, up to event {upto:,}"
    figure, (axes,) = _make_figure(title, ("share of the opponents drawn",))
    shares = Counter(audit.whole.target) | Counter(audit.whole.realised)
    buckets = sorted(bucket for bucket, share in shares.items() if share > 0)
    for number, bucket in enumerate(buckets):
        # Side by side, since buckets of equal shares would hide one another.
        aside = 0.03 * (number - (len(buckets) - 1) / 2) * (audit.whole.last_step + 1) / len(audit.windows)
        _draw_bucket(axes, _line_style(number), bucket, audit.windows, aside)
    axes.set(ylim=(-0.02, 1.02), xlabel="gradient step")
    _finish_axes(figure, axes)
    whole = audit.whole
    far = "" if whole.distance is None else f" Total variation {whole.distance:.4f}, by chance {whole.by_chance:.4f}."
    return Picture(
        figure,
        title,
        f"{whole.picks:,} opponents of {whole.draws:,} draws. Lines: the sampler's own probabilities, computed again "
        f"from {whole.recomputed:,} draws. Marks: what was drawn, with 95 % intervals (Wilson).{far}",
    )


def _draw_bucket(axes: Axes, look: _LineStyle, bucket: str, windows: Sequence[WindowShares], aside: float) -> None:
    aimed = [w for w in windows if w.target]
    axes.step(
        [_middle_step(w) for w in aimed],
        [w.target.get(bucket, 0.0) for w in aimed],
        where="mid",
        color=look.colour,
        label=escape_label(f"{bucket}: target"),
    )
    for w in windows:
        share = w.realised.get(bucket, 0.0)
        low, high = wilson_interval(round(share * w.picks), w.picks)
        axes.vlines(_middle_step(w) + aside, low, high, color=look.colour, linewidth=0.9, alpha=0.8)
    shares = [w.realised.get(bucket, 0.0) for w in windows]
    places = [_middle_step(w) + aside for w in windows]
    axes.plot(places, shares, look.marker, color=look.colour, markersize=5, label=escape_label(f"{bucket}: drawn"))


def _middle_step(window: WindowShares) -> float:
    return (window.first_step + window.last_step) / 2


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
        look, places = _line_style(number), [hour * in_hour for hour in pace.hours]
        axes.plot(
            places,
            pace.per_minute,
            color=look.colour,
            linestyle=look.stroke,
            marker=look.marker,
            markersize=2.5,
            drawstyle="steps-mid",
            label=escape_label(pace.what),
        )
        if shaded:
            axes.fill_between(places, pace.low, pace.high, step="mid", color=look.colour, alpha=0.15, linewidth=0)


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
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
