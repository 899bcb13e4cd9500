"""Linears of a batch whose rows use different weights: batched or span by span, each row meets its own."""

import pytest
import torch

from inference.lora_linear import (
    LINEAR_NAMES,
    MAX_STACKED_ROWS,
    PreparedWeights,
    RowSpan,
    WeightStackCache,
    prepare_weights,
)
from models import make_base
from models.adapters import LoraConfig, create
from models.decoder import Decoder

RANKS = (4, 2, 7)


@pytest.fixture(scope="module")
def line_up(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[PreparedWeights]]:
    """The base and three adapters, beside it or merged into it."""
    decoder = Decoder.load(make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(17)]))
    loras = [create(decoder.shape, LoraConfig(rank=rank), seed) for seed, rank in enumerate(RANKS)]
    with torch.no_grad():
        for lora in loras:
            lora.flat_P.add_(0.2 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(1)))
        return {
            merge: [
                prepare_weights(decoder.weights(lora, merge), None, index) for index, lora in enumerate([None, *loras])
            ]
            for merge in (False, True)
        }


def spans_of(line_up: list[PreparedWeights], widths: list[int]) -> list[RowSpan]:
    ends = [sum(widths[: place + 1]) for place in range(len(widths))]
    return [RowSpan(*each) for each in zip(line_up, [0, *ends], ends, strict=False)]


@pytest.mark.parametrize("widths", [[2, 2, 2, 2], [3, 1, 4, 2], [1, 9, 1, 1], [MAX_STACKED_ROWS + 1, 40, 30, 44], [5]])
@pytest.mark.parametrize("merged", [False, True])
def test_every_row_meets_the_linear_of_its_own_weights(line_up, widths, merged):
    spans, stacks = spans_of(line_up[merged], widths), WeightStackCache()
    for _ in range(3):
        (plan,) = stacks.make_plans(spans)
        for name in LINEAR_NAMES:
            into = spans[0].ready.weights.layers[1].__dict__[name].weight_OI.shape[1]
            x_NI = torch.randn(sum(widths), into, generator=torch.Generator().manual_seed(2))
            with torch.inference_mode():
                out_NO = plan.linear(1, name, x_NI)
                for span in spans:
                    own = getattr(span.ready.weights.layers[1], name)(x_NI[span.first : span.last])
                    torch.testing.assert_close(out_NO[span.first : span.last], own, atol=1e-5, rtol=1e-5)


def test_few_rows_of_a_line_up_that_stays_are_batched_and_others_are_not(line_up):
    merged, stacks = line_up[True], WeightStackCache()
    few, many, lone = (
        spans_of(merged, [2, 3, 2, 2]),
        spans_of(merged, [MAX_STACKED_ROWS + 1] * 4),
        spans_of(merged, [9, 1, 1, 1]),
    )
    assert [stacks.make_plans(few)[0].stack is None for _ in range(3)] == [True, False, False]
    assert [plan.stack is None for plan in stacks.make_plans(few, many, lone)] == [False, True, True]
    assert stacks.make_plans(spans_of(merged[1:], [2, 2, 2]))[0].stack is None
    assert stacks.make_plans(few)[0].stack is not None


def test_adapters_of_different_ranks_beside_one_base_share_its_product(line_up):
    spans, stacks = spans_of(line_up[False], [2, 2, 2, 2]), WeightStackCache()
    assert [stacks.make_plans(spans)[0].stack is None for _ in range(3)] == [True, False, False]
    linear = stacks.make_plans(spans)[0].stack.layers[1]["o"]
    assert linear.base.weight_OI is spans[0].ready.weights.layers[1].o.weight_OI
    assert linear.a_SIR.shape[2] == max(RANKS)
    assert not linear.a_SIR[0].any()


def test_adapters_merged_and_beside_are_not_stacked_together(line_up):
    spans, stacks = spans_of([*line_up[False][1:3], *line_up[True][1:3]], [2, 2, 2, 2]), WeightStackCache()
    assert [stacks.make_plans(spans)[0].stack for _ in range(3)] == [None] * 3
