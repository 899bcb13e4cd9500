"""Heartbeats: a process's own metrics, measured every few seconds and published to the stream ``METRICS``."""

import asyncio
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import psutil
from nats.aio.client import Client

from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from league.state import LeagueState
from schemas.errors import LogError
from schemas.loggers import get_logger
from schemas.metrics import HEARTBEAT_S, Heartbeat, InferenceMetrics, MatchMetrics, TrainingMetrics
from workers.monitoring.gpus import GpuMonitor

if TYPE_CHECKING:  # torch is slow to import
    from inference.base import InferenceBackend
    from inference.statistics import SwapTimer

log = get_logger()

T = TypeVar("T")


@dataclass
class Gauges:
    """A process's gauges: set by its components, read at each heartbeat."""

    inference: Callable[[], InferenceMetrics] | None = None
    play: Callable[[], MatchMetrics] | None = None
    training: Callable[[], TrainingMetrics] | None = None
    uses_gpus: bool = False
    """Whether this process computes on GPUs, or one that it started."""


class MonitoredProcess(Protocol):
    """The part of a worker's ``Context`` that heartbeats are made from."""

    name: str
    incarnation: str
    client: Client
    log: JetStreamLog
    state: LeagueState
    gauges: Gauges


class HeartbeatPublisher:
    """Publishes a process's heartbeats.

    This is the boundary for the errors of all gauges: what cannot be measured is left out and logged, and never ends
    the process.
    """

    def __init__(self, context: MonitoredProcess, role: str) -> None:
        from inference.statistics import RateMeter

        self._context = context
        self._role = role
        self._stream = MetricsStream(context.client, context.log.league)
        self._gpus = GpuMonitor(lambda: context.gauges.uses_gpus)
        self._process = psutil.Process()
        self._cpu = RateMeter(age_s=self._uptime_s())
        self._last_errors: dict[str, str] = {}

    async def publish(self) -> None:
        """Publish a heartbeat, unless the broker is away."""
        if not self._context.client.is_connected or (heartbeat := self._measure("heartbeat", self._make)) is None:
            return
        try:
            await self._stream.publish(heartbeat)
        except Exception as error:  # a lost heartbeat must not end the process
            self._log_change("heartbeat", error)

    async def run(self) -> None:
        """Publish heartbeats at intervals; runs until cancelled."""
        while True:
            # A refresh takes less time than there is between heartbeats.
            await asyncio.gather(asyncio.sleep(HEARTBEAT_S), self._gpus.refresh())
            await self.publish()

    def _measure(self, name: str, gauge: Callable[[], T] | None) -> T | None:
        """The gauge's value; None where there is no gauge or it fails."""
        try:
            return None if gauge is None else gauge()
        except Exception as error:  # a failed gauge must not end the process
            self._log_change(name, error)
            return None

    def _log_change(self, name: str, error: Exception) -> None:
        """Log an error unless it is the same as the last one of that name."""
        if self._last_errors.get(name) != str(error):
            self._last_errors[name] = str(error)
            log.warning("not measured", what=name, error=str(error), exc_info=not isinstance(error, LogError))

    def _uptime_s(self) -> float:
        return max(time.time() - float(self._process.create_time()), 0.0)

    def _make(self) -> Heartbeat:
        context, process, gauges = self._context, self._process, self._context.gauges
        times = process.cpu_times()
        return Heartbeat(
            worker=context.name,
            role=self._role,
            incarnation=context.incarnation,
            host=platform.node(),
            pid=os.getpid(),
            uptime_s=round(self._uptime_s(), 1),
            memory_bytes=process.memory_info().rss,
            cpu_share=round(self._cpu.rate(times.user + times.system), 3),
            open_files=process.num_fds() if hasattr(process, "num_fds") else 0,
            sequence=context.state.sequence,
            # Not requested from the broker: at ten thousand workers these requests alone would exceed its capacity.
            lag=context.log.follow_lag,
            inference=self._measure("inference", gauges.inference),
            play=self._measure("play", gauges.play),
            training=self._measure("training", gauges.training),
            gpus=self._gpus.latest(),
        )


class BackendGauge:
    """The load of an inference backend, with recent rates."""

    def __init__(self, name: str, backend: "InferenceBackend", swaps: "SwapTimer") -> None:
        from inference.statistics import RateMeter

        self._name = name
        self._backend = backend
        self._swaps = swaps
        self._tokens, self._busy = RateMeter(), RateMeter()

    def read(self, most_adapters: int) -> InferenceMetrics:
        """Current metrics of a process that keeps up to ``most_adapters`` adapters ready."""
        stats, times = self._backend.stats(), self._swaps.times
        return InferenceMetrics(
            backend=self._name,
            queued=stats.queued,
            running=stats.running,
            requests=stats.requests,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            sampled_tokens=stats.sampled_tokens,
            forced_tokens=stats.forced_tokens,
            tokens_s=round(self._tokens.rate(stats.sampled_tokens + stats.forced_tokens), 1),
            busy_share=round(self._busy.rate(stats.seconds), 3),
            adapters=stats.adapters,
            slots=stats.slots,
            most_adapters=most_adapters,
            swaps=stats.swaps,
            cache_bytes=stats.cache_bytes,
            published=times.versions,
            last_swap_s=round(times.last, 4),
            mean_swap_s=round(times.mean, 4),
            max_swap_s=round(times.longest, 4),
        )


def make_training_metrics(state: LeagueState, policy: str) -> TrainingMetrics:
    """Metrics of a policy's trainer, from its newest step."""
    step = state.last_step(policy)
    if step is None:
        return TrainingMetrics(policy)
    wall_s, waited_s = step.metrics.get("wall_s", 0.0), step.metrics.get("wait_s", 0.0)
    return TrainingMetrics(
        policy=policy,
        step=step.step,
        wait_share=round(min(waited_s / wall_s, 1.0), 3) if wall_s > 0 else 0.0,
        tokens_s=round(step.metrics.get("tokens_per_s", 0.0), 1),
        metrics=step.metrics,
    )
