"""What training does: reward, entropy, KL divergence and reply length over gradient steps, and benchmarks."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from rich.console import Group
from rich.text import Text

from league.plots.terminal import beside, line_chart, series_style
from league.queries.live_league import LiveLeague
from league.queries.pages.training import curves, learning, training
from ui.output import PLACEHOLDER, format_percent
from ui.terminal.sections import Column, Section, Table
from ui.terminal.views import View, ViewOptions, query_page, single_line

_METRICS = {
    "reward_mean": "mean reward",
    "entropy": "entropy, nats",
    "kl": "KL divergence, nats",
    "reply_tokens": "tokens per reply",
}
_MAX_POLICIES = 4
_MAX_BENCHMARKS = 6
_MIN_WIDTH, _MIN_LINES = 36, 5
_POLICY_COLUMNS = (
    Column(""),
    Column("policy", most=24),
    *(Column(name, number=True) for name in ("step", "reward", "entropy", "KL", "tokens/reply")),
)
_BENCHMARK_COLUMNS = (
    Column("wins against", most=24),
    *(Column(name, most=28) for name in ("first benchmark", "newest benchmark")),
    Column("games", number=True),
    Column("change"),
)
_VERDICTS = {"better": "better", "worse": "worse", "open": "within chance"}


class TrainingView(View):
    """Curves of the policies' metrics, and their benchmarks."""

    title = "training"

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """Curves of the first policies, and the benchmarks of all."""
        policies = (await query_page(league, training, at=at))["policies"][:_MAX_POLICIES]
        names = ",".join(row["policy"] for row in policies)
        series = await query_page(league, curves, policy=names, names=",".join(_METRICS), at=at) if policies else []
        benchmarks = (await query_page(league, learning, at=at))["benchmarks"]
        return {"policies": policies, "series": series, "benchmarks": benchmarks}

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """Four charts, the newest figures, then the benchmarks."""
        if not data["policies"]:
            return [Section(Text("no training step yet", "dim"))]
        words = options.search.lower()
        policies = [row for row in data["policies"] if words in row["policy"].lower()]
        points = {(curve["policy"], curve["name"]): curve["points"] for curve in data["series"]}
        rows, benchmarks = list[list[str | Text]](), []
        for number, row in enumerate(policies):
            newest = [points.get((row["policy"], name)) for name in _METRICS]
            figures = [PLACEHOLDER if values is None else f"{values[-1][1]:.3g}" for values in newest]
            name = single_line(row["policy"])
            rows.append([Text("━", series_style(number)), name, f"{row['last_step']:,}", *figures])
        for pair in data["benchmarks"][-_MAX_BENCHMARKS:]:
            shares = (_share_text(pair["before"]), _share_text(pair["after"]))
            games = f"{pair['after']['games']:,}"
            benchmarks.append((single_line(pair["opponent"]), *shares, games, _VERDICTS[pair["verdict"]]))
        lines = options.height - len(rows) - len(benchmarks) - 5
        charts = _charts([row["policy"] for row in policies], points, options.width, max(lines // 2, _MIN_LINES + 1))
        return [Section(charts, Table(_POLICY_COLUMNS, rows)), Section(None, Table(_BENCHMARK_COLUMNS, benchmarks))]


def _charts(
    policies: Sequence[str], points: dict[tuple[str, str], list[list[float]]], width: int, height: int
) -> Group:
    """The metrics' charts, two a row where the width allows, each ``height`` lines with its title."""
    per_row = 2 if width >= 2 * _MIN_WIDTH else 1
    charts = []
    for name, title in _METRICS.items():
        series = [points[policy, name] for policy in policies if (policy, name) in points]
        drawn = line_chart(series, width // per_row, height - 1) if series else []
        charts.append([Text(title, "dim"), *drawn])
    rows = [beside(charts[first : first + per_row], width // per_row) for first in range(0, len(charts), per_row)]
    return Group(*chain.from_iterable(rows), Text())


def _share_text(result: dict[str, Any] | None) -> str:
    if result is None:
        return PLACEHOLDER
    return f"{format_percent(result['share'])} {single_line(result['agent'])}"
