"""Adapters that PEFT itself makes and reads, on a model of transformers, and their merging into the base model.

PEFT is imported with the first call.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from models import MODEL_FILES
from models.adapters import CONFIG_FILE, WEIGHTS_FILE, decode_config
from models.hf import load_transformers_model
from schemas.errors import ModelError
from schemas.files import atomic_folder

WEIGHTS = "*.safetensors"


def merge_adapter(base: Path, adapter: Path, out: Path, remote_code: bool = False) -> Path:
    """Write a base model with an adapter's updates added to its weights, and everything else as in the base's folder.

    Base and adapter may be of any family and variant of LoRA that PEFT merges. Sums are computed in float32 and stored
    in the base's own type: with a bfloat16 base they are rounded, so that logits differ by about as much as bfloat16
    rounds anyway. The folder ``out`` appears whole or not at all, and is returned. ``remote_code`` is whether Python
    code that the base brings may run.

    Raises:
        ConfigError: transformers is not installed.
        ModelError: ``out`` exists already, or base and adapter do not fit each other.
    """
    out, adapter = Path(out), Path(adapter)
    if out.exists():
        raise ModelError(f"{out}: exists already; expected a folder that does not")
    model, config = load_transformers_model(base, "auto", remote_code), read_peft_config(adapter)
    # The base's folder or name where the adapter was trained, of which PEFT warns that it is another one here.
    config.base_model_name_or_path = None
    wrapped = make_peft_model(model, config)
    load_with_peft(wrapped, adapter)
    try:
        merged = wrapped.merge_and_unload(safe_merge=True)
    except (ValueError, NotImplementedError) as error:
        raise ModelError(f"{adapter}: PEFT cannot merge it: {error}") from error
    with atomic_folder(out) as draft:
        merged.save_pretrained(str(draft))
        for pattern in MODEL_FILES:
            for path in sorted(base.glob(pattern)) if pattern != WEIGHTS else ():
                # The index names the base's own files of weights.
                if not path.name.endswith(".index.json"):
                    shutil.copy(path, draft / path.name)
    return out


def read_peft_config(folder: Path) -> Any:
    """The configuration of an adapter as an object of PEFT's.

    Raises:
        ModelError: unreadable, or of a kind that PEFT does not know.
    """
    import peft

    decode_config(folder)
    try:
        return peft.PeftConfig.from_pretrained(str(folder))
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{folder}: not an adapter, no readable {CONFIG_FILE} ({error})") from error


def make_peft_model(model: Any, config: Any, name: str = "default") -> Any:
    """A transformers model with an adapter ``name`` of PEFT's configuration ``config``, or with another one.

    Raises:
        ModelError: the model has no such linears.
    """
    import peft

    with warnings.catch_warnings():
        # PEFT 0.21 asks transformers 5 in a way that it deprecates.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            if isinstance(model, peft.PeftModel):
                model.add_adapter(name, config)
                return model
            return peft.get_peft_model(model, config, adapter_name=name)
        except (TypeError, ValueError) as error:
            raise ModelError(f"not an adapter of this base model: {' '.join(str(error).split())[:500]}") from error


def name_peft_tensors(model: Any, name: str = "default") -> dict[str, Tensor]:
    """The tensors of an adapter of a ``peft.PeftModel``, by PEFT's names."""
    import peft

    # Otherwise PEFT looks for the base's configuration on the hub, to see whether its embedding has grown.
    tensors: dict[str, Tensor] = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return tensors


def load_with_peft(model: Any, folder: Path, name: str = "default") -> None:
    """Load a saved adapter into the adapter ``name`` of a ``peft.PeftModel``, which has the same configuration.

    Raises:
        ModelError: weights that are not safetensors, damaged, not finite, or for other linears than the model's.
    """
    import peft

    if not (folder / WEIGHTS_FILE).is_file():
        raise ModelError(f"{folder}: no {WEIGHTS_FILE}; adapters in other formats are not loaded")
    try:
        weights = peft.load_peft_weights(str(folder), device="cpu")
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"{folder / WEIGHTS_FILE}: not a readable safetensors file ({error})") from error
    if odd := [key for key, tensor in sorted(weights.items()) if not tensor.isfinite().all()]:
        raise ModelError(f"{folder}: tensor {odd[0]!r} holds NaN or infinite values")
    try:
        result = peft.set_peft_model_state_dict(model, weights, adapter_name=name)
    except RuntimeError as error:
        raise ModelError(f"{folder}: an adapter of another base model: {' '.join(str(error).split())[:500]}") from error
    missing = sorted(name_peft_tensors(model, name).keys() - weights.keys())
    if missing or result.unexpected_keys:
        problem = f"without {missing[0]!r}" if missing else f"with {sorted(result.unexpected_keys)[0]!r}"
        raise ModelError(f"{folder}: an adapter {problem}; expected the linears of this model's adapters")
