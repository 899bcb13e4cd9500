"""The decoder computes what transformers and PEFT compute, forwards and backwards."""

import copy
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F

from models import adapters
from models.decoder import Decoder, allowed_logits
from models.forward import detach_weights, forward_rectangle, padded_rectangles
from models.kernels import rms_norm, rotary, rotary_tables, swiglu
from models.model_config import DecoderShape, read_model_shape, shape_from_config
from schemas.errors import ModelError
from tests.packed_forward import forward_packed

TINY = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LENGTHS = [5, 60, 1, 37, 60]


def hf_model(kind: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    make = {
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**TINY, head_dim=16, tie_word_embeddings=True)),
        "qwen3-wide-vocabulary": lambda: Qwen3ForCausalLM(Qwen3Config(**TINY | {"vocab_size": 5_000}, head_dim=16)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**TINY)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**TINY, rope_parameters=LLAMA3)),
        # As SmolLM2: grouped queries and a head that is the embedding matrix.
        "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True)),
    }
    torch.manual_seed(0)
    model = make[kind]()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.fixture(scope="module", params=["qwen3", "qwen3-wide-vocabulary", "qwen2", "llama", "llama-tied"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder, Path]:
    folder = tmp_path_factory.mktemp("base")
    model = hf_model(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return model, Decoder.load(folder), folder


def sequences(decoder: Decoder) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(decoder.shape.vocab_size, (n,), generator=generator) for n in LENGTHS]


def trained_lora(decoder: Decoder, config: adapters.LoraConfig | None = None) -> adapters.Lora:
    lora = adapters.create(decoder.shape, config or adapters.LoraConfig(rank=4, alpha=8), seed=2)
    with torch.no_grad():
        lora.flat_P.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    return lora


def test_logits_equal_transformers(pair: tuple[Any, Decoder, Path]) -> None:
    model, decoder, _ = pair
    ids = sequences(decoder)
    packed = decoder.logits(forward_packed(decoder, torch.cat(ids), LENGTHS, token_budget=130))
    for logits, row in zip(torch.split(packed, LENGTHS), ids, strict=True):
        torch.testing.assert_close(logits, model(row[None]).logits[0], atol=1e-5, rtol=0)


# PEFT asks transformers under a name that transformers is about to drop.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("merge", [True, False])
def test_logits_equal_peft(pair: tuple[Any, Decoder, Path], tmp_path: Path, merge: bool) -> None:
    from peft import PeftModel

    model, decoder, _ = pair
    lora = trained_lora(decoder)
    adapters.save(lora, tmp_path)
    ids = sequences(decoder)[1][None]
    expected = PeftModel.from_pretrained(copy.deepcopy(model), tmp_path)(ids).logits[0]
    logits = decoder.logits(forward_rectangle(decoder.weights(lora, merge), ids))[0]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    assert (decoder.logits(forward_rectangle(decoder.weights(), ids))[0] - expected).abs().max() > 0.01


def test_state_dict_round_trips_to_transformers(pair: tuple[Any, Decoder, Path]) -> None:
    model, decoder, _ = pair
    state = decoder.to_hf_state_dict()
    expected = {k: v for k, v in model.state_dict().items() if not (decoder.shape.tied and k == "lm_head.weight")}
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in state)


def test_full_parameter_gradients_equal_transformers(pair: tuple[Any, Decoder, Path]) -> None:
    model, _, folder = pair
    decoder = Decoder.load(folder).requires_grad_(True)
    ids = torch.cat(sequences(decoder)[:2])
    logits = torch.split(decoder.logits(forward_packed(decoder, ids, LENGTHS[:2])), LENGTHS[:2])
    rows = torch.split(ids, LENGTHS[:2])
    sum(F.cross_entropy(x[:-1], row[1:]) for x, row in zip(logits, rows, strict=True)).backward()
    model.zero_grad()
    sum(F.cross_entropy(model(row[None]).logits[0, :-1], row[1:]) for row in rows).backward()
    assert decoder.blocks[0].qkv.grad is not None
    for name, parameter in decoder.named_parameters():
        parameter.data = parameter.grad
        assert parameter.grad.abs().sum() > 0, name
    for name, gradient in decoder.to_hf_state_dict().items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, atol=2e-5, rtol=1e-3)


def test_merged_and_side_adapters_have_equal_gradients(pair: tuple[Any, Decoder, Path]) -> None:
    _, decoder, _ = pair
    gradients = []
    for merge in (True, False):
        lora = trained_lora(decoder, adapters.LoraConfig(rank=3, target_modules=("q_proj", "v_proj", "down_proj")))
        ids = sequences(decoder)[1][None]
        forward_rectangle(decoder.weights(lora, merge), ids).square().sum().backward()
        gradients.append(lora.flat_P.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)


def test_wanted_positions_equal_the_full_pass(pair: tuple[Any, Decoder, Path]) -> None:
    _, decoder, _ = pair
    weights = decoder.weights(trained_lora(decoder))
    ids = torch.stack([sequences(decoder)[1], sequences(decoder)[4]])
    wanted = torch.tensor([[0, 7, 59], [3, 3, 20]])
    full = forward_rectangle(weights, ids)
    expected = full.gather(1, wanted[..., None].expand(-1, -1, full.shape[-1]))
    torch.testing.assert_close(forward_rectangle(weights, ids, wanted), expected, atol=1e-5, rtol=0)


def test_cut_weights_gather_gradients_of_several_passes() -> None:
    decoder = small_decoder()
    ids = torch.arange(20)[None]
    plain, shared = trained_lora(decoder), trained_lora(decoder)
    sum(forward_rectangle(decoder.weights(plain), ids + i).square().sum() for i in range(3)).backward()
    piece = detach_weights(decoder.weights(shared))
    for i in range(3):
        forward_rectangle(piece.weights, ids + i).square().sum().backward()
    piece.backward()
    torch.testing.assert_close(shared.flat_P.grad, plain.flat_P.grad, atol=1e-5, rtol=1e-4)


def test_packing_order_does_not_matter() -> None:
    decoder = small_decoder()
    ids = sequences(decoder)
    order = [3, 0, 4, 2, 1]
    straight = torch.split(forward_packed(decoder, torch.cat(ids), LENGTHS, token_budget=100), LENGTHS)
    lengths = [LENGTHS[i] for i in order]
    turned = torch.split(forward_packed(decoder, torch.cat([ids[i] for i in order]), lengths), lengths)
    for place, i in enumerate(order):
        torch.testing.assert_close(turned[place], straight[i], atol=1e-6, rtol=0)


def test_rectangles_hold_every_sequence_once_within_budget() -> None:
    lengths = [3, 9, 1, 9, 40, 2]
    rectangles = [sequences_B.tolist() for sequences_B in padded_rectangles(lengths, 20)]
    assert sorted(sequence for chosen in rectangles for sequence in chosen) == list(range(len(lengths)))
    assert all(len(chosen) == 1 or len(chosen) * max(lengths[at] for at in chosen) <= 20 for chosen in rectangles)


def test_logits_of_allowed_tokens_agree_for_small_and_large_vocabularies() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 8, generator=generator)
    rows, tokens = torch.tensor([0, 0, 1, 2]), torch.tensor([4, 2, 0, 4])
    for size in (5, 5_000):
        head = torch.randn(size, 8, generator=generator)
        expected = (hidden @ head.T)[rows, tokens]
        torch.testing.assert_close(allowed_logits(head, hidden, rows, tokens), expected, atol=1e-5, rtol=0)


def test_kernel_gradients_match_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(4, dtype=torch.float64, generator=generator, requires_grad=True)
    tables = rotary_tables(torch.arange(3), torch.tensor([1.0, 0.1]), torch.float64)
    assert torch.autograd.gradcheck(lambda a, w: rms_norm(a, w, 1e-6), (x, weight))
    assert torch.autograd.gradcheck(swiglu, (x,))
    assert torch.autograd.gradcheck(lambda a: rotary(a, *tables), (x,))


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    decoder = small_decoder()
    narrow = Decoder(decoder.shape, dtype=torch.bfloat16)
    narrow.load_state_dict(decoder.state_dict())
    ids = torch.arange(40)
    lora = trained_lora(decoder)
    exact = forward_packed(decoder, ids, [40], lora)
    rough = forward_packed(narrow, ids, [40], lora)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().mean() < 0.05


def small_decoder() -> Decoder:
    config = TINY | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}
    return Decoder.random(shape_from_config(config), seed=0, std=0.1).requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "'mistral', supported are 'llama', 'qwen2' or 'qwen3'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type is 'yarn', supported are"),
        ({"attention_bias": True}, "attention_bias is True, supported is False"),
        ({"vocab_size": None}, "ill-typed.*vocab_size"),
    ],
)
def test_unsupported_configurations_say_what_is_supported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = TINY | {"model_type": "qwen3", "head_dim": 16} | change
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    with pytest.raises(ModelError, match=message):
        Decoder.load(tmp_path)


def test_damaged_model_folders_are_model_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        Decoder.load(tmp_path)
    config = TINY | {"model_type": "qwen3", "head_dim": 16}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        Decoder.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        Decoder.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(b'{"weight_map": {"model.norm.weight": 5}}')
    with pytest.raises(ModelError, match=r"index\.json: not an index of safetensors shards"):
        Decoder.load(tmp_path)


def test_rope_settings_that_are_no_table_are_model_errors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(TINY | {"model_type": "phi3", "rope_scaling": [1]}))
    with pytest.raises(ModelError, match=r"config\.json: configuration is incomplete or ill-typed"):
        read_model_shape(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(small_decoder().to_hf_state_dict(), tmp_path / "model.safetensors")
    config = TINY | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config | {"intermediate_size": 64}))
    with pytest.raises(ModelError, match=r"gate_proj.*\(48, 32\).*\(64, 32\)"):
        Decoder.load(tmp_path)
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config | {"tie_word_embeddings": False}))
    with pytest.raises(ModelError, match=r"'lm_head.weight' is missing"):
        Decoder.load(tmp_path)


def test_older_configurations_are_read() -> None:
    shape = shape_from_config(
        TINY | {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"type": "llama3", "factor": 2}}
    )
    assert isinstance(shape, DecoderShape)
    assert (shape.rope_theta, shape.rope.rope_type, shape.rope.factor) == (5e5, "llama3", 2.0)
