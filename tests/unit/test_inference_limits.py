"""What a league's configuration bounds in its backend: the rank of adapters, the nucleus, memory."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from arena.games import make_game
from arena.match import BotPlayer, play
from schemas.config import InferenceConfig, LeagueConfig, ModelConfig
from schemas.errors import ModelError
from trainer import adapters
from trainer.adapters import LoraConfig
from trainer.decoder import Decoder
from trainer.model import Tokenizer, make_base
from trainer.parity import recompute
from trainer.shape import read_shape
from workers.inference import Sampling, make_backend, settings_of
from workers.players import PolicyPlayer
from workers.prompting import constrained


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), make_game("nim", {}).text().vocabulary())


def save_adapter(base: Path, folder: Path, rank: int) -> Path:
    adapters.save(adapters.create(read_shape(base), LoraConfig(rank, 2.0 * rank), seed=1), folder)
    return folder


@pytest.mark.parametrize(("largest", "fits"), [(None, False), (8, False), (16, True)])
def test_a_league_loads_no_adapter_of_a_larger_rank_than_it_says(
    base: Path, tmp_path: Path, largest: int | None, fits: bool
) -> None:
    config = LeagueConfig(model=ModelConfig(lora_rank=4), inference=InferenceConfig(max_lora_rank=largest))
    folder = save_adapter(base, tmp_path / "adapter", 16)
    backend = make_backend("local", base, **settings_of(config))
    try:
        if fits:
            backend.load_adapter("x", folder)
        else:
            with pytest.raises(ModelError, match=f"rank is 16, at most {largest or 4} is allowed"):
                backend.load_adapter("x", folder)
        assert backend.stats().adapters == int(fits)
    finally:
        asyncio.run(backend.close())


def test_the_backends_own_options_go_before_the_leagues_settings() -> None:
    config = LeagueConfig(inference=InferenceConfig(max_lora_rank=16, options={"max_lora_rank": 32}))
    assert settings_of(config)["max_lora_rank"] == 32


def test_a_step_from_a_nucleus_is_learned_from_under_the_nucleus(base: Path) -> None:
    nim = make_game("nim", {})

    async def body() -> list[PolicyPlayer]:
        backend = make_backend("local", base)
        prompting, bot = constrained(Tokenizer(base), nim.text()), BotPlayer(nim.bot("random_bot"))
        sampling = Sampling(temperature=1.3, top_p=0.6)
        models = [PolicyPlayer(backend, prompting, lambda: (0, None), sampling) for _ in range(8)]
        for seed, model in enumerate(models):
            await play(nim.new(seed), [model, *[bot] * (len(nim.seats) - 1)], seed)
        await backend.close()
        return models

    decoder, branches = Decoder.load(base), 0
    for model in asyncio.run(body()):
        learnt, stated = recompute(decoder, None, model.steps)
        branches += len(stated)
        np.testing.assert_allclose(learnt, stated, atol=1e-5)
    assert branches > 20
