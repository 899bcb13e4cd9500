"""Checks that learner and inference backend compute a base model, and that an adapter fits it."""

import json
import re
from pathlib import Path

from models import adapters
from models.adapter_checks import check_base_name
from models.hf import read_weight_sizes
from models.model_config import read_model_shape, unsupported_reason
from schemas.config import LeagueConfig
from schemas.errors import ConfigError, ModelError, format_choices
from trainer.advantages.base import ADVANTAGES, UsesCritic

_NO_TARGETS = ("norm", "embed", "lm_head")
"""Parts of the names of weights that no adapter sits on: norms, embeddings and output heads."""


def check_model(config: LeagueConfig, base: Path) -> None:
    """Check that the learner, its minibatches and the inference backend compute a base model.

    Raises:
        ConfigError: one does not; the message names the key and what to set instead.
        ModelError: the folder's ``config.json`` cannot be read, or its weights are pickled.
    """
    model_type = read_model_shape(base).model_type
    reason = unsupported_reason(base)
    if reason is not None:
        _check_native(config, reason)
    if reason is not None and config.trainer.backend.name != "tinker":
        _check_architecture(config, base, model_type)
    _check_weights(config, base)


def _check_weights(config: LeagueConfig, base: Path) -> None:
    """Reject pickled or damaged weights, and targets of adapters that a model's weights are not named after."""
    if not any(base.glob("*.safetensors")):
        if pickles := sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in base.glob(pattern)):
            raise ModelError(
                f"{base}: weights in {pickles[0]}, which are never loaded since pickles run code; expected "
                "*.safetensors"
            )
        return
    names = {name.removesuffix(".weight") for name, size in read_weight_sizes(base).items() if len(size) > 1}
    linears = {name for name in names if not any(part in name.rpartition(".")[2] for part in _NO_TARGETS)}
    for target in config.model.lora_targets:
        if not any(f".{name}".endswith(f".{target}") for name in linears):
            leaves = {name.rpartition(".")[2] for name in linears}
            raise ConfigError(f"model.lora_targets: {target!r}; this model has {format_choices(leaves, target)}")
    layers = {int(found[1]) for name in linears if (found := re.search(r"\.(\d+)\.", name))}
    adapters.check_layers(config.model.lora_layers, max(layers, default=-1) + 1)


def check_first_adapter(config: LeagueConfig, folder: Path, base: Path | None) -> None:
    """Check that training can begin with an adapter in PEFT's format (``model.adapter``).

    ``base`` is the base model's folder, None if it is not on this machine yet.

    Raises:
        ConfigError: its rank or alpha is not the configured one.
        ModelError: no LoRA adapter, or one of another base model.
    """
    fields = adapters.read_config(folder)
    for key, name in ("lora_rank", "r"), ("lora_alpha", "lora_alpha"):
        found, expected = fields[name], getattr(config.model, key)
        if found != expected:
            raise ConfigError(
                f"model.{key}: {expected:g}, but the adapter in model.adapter has {found:g}; expected that"
            )
    matrices = adapters.read_matrices(folder)
    if config.model.base != "made":
        check_base_name(folder, fields, config.model.base, base)
    if base is None:
        return
    sizes = {f"base_model.model.{name.removesuffix('.weight')}": size for name, size in read_weight_sizes(base).items()}
    if not matrices.keys() & sizes.keys():
        raise ModelError(
            f"{folder}: an adapter of another base model: it adapts {min(matrices)!r}, which {base} does not have"
        )
    for name, (a_RI, b_OR) in matrices.items():
        if (size := sizes.get(name, fits := (b_OR.shape[0], a_RI.shape[1]))) != fits:
            raise ModelError(
                f"{folder}: an adapter of another base model: {name!r} is for a linear of {fits}; that of {base} has "
                f"{size}"
            )


def _check_native(config: LeagueConfig, reason: str) -> None:
    """Reject parts that only the native decoder computes, for a model that it does not compute."""
    inference, trainer = config.inference, config.trainer
    if inference.backend == "local" and not inference.urls:
        raise ConfigError(f"inference.backend: 'local' does not compute the base model ({reason}); expected 'vllm'")
    if trainer.backend.name == "native":
        raise ConfigError(f"trainer.backend: 'native' does not compute the base model ({reason}); expected 'peft'")
    if isinstance(ADVANTAGES.build(trainer.advantage), UsesCritic):
        raise ConfigError(
            f"trainer.advantage: {trainer.advantage.name!r} has a critic, which runs on the native decoder ({reason}); "
            "expected an estimator without one"
        )


def _check_architecture(config: LeagueConfig, base: Path, model_type: str) -> None:
    """Reject an architecture that only code of the model's own computes, without consent, or nothing does."""
    # Here, since it takes seconds and few leagues need it.
    from transformers import __version__
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or config.trainer.backend.settings.get("remote_code"):
        return
    if "auto_map" in json.loads((base / "config.json").read_bytes()):
        raise ConfigError(
            f"model.base: a {model_type!r} model brings Python code, which would run with the trainer's "
            "rights; expected trainer.backend = { name = 'peft', settings = { remote_code = true } } where you trust it"
        )
    raise ConfigError(
        f"model.base: transformers {__version__} computes no {model_type!r} models; expected another base model, or a "
        "transformers that does"
    )
