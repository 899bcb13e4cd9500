"""Base models and adapters: made for a game, trained by example, or read from a folder or the hub (``load_base``).

- ``model_config``       supported decoder architectures, read from ``config.json``
- ``adamw``              AdamW without torch's compiler
- ``kernels``            element-wise operations with hand-written gradients
- ``forward``            the forward pass, pure in its weights, over padded rectangles or packed rows
- ``prefix_tree``        rows of sequences that share the tokens of their common beginnings
- ``decoder``            base weights, adapters applied to them, log-probability and entropy of sampled tokens
- ``adapters``           LoRA parameters, and PEFT's format on disk
- ``adapter_checks``     which base model an adapter belongs to, and whether it has an effect
- ``canary``           what the learner records with an adapter, for whoever serves it
- ``adapter_bundle``     an adapter folder as content-addressed bytes
- ``hf``                 tensor names of Hugging Face's layout, both ways; adapters that PEFT reads, and their merging
- ``gguf``               GGUF files as model folders; models that packages carry
- ``tokenizer``          pieces to token ids and back; one token a piece for made tokenizers
- ``make``               writes a small model with a game's vocabulary, from a seed
- ``behaviour_cloning``  trains a model on the play of scripted bots by cross-entropy
"""

import contextlib
import io
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from models.gguf import PACKAGED_MODELS, find_packaged
from models.model_config import ModelShape, read_model_shape
from models.tokenizer import Tokenizer
from schemas.errors import ModelError, suggest

if TYPE_CHECKING:
    from models.make import BaseShape, make_base

MODEL_FILES = ("*.json", "*.jinja", "*.safetensors", "*.txt", "*.model")
"""Files that are downloaded of a hub model: no weights in other formats."""
_DOWNLOADED: dict[str, Any] = {
    "allow_patterns": [*MODEL_FILES],
    # Some models have their weights a second time, in the layout of their makers' own code.
    "ignore_patterns": ["*/*", "consolidated*"],
}

DownloadReporter = Callable[[str, float | None], None]
"""Called with a description and the completed share, 0 to 1, or None if unknown."""


class BaseModel(msgspec.Struct, frozen=True):
    """A complete base model on this machine."""

    folder: Path
    shape: ModelShape
    tokenizer: Tokenizer


def load_base(source: str | Path, report: DownloadReporter | None = None) -> BaseModel:
    """Load the model that ``source`` names: a folder if there is one, else a hub id (see ``find_base``).

    Raises:
        ModelError: no such model here or on the hub, or a folder that is not a model directory.
    """
    folder = find_base(source, report)
    _check_model_files(folder)
    return BaseModel(folder=folder, shape=read_model_shape(folder), tokenizer=Tokenizer(folder))


def find_base(source: str | Path, report: DownloadReporter | None = None) -> Path:
    """Find the folder of a local model, or of a hub model's snapshot.

    A model of ``gguf.PACKAGED_MODELS`` is converted from its package's file, once on a machine. A hub model is
    downloaded once on a machine, also where several processes need it at once: each file is locked while it is fetched,
    and a download that was interrupted goes on. ``report`` is called meanwhile; None draws a bar.

    Raises:
        ModelError: neither a folder nor a hub model that is cached or can be fetched.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if isinstance(source, Path) or folder.is_absolute() or str(source).startswith("."):
        raise ModelError(
            f"base model: no folder {source}; expected a model directory or a hub id like 'Qwen/Qwen3-0.6B'"
        )
    name = str(source)
    if (local := find_packaged(name) or _find_cached(name)) is not None:
        return local
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    shown = {} if report is None else {"tqdm_class": _progress_bar(name, report)}
    try:
        return Path(snapshot_download(name, **_DOWNLOADED, **shown))
    except (OSError, ValueError) as error:
        # The hub's own answer says more than that of the cache.
        reason = " ".join(str(error).split())
        raise ModelError(
            f"base model: {name!r} is neither a folder here (looked in {Path.cwd()}) nor a hub model that is cached "
            f"(looked in {HF_HUB_CACHE}) or can be fetched: {type(error).__name__}: {reason} "
            "Expected a model directory, or a hub id like 'Qwen/Qwen3-0.6B' and a way to reach the hub"
            f"{suggest(name, PACKAGED_MODELS)}."
        ) from error


def find_local_base(source: str) -> Path | None:
    """Folder of a local model, or of a hub model that is cached whole; None for one that is not."""
    folder = Path(source).expanduser()
    if folder.is_dir() or folder.is_absolute() or source.startswith("."):
        return find_base(source)
    return find_packaged(source) or _find_cached(source)


def is_hub_id(source: str) -> bool:
    """Whether ``model.base`` is a hub id, rather than a folder, a packaged model or a model made here."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", source)) and not Path(source).is_dir()


def _find_cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download  # slow to import, and local models never need it

    try:
        folder = Path(snapshot_download(name, **_DOWNLOADED, local_files_only=True))
        _check_model_files(folder)
    except (OSError, ValueError, ModelError):  # not cached, only in part as by other programs, or no valid id
        return None
    return folder


def _progress_bar(name: str, report: DownloadReporter) -> Any:
    """A class of tqdm's that reports downloaded bytes in place of drawing a bar."""
    from tqdm import tqdm

    class ReportedBar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings | {"file": io.StringIO(), "mininterval": 1.0})

        def display(self, *_: Any, **__: Any) -> None:
            # Other bars count files, or bytes that are sent but not written yet.
            if self.unit == "B" and self.n and self.total:
                rate = self.format_dict["rate"] or self.n / max(self.format_dict["elapsed"], 1e-6)
                left = timedelta(seconds=round(max(self.total - self.n, 0) / rate))
                amount = f"{self.n / 1e9:.2f} of {self.total / 1e9:.2f} GB, {rate / 1e6:.0f} MB/s, {left} left,"
                report(f"downloading {name}: {amount}", min(self.n / self.total, 1.0))

    return ReportedBar


def _check_model_files(folder: Path) -> None:
    """Report all missing files at once, the shards that an index of weights names too."""
    needed = ["config.json", "tokenizer.json"]
    # No index, or an unreadable one, is for whoever reads the weights to name.
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        index = msgspec.json.decode((folder / "model.safetensors.index.json").read_bytes(), type=dict[str, Any])
        needed += sorted({Path(name).name for name in index["weight_map"].values()})
    missing = [name for name in needed if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        names = sorted(path.name for path in folder.iterdir())
        listing = ", ".join(names[:10]) + (" …" if len(names) > 10 else "") if names else "nothing"
        raise ModelError(
            f"{folder}: not a model directory: {', '.join(missing)} missing, found {listing}. Expected the files that "
            f"`save_pretrained` writes: config.json, tokenizer.json and weights as *.safetensors."
        )


__all__ = ["BaseModel", "BaseShape", "Tokenizer", "find_base", "find_local_base", "load_base", "make_base"]


def __getattr__(name: str) -> Any:
    # Imported on first use: making a model loads torch, which takes a second, and most commands make none.
    if name in ("BaseShape", "make_base"):
        from models import make

        return getattr(make, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
