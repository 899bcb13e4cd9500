"""Checks of adapters that only a look beyond their format makes: which model they belong to, and whether they act."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from models.adapters import CONFIG_FILE, read_matrices
from schemas.errors import ModelError
from schemas.ids import digest


def check_base_name(folder: Path, config: Mapping[str, Any], source: str, base: Path | None) -> None:
    """Check that an adapter's ``base_model_name_or_path`` names the base model ``source``; an empty one is accepted.

    Names are equal if their last parts are, whoever published the model; a folder is the base's if it has an equal
    ``config.json``. ``base`` is the base model's folder, None if it is not on this machine.

    Raises:
        ModelError: another model.
    """
    named = config.get("base_model_name_or_path")
    if not named:
        return
    ours = {_last_part(source), *([_last_part(str(base))] if base is not None else [])}
    if _last_part(str(named)) in ours:
        return
    theirs = Path(str(named)).expanduser() / "config.json"
    if base is not None and theirs.is_file() and theirs.read_bytes() == (base / "config.json").read_bytes():
        return
    raise ModelError(
        f"{folder}: an adapter of another base model: base_model_name_or_path is {named!r}, model.base is {source!r}; "
        f"expected the same last part, or an empty name in {CONFIG_FILE} where it is the same model"
    )


def has_effect(folder: Path) -> bool:
    """Whether an adapter changes its base model: one whose B are all zero does not; raises as ``read_matrices``."""
    return any(bool(b_OR.any()) for _, b_OR in read_matrices(folder).values())


def digest_weights(folder: Path) -> str:
    """Digest of an adapter's matrices, whatever library wrote them; raises as ``read_matrices``."""
    pairs = read_matrices(folder).values()
    return digest(b"".join(matrix.contiguous().numpy().tobytes() for pair in pairs for matrix in pair))


def _last_part(name: str) -> str:
    return PurePosixPath(name.rstrip("/")).name.lower()
