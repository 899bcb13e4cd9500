"""A canary finds a backend that ignores an adapter or serves an old one; adapters name their base and act on it."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from inference import make_backend
from inference.adapter_cache import AdapterCache
from inference.base import Generation, Request, SamplingParameters
from inference.canary import AdapterCanary
from inference.local import LocalBackend
from lifecycle.model_checks import check_first_adapter
from models import BaseShape, Tokenizer, make_base
from models.adapter_bundle import pack_folder
from models.adapter_checks import check_base_name, has_effect
from models.adapters import CONFIG_FILE, WEIGHTS_FILE, LoraConfig, create, save
from models.canary import read_record
from models.model_config import read_shape
from schemas.config import LeagueConfig, ModelConfig, Plugin, TrainerConfig
from schemas.errors import ModelError
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends import AdapterSpec, load_backend
from trainer.learner import Learner

SHAPE = BaseShape(hidden=32, layers=1, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("canary") / "base", list("abcdefgh"), SHAPE, seed=1)


class Misrouted(LocalBackend):
    """A real backend that answers requests for some adapters with others."""

    answers: dict[str | None, str | None] = {}  # noqa: RUF012

    async def generate(self, request: Request) -> Generation:
        served = self.answers.get(request.adapter, request.adapter)
        return await super().generate(msgspec.structs.replace(request, adapter=served))


def trained(base: Path, folder: Path, change: float) -> None:
    lora = create(read_shape(base), LoraConfig(2, 4.0), seed=1)
    with torch.no_grad():
        lora.flat_P.add_(change * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(2)))
    save(lora, folder)


def learnt(base: Path, folder: Path, steps: int, learner: str = "native", dtype: str = "float32") -> Path:
    """The adapter after so many gradient steps towards two tokens, with the learner's record of it."""
    config = TrainerConfig(advantage=Plugin("constant"), learner={"learning_rate": 2e-3, "warmup_updates": 0})
    backend = load_backend(Plugin(learner), base, "cpu", dtype)
    trained = Learner(backend.new_adapter(AdapterSpec(rank=4, alpha=8.0, targets=()), seed=1), config, seed=1)
    calls = [ModelCall([3, 4, token], [token, 5], [0, 1], [-2.0, -2.0], [[], []], 0, 0, 0.0) for token in (5, 6)]
    for _ in range(steps):
        trained.step([Trajectory("m", "game", "main", 0, "A", "A", calls, 1, 1.0, 1.0, 1)])
    return trained.save_adapter(folder)


def make_cache(base: Path, backend: LocalBackend, changes: dict[str, float], most: int = 8) -> AdapterCache:
    async def fetch(adapter: str, folder: Path) -> None:
        trained(base, folder, changes[adapter])

    canary = AdapterCanary(backend, len(Tokenizer(base)))
    return AdapterCache(backend, lambda: most, set, fetch, never_short, canary.check)


async def never_short(slots: int, reason: str) -> None:
    raise AssertionError(reason)


@pytest.mark.parametrize(
    ("answers", "message"),
    [({"new": None}, "answers as the base model does"), ({"new": "old"}, "answers as adapter 'old' does")],
)
def test_a_backend_that_does_not_serve_an_adapter_is_found_when_it_is_loaded(base, answers, message):
    async def body() -> None:
        backend = Misrouted(base)
        cache = make_cache(base, backend, {"old": 0.1, "new": 0.11})
        await cache.ensure(["old"])
        backend.answers = answers
        with pytest.raises(ModelError, match=message):
            await cache.ensure(["new"])
        assert cache.loaded == ["old"]
        assert backend.stats().adapters == 1
        backend.answers = {}
        await cache.ensure(["new"])
        assert cache.loaded == ["old", "new"]
        await backend.close()

    asyncio.run(body())


@pytest.mark.parametrize("fault", ["another version", "another scale"])
def test_a_version_that_this_process_never_loaded_and_a_wrong_scale_are_found_by_the_record(base, tmp_path, fault):
    newest = learnt(base, tmp_path / "new", 12)
    served = learnt(base, tmp_path / "served", 3 if fault == "another version" else 12)
    if fault == "another scale":
        config = (served / CONFIG_FILE).read_text()
        (served / CONFIG_FILE).write_text(config.replace('"lora_alpha": 8.0', '"lora_alpha": 16.0'))
        assert read_record(served) is None

    async def body() -> None:
        backend = Misrouted(base)
        backend.load_adapter("served", served)

        async def fetch(adapter: str, folder: Path) -> None:
            shutil.copytree(newest, folder)

        verify = AdapterCanary(backend, len(Tokenizer(base))).check
        cache = AdapterCache(backend, lambda: 8, set, fetch, never_short, verify)
        backend.answers = {"new": "served"}
        with pytest.raises(ModelError, match=r"'new'.* the learner recorded .*: it serves another version, or"):
            await cache.ensure(["new"])
        assert cache.loaded == []
        await cache.ensure(["sound"])
        await backend.close()

    asyncio.run(body())


@pytest.mark.parametrize("learner", ["native", "peft"])
@pytest.mark.parametrize("types", [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")])
def test_what_the_learner_recorded_is_found_by_a_sampler_of_either_type(base, tmp_path, learner, types):
    async def body() -> None:
        backend = make_backend("local", base, dtype=types[1])

        async def fetch(adapter: str, folder: Path) -> None:
            learnt(base, folder, int(adapter), learner, types[0])
            assert (read_record(folder) is None) == (types[0] == "bfloat16")

        verify = AdapterCanary(backend, len(Tokenizer(base))).check
        cache = AdapterCache(backend, lambda: 8, set, fetch, never_short, verify)
        await cache.ensure(["1", "12"])
        assert cache.loaded == ["1", "12"]
        await backend.close()

    asyncio.run(body())


def test_a_learner_that_goes_on_from_an_adapter_keeps_its_record_until_the_files_change(base, tmp_path):
    folder = learnt(base, tmp_path / "own", 2)
    backend = load_backend(Plugin("native"), base, "cpu", "float32")
    again = Learner(backend.new_adapter(AdapterSpec(rank=4, alpha=8.0, targets=()), seed=1), TrainerConfig(), seed=1)
    again.load_adapter(folder, steps=2)
    assert pack_folder(again.save_adapter(tmp_path / "again")) == pack_folder(folder)
    again.save_state(tmp_path / "state")
    resumed = Learner(backend.new_adapter(AdapterSpec(rank=4, alpha=8.0, targets=()), seed=2), TrainerConfig(), seed=1)
    resumed.load_state(tmp_path / "state")
    assert pack_folder(resumed.save_adapter(tmp_path / "resumed")) == pack_folder(folder)
    trained(base, folder, 0.1)
    assert read_record(folder) is None


def test_a_damaged_record_is_an_error_with_its_path(tmp_path):
    (tmp_path / "canary.json").write_text("{}")
    with pytest.raises(ModelError, match=r"canary\.json: not a canary's record"):
        read_record(tmp_path)


def test_many_versions_and_equal_weights_under_two_names_are_no_faults(base):
    # Of one token each, some of so many log-probabilities are equal by chance.
    changes = {f"main@{step}": 0.1 + 1e-4 * step for step in range(300)} | {"again": 0.1}

    async def body() -> None:
        backend = LocalBackend(base)
        cache = make_cache(base, backend, changes, most=400)
        await cache.ensure(list(changes))
        assert backend.stats().adapters == len(changes)
        await backend.close()

    asyncio.run(body())


def test_equal_weights_that_another_library_wrote_are_no_fault(base, tmp_path):
    async def body() -> None:
        backend = LocalBackend(base)

        async def fetch(adapter: str, folder: Path) -> None:
            trained(base, folder, 0.1)
            if adapter == "again":
                save_file(load_file(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)

        verify = AdapterCanary(backend, len(Tokenizer(base))).check
        cache = AdapterCache(backend, lambda: 8, set, fetch, never_short, verify)
        await cache.ensure(["a", "again"])
        await backend.close()

    asyncio.run(body())


def test_small_steps_are_no_faults_and_an_adapter_without_effect_is_named(base):
    async def body() -> None:
        backend = LocalBackend(base)
        cache = make_cache(base, backend, {"a": 0.1, "b": 0.1001, "zero": 0.0})
        with capture_logs() as logs:
            await cache.ensure(["a", "b", "zero"])
        assert [(line["adapter"], "without effect" in line["event"]) for line in logs] == [("zero", True)]
        await backend.close()

    asyncio.run(body())


def test_an_adapter_that_was_evicted_gives_the_same_log_probabilities_again(base):
    async def body() -> None:
        backend = make_backend("local", base)
        cache = make_cache(base, backend, {"a": 0.1, "b": 0.2}, most=1)
        request = Request([3, 4, 5], "a", None, SamplingParameters(seed=4, max_tokens=8))
        await cache.ensure(["a"])
        first = await backend.generate(request)
        await cache.ensure(["b"])
        assert cache.loaded == ["b"]
        await cache.ensure(["a"])
        again = await backend.generate(request)
        assert (again.completion_ids, again.logprobs) == (first.completion_ids, first.logprobs)
        await backend.close()

    asyncio.run(body())


def test_an_adapter_has_an_effect_unless_all_its_b_are_zero(base, tmp_path):
    for change in (0.0, 0.1):
        trained(base, tmp_path / str(change), change)
    assert (has_effect(tmp_path / "0.0"), has_effect(tmp_path / "0.1")) == (False, True)


@pytest.mark.parametrize(
    "named", ["org/SmolLM2-135M", "/elsewhere/smollm2-135m/", "smollm2-135m", "the folder", "", None]
)
def test_an_adapter_of_the_same_base_is_accepted_under_any_of_its_names(base, tmp_path, named):
    config = {"base_model_name_or_path": str(base) if named == "the folder" else named}
    check_base_name(tmp_path, config, "other/smollm2-135m", base)


def test_an_adapter_of_another_base_is_refused_with_both_names(base, tmp_path):
    for place in (base, None):
        with pytest.raises(ModelError, match=r"'Qwen/Qwen3-0.6B', model.base is 'org/llama'; expected"):
            check_base_name(tmp_path, {"base_model_name_or_path": "Qwen/Qwen3-0.6B"}, "org/llama", place)


def test_a_first_adapter_of_another_base_is_refused_before_the_league_starts(base, tmp_path):
    lora = create(read_shape(base), LoraConfig(2, 4.0), seed=1)
    save(lora, tmp_path, "Qwen/Qwen3-0.6B")
    config = LeagueConfig(model=ModelConfig(base="org/llama", lora_rank=2, lora_alpha=4.0))
    with pytest.raises(ModelError, match=r"'Qwen/Qwen3-0\.6B', model\.base is 'org/llama'"):
        check_first_adapter(config, tmp_path, None)
