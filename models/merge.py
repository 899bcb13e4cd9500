"""Merging of an adapter into its base model with PEFT, for programs without support for adapters."""

import shutil
from pathlib import Path
from typing import Any

from models import MODEL_FILES
from models.hf import load_transformers_model
from models.peft_adapters import load_with_peft, make_peft_model, read_peft_config
from schemas.errors import ModelError
from schemas.files import atomic_folder

WEIGHTS = "*.safetensors"


def merge_adapter(base: Path, adapter: Path, out: Path, remote_code: bool = False) -> Path:
    """Write a base model with an adapter's updates added to its weights, and everything else as in the base's folder.

    Base and adapter may be of any family and variant of LoRA that PEFT merges. Sums are computed in float32 and stored
    in the base's own type: with a bfloat16 base they are rounded, so that logits differ by about as much as bfloat16
    rounds anyway. The folder ``out`` appears whole or not at all, and is returned.

    Args:
        base: a model directory in Hugging Face's format.
        adapter: a LoRA adapter of it in PEFT's format.
        out: the folder to make.
        remote_code: whether Python code that the base brings may run.

    Raises:
        ConfigError: transformers is not installed.
        ModelError: ``out`` exists already, or base and adapter do not fit each other.
    """
    out = Path(out)
    if out.exists():
        raise ModelError(f"{out}: exists already; expected a folder that does not")
    merged = _merge(load_transformers_model(base, "auto", remote_code), Path(adapter))
    with atomic_folder(out) as draft:
        merged.save_pretrained(str(draft))
        for pattern in MODEL_FILES:
            for path in sorted(base.glob(pattern)) if pattern != WEIGHTS else ():
                # The index names the base's own files of weights.
                if not path.name.endswith(".index.json"):
                    shutil.copy(path, draft / path.name)
    return out


def _merge(model: Any, folder: Path) -> Any:
    """Add an adapter's updates to a model's weights.

    Raises:
        ModelError: not an adapter of this model, or one with other tensors than it has linears.
    """
    config = read_peft_config(folder)
    # The base's folder or name where the adapter was trained, of which PEFT warns that it is another one here.
    config.base_model_name_or_path = None
    wrapped = make_peft_model(model, config)
    load_with_peft(wrapped, folder)
    try:
        return wrapped.merge_and_unload(safe_merge=True)
    except (ValueError, NotImplementedError) as error:
        raise ModelError(f"{folder}: PEFT cannot merge it: {error}") from error
