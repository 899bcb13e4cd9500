"""Writes a history's rows to one sink, however often the sink fails.

Each sink has its own fold: a failing sink delays only its own reader, and rows do not accumulate.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from league.log.base import EventLog
from schemas.loggers import get_logger
from schemas.metrics import Heartbeat
from schemas.retry import Backoff
from workers.background_thread import run_in_daemon_thread
from workers.trackers.charts import ChartFold
from workers.trackers.sinks import Place, Sink

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


class HeartbeatMeans:
    """Means of the metrics in heartbeats since the last call of ``collect``."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, heartbeat: Heartbeat) -> None:
        """Add a heartbeat."""
        for name, value in _heartbeat_metrics(heartbeat):
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value, count + 1

    def collect(self) -> dict[str, float]:
        """The means: ``inference/<worker>/…``, ``gpus/<worker>/<gpu>/…``, ``play/…`` and ``workers/<worker>/…``."""
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums.clear()
        return means


def _heartbeat_metrics(heartbeat: Heartbeat) -> Iterator[tuple[str, float]]:
    for prefix, values, fields in (
        ("workers", heartbeat, _WORKER_FIELDS),
        ("inference", heartbeat.inference, _INFERENCE_FIELDS),
        ("play", heartbeat.play, _PLAY_FIELDS),
    ):
        if values is not None:
            for field in fields:
                yield f"{prefix}/{heartbeat.worker}/{field}", float(getattr(values, field))
    for gpu in heartbeat.gpus:
        for field in _GPU_FIELDS:
            if (value := getattr(gpu, field)) is not None:
                yield f"gpus/{heartbeat.worker}/{gpu.index}/{field}", float(value)


log = get_logger()

_RETRY_S = 1.0
_MAX_RETRY_S = 60.0

T = TypeVar("T")


class SinkFeed:
    """One sink and the fold that feeds it.

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
        self._sequence = 0
        self._is_idle = True
        """Whether no thread is calling the sink."""
        self._moved = asyncio.Condition()

    async def follow(self, history: EventLog) -> None:
        """Fold the history and write the rows that the sink does not have; runs until cancelled."""
        charts = ChartFold()
        await self._ensure_open()
        async for recorded in history.follow(1):
            row = charts.apply(recorded)
            if row is not None:
                is_live = row.full and row.sequence > self._live_from
                now = self.heartbeat_means.collect() if is_live else {}
                while row.sequence > await self._ensure_open():
                    if await self._try_call(lambda row=row, now=now: self._sink.write(row, now)):  # type: ignore[misc]
                        self._position = row.sequence
            self._sequence = recorded.sequence
            async with self._moved:
                self._moved.notify_all()

    async def wait_for_sequence(self, sequence: int) -> None:
        """Wait until the event at ``sequence`` has been folded and its row written."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._sequence >= sequence)

    async def close(self) -> None:
        """Close the sink, unless it hangs."""
        if self._is_idle:
            with contextlib.suppress(_SinkFailedError):
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
        try:
            await self._call_sink(attempt)
        except _SinkFailedError:
            self._position = None
            await self.close()
            await asyncio.sleep(self._backoff.next_s())
            return False
        self._backoff.reset()
        return True

    async def _call_sink(self, work: Callable[[], T]) -> T:
        self._is_idle = False

        def use() -> T:
            try:
                return work()
            finally:
                self._is_idle = True

        try:
            return await run_in_daemon_thread(use)
        except Exception as error:  # a sink is third-party code, whose failure concerns only its rows
            log.warning("the sink of charts failed, trying again", sink=self._name, error=str(error))
            raise _SinkFailedError from None


class _SinkFailedError(Exception):
    """A sink failed; already logged."""
