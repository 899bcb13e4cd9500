"""Statistics of a backend: counters of requests, rates over a window, latency of weight swaps."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from inference.base import BackendStats, Generation, InferenceBackend, Request


class RateMeter:
    """Growth of a total per second, over a sliding window; it has been growing for ``age_s`` already, from 0."""

    def __init__(self, window_s: float = 30.0, age_s: float = 0.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque([(time.monotonic() - age_s, 0.0)])

    def rate(self, total: float) -> float:
        """The rate, given the total as it is now; call it every now and then."""
        now = time.monotonic()
        self._samples.append((now, total))
        while len(self._samples) > 2 and now - self._samples[1][0] >= self._window_s:
            self._samples.popleft()
        then, before = self._samples[0]
        return max(total - before, 0.0) / (now - then) if now > then else 0.0


class Counters(msgspec.Struct):
    """Totals of a backend since it started: the fields of ``BackendStats`` that only grow."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    passes: int = 0
    seconds: float = 0.0


class InFlight:
    """The number of what is in flight."""

    def __init__(self) -> None:
        self.count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def hold(self, number: int = 1) -> Iterator[None]:
        """Count a number as in flight during a block."""
        self.count += number
        self._idle.clear()
        try:
            yield
        finally:
            self.count -= number
            if not self.count:
                self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until nothing is in flight."""
        await self._idle.wait()


class RequestCounter:
    """Requests in flight and totals of finished ones, for backends that compute elsewhere."""

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self.swaps = 0
        """Adapters that were loaded."""
        self._totals = Counters()

    @contextlib.contextmanager
    def track(self) -> Iterator[float]:
        """Count a request, finished or failed; gives the time of its beginning, by ``time.monotonic``."""
        began = time.monotonic()
        with self.in_flight.hold():
            try:
                yield began
            finally:
                self._totals.requests += 1
                self._totals.seconds += time.monotonic() - began

    def add(self, request: Request, generation: Generation) -> None:
        """Count the tokens of a finished request."""
        totals, sampled = self._totals, len(generation.branches)
        totals.prompt_tokens += len(request.prompt_ids)
        totals.cached_tokens += generation.timing.cached_tokens if generation.timing is not None else 0
        totals.sampled_tokens += sampled
        totals.forced_tokens += len(generation.completion_ids) - sampled

    def stats(self, adapters: int, slots: int, queued: int = 0) -> BackendStats:
        """The totals so far; ``queued`` of the requests in flight have not begun."""
        load = {"queued": queued, "running": self.in_flight.count - queued, "adapters": adapters, "slots": slots}
        return BackendStats(**load, swaps=self.swaps, **msgspec.structs.asdict(self._totals))


class SwapTimes(NamedTuple):
    """Seconds from publication to first token, of the versions sampled from so far; zeros before the first."""

    versions: int = 0
    last: float = 0.0
    mean: float = 0.0
    longest: float = 0.0


class SwapTimer:
    """Latency of weight swaps: from the recording of ``PolicyPublished`` to the first token of the new version.

    Measured in the process that samples, by its own clock against the time stamp of the event: across machines it
    contains the difference of their clocks.
    """

    def __init__(self) -> None:
        self.times = SwapTimes()
        self._expected: dict[str, tuple[str, int]] = {}
        """Adapter of the newest version by policy, and when that was recorded, in nanoseconds since 1970."""

    def expect(self, policy: str, adapter: str, recorded_ns: int) -> None:
        """Await the first token of a version; an older one that was never sampled from is forgotten."""
        self._expected[policy] = (adapter, recorded_ns)

    def observe(self, generation: Generation, adapter: str | None) -> None:
        """Count a finished completion, which this adapter sampled."""
        if not self._expected:
            return
        for policy in [policy for policy, (digest, _) in self._expected.items() if digest == adapter]:
            _, recorded_ns = self._expected.pop(policy)
            timing = generation.timing
            # Where a backend does not report the time of its first token, the whole completion is counted.
            since_first_s = timing.seconds - timing.first_s if timing is not None and timing.first_s > 0 else 0.0
            seconds = max(time.time() - since_first_s - recorded_ns / 1e9, 0.0)
            count, _, mean, longest = self.times
            mean += (seconds - mean) / (count + 1)
            self.times = SwapTimes(count + 1, seconds, mean, max(longest, seconds))


@dataclass(eq=False)
class TimedBackend:
    """A backend whose completions pass through a ``SwapTimer``."""

    _backend: InferenceBackend
    _swaps: SwapTimer

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Make an adapter known to the backend."""
        self._backend.load_adapter(digest, folder)

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter in the backend."""
        self._backend.drop_adapter(digest)

    def stats(self) -> BackendStats:
        """Load and totals of the backend."""
        return self._backend.stats()

    async def generate(self, request: Request) -> Generation:
        """Sample one completion, and count it toward the latency of weight swaps."""
        generation = await self._backend.generate(request)
        self._swaps.observe(generation, request.adapter)
        return generation

    async def close(self) -> None:
        """Close the backend."""
        await self._backend.close()
