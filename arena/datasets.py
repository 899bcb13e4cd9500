"""Data of environments: small collections written for this project (``datasets.toml``), and problems of reasoning-gym.

``PROBLEMS`` are word problems of one or two steps over small integers; all of a problem's numbers are needed, in order.
``TOPICS`` are for debates. ``ProblemSet`` has problems of reasoning-gym (Stojanovski et al. 2025, arXiv 2505.24760),
which the package (the extra ``reasoning-gym``) makes again from their identity wherever they are scored.
"""

import math
import tomllib
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import ConfigError, EpisodeError, describe_error, format_choices
from schemas.numbers import PositiveInt

_ITEMS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

PROBLEMS: Sequence[tuple[str, int]] = tuple((question, answer) for question, answer in _ITEMS["problems"])
TOPICS: tuple[str, ...] = tuple(_ITEMS["topics"])

EXECUTE_REPLIES = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Data sets whose verifiers run a reply as Python."""
UNSEEDED = frozenset({"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"})
"""Data sets whose problems differ between processes with the same seed."""


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The identity of a problem."""

    dataset: str
    seed: int
    size: int
    """Size of the item's set: some data sets draw differently for another size."""
    index: int
    options: dict[str, Any] = {}


class ProblemSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Problems of a data set, as a setting of an environment."""

    dataset: str
    """reasoning-gym's name: ``chain_sum``."""
    size: PositiveInt = 100
    seed: int = 0
    options: dict[str, Any] = {}
    """Arguments of the data set: ``{ min_terms = 3 }``."""

    def __post_init__(self) -> None:
        if self.dataset in UNSEEDED | EXECUTE_REPLIES:
            reason = "changes from process to process" if self.dataset in UNSEEDED else "runs replies as Python"
            raise ConfigError(f"dataset: {self.dataset!r} {reason}; expected another one")

    def problems(self, seed_offset: int = 0) -> list[tuple[str, str, Problem]]:
        """Questions with reference answers, empty where there is none; another seed gives other problems.

        ``ConfigError`` if the package is not installed, or has no such data set, or for bad options.
        """
        seed = self.seed + seed_offset
        made = _open_dataset(self.dataset, seed, self.size, _encode(self.options))
        entries = enumerate(made[index] for index in range(self.size))
        return [
            (entry["question"], entry["answer"] or "", Problem(self.dataset, seed, self.size, index, self.options))
            for index, entry in entries
        ]


def score_answer(answer: str, problem: Problem) -> float:
    """Score of an answer by its data set's verifier; ``EpisodeError`` if it raises, or gives none from 0 to 1."""
    made = _open_dataset(problem.dataset, problem.seed, problem.size, _encode(problem.options))
    where = f"reasoning-gym, {problem.dataset}, seed {problem.seed}, problem {problem.index}"
    try:
        score = float(made.score_answer(answer=answer, entry=made[problem.index]))
    except Exception as error:  # verifiers are third-party code and may raise anything
        raise EpisodeError(f"{where}: the verifier raises ({describe_error(error)})") from error
    if not (math.isfinite(score) and 0 <= score <= 1):
        raise EpisodeError(f"{where}: score {score}; expected from 0 to 1")
    return score


_encode = msgspec.json.Encoder(order="sorted").encode


@cache
def _open_dataset(name: str, seed: int, size: int, options: bytes) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"game.settings: the data set {name!r} needs the package reasoning-gym: "
            "pip install 'event-sourced-league[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise ConfigError(
            f"game.settings: reasoning-gym has no data set {name!r}; expected {format_choices(sorted(DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **msgspec.json.decode(options))
    except Exception as error:  # its configurations assert, and raise what they like
        raise ConfigError(
            f"game.settings: the data set {name!r} cannot be made with options {options.decode()} "
            f"({describe_error(error)})"
        ) from error
