"""Adapters where memory is short: fewer are kept, waiting ends, and nobody loses what it plays with."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from inference import InferenceBackend, make_backend
from inference.adapter_cache import AdapterCache
from models import BaseShape, adapters, make_base
from models.adapters import LoraConfig
from models.model_config import read_shape
from schemas.errors import MemoryShortError, ModelError

SHAPE = BaseShape(hidden=32, layers=1, heads=2, kv_heads=1)


class Bench:
    """A shelf over a real backend with memory for so many adapters; ``bad`` is one that no backend loads."""

    def __init__(self, base: Path, fits: float, configured: int = 16) -> None:
        self.base = base
        self.backend: InferenceBackend = make_backend("local", base)
        self.adapter(Path(base.parent / "probe"), 1)
        self.backend.load_adapter("probe", base.parent / "probe")
        one = self.backend._adapters["probe"].bytes  # type: ignore[attr-defined]
        self.backend = make_backend("local", base, adapter_bytes=int(fits * one))
        self.pinned: set[str] = set()
        self.told: list[int] = []
        self.shelf = AdapterCache(self.backend, lambda: configured, lambda: self.pinned, self.fetch, self.tell)

    def adapter(self, folder: Path, seed: int) -> None:
        adapters.save(adapters.create(read_shape(self.base), LoraConfig(2, 4.0), seed=seed), folder)

    async def fetch(self, adapter: str, folder: Path) -> None:
        await asyncio.sleep(0)
        if adapter != "bad":
            self.adapter(folder, sum(adapter.encode()))

    async def tell(self, slots: int, reason: str) -> None:
        assert "adapter_bytes" in reason
        self.told.append(slots)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("shelf") / "base", ["a", "b"], SHAPE, seed=1)


def on(base: Path, fits: float, body: Callable[[Bench], Awaitable[None]], configured: int = 16) -> None:
    async def main() -> None:
        bench = Bench(base, fits, configured)
        async with asyncio.timeout(300):
            await body(bench)
        assert bench.backend.stats().adapters == len(bench.shelf.loaded)
        await bench.backend.close()

    asyncio.run(main())


def test_idle_adapters_make_room_and_fewer_are_kept_from_then_on(base: Path) -> None:
    async def body(bench: Bench) -> None:
        for name in "abcde":
            await bench.shelf.ensure([name])
        assert bench.shelf.loaded == ["c", "d", "e"]
        assert (bench.told, bench.shelf.capacity) == ([3], 3)

    on(base, 3, body)


def test_while_memory_lasts_those_in_use_stay_beyond_the_configured_number(base: Path) -> None:
    async def body(bench: Bench) -> None:
        with contextlib.ExitStack() as held:
            await bench.shelf.ensure(list("abcd"), held)
            assert bench.shelf.loaded == list("abcd")
        assert len(bench.shelf.loaded) == 2
        assert (bench.told, bench.shelf.capacity) == ([], 2)

    on(base, 9, body, configured=2)


def test_who_wants_more_than_there_is_memory_for_waits_until_others_are_done(base: Path) -> None:
    async def body(bench: Bench) -> None:
        order: list[str] = []

        async def match(*names: str) -> None:
            with contextlib.ExitStack() as held:
                await bench.shelf.ensure(names, held)
                assert set(names) <= set(bench.shelf.loaded)
                order.append("".join(names))
                await asyncio.sleep(0.01)
                assert set(names) <= set(bench.shelf.loaded)

        pairs = ["ab", "cd", "ef", "ba", "ca", "bf", "de", "fa"] * 4
        await asyncio.gather(*(match(*pair) for pair in pairs))
        assert sorted(order) == sorted(pairs)
        assert bench.told == [3]

    on(base, 3, body)


def test_who_waits_for_room_comes_to_its_turn_though_others_go_on_with_what_is_there(base: Path) -> None:
    async def body(bench: Bench) -> None:
        done = asyncio.Event()

        async def busy(name: str) -> None:
            while not done.is_set():
                with contextlib.ExitStack() as held:
                    await bench.shelf.ensure([name], held)
                    await asyncio.sleep(0.005)

        async def other() -> None:
            await asyncio.sleep(0.02)
            with contextlib.ExitStack() as held:
                await bench.shelf.ensure(["c", "d"], held)
            done.set()

        await asyncio.gather(busy("a"), busy("a"), busy("b"), busy("b"), other())

    on(base, 2, body)


def test_more_than_there_is_memory_for_is_refused_and_the_rest_goes_on(base: Path) -> None:
    async def body(bench: Bench) -> None:
        with contextlib.ExitStack() as held, pytest.raises(MemoryShortError, match="3 adapters are needed at once"):
            await bench.shelf.ensure(list("abc"), held)
        bench.pinned = {"a"}
        await bench.shelf.ensure(["a"])
        with pytest.raises(MemoryShortError, match="3 adapters are needed at once; there is memory for 2"):
            await bench.shelf.ensure(["b", "c"])
        await bench.shelf.ensure(["c"])
        assert set(bench.shelf.loaded) == {"a", "c"}

    on(base, 2, body)


def test_a_new_version_takes_the_place_of_the_one_before_where_there_is_memory_for_one(base: Path) -> None:
    async def body(bench: Bench) -> None:
        before = None
        for version in ("v1", "v2", "v3"):
            await bench.shelf.ensure([version], instead=before)
            bench.pinned = {version}
            assert bench.shelf.loaded == [version]
            before = version
        assert bench.told == [1]
        assert not bench.shelf.unload("v3")

    on(base, 1, body)


def test_memory_for_none_is_an_error_to_who_asks(base: Path) -> None:
    async def body(bench: Bench) -> None:
        with pytest.raises(MemoryShortError, match="adapter_bytes"):
            await bench.shelf.ensure(["a"])
        assert (bench.told, bench.shelf.loaded) == ([], [])

    on(base, 0.5, body)


def test_one_that_cannot_be_loaded_is_no_want_of_memory(base: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.shelf.ensure(["a"])
        with pytest.raises(ModelError, match="not an adapter"):
            await bench.shelf.ensure(["b", "bad"])
        assert bench.told == []
        assert "a" in bench.shelf.loaded

    on(base, 3, body)
