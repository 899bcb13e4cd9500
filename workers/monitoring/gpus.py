"""GPU utilisation and memory of a process, queried from the driver in bounded time.

Measured in processes that compute on a GPU, and where ``LEAGUE_GPUS=1`` requests it, as beside a separate inference
server. Without a GPU there are no metrics, not even zeros.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence

from schemas.loggers import get_logger
from schemas.metrics import GpuMetrics

log = get_logger()

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
"""Pause after a failure."""
_MAX_GPUS = 64
_MAX_NAME_CHARS = 80
_MIB = 2**20


class DriverGpu(GpuMetrics, frozen=True):
    """A GPU with its driver's identifier."""

    uuid: str = ""


def parse_nvidia_smi(text: str) -> list[DriverGpu]:
    """Parse the output of ``nvidia-smi`` for these fields, one GPU a line; other lines are skipped."""
    rows = ([part.strip() for part in line.split(",")] for line in text.splitlines())
    return [_parse_row(row) for row in rows if len(row) >= 6 and row[0].isascii() and row[0].isdigit()][:_MAX_GPUS]


def _parse_row(row: Sequence[str]) -> DriverGpu:
    # A name may hold commas.
    (index, uuid), name, (busy, used, total) = row[:2], row[2:-3], row[-3:]
    percent = _parse_int(busy)
    return DriverGpu(
        index=int(index[:4]),
        name=", ".join(name)[:_MAX_NAME_CHARS],
        busy_share=None if percent is None else min(percent / 100, 1.0),
        used_bytes=_parse_mib(used),
        memory_bytes=_parse_mib(total),
        uuid=uuid,
    )


def _parse_int(text: str) -> int | None:
    """None for ``[N/A]``, ``[Not Supported]``, ``ERR!`` and the like."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _parse_mib(text: str) -> int | None:
    return None if (mib := _parse_int(text)) is None else mib * _MIB


def filter_visible(variable: str | None, seen: Sequence[DriverGpu]) -> list[DriverGpu]:
    """The GPUs that a process may compute on.

    Args:
        variable: Value of ``CUDA_VISIBLE_DEVICES``: indices or prefixes of UUIDs. As in CUDA, an entry that matches no
            GPU ends the list. None selects all.
        seen: All GPUs of the machine.
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

    Args:
        computes: Whether the process computes on GPUs, as far as is known without torch.
        command: The driver's tool, looked up in ``PATH``.
        timeout_s: Limit for one measurement.
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
            if not self._is_enabled():
                return
            async with asyncio.timeout(self._timeout_s):
                path = shutil.which(self._command)
                self._latest = await _query_torch() if path is None else await _query_driver(path)
            self._seen_at = time.monotonic()
        except Exception as error:  # a failed measurement must not end a worker
            self._failed_at = time.monotonic()
            log.warning("no figures of GPUs", error=str(error) or type(error).__name__, again_s=_RETRY_S)

    def _is_enabled(self) -> bool:
        setting = os.environ.get(GPUS_VARIABLE, "")
        return setting == "1" or (setting != "0" and (self._uses_gpus() or _torch_uses_gpu()))


def _torch_uses_gpu() -> bool:
    """Whether torch has initialised CUDA in this process, without importing it.

    While another thread imports torch, its module is there and has no ``cuda`` yet.
    """
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
            await _kill(process)
    if process.returncode != 0:
        raise OSError(f"{path}: exit code {process.returncode}; expected 0")
    seen = filter_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), parse_nvidia_smi(printed.decode(errors="replace")))
    return [GpuMetrics(gpu.index, gpu.name, gpu.busy_share, gpu.used_bytes, gpu.memory_bytes) for gpu in seen]


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process; one that hangs in the driver is not waited for."""
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        process.kill()
        async with asyncio.timeout(_KILL_TIMEOUT_S):
            await process.wait()


async def _query_torch() -> list[GpuMetrics]:
    """The GPU that torch computes on, where the driver's tool is missing; utilisation is unknown."""
    return await asyncio.to_thread(_query_current_device) if _torch_uses_gpu() else []


def _query_current_device() -> list[GpuMetrics]:
    cuda = sys.modules["torch"].cuda
    # Querying another device would initialise it, for hundreds of megabytes.
    device = cuda.current_device()
    free, total = cuda.mem_get_info(device)
    return [GpuMetrics(device, str(cuda.get_device_name(device))[:_MAX_NAME_CHARS], None, total - free, total)]
