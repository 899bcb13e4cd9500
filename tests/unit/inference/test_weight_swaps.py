"""How soon a published version plays: measured from its recording to its first token, once per version."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference import Generation, Request, SamplingParameters, make_backend
from inference.base import Timing
from inference.statistics import RateMeter, SwapTimer, TimedBackend
from models import BaseShape, adapters, make_base
from models.adapters import LoraConfig
from models.model_config import read_shape
from workers.monitoring.metrics import BackendGauge


def completion(seconds: float, first_s: float) -> Generation:
    return Generation([1], [0], [-0.1], [[1, 2]], "stop", Timing(0.0, seconds, 0, first_s))


def ago(seconds: float) -> int:
    return time.time_ns() - int(seconds * 1e9)


def test_a_version_is_timed_to_its_first_token_and_once() -> None:
    swaps = SwapTimer()
    swaps.expect("main", "new", ago(0.5))
    swaps.observe(completion(0.3, 0.1), "old")
    assert swaps.times.versions == 0
    # It was asked 0.3 s ago, and its first token was there 0.2 s ago.
    swaps.observe(completion(0.3, 0.1), "new")
    swaps.observe(completion(9.0, 0.1), "new")
    assert swaps.times.versions == 1
    assert swaps.times.last == pytest.approx(0.3, abs=0.05)


def test_a_backend_that_does_not_tell_its_first_token_is_timed_to_the_last() -> None:
    swaps = SwapTimer()
    swaps.expect("main", "new", ago(0.5))
    swaps.observe(completion(0.3, 0.0), "new")
    assert swaps.times.last == pytest.approx(0.5, abs=0.05)


def test_policies_are_timed_apart_and_a_version_that_nobody_asked_for_is_forgotten() -> None:
    swaps = SwapTimer()
    swaps.expect("main", "one", ago(100))
    swaps.expect("main", "two", ago(1))
    swaps.expect("other", "three", ago(3))
    swaps.observe(completion(0.0, 0.0), "one")
    assert swaps.times.versions == 0
    swaps.observe(completion(0.0, 0.0), "two")
    swaps.observe(completion(0.0, 0.0), "three")
    times = swaps.times
    assert (times.versions, round(times.last, 1), round(times.mean, 1), round(times.longest, 1)) == (2, 3.0, 2.0, 3.0)


def test_a_clock_that_is_behind_makes_no_time_before_zero() -> None:
    swaps = SwapTimer()
    swaps.expect("main", "new", ago(-50))
    swaps.observe(completion(0.1, 0.1), "new")
    assert swaps.times.last == 0.0


def test_a_real_backend_says_when_its_first_token_was_there(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", ["a", "b"], BaseShape(hidden=32, layers=1, heads=2, kv_heads=1), seed=1)
    adapters.save(adapters.create(read_shape(base), LoraConfig(2, 4.0), seed=1), tmp_path / "adapter")

    async def body() -> None:
        swaps = SwapTimer()
        backend = TimedBackend(make_backend("local", base), swaps)
        gauge = BackendGauge("local", backend, swaps)
        backend.load_adapter("new", tmp_path / "adapter")
        started = time.perf_counter()
        swaps.expect("main", "new", time.time_ns())
        done = await backend.generate(Request([1, 2], "new", None, SamplingParameters(max_tokens=24)))
        whole_s = time.perf_counter() - started
        assert done.timing is not None
        assert done.timing.queued_s < done.timing.first_s < done.timing.seconds <= whole_s
        figures = gauge.read(16)
        assert (figures.published, figures.requests, figures.adapters, figures.most_adapters) == (1, 1, 1, 16)
        assert 0 < figures.last_swap_s < whole_s
        assert figures.last_swap_s == figures.mean_swap_s == figures.max_swap_s
        assert figures.tokens_s > 0
        assert 0 < figures.busy_share <= 1.5
        backend.drop_adapter("new")
        assert gauge.read(16).adapters == 0
        await backend.close()

    asyncio.run(body())


def test_rates_are_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 7.0
    monkeypatch.setattr("inference.statistics.time", SimpleNamespace(monotonic=lambda: now_s))
    lately = RateMeter(window_s=0.2)
    assert lately.rate(0.0) == 0.0
    now_s += 0.25
    assert lately.rate(100.0) == pytest.approx(100 / 0.25)
    for _ in range(5):
        now_s += 0.1
        last = lately.rate(100.0)
    assert last == 0.0
