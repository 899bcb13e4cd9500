"""The tracker: sends charts of the history to Weights & Biases or files, and exports its events.

It only reads. It can be started at any time, also after the league has ended, and covers the history from the first
event; rows that its sinks have are not sent again. Heartbeat metrics, which are in no event, are covered from its
start on. One fold makes the rows of all sinks; a failing sink delays the others only once many rows wait for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from league.log.base import EventLog
from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from schemas.config import LogExportConfig, Plugin, to_builtins
from schemas.errors import LogError
from schemas.events import LeagueBranched, LeagueOpened
from schemas.ids import digest
from schemas.loggers import get_logger
from schemas.metrics import Heartbeat
from schemas.retry import Backoff
from workers.log_export import LogExport
from workers.runtime import Context, SequenceProgress, beside, lower_priority, run_in_daemon_thread
from workers.trackers import ChartFold, Row
from workers.trackers.sinks import SINKS, Place, Sink

log = get_logger()

_WORKER_FIELDS = ("memory_bytes", "cpu_share", "open_files", "lag")
_INFERENCE_FIELDS = (
    "queued",
    "running",
    "tokens_s",
    "busy_share",
    "adapters",
    "slots",
    "swaps",
    "last_swap_s",
    "max_swap_s",
    "cache_bytes",
    "prompt_tokens",
    "cached_tokens",
    "sampled_tokens",
    "forced_tokens",
)
_GPU_FIELDS = ("busy_share", "used_bytes")
_PLAY_FIELDS = ("games_in_flight", "failed")

_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_FINISH_TIMEOUT_S = 30.0
"""Time for sinks to accept the last rows when the tracker is stopped."""
_HEARTBEAT_RETRY_S = 5.0
_MAX_WAITING_ROWS = 10_000
"""Rows that wait for one sink; then the fold waits too, and with it all sinks."""


class HeartbeatMeans:
    """Means of the metrics in heartbeats since the last call of ``collect``."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, heartbeat: Heartbeat) -> None:
        """Add a heartbeat."""
        measured: list[tuple[str, object, Sequence[str]]] = [
            (f"workers/{heartbeat.worker}", heartbeat, _WORKER_FIELDS),
            (f"inference/{heartbeat.worker}", heartbeat.inference, _INFERENCE_FIELDS),
            (f"play/{heartbeat.worker}", heartbeat.play, _PLAY_FIELDS),
            *((f"gpus/{heartbeat.worker}/{gpu.index}", gpu, _GPU_FIELDS) for gpu in heartbeat.gpus),
        ]
        for prefix, values, fields in measured:
            for field in fields if values is not None else ():
                # The driver may not say a figure of a GPU.
                if (value := getattr(values, field)) is not None:
                    total, count = self._sums.get(f"{prefix}/{field}", (0.0, 0))
                    self._sums[f"{prefix}/{field}"] = total + float(value), count + 1

    def collect(self) -> dict[str, float]:
        """The means: ``inference/<worker>/…``, ``gpus/<worker>/<gpu>/…``, ``play/…`` and ``workers/<worker>/…``."""
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums.clear()
        return means


class SinkFeed:
    """One sink and the rows that wait for it.

    The sink is not open yet. Full rows after the sequence ``live_from`` also carry heartbeat means. The pause after the
    first failure is ``retry_s``, doubled for each further one.
    """

    def __init__(self, name: str, sink: Sink, place: Place, live_from: int, retry_s: float = _RETRY_S) -> None:
        self.heartbeat_means = HeartbeatMeans()
        self._name = name
        self._sink = sink
        self._place = place
        self._live_from = live_from
        self._backoff = Backoff(retry_s, _MAX_RETRY_S)
        self._position: int | None = None
        self._is_idle = True
        """Whether no thread is calling the sink."""
        self.rows: asyncio.Queue[Row] = asyncio.Queue(_MAX_WAITING_ROWS)

    async def run(self) -> None:
        """Write the rows that the sink does not have; runs until cancelled."""
        await self._ensure_open()
        while True:
            row = await self.rows.get()
            is_live = row.full and row.sequence > self._live_from
            now = self.heartbeat_means.collect() if is_live else {}
            while row.sequence > await self._ensure_open():
                if await self._try_call(lambda row=row, now=now: self._sink.write(row, now)):  # type: ignore[misc]
                    self._position = row.sequence
            self.rows.task_done()

    async def close(self) -> None:
        """Close the sink, unless it hangs."""
        if self._is_idle:
            await self._call_sink(self._sink.close)

    async def _ensure_open(self) -> int:
        """Open the sink if necessary; returns the sequence of its last row."""
        while self._position is None:
            await self._try_call(self._open)
        return self._position

    def _open(self) -> None:
        self._position = self._sink.open(self._place)

    async def _try_call(self, attempt: Callable[[], None]) -> bool:
        """Call the sink; on failure close it, pause and return False."""
        if await self._call_sink(attempt):
            self._backoff.reset()
            return True
        self._position = None
        await self.close()
        await asyncio.sleep(self._backoff.next_s())
        return False

    async def _call_sink(self, work: Callable[[], None]) -> bool:
        self._is_idle = False

        def use() -> None:
            try:
                work()
            finally:
                self._is_idle = True

        try:
            await run_in_daemon_thread(use)
        except Exception as error:  # a sink is third-party code, whose failure concerns only its rows
            log.warning("the sink of charts failed, trying again", sink=self._name, error=str(error))
            return False
        return True


async def make_rows(history: EventLog, feeds: Sequence[SinkFeed], progress: SequenceProgress) -> None:
    """Fold the history into rows for the sinks; runs until cancelled."""
    charts = ChartFold()
    async for recorded in history.follow(1):
        if (row := charts.apply(recorded)) is not None:
            for feed in feeds:
                await feed.rows.put(row)
        await progress.advance(recorded.sequence)


async def serve(context: Context, sinks: Sequence[str] = ()) -> None:
    """Feed sinks until the worker is stopped, then send the rows of all events recorded by then.

    ``sinks`` names the sinks to feed, without log export; empty for everything that is configured.
    """
    lower_priority()
    identity = await history_identity(context.log)
    place = Place(context.run.folder / "tracking", context.log.league, identity, to_builtins(context.config))
    newest = await context.log.last_sequence()
    configured = {plugin.name: plugin for plugin in context.config.tracker.sinks}
    plugins = [configured.get(name) or Plugin(name=name) for name in sinks or configured]
    feeds = [SinkFeed(plugin.name, SINKS.build(plugin), place, newest) for plugin in plugins]
    exports = [] if sinks else make_exports(context.config.tracker.forward, context.run.folder)
    progress = SequenceProgress()
    following = [make_rows(context.log, feeds, progress), *(feed.run() for feed in feeds)] if feeds else []
    exporting = (export.run(context.log, identity) for export in exports)
    async with beside(_collect_heartbeats(context, feeds), *exporting, *following):
        await context.stopping.wait()
        last = await context.log.last_sequence()
        try:
            async with asyncio.timeout(_FINISH_TIMEOUT_S):
                if feeds:
                    await progress.wait_for_sequence(last)
                await asyncio.gather(*(feed.rows.join() for feed in feeds))
                await asyncio.gather(*(export.progress.wait_for_sequence(last) for export in exports))
        except TimeoutError:
            log.warning("not all rows were accepted; the next tracker continues from there", waited_s=_FINISH_TIMEOUT_S)
    for feed in feeds:
        await feed.close()


def make_exports(configs: Sequence[LogExportConfig], folder: Path) -> list[LogExport]:
    """Make the exports of a configuration; each failed one is retried. ``folder`` is the run's."""
    return [
        LogExport(
            config.to if "://" in config.to else str(folder / config.to),
            folder / "forwarding",
            config.token_variable,
            config.types,
            config.first,
            where="tracker.forward.to",
            persists=True,
        )
        for config in configs
    ]


async def _collect_heartbeats(context: Context, feeds: Sequence[SinkFeed]) -> None:
    stream = MetricsStream(context.client, context.log.league)
    while True:
        try:
            async for heartbeat in stream.follow():
                for feed in feeds:
                    feed.heartbeat_means.add(heartbeat)
        except LogError as error:
            log.warning("no heartbeats received", error=str(error), retry_s=_HEARTBEAT_RETRY_S)
        await asyncio.sleep(_HEARTBEAT_RETRY_S)


async def history_identity(history: JetStreamLog) -> str:
    """A digest that distinguishes histories of the same league name: of when it was opened and last branched."""
    marks = [await history.newest(kind) for kind in (LeagueOpened, LeagueBranched)]
    return digest(repr([(mark.sequence, mark.time_ns) for mark in marks if mark is not None]).encode())
