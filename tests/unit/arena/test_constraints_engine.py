"""Free text, grammars and plain lists side by side in the local engine: what it reports is what was sampled."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("llguidance")

from arena.constraints.grammars import GrammarCompiler
from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import Constraint, ListConstraint, read_choices
from arena.constraints.vocabulary import Vocabulary, read_vocabulary
from inference import Generation, Request, SamplingParameters, make_backend
from models import Tokenizer, make_base
from models.decoder import Decoder
from schemas.trajectories import ModelCall, Trajectory
from trainer.batch import flatten, microbatches
from trainer.loss_inputs import compute_loss_inputs

WORDS = ["<orders>", "</orders>", "A", "F", "PAR", "BUR", "H", " ", ";", *"01234"]
PLANS = [(5, 6), (5, 7, 8)]
ORDERS = r"(A|F) (PAR|BUR)( H)?(;[0-4]+)?"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), WORDS, seed=2)


@pytest.fixture(scope="module")
def vocabulary(base: Path) -> Vocabulary:
    return read_vocabulary((base / "tokenizer.json").read_bytes(), Tokenizer(base).eos)


@pytest.fixture(scope="module")
def sampled(base: Path, vocabulary: Vocabulary) -> list[tuple[Constraint, Request, Generation]]:
    orders = GrammarCompiler(vocabulary).compile_regex(ORDERS, closing="</orders>")
    kinds = [
        TaggedConstraints(vocabulary, closing="", free_tokens=6)(orders),
        orders,
        TaggedConstraints(vocabulary, free_tokens=4)(ListConstraint(PLANS)),
    ]
    requests = [
        Request(
            [3 + i % 7, 4, 5],
            None,
            kinds[i % 3],
            SamplingParameters(temperature=(0.7, 1.0)[i % 2], seed=i, max_tokens=60),
        )
        for i in range(45)
    ]

    async def run() -> list[Generation]:
        backend = make_backend("local", base)
        try:
            return await asyncio.gather(*map(backend.generate, requests))
        finally:
            await backend.close()

    return [(kinds[i % 3], requests[i], done) for i, done in enumerate(asyncio.run(run()))]


def test_every_completion_is_in_its_language(sampled, vocabulary) -> None:
    plans = "|".join(vocabulary.decode(ids).decode() for ids in PLANS)
    languages = [f".*?<orders>({ORDERS})</orders>", f"({ORDERS})</orders>", f".*?<orders>({plans})</orders>"]
    for index, (_, _, generation) in enumerate(sampled):
        assert generation.finish_reason == "stop"
        assert re.fullmatch(languages[index % 3], vocabulary.decode(generation.completion_ids).decode())


def test_branches_are_where_the_constraint_left_a_choice_and_free_ones_have_no_list(sampled) -> None:
    free = 0
    for place, _, generation in sampled:
        assert read_choices(place, generation.completion_ids) == (generation.branches, generation.allowed)
        free += sum(not tokens for tokens in generation.allowed)
    assert free > 50


def test_logprobs_of_free_and_constrained_tokens_are_the_learners(sampled, base) -> None:
    decoder = Decoder.load(base)
    steps = [
        ModelCall(
            list(r.prompt_ids), g.completion_ids, g.branches, g.logprobs, g.allowed, 0, 1, 0.0, r.sampling.temperature
        )
        for _, r, g in sampled
    ]
    batch = flatten([Trajectory("m", "game", "main", 0, "A", "A", steps, 2, 1.0, 0.5, 1)], [np.zeros(len(steps))])
    with torch.no_grad():
        for chunk in microbatches(batch, np.arange(len(batch)), 256, decoder.device):
            terms = compute_loss_inputs(decoder.weights(None), chunk)
            torch.testing.assert_close(terms.logprob_W, terms.old_logprob_W, atol=1e-5, rtol=0)
