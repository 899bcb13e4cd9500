"""Models that are made for arenas: ordinary folders that know an arena's text and learn its form."""

import asyncio
import math
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from arena.clients.improviser import improvised_calls
from arena.environments import make_arena
from lifecycle.league_models import make_conversational_model
from lifecycle.standalone.trainee import TrainablePolicy
from models import BaseShape, load_base
from models.behaviour_cloning import CloningConfig, CloningProgress
from schemas.config import LeagueConfig, ModelConfig, PromptsConfig
from schemas.errors import ModelError

SHAPE = BaseShape(hidden=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp=16)
TAUGHT = CloningConfig(sequences=96, batch=16, branch_weight=5.0, learning_rate=1e-2)


def made(folder: Path, seed: int = 3, told: list[CloningProgress] | None = None, shape: BaseShape = SHAPE) -> Path:
    report = None if told is None else told.append
    spec = make_arena("word_problems", {})
    return make_conversational_model(folder, spec, shape, TAUGHT, PromptsConfig(), seed, report)


def test_equal_arguments_make_an_equal_model_and_another_seed_another(tmp_path: Path) -> None:
    one, same, other = made(tmp_path / "one"), made(tmp_path / "same"), made(tmp_path / "other", seed=4)

    files = sorted(path.name for path in one.iterdir())
    assert [(one / name).read_bytes() for name in files] == [(same / name).read_bytes() for name in files]
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_it_is_loaded_as_any_model_and_writes_any_text(tmp_path: Path) -> None:
    tokenizer = load_base(made(tmp_path / "model")).tokenizer

    assert not tokenizer.is_word_level
    assert tokenizer.eos is not None
    assert tokenizer.decode([tokenizer.eos]) == "<|im_end|>"
    text = "What nobody said there: żółw 42\n"
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_replies_are_learnt_as_choices_among_all_tokens(tmp_path: Path) -> None:
    told: list[CloningProgress] = []
    folder = made(tmp_path / "model", told=told)
    size = len(load_base(folder).tokenizer)

    assert told[-1].sequences == TAUGHT.sequences
    assert told[-1].uniform_loss == pytest.approx(math.log(size))
    assert 0 < told[-1].branch_loss < told[-1].uniform_loss


def test_a_call_longer_than_the_model_is_refused_with_both_lengths(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.shape\.max_positions: 8, but a call of .* has \d+ tokens"):
        made(tmp_path / "model", shape=msgspec.structs.replace(SHAPE, max_positions=8))


def test_improvised_calls_depend_on_nothing_but_arena_and_seed() -> None:
    spec = make_arena("debate", {})
    first = list(islice(improvised_calls(spec, 1), 40))

    assert first == list(islice(improvised_calls(make_arena("debate", {}), 1), 40))
    assert first != list(islice(improvised_calls(spec, 2), 40))
    assert {call.role_id is None for call in first} == {True, False}, "the judge is asked too"


def test_a_standalone_model_is_trained_by_the_defaults_of_its_kind(tmp_path: Path) -> None:
    folder = made(tmp_path / "model")
    rates = {}
    for base in ("made", str(folder)):
        trainee = TrainablePolicy(folder, LeagueConfig(model=ModelConfig(base=base)), seed=1)
        assert trainee.learner_config is not None
        rates[base] = trainee.learner_config.learning_rate, trainee.learner_config.epochs
        asyncio.run(trainee.close())
    assert rates == {"made": (3e-3, 2), str(folder): (1e-4, 1)}
