"""What is tuned, over the same grid for every arm: ``configs/ablation/tuned.toml`` holds what was found."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.ablation.arms import Tuned

TUNED = Path(__file__).parents[2] / "configs" / "ablation" / "tuned.toml"
GRID = tuple(Tuned(learning_rate=rate, entropy=entropy) for rate in (3e-3, 1e-2) for entropy in (0.0, 0.03, 0.1))
_HEAD = """# What the search over learning rate and entropy bonus found for each game and arm, the same grid for all:
# python -m benchmarks.ablation tune DIR
"""


def load(path: Path = TUNED) -> dict[str, dict[str, Tuned]]:
    """By game and arm.

    Raises:
        msgspec.ValidationError: the file holds something else.
    """
    return msgspec.convert(tomllib.loads(path.read_text()), dict[str, dict[str, Tuned]])


def chosen(losses: Mapping[Tuned, float]) -> Tuned:
    """The setting with the least loss; the first one of equals."""
    return min(losses, key=losses.__getitem__)


def write(found: Mapping[str, Mapping[str, Tuned]], path: Path = TUNED) -> None:
    """Write what was found."""
    tables = [
        f"[{game}.{arm}]\nlearning_rate = {tuned.learning_rate}\nentropy = {tuned.entropy}\n"
        for game, arms in found.items()
        for arm, tuned in arms.items()
    ]
    path.write_text(_HEAD + "\n" + "\n".join(tables))
