"""SmolLM2 on the real vLLM: the learner's log-probabilities, adapters loaded, evicted and checked, and a merged model.

Collected where vLLM is installed: ``make test-llm`` runs it in ``.venv-vllm``, if that was made.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from arena.games import make_game
from inference import Generation, Request, SamplingParameters
from inference.vllm.engine import VllmBackend
from inference.vllm.process import VllmEngine
from inference.vllm.settings import VllmConfig
from models import Tokenizer
from models.adapters import Lora, LoraConfig, create, load, save
from models.decoder import Decoder
from models.hf import merge_adapter
from models.model_config import read_shape
from players.policy import make_model_call
from players.prompt_builder import make_prompter
from schemas.config import PromptsConfig
from schemas.trajectories import ModelCall
from tests.vllm.test_vllm_canary import (  # noqa: F401 - these tests are collected here
    test_a_version_that_vllm_was_not_given_here_is_found_by_the_learners_record,
    test_an_adapter_that_vllm_dropped_and_loaded_again_gives_the_same_log_probabilities,
    test_the_canary_finds_a_vllm_that_serves_another_adapter,
)
from trainer.loss_inputs import recompute_logprobs

CONFIG = VllmConfig(threads=2, max_loras=2, max_cpu_loras=2, max_model_len=512, mask_places=16)
TOLERANCE = 1e-4
"""Between vLLM and the learner, both in float32, as between ``local`` and the learner."""


@pytest.fixture(scope="module")
def base(smollm2: Path) -> Path:
    return smollm2


@pytest.fixture(scope="module")
def engine(base: Path) -> Iterator[VllmEngine]:
    engine = VllmEngine(base, CONFIG)
    yield engine
    engine.close()


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Writes an adapter of that seed, as of some hundred gradient steps."""

    def written(seed: int) -> Path:
        lora = create(read_shape(base), LoraConfig(rank=4), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.03 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        save(lora, tmp_path / str(seed))
        return tmp_path / str(seed)

    return written


def ask(running: VllmEngine, folder: Path, adapter: Path | None = None) -> list[ModelCall]:
    """Constrained and free replies to first questions at Kuhn poker."""
    game, prompts = make_game("kuhn_poker", {"shuffle": False}), []
    prompter = make_prompter(Tokenizer(folder), game, PromptsConfig())
    for seed in range(3):
        table = game.new(seed)
        prompt = prompter.make_prompt(table, table.to_move()[0])
        prompts += [(prompt.prompt_ids, constraint) for constraint in (prompt.constraint, None)]

    async def sample() -> list[Generation]:
        backend = VllmBackend(folder, CONFIG, running)
        if adapter is not None:
            backend.load_adapter("a", adapter)
        name, sampling = None if adapter is None else "a", SamplingParameters(seed=1, max_tokens=12)
        found = await asyncio.gather(*(backend.generate(Request(p, name, place, sampling)) for p, place in prompts))
        await backend.close()
        return found

    return [make_model_call(p, one, 0, 1.0) for (p, _), one in zip(prompts, asyncio.run(sample()), strict=True)]


def learner_gap(base: Path, calls: list[ModelCall], lora: Lora | None = None) -> float:
    """The largest difference of the learner's log-probabilities from vLLM's."""
    learner_W, recorded_W = recompute_logprobs(Decoder.load(base), lora, calls)
    return float(np.abs(learner_W - recorded_W).max())


def test_vllm_and_the_learner_agree_with_an_adapter_and_without(base, engine, adapter):
    calls, folder = ask(engine, base), adapter(7)
    assert learner_gap(base, calls) < TOLERANCE
    adapted, lora = ask(engine, base, folder), load(folder, read_shape(base))
    assert learner_gap(base, adapted, lora) < TOLERANCE
    assert learner_gap(base, adapted) > 0.05, "the adapter acts"


def test_vllm_loads_a_merged_model(base, engine, adapter, tmp_path):
    merged = merge_adapter(base, adapter(7), tmp_path / "merged")
    whole = VllmEngine(merged, CONFIG)
    try:
        calls = ask(whole, merged)
    finally:
        whole.close()
    assert learner_gap(merged, calls) < TOLERANCE
    # The merged weights are rounded to the base's bfloat16.
    lora = load(tmp_path / "7", read_shape(base))
    assert learner_gap(base, calls, lora) < 0.2 * learner_gap(base, calls)
