"""Learner backends: the same steps from every library, and what a model's family may not do."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from lifecycle.config_checks import check_config
from lifecycle.model_checks import check_model
from models import adapters
from models.decoder import Decoder
from models.hf import merge_adapter, read_weights
from models.model_config import read_model_shape, unsupported_reason
from schemas.config import LeagueConfig, Plugin, TrainerConfig, convert
from schemas.errors import ConfigError, ModelError
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends import BACKENDS, AdapterSpec, load_backend, read_adapter_spec
from trainer.backends.native import NativeBackend, choose_backend, resolve_backend
from trainer.learner import Learner

VOCABULARY, WIDTH, LAYERS, WINDOW = 512, 64, 2, 6
SPEC = AdapterSpec(rank=4, alpha=8.0, targets=())

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {},
    "llama": {},
    "gemma3_text": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": {"sliding_window": WINDOW},
    "phi3": {},
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "smollm3": {},
    "gpt_neox": {},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "mixtral": {"num_local_experts": 4, **EXPERTS},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": WINDOW, **EXPERTS},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 8,
        "mamba_expand": 2,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
    },
}
UNPACKABLE = {"gpt_oss", "granitemoehybrid"}
"""Attention with sinks has no packed form here; state space layers carry one sequence into the next."""
DOCUMENTED = (Path(__file__).parents[3] / "docs" / "training.md").read_text()


def make_model(folder: Path, family: str, **fields: Any) -> Path:
    """A model of a family with random weights; written once. Families that are not listed may need ``fields``."""
    if not (folder / "config.json").exists():
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **COMMON | FAMILIES.get(family, {}) | fields)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def trajectories(count: int = 4, seed: int = 0) -> list[Trajectory]:
    """Rollouts of two calls each with choices over lists and over the whole vocabulary, and scores that differ."""
    rng = np.random.default_rng(seed)
    rollouts = []
    for number in range(count):
        calls = []
        for clock in range(2):
            prompt = rng.integers(3, VOCABULARY, int(rng.integers(3, 20))).tolist()
            completion = rng.integers(3, VOCABULARY, 6).tolist()
            allowed = [sorted({completion[at], *rng.integers(3, VOCABULARY, 3).tolist()}) for at in (1, 3)]
            calls.append(
                ModelCall(
                    prompt_ids=prompt,
                    completion_ids=completion,
                    branches=[1, 3, 5],
                    logprobs=[-1.2, -1.4, -6.0],
                    allowed=[*allowed, []],
                    temperature=1.0,
                    version=0,
                    clock=clock,
                    progress=float(number % 3),
                )
            )
        rollouts.append(Trajectory(f"m{number}", "game", "main", 0, "A", "A", calls, 2, float(number), number / 3, 1))
    return rollouts


def settings(layout: str = "rectangles", **table: Any) -> TrainerConfig:
    learner = {"epochs": 1, "minibatch_sequences": 4, "rectangle_tokens": 64, "layout": layout}
    return TrainerConfig(advantage=Plugin("constant"), learner=learner | table)


def learner(folder: Path, backend: str, config: TrainerConfig | None = None, **options: Any) -> Learner:
    loaded = load_backend(Plugin(backend, options), folder, "cpu", "float32")
    return Learner(loaded.new_adapter(SPEC, 7), config or settings(), seed=5)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("layout", ["rectangles", "packed"])
def test_peft_takes_the_steps_of_the_native_decoder(models: Path, family: str, layout: str) -> None:
    folder = make_model(models / family, family)
    native, peft = (learner(folder, backend, settings(layout)) for backend in ("native", "peft"))
    assert {*peft.adapter.layout.sizes} == {*native.adapter.layout.sizes}
    assert torch.equal(peft.adapter.flat_P, native.adapter.flat_P), "equal seeds draw equal adapters"
    reports = [[one.step(trajectories(seed=step)) for step in range(10)] for one in (native, peft)]
    for own, other in zip(*reports, strict=True):
        assert not own.skipped
        assert not other.skipped
        assert other.loss == pytest.approx(own.loss, abs=1e-5)
        assert other.grad_norm == pytest.approx(own.grad_norm, rel=1e-4)
    assert (peft.adapter.flat_P - native.adapter.flat_P).abs().max() < 1e-4
    assert not torch.equal(peft.adapter.flat_P[: len(peft.adapter.flat_P) // 2], torch.zeros(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_in_rectangles_and_packed_or_is_refused(models: Path, family: str) -> None:
    folder = make_model(models / family, family)
    one = learner(folder, "peft")
    before = one.adapter.flat_P.detach().clone()
    report = one.step(trajectories())
    assert not report.skipped
    assert not torch.equal(before, one.adapter.flat_P)
    packed = learner(folder, "peft", settings("packed"))
    if family in UNPACKABLE:
        with pytest.raises(ConfigError, match="layout"):
            packed.step(trajectories())
        return
    assert packed.step(trajectories()).grad_norm == pytest.approx(report.grad_norm, rel=1e-3)


def league(folder: Path, layout: str = "rectangles", trainer: str = "auto", **inference: Any) -> LeagueConfig:
    table = {
        "game": {"name": "nim", "settings": {"text": "json"}},
        "agents": {"base_model": {"kind": "base", "rating": 1000.0}, "random_bot": {"kind": "bot", "rating": 800.0}},
        "model": {"base": str(folder)},
        "inference": inference,
        "trainer": {"backend": trainer, "learner": {"layout": layout}},
    }
    return convert(table, LeagueConfig, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_documented_and_what_it_cannot_do_is_refused(models: Path, family: str) -> None:
    folder = make_model(models / family, family)
    (row,) = [line for line in DOCUMENTED.splitlines() if f"`{family}`" in "".join(line.split("|")[2:3])]
    is_native = unsupported_reason(folder) is None
    assert is_native == ("`native`" in row)
    assert ("packed" in row) == (family not in UNPACKABLE)
    on_gpu = {"backend": "vllm", "device": "cuda"}
    check_config(league(folder, **on_gpu))
    for message, config in (
        ("inference.backend: 'local' does not compute", league(folder, backend="local")),
        ("trainer.backend: 'native' does not compute", league(folder, trainer="native", **on_gpu)),
    ):
        if is_native:
            check_config(config)
        else:
            with pytest.raises(ConfigError, match=message):
                check_config(config)


def test_a_critic_needs_the_native_decoder(models: Path) -> None:
    folder = make_model(models / "mistral", "mistral")
    critic = LeagueConfig(trainer=TrainerConfig(advantage=Plugin("gae")))
    with pytest.raises(ConfigError, match=r"trainer\.advantage: 'gae' has a critic.*'mistral'"):
        check_model(
            convert({"inference": {"backend": "vllm"}, "trainer": {"advantage": "gae"}}, LeagueConfig, ""), folder
        )
    check_model(critic, make_model(models / "qwen3", "qwen3"))


def test_recomputed_layers_give_the_same_gradient(models: Path) -> None:
    folder = make_model(models / "gemma3_text", "gemma3_text")
    plain, again = (learner(folder, "peft", settings(recompute_layers=recompute)) for recompute in (False, True))
    assert again.step(trajectories()).grad_norm == pytest.approx(plain.step(trajectories()).grad_norm, rel=1e-6)
    assert torch.allclose(again.adapter.flat_P, plain.adapter.flat_P, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"rslora": True}])
def test_a_resumed_learner_goes_on_bit_for_bit(models: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    folder = make_model(models / "mistral", "mistral")
    whole = learner(folder, "peft", **options)
    whole.step(trajectories(seed=1))
    whole.save_state(tmp_path)
    resumed = learner(folder, "peft", **options)
    resumed.load_state(tmp_path)
    for seed in (2, 3):
        whole.step(trajectories(seed=seed))
        resumed.step(trajectories(seed=seed))
    assert torch.equal(whole.adapter.flat_P, resumed.adapter.flat_P)


def test_dropout_changes_the_gradient_and_not_the_evaluation(models: Path) -> None:
    folder = make_model(models / "mistral", "mistral")
    plain, dropped = learner(folder, "peft"), learner(folder, "peft", dropout=0.5)
    for one in (plain, dropped):
        with torch.no_grad():
            one.adapter.flat_P.add_(0.05)
    norms = [one.step(trajectories()).grad_norm for one in (plain, dropped)]
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


def test_adapters_are_written_and_read_by_peft_and_by_the_native_decoder(models: Path, tmp_path: Path) -> None:
    folder = make_model(models / "llama", "llama")
    trained = learner(folder, "peft")
    trained.step(trajectories())
    trained.save_adapter(tmp_path / "one", "base")
    trained.save_adapter(tmp_path / "two", "base")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    again = learner(folder, "peft")
    again.load_adapter(tmp_path / "one", 1)
    assert torch.equal(again.adapter.flat_P, trained.adapter.flat_P)
    again.step(trajectories(seed=4))
    native = learner(folder, "native")
    native.load_adapter(tmp_path / "one", 1)
    assert torch.equal(native.adapter.flat_P, trained.adapter.flat_P)
    native.save_adapter(tmp_path / "native", "base")
    back = learner(folder, "peft")
    back.load_adapter(tmp_path / "native", 1)
    assert torch.equal(back.adapter.flat_P, trained.adapter.flat_P)


@pytest.mark.parametrize(
    ("family", "options"),
    [("gemma3_text", {}), ("mistral", {"rslora": True}), ("qwen3_moe", {}), ("qwen3_moe", {"experts": True})],
)
def test_an_adapter_of_any_family_merges_into_its_base(
    family: str, options: dict[str, Any], models: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_model(models / family, family)
    (models / family / "tokenizer_config.json").write_text("{}")
    trained = learner(folder, "peft", **options)
    with torch.no_grad():
        noise = torch.randn(trained.adapter.flat_P.shape, generator=torch.Generator().manual_seed(3))
        trained.adapter.flat_P.add_(0.05 * noise)
    trained.save_adapter(tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(merge_adapter(folder, tmp_path / "adapter", tmp_path / "merged"))
    ids = torch.arange(3, 20)[None]
    backend: Any = trained.adapter.backend
    with torch.no_grad():
        expected = backend.hidden_states(ids)
        torch.testing.assert_close(merged.get_decoder()(ids).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
        with backend.peft_model.disable_adapter():
            assert (backend.hidden_states(ids) - expected).abs().max() > 0.01
    assert (tmp_path / "merged" / "tokenizer_config.json").read_text() == "{}"
    assert (tmp_path / "merged" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_an_adapter_of_fewer_or_more_layers_merges_into_nothing(models: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = make_model(models / "mistral", "mistral")
    for layers in (1, 3):
        sizes = COMMON | FAMILIES["mistral"] | {"num_hidden_layers": layers}
        other = AutoModelForCausalLM.from_config(AutoConfig.for_model("mistral", **sizes))
        other.save_pretrained(tmp_path / f"of-{layers}")
        learner(tmp_path / f"of-{layers}", "peft").save_adapter(tmp_path / f"adapter-{layers}")
        with pytest.raises(ModelError, match=r"an adapter with(out)? 'base_model.*layers\.[12]\."):
            merge_adapter(folder, tmp_path / f"adapter-{layers}", tmp_path / "out")
    (tmp_path / "adapter-1" / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        merge_adapter(folder, tmp_path / "adapter-1", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_adapters_of_other_kinds_are_refused(models: Path, tmp_path: Path) -> None:
    llama, mistral = (make_model(models / family, family) for family in ("llama", "mistral"))
    own = learner(mistral, "peft")
    with pytest.raises(ModelError, match="not an adapter"):
        own.load_adapter(tmp_path, 0)
    loaded = load_backend(Plugin("peft"), llama, "cpu", "float32")
    other = Learner(loaded.new_adapter(AdapterSpec(2, 8.0, ("q_proj",)), 1), settings(), 5)
    other.save_adapter(tmp_path / "rank")
    with pytest.raises(ModelError, match="r is 2; expected 4"):
        own.load_adapter(tmp_path / "rank", 0)
    fewer = Learner(loaded.new_adapter(AdapterSpec(4, 8.0, ("q_proj",)), 1), settings(), 5)
    fewer.save_adapter(tmp_path / "fewer")
    with pytest.raises(ModelError, match="without"):
        own.load_adapter(tmp_path / "fewer", 0)
    (tmp_path / "fewer" / "adapter_model.safetensors").rename(tmp_path / "fewer" / "adapter_model.bin")
    with pytest.raises(ModelError, match="adapters in other formats"):
        own.load_adapter(tmp_path / "fewer", 0)


def test_two_adapters_on_one_base_do_not_disturb_each_other(models: Path) -> None:
    folder = make_model(models / "qwen3", "qwen3")
    loaded = load_backend(Plugin("peft"), folder, "cpu", "float32")
    first, second = (Learner(loaded.new_adapter(SPEC, seed), settings(), 5) for seed in (7, 8))
    alone = learner(folder, "peft")
    for seed in (1, 2):
        first.step(trajectories(seed=seed))
        second.step(trajectories(seed=seed + 10))
        alone.step(trajectories(seed=seed))
    assert torch.equal(first.adapter.flat_P, alone.adapter.flat_P)
    assert not torch.equal(first.adapter.flat_P, second.adapter.flat_P)


def test_experts_are_left_out_unless_asked_for(models: Path) -> None:
    folder = make_model(models / "qwen3_moe", "qwen3_moe")
    names = learner(folder, "peft").adapter.layout.sizes
    assert any("q_proj" in name for name in names)
    assert not any("expert" in name or name.endswith("gate") for name in names)


def test_targets_that_the_model_lacks_are_named_with_those_that_it_has(models: Path) -> None:
    loaded = load_backend(Plugin("peft"), make_model(models / "phi3", "phi3"), "cpu", "float32")
    with pytest.raises(ConfigError, match=r"'q_proj'; this model has .*'qkv_proj'"):
        loaded.new_adapter(AdapterSpec(4, 8.0, ("q_proj",)), 0)


def test_what_training_would_refuse_is_refused_with_the_configuration(models: Path, tmp_path: Path) -> None:
    folder = make_model(models / "phi3", "phi3")
    given = league(folder, backend="vllm")
    check_config(given)
    targets = msgspec.structs.replace(given, model=msgspec.structs.replace(given.model, lora_targets=("q_proj",)))
    with pytest.raises(ConfigError, match=r"model\.lora_targets: 'q_proj'; this model has .*'qkv_proj'"):
        check_config(targets)
    check_config(msgspec.structs.replace(given, model=msgspec.structs.replace(given.model, lora_targets=("qkv_proj",))))
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"weights in pytorch_model\.bin, which are never loaded"):
        check_config(league(tmp_path, backend="vllm"))


def test_auto_takes_the_native_decoder_where_it_can(models: Path) -> None:
    chosen = {family: choose_backend(make_model(models / family, family), "cpu") for family in FAMILIES}
    assert {family for family, (name, _) in chosen.items() if name == "native"} == {"qwen3", "qwen2", "llama"}
    assert "model_type is 'mistral'" in chosen["mistral"][1]
    assert unsupported_reason(models / "qwen3") is None
    assert read_model_shape(models / "gpt_neox").vocab_size == VOCABULARY


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 64}},
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 64},
    ],
)
def test_positions_of_longrope_are_those_that_learner_and_vllm_compute_alike(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(COMMON | {"model_type": "phi3"} | rope))
    assert read_model_shape(tmp_path).max_positions == 64


def test_auto_is_native_for_made_models_and_critics_and_for_others_on_a_cpu(models: Path) -> None:
    llama, mistral = (make_model(models / family, family) for family in ("llama", "mistral"))

    def chosen(folder: Path, device: str, base: str = "some/llama", advantage: str = "episodic") -> str:
        tables = {"model": {"base": base}, "trainer": {"device": device, "advantage": advantage}}
        config, reason = resolve_backend(convert(tables, LeagueConfig, ""), folder)
        assert reason
        return config.backend.name

    assert chosen(llama, "cpu") == "native"
    assert chosen(llama, "cuda") == "peft"
    assert chosen(llama, "cuda", base="made") == "native"
    assert chosen(llama, "cuda", advantage="gae") == "native"
    assert chosen(mistral, "cpu") == chosen(mistral, "cuda") == "peft"
    configured = convert({"trainer": {"backend": "native"}}, LeagueConfig, "")
    assert resolve_backend(configured, mistral) == (configured.trainer, "")


def test_models_that_cannot_be_loaded_are_refused_with_the_reason(models: Path, tmp_path: Path) -> None:
    folder = make_model(models / "mistral", "mistral")
    config = json.loads((folder / "config.json").read_text())
    code = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    cases = {
        "unknown": (config | {"model_type": "no_such_family"}, "no_such_family", "computes no 'no_such_family' models"),
        "pickled": (config, r"no file named model\.safetensors", None),
        "remote": (config | code, r"trainer\.backend\.settings\.remote_code = true", "'own' model brings Python code"),
    }
    for name, (written, message, checked) in cases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(written))
        # Neither is run.
        (tmp_path / name / "own.py").write_text("raise SystemExit")
        torch.save({}, tmp_path / name / "pytorch_model.bin")
        with pytest.raises(ModelError, match=message):
            load_backend(Plugin("peft"), tmp_path / name, "cpu", "float32")
        if checked is not None:
            with pytest.raises(ConfigError, match=rf"^model\.base: .*{checked}"):
                check_config(league(tmp_path / name, backend="vllm"))
    (tmp_path / "remote" / "pytorch_model.bin").unlink()
    given = league(tmp_path / "remote", backend="vllm")
    trainer = msgspec.structs.replace(given.trainer, backend=Plugin("peft", {"remote_code": True}))
    check_config(msgspec.structs.replace(given, trainer=trainer))


@pytest.mark.parametrize("backend", ["native", "peft"])
def test_a_backend_reports_the_memory_of_base_and_adapter(models: Path, backend: str) -> None:
    folder = make_model(models / "llama", "llama")
    one = learner(folder, backend)
    before = one.adapter.memory()
    one.step(trajectories())
    after = one.adapter.memory()
    weights = sum(tensor.nbytes for tensor in read_weights(folder).values())
    assert weights <= before.base < 1.01 * weights, "the rotary frequencies come to it"
    assert after.base == before.base
    assert (before.adapter, after.adapter) == (one.adapter.flat_P.nbytes, 2 * one.adapter.flat_P.nbytes)
    assert after.peak >= before.peak > 50e6


def test_critics_and_quantised_bases_say_what_they_need(models: Path) -> None:
    folder = make_model(models / "mistral", "mistral")
    with pytest.raises(ConfigError, match="native"):
        learner(folder, "peft", TrainerConfig(advantage=Plugin("gae")))
    if find_spec("bitsandbytes") is None:
        with pytest.raises(ConfigError, match="bitsandbytes"):
            learner(folder, "peft", quantization="4bit")
    assert {*BACKENDS.names()} >= {"auto", "native", "peft"}


def test_the_native_backend_makes_adapters_as_before(models: Path) -> None:
    decoder = Decoder.load(make_model(models / "qwen3", "qwen3"))
    made = NativeBackend(decoder).new_adapter(SPEC, 7)
    assert torch.equal(made.flat_P, adapters.create(decoder.shape, adapters.LoraConfig(4, 8.0), 7).flat_P)


@pytest.mark.parametrize("family", ["llama", "mistral", "phi3", "gpt_neox"])
def test_an_adapter_that_adds_nothing_is_accepted_by_the_check_before_vllm_loads_it(
    models: Path, tmp_path: Path, family: str
) -> None:
    folder = make_model(models / family, family)
    adapters.write_zero_adapter(folder, tmp_path)
    adapters.check(tmp_path, read_model_shape(folder), max_rank=1)
    with pytest.raises(ModelError, match="rank is 1, at most 0"):
        adapters.check(tmp_path, read_model_shape(folder), max_rank=0)


def test_layers_that_the_model_lacks_are_found_before_it_is_loaded(models: Path) -> None:
    given = convert({"model": {"base": str(models), "lora_layers": [0, 2]}}, LeagueConfig, "test")
    with pytest.raises(ConfigError, match=r"model\.lora_layers: 2; this model has layers 0 to 1"):
        check_model(given, make_model(models / "llama", "llama"))


@pytest.mark.parametrize("backend", ["native", "peft"])
def test_a_saved_adapter_is_read_back_with_its_own_scale(models: Path, tmp_path: Path, backend: str) -> None:
    loaded = load_backend(Plugin(name=backend), make_model(models / "llama", "llama"), "cpu", "float32")
    spec = AdapterSpec(4, 8.0, ("q_proj", "v_proj"), rslora=True, layers=(1,))
    made = loaded.new_adapter(spec, 1)
    assert [*made.layout.sizes] == ["layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"]
    made.save(tmp_path, "")
    assert read_adapter_spec(tmp_path) == spec
    again = loaded.new_adapter(read_adapter_spec(tmp_path), 2)
    again.load(tmp_path)
    assert torch.equal(again.flat_P, made.flat_P)
    assert adapters.load(tmp_path, loaded.shape).layers == (1,)
    with pytest.raises(ConfigError, match=r"model\.lora_layers: 2; this model has layers 0 to 1"):
        loaded.new_adapter(AdapterSpec(4, 8.0, (), layers=(0, 2)), 1)


SERVER = {"base_model": "Qwen/Qwen3-8B"}
NIM = {"name": "nim"}
OFFSPRING = {"role": "main_exploiter", "reset_operator": "crossover"}
AGENTS = {"base_model": {"kind": "base"}, "random_bot": {"kind": "bot"}}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"trainer": {"backend": "tinker"}}, r"trainer\.backend\.settings\.base_model: ''.*expected the server's name"),
        ({"trainer": {"ranks": 2}}, r"trainer\.ranks: 2.*expected 1"),
        ({"trainer": {"device": "cuda"}}, r"trainer\.device: 'cuda'.*expected 'cpu'"),
        ({"model": {"lora_alpha": 16.0}}, r"model\.lora_alpha: 16.*expected 32"),
        ({"model": {"adapter": "mine"}}, r"model\.adapter: 'mine'.*expected none"),
        (
            {"model": {"lora_layers": [0]}},
            r"model\.lora_layers: \[0\] with .*'tinker'; expected none, since the API adapts",
        ),
        ({"model": {"lora_targets": ["q_proj"]}}, r"model\.lora_targets: \['q_proj'\]; expected all linears"),
        ({"trainer": {"advantage": "gae"}}, r"trainer\.advantage: 'gae' has a critic; expected"),
        ({"policies": {"m": OFFSPRING}}, r"policies\.m\.reset_operator: 'crossover'.*expected none"),
        ({"prompts": {"reply": "free"}}, r"trainer\.loss\.settings\.entropy: 0\.01 with free text.*expected 0"),
        ({"game": {"name": "debate"}}, r"trainer\.loss\.settings\.entropy"),
        (
            {"prompts": {"reply": "free"}, "inference": {"temperature": 0.8}},
            r"inference\.temperature: 0\.8 .*expected 1",
        ),
        ({"trainer": {"backend": {"name": "tinker", "settings": {"state_ttl_s": 60}}}}, "state_ttl_s: 60"),
        ({}, None),
    ],
)
def test_what_a_tinker_server_cannot_train_is_refused_by_the_configuration_check(
    tables: dict[str, Any], message: str | None
) -> None:
    trainer = {"backend": {"name": "tinker", "settings": SERVER}} | tables.get("trainer", {})
    if "temperature" in tables.get("inference", {}):
        trainer["loss"] = {"name": "ppo_clip", "settings": {"entropy": 0.0}}
    model = {"base": "Qwen/Qwen3-8B", "lora_alpha": 32.0} | tables.get("model", {})
    config = convert({"game": NIM, "agents": AGENTS} | tables | {"trainer": trainer, "model": model}, LeagueConfig, "")
    if message is None:
        check_config(config)
        return
    with pytest.raises(ConfigError, match=message):
        check_config(config)
