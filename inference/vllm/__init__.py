"""vLLM under our constraints, in this process.

- ``engine``                  the backend; ``process``: its thread and its output
- ``settings``                the backend's settings, and vLLM's names for them
- ``constrained_generation``  completions under our constraints, from vLLM's samples
- ``mask``                    loaded by vLLM, which then samples along a slice of a constraint by itself

This module holds one request to vLLM and its answer.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from arena.constraints.constraint_slices import ConstraintSlice
from inference.base import SamplingParameters

MASK_FIELD = "league_mask"
"""The field of ``mask`` in vLLM's ``extra_args``."""


class MaskParameters(msgspec.Struct, frozen=True):
    """Parameters of ``mask``."""

    constraint_slice: ConstraintSlice
    end: int
    """The token that is forced where a path through the slice ends."""


class VllmRequest(msgspec.Struct, frozen=True):
    """One request to vLLM."""

    ids: list[int]
    """Tokens to read: the prompt, and the completion so far."""
    tokens: int
    """Most tokens to sample."""
    seed: int | None
    """Seed of the request's own generator; None samples with the engine's."""
    sampling: SamplingParameters
    logprobs: int = 0
    """Tokens whose log-probabilities are returned, besides the sampled one; -1 for the whole vocabulary."""
    allowed: list[int] | None = None
    """Allowed tokens; None for all."""
    stops: tuple[int, ...] = ()
    top_k: int = 0
    """Likeliest tokens among which the nucleus is taken; 0 for all."""
    constraint_slice: ConstraintSlice | None = None
    """Followed inside vLLM, which forces the first of ``stops`` at its end."""

    def sampling_fields(self) -> dict[str, Any]:
        """Fields of vLLM's ``SamplingParams``, without the slice."""
        return {
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "max_tokens": self.tokens,
            "logprobs": self.logprobs,
            "allowed_token_ids": self.allowed,
            "stop_token_ids": list(self.stops),
            # Its own end token ends nothing: a constraint may go on behind it.
            "ignore_eos": True,
        }

    def mask_argument(self) -> dict[str, Any] | None:
        """The argument of ``mask``, as text, since vLLM's server takes no bytes."""
        if self.constraint_slice is None or not self.stops:
            return None
        return {
            MASK_FIELD: b64encode(msgspec.msgpack.encode(MaskParameters(self.constraint_slice, self.stops[0]))).decode()
        }


class VllmSample(NamedTuple):
    """A sample of T tokens."""

    tokens: Sequence[int]
    logprobs: Sequence[Mapping[int, float]]
    """Log-probabilities by position and token, the sampled one included."""
    cached: int
    """Prompt tokens that vLLM had cached."""


VllmClient = Callable[[VllmRequest], Awaitable[VllmSample]]
"""Sends a request to a vLLM; raises ``ModelError`` where that rejects it, or has ended."""


def max_slice_tokens(constraint_slice: ConstraintSlice) -> int | None:
    """Tokens of the longest path through a slice; None where it has no bound."""
    if constraint_slice.free_span:
        return None
    steps = [0] * len(constraint_slice.allowed)
    for at in reversed(range(len(steps))):
        if any(0 <= following <= at for following in constraint_slice.next[at]):
            return None
        steps[at] = max(
            (1 + (steps[following] if following >= 0 else 0) for following in constraint_slice.next[at]), default=0
        )
    return steps[0]
