"""Sequences that share their beginnings, computed once: the same losses and gradients as in separate rows."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention

from models.prefix_tree import (
    PrefixTree,
    _attend_flex,
    attend_tree,
    grow_tree,
    lay_out,
    shared_order,
    tree_rows,
    tree_share,
)
from schemas.config import Plugin, TrainerConfig
from schemas.trajectories import ModelCall, Trajectory
from tests.unit.trainer.test_backends import FAMILIES, UNPACKABLE, make_model
from trainer.backends import AdapterSpec, load_backend
from trainer.batch import flatten, microbatches, resolve_layout
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig

CPU = torch.device("cpu")
VOCABULARY = 60
sequences = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=1, max_size=12)


def calls(rng: Random, prompts: int, replies: int, length: int = 40) -> list[ModelCall]:
    """Replies of some tokens to a few prompts, which begin with the same rules."""
    rules = [rng.randrange(1, VOCABULARY) for _ in range(length)]
    found = []
    for prompt in range(prompts):
        question = [*rules, *(rng.randrange(1, VOCABULARY) for _ in range(3 + prompt))]
        for _ in range(replies):
            reply = [rng.randrange(1, 6) for _ in range(rng.randrange(1, 5))]
            allowed = [[] if rng.random() < 0.3 else sorted({token, 7, 9, 50}) for token in reply]
            places = list(range(len(reply)))
            logprobs = [-1.0] * len(reply)
            found.append(ModelCall(question, reply, places, logprobs, allowed, 0, 0, 0.0))
    return found


def trajectories(steps: list[ModelCall]) -> list[Trajectory]:
    return [
        Trajectory(f"m{n}", "g", "main", 0, "seat", "seat", [step], 1, float(n % 3), 0.0, 1)
        for n, step in enumerate(steps)
    ]


@given(sequences)
def test_every_sequence_is_a_path_of_the_tree(drawn: list[list[int]]) -> None:
    arrays = [np.array(ids) for ids in drawn]
    ordered = [arrays[index] for index in shared_order(arrays)]
    tree = grow_tree(ordered)
    tokens = [int(ordered[sequence][at]) for sequence, at in tree.source_L]
    assert [[tokens[place] for place in places] for places in tree.places] == [ids.tolist() for ids in ordered]
    distinct = {tuple(ids[:size]) for ids in drawn for size in range(1, len(ids) + 1)}
    assert len(tokens) == len(distinct), "each beginning once"
    assert tree_share(arrays) == pytest.approx(len(distinct) / sum(map(len, drawn)))
    layout = lay_out(tree, CPU)
    for places in tree.places:
        assert layout.positions_L[torch.from_numpy(places)].tolist() == list(range(len(places)))
        for query in places:
            seen = [key for key in range(query + 1) if query < layout.exits_L[key]]
            assert seen == [place for place in places if place <= query], "ancestors and itself"


@given(sequences, st.integers(1, 30))
def test_rows_hold_every_sequence_once_and_keep_to_their_room(drawn: list[list[int]], room: int) -> None:
    arrays = [np.array(ids) for ids in drawn]
    rows = list(tree_rows(arrays, room))
    assert sorted(index for row in rows for index in row) == list(range(len(drawn)))
    for row in rows:
        assert len(row) == 1 or len(grow_tree([arrays[index] for index in row]).source_L) <= room


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("prompts", [1, 40])
def test_each_token_attends_to_its_own_sequence_alone(prompts: int, window: int | None) -> None:
    rng, generator = Random(prompts), torch.Generator().manual_seed(0)
    arrays = [np.array([*step.prompt_ids, *step.completion_ids]) for step in calls(rng, prompts, 5, length=300)]
    ordered = [arrays[index] for index in shared_order(arrays)]
    tree = grow_tree(ordered)
    q, k, v = (torch.randn(1, len(tree.source_L), 2, 8, generator=generator) for _ in range(3))
    attended = attend_tree(q, k, v, lay_out(tree, CPU), window)
    for places in tree.places[::7]:
        alone = [x[:, torch.from_numpy(places)].transpose(1, 2) for x in (q, k, v)]
        back = torch.arange(len(places))[:, None] - torch.arange(len(places))
        mask = (back >= 0) & (back < (window or len(places)))
        expected = torch.nn.functional.scaled_dot_product_attention(*alone, attn_mask=mask)
        found = attended[0, torch.from_numpy(places)]
        torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2)[0], atol=1e-5, rtol=1e-5)


def flex_case() -> tuple[list[torch.Tensor], PrefixTree]:
    """Queries, keys and values, and a tree of eleven blocks."""
    arrays = [np.array([*step.prompt_ids, *step.completion_ids]) for step in calls(Random(0), 26, 4, length=300)]
    tree, generator = grow_tree([arrays[index] for index in shared_order(arrays)]), torch.Generator().manual_seed(0)
    return [torch.randn(1, len(tree.source_L), 2, 16, generator=generator) for _ in range(3)], lay_out(tree, CPU)


@pytest.mark.parametrize("window", [None, 100, 300])
def test_flex_attention_has_the_blocks_and_the_outputs_of_the_groups(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiling takes a minute; what is not compiled ignores the blocks.
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr("models.prefix_tree._compiled_flex_attention", lambda: flex_attention.flex_attention)
    qkv, tree = flex_case()
    torch.testing.assert_close(_attend_flex(*qkv, tree, window), attend_tree(*qkv, tree, window))
    found, length = tree.block_masks[window], qkv[0].shape[1]
    expected = flex_attention.create_block_mask(found.mask_mod, None, None, length, length, device="cpu")
    assert (found.to_dense() >= expected.to_dense()).all()
    # Of a block and a distant one, the outermost tokens alone may be near enough to each other.
    assert found.sparsity() == pytest.approx(expected.sparsity(), abs=0 if window is None else 2)
    assert found.full_kv_num_blocks.tolist() == expected.full_kv_num_blocks.tolist()


@pytest.mark.slow
def test_compiled_flex_attention_has_the_outputs_of_the_groups() -> None:
    """As on a GPU, whose backward pass torch does not have on a CPU."""
    qkv, tree = flex_case()
    torch.testing.assert_close(_attend_flex(*qkv, tree, None), attend_tree(*qkv, tree))
    assert int(tree.block_masks[None].full_kv_num_blocks.sum())


SHARING = [
    *(("native", family) for family in ("llama", "qwen2", "qwen3")),
    *(("peft", family) for family in FAMILIES if family not in UNPACKABLE),
]


@pytest.mark.parametrize(("backend", "family"), SHARING)
@pytest.mark.parametrize("recompute", [False, True])
def test_losses_and_gradients_are_those_of_separate_rows(
    backend: str, family: str, recompute: bool, tmp_path: Path
) -> None:
    make_model(tmp_path, family)
    batch = flatten(trajectories(calls(Random(2), 4, 6)), [np.ones(1)] * 24)
    loaded = load_backend(Plugin(backend), tmp_path, "cpu", "float32")
    found = {}
    for layout in ("prefix_tree", "rectangles"):
        adapter = loaded.new_adapter(AdapterSpec(4, 8.0, ()), seed=1)
        # A fresh adapter changes nothing, and half of it has no gradient.
        (parameters,) = adapter.make_optimizer(LearnerConfig()).weights
        with torch.no_grad():
            parameters += 0.05 * torch.randn(parameters.shape, generator=torch.Generator().manual_seed(3))
        config = LearnerConfig(layout=layout, recompute_layers=recompute)
        forward, logprob_W = adapter.begin(config), torch.zeros(len(batch.position_W))
        for chunk in microbatches(batch, np.arange(len(batch)), 128, CPU, layout):
            terms = forward.loss_inputs(chunk)
            torch.autograd.backward((terms.logprob_W * chunk.advantage_W + 0.1 * terms.entropy_W).sum())
            logprob_W[torch.from_numpy(chunk.branch_W)] = terms.logprob_W.detach()
        forward.backward()
        found[layout] = logprob_W, parameters.grad.clone()
    for shared, separate in zip(found["prefix_tree"], found["rectangles"], strict=True):
        torch.testing.assert_close(shared, separate, atol=1e-5, rtol=1e-4)


UNSHARABLE: dict[str, dict[str, Any]] = {
    "bloom": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6},
    "gemma2": {"final_logit_softcapping": None},
    **{family: {} for family in sorted(UNPACKABLE)},
}
"""Positions as biases of the attention, one that cannot be replaced, bounded scores, and what cannot be packed."""


@pytest.mark.parametrize("family", UNSHARABLE)
def test_a_family_with_another_attention_is_found_and_computed_in_rectangles(family: str, tmp_path: Path) -> None:
    make_model(tmp_path, family, **UNSHARABLE[family])
    rollouts, norms = trajectories(calls(Random(2), 4, 6)), []
    for layout in ("auto", "rectangles"):
        adapter = load_backend(Plugin("peft"), tmp_path, "cpu", "float32").new_adapter(AdapterSpec(4, 8.0, ()), seed=1)
        assert not adapter.supports_layout("prefix_tree")
        config = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin("leave_one_out"), learner={"layout": layout})
        norms.append(Learner(adapter, config, seed=5).step(rollouts).grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_auto_shares_where_much_is_shared_and_steps_are_the_same(tmp_path: Path) -> None:
    make_model(tmp_path, "llama")
    rollouts = trajectories(calls(Random(2), 4, 6))
    batch = flatten(rollouts, [np.ones(1)] * 24)
    assert resolve_layout(batch, LearnerConfig(), CPU) == "prefix_tree"
    assert resolve_layout(batch, LearnerConfig(), torch.device("cuda")) == "rectangles", "never run there"
    lonely = flatten(trajectories([calls(Random(n), 1, 1)[0] for n in range(5)]), [np.ones(1)] * 5)
    assert resolve_layout(lonely, LearnerConfig(), CPU) == "rectangles"
    adapters = []
    for layout in ("auto", "rectangles"):
        learner = {"layout": layout, "epochs": 1, "minibatch_sequences": 8}
        config = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin("leave_one_out"), learner=learner)
        backend = load_backend(Plugin("native"), tmp_path, "cpu", "float32")
        trained = Learner(backend.new_adapter(AdapterSpec(4, 8.0, ()), seed=1), config, seed=5)
        assert not trained.step(rollouts).skipped
        adapters.append(trained.adapter.make_optimizer(LearnerConfig()).weights[0].detach())
    torch.testing.assert_close(*adapters, atol=1e-4, rtol=1e-3)
