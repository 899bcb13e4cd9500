"""Overview of the league (steps, throughput, leaderboard, newest events), and its processes: health, load, activity."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.text import Text

from league.matchmaking.schedule import budget_share_used
from league.queries.live_league import LiveLeague
from league.queries.pages.overview import events, overview, workers
from league.queries.pages.ratings import query_leaderboard
from league.queries.pages.training import training
from league.queries.status import WorkerStatus
from schemas.config import StopConfig
from ui.output import PLACEHOLDER, format_number, format_percent
from ui.terminal.boards import leaderboard_table
from ui.terminal.sections import Column, Section, Table
from ui.terminal.status import activity_text, health_text, process_figures
from ui.terminal.views import View, ViewOptions, query_page, share_bar, single_line
from workers.monitoring.live_table import format_time_left

_MAX_TAIL_EVENTS = 200
_COLUMNS = (Column("event", number=True), Column("time"), Column("type", most=22), Column("what"))
_MAX_EVENTS = 60
_BAR_WIDTH = 12
_MAX_POLICIES = 4
"""Maximum number of policies shown; the workers view shows all."""
_WORKER_COLUMNS = (
    Column("worker", most=16),
    Column("health"),
    *(Column(name, number=True) for name in ("up", "memory", "cores", "behind", "computing")),
    Column("at work on"),
)


def events_table(events: Sequence[dict[str, Any]]) -> Table:
    """Render events, one a row."""
    rows = [
        (
            f"{row['sequence']:,}",
            f"{datetime.fromisoformat(row['time']):%H:%M:%S}",
            single_line(row["type"]),
            single_line(row["text"]),
        )
        for row in events
    ]
    return Table(_COLUMNS, rows)


class EventsView(View):
    """The newest events."""

    title = "events"
    pace_s = 0.3

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """The newest events, or those up to an earlier one."""
        page = await query_page(league, events, before=None if at is None else at + 1, limit=_MAX_TAIL_EVENTS)
        return msgspec.to_builtins(page)

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """One event per line."""
        return [Section(None, events_table(options.select_rows(data, "type", "text", "agent", "match_id")))]


class OverviewView(View):
    """Policies, throughput, leaderboard and newest events."""

    title = "league"
    sorts = ("rating", "rated_games", "wins", "agent")
    pace_s = 0.3

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """All parts; throughput only as of now."""
        newest = await query_page(league, events, before=None if at is None else at + 1, limit=_MAX_EVENTS)
        parts = {"board": await query_page(league, query_leaderboard, at=at), "events": msgspec.to_builtins(newest)}
        if at is None:
            now, rates = await query_page(league, overview), await query_page(league, workers)
            return {**parts, "now": now, "rates": rates, "policies": _current_policies(league)}
        past = (await query_page(league, training, at=at))["policies"]
        policies = [{"policy": row["policy"], "step": row["last_step"], "used": None, "left": ""} for row in past]
        return {**parts, "now": None, "rates": None, "policies": policies}

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """Figures on top, then as many rows of the leaderboard as leave room for events."""
        figures = _throughput_lines(data["rates"])
        if now := data["now"]:
            matches = f"{now['training_matches']:,} training, {now['evaluation_matches']:,} evaluation"
            figures.insert(0, f"games       {matches}, {now['failed']:,} failed")
        height = options.height - len(figures) - min(len(data["policies"]), _MAX_POLICIES) - 6
        ranked = options.select_rows(data["board"]["rows"], "agent", "kind")[: max(height // 2, 3)]
        matching = options.select_rows(data["events"], "type", "text", "agent", "match_id") if options.search else None
        return [
            Section(None, _policies_table(data["policies"])),
            Section(Text("\n".join([*figures, ""])), leaderboard_table(ranked, data["board"])),
            Section(None, events_table(matching or data["events"])),
        ]


def _current_policies(league: LiveLeague) -> list[dict[str, Any]]:
    state = league.state
    stop = state.config.stop if state.config is not None else StopConfig()
    return [
        {
            "policy": policy,
            "step": step.step if (step := state.last_step(policy)) is not None else 0,
            "used": budget_share_used(state, policy, stop),
            "left": format_time_left(state, policy, stop),
        }
        for policy in (state.config.trained_policies if state.config is not None else ())
    ]


def _policies_table(data: list[dict[str, Any]]) -> Table:
    columns = (Column("policy", most=24), Column("step", number=True), Column("budget used"), Column("time left"))
    rows = []
    for row in data[:_MAX_POLICIES]:
        bar = f"{share_bar(row['used'], _BAR_WIDTH)} {format_percent(row['used'])}"
        used = PLACEHOLDER if row["used"] is None else bar
        rows.append((single_line(row["policy"]), f"{row['step']:,}", used, single_line(row["left"]) or PLACEHOLDER))
    return Table(columns, rows)


def _throughput_lines(data: dict[str, Any] | None) -> list[str]:
    if data is None:
        return ["throughput is not recorded: press n for now"]
    rates, health = data["rates"], [worker["health"] for worker in data["workers"]]
    sampled, trained = format_number(rates["sampled_tokens_s"]), format_number(rates["trained_tokens_s"])
    silent = f", {data['silent']} silent" if data["silent"] else ""
    return [
        f"per second  {rates['games_s']:.1f} games, {sampled} tokens sampled, {trained} tokens trained on",
        f"workers     {health.count('ok')} alive{silent}, {rates['cores']:.1f} cores, {data['lag']:,} events behind",
    ]


class WorkersView(View):
    """Workers of the league, including stopped ones."""

    title = "workers"
    sorts = ("worker", "role", "health", "host")

    async def load(self, league: LiveLeague, at: int | None) -> Any:
        """The last heartbeats at any ``at``, since heartbeats are not recorded."""
        return {**await query_page(league, workers, left="yes"), "past": at is not None}

    def draw(self, data: Any, options: ViewOptions) -> Sequence[Section]:
        """Queues and GPUs, then the workers."""
        lines = ["as of now: heartbeats of workers are not recorded"] if data["past"] else []
        rollouts = sum(policy["pending"] for policy in data["policies"])
        store = "" if data["store_share"] is None else f", store {format_percent(data['store_share'])} full"
        lines.append(
            f"waiting: {data['jobs']:,} matches, {rollouts:,} trajectories, {data['rates']['queued']:,} requests; "
            f"{data['dead_letters']:,} dead letters{store}"
        )
        if gpus := data["gpus"]:
            busy = [gpu["busy_share"] for gpu in gpus if gpu["busy_share"] is not None]
            used, memory = (sum(gpu[name] or 0 for gpu in gpus) / 2**30 for name in ("used_bytes", "memory_bytes"))
            share = f"{format_percent(sum(busy) / len(busy))} busy, " if busy else ""
            lines.append(f"GPUs: {len(gpus)}, {share}{used:,.0f} of {memory:,.0f} GiB")
        lines += (
            f"{single_line(policy) or 'the league'} pauses: {single_line(reason) or 'no reason given'}"
            for policy, reason in data["paused"].items()
        )
        rows = options.select_rows(data["workers"], "worker", "role", "host", "health")
        return [Section(Text("\n".join([*lines, ""])), Table(_WORKER_COLUMNS, [_worker_cells(row) for row in rows]))]


def _worker_cells(row: dict[str, Any]) -> list[str | Text]:
    worker = msgspec.convert(row, WorkerStatus)
    beat = worker.heartbeat
    backend = beat.inference if beat is not None else None
    return [
        single_line(worker.worker),
        Text(health_text(worker), "bold red" if worker.health == "silent" else ""),
        *([PLACEHOLDER] * 4 if beat is None else process_figures(beat)),
        PLACEHOLDER if backend is None else format_percent(backend.busy_share),
        single_line(activity_text(worker)),
    ]
