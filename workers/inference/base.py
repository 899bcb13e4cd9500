"""The contract of an inference backend: what was sampled, under which distribution, by which adapter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from arena.constraints import Constraint


class Sampling(msgspec.Struct, frozen=True):
    """How one request is sampled."""

    temperature: float = 1.0
    seed: int = 0
    """Of this request alone: its draws do not depend on what else is in the batch."""
    max_tokens: int = 512


class Request(msgspec.Struct, frozen=True):
    """One completion to sample."""

    prompt_ids: Sequence[int]
    adapter: str | None
    """Digest of a loaded adapter; None is the base model."""
    constraint: Constraint | None
    sampling: Sampling


class Generation(msgspec.Struct, frozen=True):
    """One sampled completion. B is the number of branches: positions where more than one token was allowed."""

    completion_ids: list[int]
    branches: list[int]
    logprobs: list[float]
    """B log-probabilities at the request's temperature, renormalised over the allowed tokens."""
    allowed: list[list[int]]
    """B sorted lists of allowed tokens; an empty one stands for the whole vocabulary (no constraint)."""
    finish_reason: str
    """``stop`` when the constraint or the model ended it, ``length`` at ``max_tokens``."""


class InferenceBackend(Protocol):
    """Samples completions for many requests and many adapters at once."""

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Make an adapter known under its digest; loading a known one does nothing.

        Raises:
            ModelError: not an adapter of this base model; the message says what was found and expected.
        """

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; no request in flight may use it."""

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; concurrent calls are batched.

        Raises:
            ModelError: unknown adapter, a prompt longer than the model, or a constraint that allows nothing.
        """

    async def close(self) -> None:
        """Finish what is in flight and release memory."""
