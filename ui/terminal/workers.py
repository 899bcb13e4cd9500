"""The processes of a league in the dashboard: health, load and activity."""

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from league.queries.pages.overview import workers
from league.queries.status import WorkerStatus
from ui.output import PLACEHOLDER, format_percent
from ui.terminal.status import activity_text, health_text, process_figures
from ui.terminal.views import Column, QuerySource, ViewOptions, make_table, single_line

_COLUMNS = (
    Column("worker", most=16),
    Column("health"),
    Column("up", number=True),
    Column("memory", number=True),
    Column("cores", number=True),
    Column("behind", number=True),
    Column("computing", number=True),
    Column("at work on"),
)


class WorkersView:
    """Workers of the league, including stopped ones."""

    title = "workers"
    sorts = ("worker", "role", "health", "host")
    pace_s = 1.0

    async def load(self, source: QuerySource, at: int | None) -> Any:
        """See ``View.load``: the last heartbeats at any ``at``, since heartbeats are not recorded."""
        return {**await source.query(workers, left="yes"), "past": at is not None}

    def draw(self, data: Any, options: ViewOptions) -> RenderableType:
        """See ``View.draw``: queues and GPUs, then the workers."""
        rows = options.select_rows(data["workers"], "worker", "role", "host", "health")
        cells = (_worker_row(msgspec.convert(row, WorkerStatus)) for row in rows)
        past = ["as of now: heartbeats of workers are not recorded"] if data["past"] else []
        lines = [*past, _queue_text(data), *([_gpu_text(data["gpus"])] if data["gpus"] else [])]
        return Group(
            *(Text(line, "dim") for line in lines),
            *(_pause_text(policy, reason) for policy, reason in data["paused"].items()),
            Text(),
            make_table(_COLUMNS, cells, widest="at work on") if rows else Text("no workers", "dim"),
        )


def _queue_text(data: dict[str, Any]) -> str:
    rollouts = sum(policy["pending"] for policy in data["policies"])
    store = "" if data["store_share"] is None else f", store {format_percent(data['store_share'])} full"
    return (
        f"waiting: {data['jobs']:,} matches, {rollouts:,} rollouts, {data['rates']['queued']:,} requests; "
        f"{data['dead_letters']:,} dead letters{store}"
    )


def _gpu_text(data: list[dict[str, Any]]) -> str:
    busy = [gpu["busy_share"] for gpu in data if gpu["busy_share"] is not None]
    used, memory = (sum(gpu[name] or 0 for gpu in data) / 2**30 for name in ("used_bytes", "memory_bytes"))
    parts = [*([f"{format_percent(sum(busy) / len(busy))} busy"] if busy else []), f"{used:,.0f} of {memory:,.0f} GiB"]
    return f"GPUs: {len(data)}, {', '.join(parts)}"


def _pause_text(policy: str, reason: str) -> Text:
    return Text(f"{single_line(policy) or 'the league'} pauses: {single_line(reason) or 'no reason given'}", "bold")


def _worker_row(worker: WorkerStatus) -> list[str | Text]:
    beat = worker.heartbeat
    backend = beat.inference if beat is not None else None
    return [
        single_line(worker.worker),
        Text(health_text(worker), "bold red" if worker.health == "silent" else ""),
        *([PLACEHOLDER] * 4 if beat is None else process_figures(beat)),
        PLACEHOLDER if backend is None else format_percent(backend.busy_share),
        single_line(activity_text(worker)),
    ]
