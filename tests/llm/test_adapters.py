"""Adapters of SmolLM2: those of another model, without effect, served wrongly, or evicted and loaded again."""

from pathlib import Path

import pytest

from lifecycle.model_checks import check_first_adapter
from models.adapters import LoraConfig, create, save
from models.model_config import read_shape
from schemas.config import LeagueConfig, ModelConfig
from schemas.errors import ModelError
from tests.llm.conftest import NAME
from tests.unit.inference.test_adapter_canary import (  # noqa: F401 - these tests are collected here
    test_a_backend_that_does_not_serve_an_adapter_is_found_when_it_is_loaded,
    test_a_version_that_this_process_never_loaded_and_a_wrong_scale_are_found_by_the_record,
    test_an_adapter_that_was_evicted_gives_the_same_log_probabilities_again,
    test_small_steps_are_no_faults_and_an_adapter_without_effect_is_named,
)


@pytest.fixture(scope="module")
def base(smollm2: Path) -> Path:
    """The model of the tests of small models."""
    return smollm2


def test_an_adapter_of_another_model_is_refused_before_the_league_starts(base, tmp_path):
    config = LeagueConfig(model=ModelConfig(base=NAME, lora_rank=2, lora_alpha=4.0))
    lora = create(read_shape(base), LoraConfig(2, 4.0), seed=1)
    save(lora, tmp_path / "own", str(base))
    check_first_adapter(config, tmp_path / "own", base)
    save(lora, tmp_path / "other", "HuggingFaceTB/SmolLM2-360M-Instruct")
    with pytest.raises(ModelError, match=r"another base model: base_model_name_or_path is .*360M"):
        check_first_adapter(config, tmp_path / "other", base)
