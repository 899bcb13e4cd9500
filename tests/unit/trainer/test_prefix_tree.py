"""Sequences that share their beginnings, computed once: the same losses and gradients as in separate rows."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from models.prefix_tree import attend_tree, grow_tree, lay_out, shared_order, tree_rows, tree_share
from schemas.config import Plugin, TrainerConfig
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends import AdapterSpec, load_backend
from trainer.batch import flatten, microbatches, resolve_layout
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig

CPU = torch.device("cpu")
VOCABULARY = 60
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
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


MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SHAPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(sliding_window=12, **SHAPE)),
}


@pytest.mark.parametrize(
    ("backend", "model"), [("native", "llama"), ("native", "qwen3"), ("peft", "qwen3"), ("peft", "mistral")]
)
@pytest.mark.parametrize("recompute", [False, True])
def test_losses_and_gradients_are_those_of_separate_rows(
    backend: str, model: str, recompute: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    MODELS[model]().save_pretrained(tmp_path)
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


def test_auto_shares_where_much_is_shared_and_steps_are_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    MODELS["llama"]().save_pretrained(tmp_path)
    rollouts = trajectories(calls(Random(2), 4, 6))
    batch = flatten(rollouts, [np.ones(1)] * 24)
    assert resolve_layout(batch, LearnerConfig()) == "prefix_tree"
    lonely = flatten(trajectories([calls(Random(n), 1, 1)[0] for n in range(5)]), [np.ones(1)] * 5)
    assert resolve_layout(lonely, LearnerConfig()) == "rectangles"
    adapters = []
    for layout in ("auto", "rectangles"):
        learner = {"layout": layout, "epochs": 1, "minibatch_sequences": 8}
        config = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin("leave_one_out"), learner=learner)
        backend = load_backend(Plugin("native"), tmp_path, "cpu", "float32")
        trained = Learner(backend.new_adapter(AdapterSpec(4, 8.0, ()), seed=1), config, seed=5)
        assert not trained.step(rollouts).skipped
        adapters.append(trained.adapter.make_optimizer(LearnerConfig()).weights[0].detach())
    torch.testing.assert_close(*adapters, atol=1e-4, rtol=1e-3)
