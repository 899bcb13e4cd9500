"""Adapters on disk: PEFT reads them, digests name them, damaged ones are refused with a reason."""

import pickle
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from models import adapters
from models.adapter_bundle import pack_folder, unpack_folder
from models.adapters import CONFIG_FILE, WEIGHTS_FILE, LoraConfig
from models.model_config import DecoderShape, read_shape
from schemas.config import convert
from schemas.errors import ConfigError, ModelError
from schemas.ids import digest

SHAPE = DecoderShape(
    "qwen3", 50, 32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=16, tied=True, qk_norm=True
)
WIDER = DecoderShape(
    "qwen3", 50, 64, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=16, tied=True, qk_norm=True
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    adapters.save(adapters.create(SHAPE, LoraConfig(rank=4, alpha=8), seed=1), tmp_path / "adapter")
    return tmp_path / "adapter"


def rewrite(folder: Path, **changes: object) -> None:
    config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes())
    (folder / CONFIG_FILE).write_bytes(msgspec.json.encode(config | changes))


def test_a_fresh_adapter_changes_nothing_and_depends_on_its_seed() -> None:
    lora = adapters.create(SHAPE, LoraConfig(rank=4), seed=1)
    assert set(lora.matrices()) == set(SHAPE.linears())
    for a_RI, b_OR in lora.matrices().values():
        assert a_RI.abs().max() > 0
        assert not b_OR.any()
    assert torch.equal(lora.flat_P, adapters.create(SHAPE, LoraConfig(rank=4), seed=1).flat_P)
    assert not torch.equal(lora.flat_P, adapters.create(SHAPE, LoraConfig(rank=4), seed=2).flat_P)


def test_save_and_load_round_trip(folder: Path) -> None:
    lora = adapters.load(folder, SHAPE)
    assert (lora.rank, lora.alpha, lora.scale) == (4, 8.0, 2.0)
    assert torch.equal(lora.flat_P, adapters.create(SHAPE, LoraConfig(rank=4, alpha=8), seed=1).flat_P)
    assert lora.flat_P.requires_grad


def test_only_the_asked_linears_are_adapted(tmp_path: Path) -> None:
    lora = adapters.create(SHAPE, LoraConfig(rank=2, target_modules=("q_proj", "down_proj")), seed=0)
    adapters.save(lora, tmp_path)
    assert {name.rpartition(".")[2] for name in adapters.load(tmp_path, SHAPE).sizes} == {"q_proj", "down_proj"}


# PEFT asks transformers under a name that transformers is about to drop.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_written_by_peft_is_read(tmp_path: Path) -> None:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    )
    config = PeftConfig(r=3, lora_alpha=6, target_modules=["q_proj", "up_proj"], use_rslora=True)
    get_peft_model(model, config).save_pretrained(tmp_path)
    shape = DecoderShape("llama", 50, 32, intermediate_size=48, layers=1, heads=4, kv_heads=4, head_dim=8)
    lora = adapters.load(tmp_path, shape)
    assert set(lora.sizes) == {"layers.0.self_attn.q_proj", "layers.0.mlp.up_proj"}
    assert lora.scale == pytest.approx(6 / 3**0.5)


# As above.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_the_files_are_those_that_peft_writes(tmp_path: Path) -> None:
    import peft
    from transformers import Qwen3Config, Qwen3ForCausalLM

    lora = adapters.create(SHAPE, LoraConfig(rank=4, alpha=8), seed=1)
    with torch.no_grad():
        lora.flat_P.normal_(generator=torch.Generator().manual_seed(2))
    adapters.save(lora, tmp_path / "ours")
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )
    peft.PeftModel.from_pretrained(Qwen3ForCausalLM(config), str(tmp_path / "ours")).save_pretrained(tmp_path / "peft")
    assert (tmp_path / "ours" / WEIGHTS_FILE).read_bytes() == (tmp_path / "peft" / WEIGHTS_FILE).read_bytes()
    ours = peft.PeftConfig.from_pretrained(str(tmp_path / "ours"))
    made = peft.LoraConfig(
        base_model_name_or_path="",
        inference_mode=True,
        lora_alpha=8.0,
        r=4,
        target_modules=list(adapters.TARGETS),
        task_type="CAUSAL_LM",
    )
    assert ours.to_dict() | {"peft_version": None} == made.to_dict() | {"peft_version": None}


def test_a_released_adapter_is_read_and_written_again_to_the_bit(tmp_path: Path) -> None:
    release = Path(__file__).parents[3] / "release" / "diplomacy"
    (stored,) = (release / "adapters").iterdir()
    adapters.save(adapters.load(stored, read_shape(release / "base")), tmp_path)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        assert (tmp_path / name).read_bytes() == (stored / name).read_bytes()
    registry = msgspec.json.decode((release / "league.json").read_bytes())
    assert digest(pack_folder(tmp_path)) == registry["agents"][stored.name]["adapter_digest"]


def test_equal_adapters_have_equal_bytes(folder: Path, tmp_path: Path) -> None:
    data = pack_folder(folder)
    unpack_folder(data, tmp_path / "copy")
    assert pack_folder(tmp_path / "copy") == data
    adapters.save(adapters.create(SHAPE, LoraConfig(rank=4, alpha=8), seed=1), tmp_path / "again")
    assert pack_folder(tmp_path / "again") == data


@pytest.mark.parametrize("keep", [0, 100, 512, 4096, -1, -512])
def test_truncated_archives_are_refused(folder: Path, tmp_path: Path, keep: int) -> None:
    with pytest.raises(ModelError, match="truncated"):
        unpack_folder(pack_folder(folder)[:keep], tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_archives_cannot_write_outside_their_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "x").write_text("y")
    data = bytearray(pack_folder(folder))
    at = data.rindex(b"x" + bytes(99))
    header = data[at : at + 512]
    header[:4], header[148:156] = b"../x", b" " * 8
    header[148:156] = f"{sum(header):06o}".encode() + b"\0 "
    data[at : at + 512] = header
    with pytest.raises(ModelError, match=r"'\.\./x' is not a plain file"):
        unpack_folder(bytes(data), tmp_path / "copy")


def test_links_and_empty_folders_are_not_packed(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(folder / CONFIG_FILE)
    with pytest.raises(ModelError, match="link is not a regular file"):
        pack_folder(folder)
    with pytest.raises(ModelError, match="nothing to pack"):
        pack_folder(tmp_path / "missing")


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not an adapter"):
        adapters.load(tmp_path, SHAPE)


def test_an_adapter_of_another_base_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"has shape \(4, 32\), .* need \(4, 64\)"):
        adapters.load(folder, WIDER)
    shallow = msgspec.structs.replace(SHAPE, layers=1)
    with pytest.raises(ModelError, match=r"layers\.1\..* no linear of this base model"):
        adapters.load(folder, shallow)


def test_a_rank_above_the_limit_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="rank is 4, at most 2"):
        adapters.load(folder, SHAPE, max_rank=2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder: Path, value: float) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    next(iter(tensors.values()))[0, 0] = value
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(ModelError, match="NaN or infinite"):
        adapters.load(folder, SHAPE)


def test_damaged_weights_are_refused(folder: Path) -> None:
    whole = (folder / WEIGHTS_FILE).read_bytes()
    for data in (whole[:-10], whole[:20], b""):
        (folder / WEIGHTS_FILE).write_bytes(data)
        with pytest.raises(ModelError, match="not a readable safetensors file"):
            adapters.load(folder, SHAPE)


def test_pickled_weights_are_never_loaded(folder: Path) -> None:
    (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="other formats are not loaded"):
        adapters.load(folder, SHAPE)


def test_a_missing_half_is_refused(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors.pop(next(name for name in tensors if "lora_B" in name))
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(ModelError, match=r"lora_B\.weight' is missing"):
        adapters.load(folder, SHAPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all', supported is 'none'"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"r": "four"}, "'r' is 'four', expected a whole number"),
        ({"r": True}, "'r' is True"),
        ({"r": 0}, "'r' is 0, expected a whole number of at least 1"),
        ({"lora_alpha": None}, "'lora_alpha' is None, expected a number"),
        ({"lora_alpha": 10**400}, "'lora_alpha' is 1000"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes', expected true or false"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which goes with a changed base"),
    ],
)
def test_variants_that_are_not_computed_are_refused(folder: Path, change: dict[str, object], message: str) -> None:
    rewrite(folder, **change)
    with pytest.raises(ModelError, match=message):
        adapters.load(folder, SHAPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": 8}, r"shape \(4, 32\), the base model and the adapter's rank need \(8, 32\)"),
        ({"target_modules": ["q_proj"]}, r"target_modules is \['q_proj'\], but .* adapts '.*k_proj' too"),
        ({"target_modules": ["q_proj", "w1"]}, "names 'w1', expected 'down_proj'"),
        ({"target_modules": [1]}, "expected a list of names"),
        ({"target_modules": []}, "adapts"),
        ({"layers_to_transform": [1]}, r"adapts 'layers\.0\."),
    ],
)
def test_a_configuration_that_disagrees_with_the_weights_is_refused(
    folder: Path, change: dict[str, object], message: str
) -> None:
    rewrite(folder, **change)
    with pytest.raises(ModelError, match=message):
        adapters.load(folder, SHAPE)


def test_an_adapter_of_a_shallower_base_is_refused(folder: Path) -> None:
    deeper = msgspec.structs.replace(SHAPE, layers=3)
    with pytest.raises(ModelError, match=r"covers 'layers\.2\..*holds no tensors"):
        adapters.load(folder, deeper)


@pytest.mark.parametrize("targets", ["all-linear", r".*\.(q|k)_proj", None])
def test_targets_that_are_no_list_leave_it_to_the_weights(folder: Path, targets: object) -> None:
    rewrite(folder, target_modules=targets)
    assert set(adapters.load(folder, SHAPE).sizes) == set(SHAPE.linears())


def test_an_adapter_of_some_layers_is_read_and_written_as_such(folder: Path, tmp_path: Path) -> None:
    kept = {name: tensor for name, tensor in load_file(folder / WEIGHTS_FILE).items() if ".layers.1." in name}
    save_file(kept, folder / WEIGHTS_FILE)
    rewrite(folder, layers_to_transform=1)
    lora = adapters.load(folder, SHAPE)
    adapters.save(lora, tmp_path / "again")
    again = adapters.load(tmp_path / "again", SHAPE)
    assert set(again.sizes) == set(lora.sizes) == {name for name in SHAPE.linears() if name.startswith("layers.1.")}
    assert torch.equal(again.flat_P, lora.flat_P)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("base_model.model.model.", "base_model.model.", "is no LoRA weight, expected names like"),
        ("lora_A.weight", "lora_A.default.weight", "is no LoRA weight"),
        ("lora_A.weight", "lora_magnitude_vector", "is no LoRA weight"),
        ("model.layers.0.self_attn.q_proj", "lm_head", "is no LoRA weight"),
        ("q_proj", "qkv_proj", "no linear of this base model"),
    ],
)
def test_tensors_under_other_names_are_refused(folder: Path, old: str, new: str, message: str) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)
    with pytest.raises(ModelError, match=message):
        adapters.load(folder, SHAPE)


def retyped(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floating_point_types_become_float32(folder: Path, dtype: torch.dtype) -> None:
    exact = adapters.load(folder, SHAPE).flat_P
    retyped(folder, dtype)
    lora = adapters.load(folder, SHAPE)
    assert lora.flat_P.dtype == torch.float32
    assert torch.equal(lora.flat_P, exact.to(dtype).float())


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_types_that_are_no_weights_are_refused(folder: Path, dtype: torch.dtype, name: str) -> None:
    retyped(folder, dtype)
    with pytest.raises(ModelError, match=rf"is of type {name}, expected 'BF16', 'F16'"):
        adapters.load(folder, SHAPE)


def test_weights_too_large_for_float32_are_refused(folder: Path) -> None:
    tensors = {name: tensor.double() for name, tensor in load_file(folder / WEIGHTS_FILE).items()}
    next(iter(tensors.values()))[0, 0] = 1e300
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(ModelError, match="NaN or infinite"):
        adapters.load(folder, SHAPE)


class Burglar:
    """What unpickling would run."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE, "adapter_model.bin", "adapter_model.pt"])
@pytest.mark.parametrize("write", [pickle.dump, torch.save])
def test_no_pickle_is_loaded_under_any_name(folder: Path, name: str, write: Callable[..., None]) -> None:
    if name.startswith("adapter_model."):
        (folder / WEIGHTS_FILE).unlink()
    trace = folder / "trace"
    with (folder / name).open("wb") as file:
        write(Burglar(trace), file)
    with pytest.raises(ModelError, match=r"never loaded|are not loaded|not an adapter"):
        adapters.load(folder, SHAPE)
    assert not trace.exists()


def test_unknown_target_modules_name_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nose'.*'down_proj'"):
        convert({"target_modules": ["nose"]}, LoraConfig, "model.lora")
    with pytest.raises(ConfigError, match="at least 1"):
        convert({"rank": 0}, LoraConfig, "model.lora")
