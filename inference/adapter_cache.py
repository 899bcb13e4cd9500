"""The adapters that a process keeps loaded: eviction of idle ones, and a capacity that follows the memory.

As long as memory lasts, all adapters in use stay, and idle ones are evicted beyond the configured number. When the
backend has no memory for another one, the number loaded by then becomes the capacity, and a request that needs more
waits until others release theirs. A match requests all of its adapters at once, and no holder of some waits for more,
so that there is no deadlock.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from inference.base import BackgroundLoader, InferenceBackend
from schemas.errors import MemoryShortError

FetchAdapter = Callable[[str, Path], Awaitable[None]]
"""Puts an adapter's files into a folder."""


class AdapterCache:
    """Adapters of one backend, which loads and drops them.

    Those that ``pinned`` returns are assigned now, and never evicted. ``tell`` is called with the new capacity and the
    reason whenever it shrinks below the ``configured`` one. ``verify`` gets each adapter and its folder once it is
    loaded, and raises ``ModelError`` for one that must not be used.
    """

    def __init__(
        self,
        backend: InferenceBackend,
        configured: Callable[[], int],
        pinned: Callable[[], set[str]],
        fetch: FetchAdapter,
        tell: Callable[[int, str], Awaitable[None]],
        verify: FetchAdapter | None = None,
    ) -> None:
        self._backend = backend
        self._configured_capacity = configured
        self._pinned = pinned
        self._fetch = fetch
        self._on_capacity_reduced = tell
        self._verify = verify
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._in_use = Counter[str]()
        """Number of holders of each."""
        self._memory_capacity: int | None = None
        """The number that fits into memory, once that was short."""
        self._loading = asyncio.Lock()
        self._waiting = False
        self._freed = asyncio.Event()

    @property
    def loaded(self) -> list[str]:
        """Loaded adapters, the most recently used one last."""
        return list(self._loaded)

    @property
    def capacity(self) -> int:
        """The most adapters that are kept loaded."""
        configured = self._configured_capacity()
        return configured if self._memory_capacity is None else min(configured, self._memory_capacity)

    async def ensure(
        self, adapters: Sequence[str], leases: contextlib.ExitStack | None = None, instead: str | None = None
    ) -> None:
        """Load adapters for requests, all of them at once, and hold them until ``leases`` is closed.

        ``instead`` is a pinned one that may be evicted for them where memory is short.

        Raises:
            ArtifactError: one is missing or damaged.
            MemoryShortError: there is no memory for so many, even alone.
            ModelError: one does not fit the base model.
        """
        requested = list(dict.fromkeys(adapters))
        # Not behind the lock: loaded adapters need not wait for fetches of others. But a request that waits for room
        # would starve if others went on taking it.
        if not self._waiting and all(adapter in self._loaded for adapter in requested):
            self._mark_used(requested, leases)
            return
        async with self._loading:
            await self._load(requested, instead)
            self._mark_used(requested, leases)

    def unload(self, adapter: str) -> bool:
        """Unload an adapter; False where it is pinned or held."""
        if self._in_use[adapter] or adapter in self._pinned():
            return False
        if adapter in self._loaded:
            self._drop(adapter)
        return True

    async def _load(self, requested: Sequence[str], instead: str | None) -> None:
        fetched: set[str] = set()
        with tempfile.TemporaryDirectory() as folder:
            while True:
                await self._wait_for_room(requested, instead)
                missing = [adapter for adapter in requested if adapter not in self._loaded]
                if unfetched := [adapter for adapter in missing if adapter not in fetched]:
                    # One at a time, since what was there may be dropped while others are waited for.
                    await self._fetch(unfetched[0], Path(folder) / unfetched[0])
                    fetched.add(unfetched[0])
                    continue
                self._evict_idle(requested, instead)
                try:
                    for adapter in missing:
                        await self._load_one(adapter, Path(folder) / adapter)
                        self._loaded[adapter] = None
                    return
                except MemoryShortError as error:
                    await self._reduce_capacity(error)

    async def _load_one(self, adapter: str, folder: Path) -> None:
        if isinstance(self._backend, BackgroundLoader):
            await self._backend.load_in_background(adapter, folder)
        else:
            self._backend.load_adapter(adapter, folder)
        if self._verify is not None:
            try:
                await self._verify(adapter, folder)
            except BaseException:
                self._backend.drop_adapter(adapter)
                raise

    async def _wait_for_room(self, requested: Sequence[str], instead: str | None) -> None:
        """Wait, if memory is short, until these fit beside the adapters in use; raises if they never will."""
        try:
            while self._memory_capacity is not None:
                needed = {*requested, *(adapter for adapter in self._pinned() if adapter != instead)}
                if len(needed) > self._memory_capacity:
                    raise MemoryShortError(
                        f"inference: {len(needed)} adapters are needed at once; there is memory for "
                        f"{self._memory_capacity}"
                    )
                if len(needed | self._in_use.keys()) <= self._memory_capacity:
                    return
                self._waiting = True
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._waiting = False

    async def _reduce_capacity(self, error: MemoryShortError) -> None:
        """Shrink the capacity to the number loaded now, or by one; raises where that leaves none."""
        fits = len(self._loaded) if self._memory_capacity is None else min(len(self._loaded), self._memory_capacity - 1)
        if fits < 1:
            raise error
        self._memory_capacity = fits
        if fits < self._configured_capacity():
            await self._on_capacity_reduced(fits, str(error))

    def _mark_used(self, requested: Sequence[str], leases: contextlib.ExitStack | None) -> None:
        for adapter in requested:
            self._loaded.move_to_end(adapter)
            if leases is not None:
                self._in_use[adapter] += 1
                leases.callback(self._release, adapter)
        # The requested ones are about to be used, though they may not be held yet.
        self._evict_idle(requested)

    def _release(self, adapter: str) -> None:
        self._in_use[adapter] -= 1
        if not self._in_use[adapter]:
            del self._in_use[adapter]
        self._evict_idle()
        self._freed.set()

    def _evict_idle(self, requested: Sequence[str] = (), instead: str | None = None) -> None:
        """Evict idle adapters above the capacity, the least recently used first."""
        needed = {*requested, *self._pinned()}
        idle = [adapter for adapter in self._loaded if adapter not in needed and not self._in_use[adapter]]
        if self._memory_capacity is not None and instead and instead in self._loaded and not self._in_use[instead]:
            idle.append(instead)
        coming = sum(adapter not in self._loaded for adapter in requested)
        for adapter in idle[: max(len(self._loaded) + coming - self.capacity, 0)]:
            self._drop(adapter)

    def _drop(self, adapter: str) -> None:
        self._backend.drop_adapter(adapter)
        del self._loaded[adapter]
