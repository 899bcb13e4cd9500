"""Heartbeats: a process's own metrics, measured every few seconds and published to the stream ``METRICS``.

GPUs are measured in processes that compute on them, and where ``LEAGUE_GPUS=1`` requests it, as beside a separate
inference server, by the driver and in bounded time. Without a GPU there are no metrics, not even zeros.
"""

import asyncio
import contextlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import psutil

from league.log.metrics import MetricsStream
from league.state import LeagueState
from schemas.errors import LogError
from schemas.loggers import get_logger
from schemas.metrics import HEARTBEAT_S, GpuMetrics, Heartbeat, InferenceMetrics, TrainingMetrics
from workers.runtime import Context

if TYPE_CHECKING:  # torch is slow to import
    from inference.base import InferenceBackend
    from inference.statistics import SwapTimer

log = get_logger()

T = TypeVar("T")

GPUS_VARIABLE = "LEAGUE_GPUS"
"""``1`` enables GPU metrics whether the process computes on GPUs or not; ``0`` disables them."""

_QUERY_OPTIONS = (
    "--query-gpu=index,uuid,name,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
_TIMEOUT_S = 3.0
_KILL_TIMEOUT_S = 1.0
_MAX_AGE_S = 20.0
"""Age above which measurements are not reported."""
_RETRY_S = 60.0
_MAX_GPUS = 64
_MAX_NAME_CHARS = 80
_MIB = 2**20


class DriverGpu(GpuMetrics, frozen=True):
    """A GPU with its driver's identifier."""

    uuid: str = ""


def parse_nvidia_smi(text: str) -> list[DriverGpu]:
    """Parse the output of ``nvidia-smi`` for these fields, one GPU a line; other lines are skipped."""
    gpus = []
    for line in text.splitlines():
        row = [part.strip() for part in line.split(",")]
        if len(row) >= 6 and row[0].isascii() and row[0].isdigit():
            # A name may hold commas.
            index, uuid, *names, busy, used, total = row
            name = ", ".join(names)[:_MAX_NAME_CHARS]
            percent = _parse_int(busy)
            share = None if percent is None else min(percent / 100, 1.0)
            gpus.append(DriverGpu(int(index[:4]), name, share, _parse_mib(used), _parse_mib(total), uuid))
    return gpus[:_MAX_GPUS]


def _parse_int(text: str) -> int | None:
    """None for ``[N/A]``, ``[Not Supported]``, ``ERR!`` and the like."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _parse_mib(text: str) -> int | None:
    return None if (mib := _parse_int(text)) is None else mib * _MIB


def filter_visible(variable: str | None, seen: Sequence[DriverGpu]) -> list[DriverGpu]:
    """The GPUs of the machine that ``CUDA_VISIBLE_DEVICES`` names, by indices or prefixes of UUIDs; all for None.

    As in CUDA, an entry that matches no GPU ends the list.
    """
    if variable is None:
        return list(seen)
    gpus: list[DriverGpu] = []
    for name in filter(None, map(str.strip, variable.split(","))):
        of_name = [gpu for gpu in seen if str(gpu.index) == name or (len(name) > 4 and gpu.uuid.startswith(name))]
        if len(of_name) != 1:
            break
        gpus += of_name
    return gpus


class GpuMonitor:
    """Measures GPUs at intervals and keeps the latest values.

    ``computes`` is whether the process computes on GPUs, as far as is known without torch; ``command`` the driver's
    tool, looked up in ``PATH``; ``timeout_s`` the limit for one measurement.
    """

    def __init__(
        self, computes: Callable[[], bool], command: str = "nvidia-smi", timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._uses_gpus = computes
        self._command = command
        self._timeout_s = timeout_s
        self._latest: list[GpuMetrics] = []
        self._seen_at = self._failed_at = float("-inf")

    def latest(self) -> list[GpuMetrics]:
        """The latest measurements; empty where there is no GPU, or none that concerns this process."""
        return self._latest if time.monotonic() - self._seen_at < _MAX_AGE_S else []

    async def refresh(self) -> None:
        """Measure, where enabled; takes ``timeout_s`` at most and raises nothing."""
        if time.monotonic() - self._failed_at < _RETRY_S:
            return
        try:
            setting = os.environ.get(GPUS_VARIABLE, "")
            if setting == "0" or not (setting == "1" or self._uses_gpus() or _torch_uses_gpu()):
                return
            async with asyncio.timeout(self._timeout_s):
                path = shutil.which(self._command)
                if path is not None:
                    self._latest = await _query_driver(path)
                else:
                    self._latest = await asyncio.to_thread(_query_torch) if _torch_uses_gpu() else []
            self._seen_at = time.monotonic()
        except Exception as error:  # a failed measurement must not end a worker
            self._failed_at = time.monotonic()
            log.warning("no figures of GPUs", error=str(error) or type(error).__name__, again_s=_RETRY_S)


def _torch_uses_gpu() -> bool:
    """Whether torch has initialised CUDA in this process, without importing it."""
    # While another thread imports torch, its module is there and has no ``cuda`` yet.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and hasattr(cuda, "is_initialized") and bool(cuda.is_initialized())


async def _query_driver(path: str) -> list[GpuMetrics]:
    process = await asyncio.create_subprocess_exec(
        path,
        *_QUERY_OPTIONS,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            # One that hangs in the driver is not waited for.
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                process.kill()
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    await process.wait()
    if process.returncode != 0:
        raise OSError(f"{path}: exit code {process.returncode}; expected 0")
    seen = filter_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), parse_nvidia_smi(printed.decode(errors="replace")))
    return [GpuMetrics(gpu.index, gpu.name, gpu.busy_share, gpu.used_bytes, gpu.memory_bytes) for gpu in seen]


def _query_torch() -> list[GpuMetrics]:
    """The GPU that torch computes on, where the driver's tool is missing; utilisation is unknown."""
    cuda = sys.modules["torch"].cuda
    # Querying another device would initialise it, for hundreds of megabytes.
    device = cuda.current_device()
    free, total = cuda.mem_get_info(device)
    return [GpuMetrics(device, str(cuda.get_device_name(device))[:_MAX_NAME_CHARS], None, total - free, total)]


class HeartbeatPublisher:
    """Publishes a process's heartbeats.

    This is the boundary for the errors of all gauges: what cannot be measured is left out and logged, and never ends
    the process.
    """

    def __init__(self, context: Context, role: str) -> None:
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
        """The gauge's value; None if it is missing or fails."""
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
        context = self._context
        process = self._process
        gauges = context.gauges
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
        self._tokens = RateMeter()
        self._busy = RateMeter()

    def read(self, most_adapters: int) -> InferenceMetrics:
        """Current metrics of a process that keeps up to ``most_adapters`` adapters ready."""
        stats = self._backend.stats()
        times = self._swaps.times
        # The backend's counters have the names of the metrics.
        counters = msgspec.structs.asdict(stats)
        names = counters.keys() & set(InferenceMetrics.__struct_fields__)
        return InferenceMetrics(
            backend=self._name,
            **{name: counters[name] for name in names},
            tokens_s=round(self._tokens.rate(stats.sampled_tokens + stats.forced_tokens), 1),
            busy_share=round(self._busy.rate(stats.seconds), 3),
            most_adapters=most_adapters,
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
