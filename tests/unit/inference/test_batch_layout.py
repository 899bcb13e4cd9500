"""Layouts of passes: what is carried over from the pass before is what would have been computed anew."""

from concurrent.futures import Future
from typing import Any

import pytest
import torch

from inference.base import Request, SamplingParameters
from inference.batch_layout import BatchLayout, LayoutPlanner
from inference.forward import _rotate, _swiglu
from inference.kv_cache import KvCache
from inference.lora_linear import PreparedWeights, prepare_weights
from inference.sequence import ActiveSequence
from models import BaseShape, make_base
from models.decoder import Decoder
from models.kernels import rotary, swiglu

SHAPE = BaseShape(hidden=32, layers=2, heads=2, kv_heads=2, head_dim=16, mlp=32)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    base = make_base(tmp_path_factory.mktemp("models") / "base", ["one", "two"], SHAPE)
    return Decoder.load(base).weights(None, False)


@pytest.fixture
def readies(weights) -> list[PreparedWeights]:
    return [prepare_weights(weights, name, identity) for identity, name in enumerate((None, "a", "b"))]


def row(ready: PreparedWeights, prompt: int) -> ActiveSequence:
    future: Any = Future()  # nobody waits on it
    return ActiveSequence(
        Request([1] * prompt, ready.adapter, None, SamplingParameters(seed=1, max_tokens=50)), ready, 50, (), future
    )


def cache_of(weights) -> KvCache:
    return KvCache(weights.shape, 8, torch.device("cpu"), torch.float32)


def say(rows: list[ActiveSequence], tokens: int = 1) -> None:
    for each in rows:
        each.pending += [2] * tokens


def anew(
    weights, layouts: LayoutPlanner, rows: list[ActiveSequence], first: int
) -> tuple[BatchLayout, list[ActiveSequence]]:
    """What layouts that have seen nothing make of the rows, which are left as they were."""
    pending = [list(each.pending) for each in rows]
    cache = cache_of(weights)
    cache.reserve(8, layouts._cache.positions)
    made = LayoutPlanner(cache)(rows, first)
    for each, tokens in zip(rows, pending, strict=True):
        each.pending, each.cached = tokens, each.cached - len(tokens)
    return made


def expect_same(
    found: tuple[BatchLayout, list[ActiveSequence]], expected: tuple[BatchLayout, list[ActiveSequence]]
) -> None:
    assert found[1] == expected[1]
    for name, value in expected[0]._asdict().items():
        other = getattr(found[0], name)
        assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value, name


@pytest.mark.parametrize("tokens", [[1] * 6, [2, 2, 2], [1, 2, 1, 2, 2, 1], [40, 40, 40, 1, 1]])
@pytest.mark.parametrize("first", [0, 2])
def test_pass_that_follows_is_laid_out_as_if_it_were_the_first(weights, readies, tokens, first):
    rows = [row(readies[place % 3], 3 + place) for place in range(5)]
    layouts = LayoutPlanner(cache_of(weights))
    layouts(rows, first)
    for count in tokens:
        say(rows, count)
        expected = anew(weights, layouts, rows, first)
        expect_same(layouts(rows, first), expected)


def test_layout_sees_rows_that_came_left_changed_places_weights_or_were_read_again(weights, readies):
    rows = [row(readies[place % 3], 4) for place in range(4)]
    layouts = LayoutPlanner(cache_of(weights))

    def expect_as_anew(now: list[ActiveSequence]) -> None:
        for _ in range(2):
            say(now)
            expected = anew(weights, layouts, now, 0)
            expect_same(layouts(now, 0), expected)

    layouts(rows, 0)
    expect_as_anew(rows)
    expect_as_anew(rows[:3])
    expect_as_anew([rows[2], rows[1], rows[0]])
    expect_as_anew(rows[:3])
    rows[0].ready = readies[2]
    expect_as_anew(rows[:3])
    for each in rows:
        each.restart_prefill()
    expect_as_anew(rows)


def test_layouts_without_rows_hold_none(weights, readies):
    layouts = LayoutPlanner(cache_of(weights))
    layouts([row(readies[0], 3)], 0)
    layouts.clear()
    assert layouts._row_order is None
    assert layouts._layout is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_and_swiglu_are_those_of_the_learner(dtype):
    torch.manual_seed(3)
    x_NHK, angles_NP = torch.randn(7, 6, 16).to(dtype)[:, :4], torch.randn(7, 8)
    cos_NP, sin_NP = angles_NP.cos().to(dtype), angles_NP.sin().to(dtype)
    cos_N1K, sin_N1K = torch.cat([cos_NP, cos_NP], -1)[:, None], torch.cat([-sin_NP, sin_NP], -1)[:, None]
    assert torch.equal(_rotate(x_NHK, cos_N1K, sin_N1K), rotary(x_NHK, cos_NP, sin_NP))
    gate_up = torch.randn(7, 32).to(dtype)
    bound = 1e-6 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(_swiglu(gate_up), swiglu(gate_up), atol=bound, rtol=bound)
