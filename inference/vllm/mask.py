"""A logits processor in vLLM's engine, by which vLLM follows a slice of a constraint.

vLLM applies it before temperature and nucleus, so that its ``processed_logprobs`` are those of the distribution that
was sampled. Where a path through the slice ends, the request's stop token is forced, which ends the request. Several
constrained requests, and others, share a batch: what is not allowed is masked in one write for all rows, from one
transfer out of pinned memory, and nothing is read back from the device.

Under asynchronous scheduling, vLLM plans a step before the last one's tokens are known, and lists -1 in their places.
It fills them in right before it calls ``apply``, so that only there they are read.
"""

from base64 import b64decode
from typing import Any

import msgspec
import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from arena.constraints.constraint_slices import SliceState
from arena.constraints.token_walk import ANY_TOKEN
from inference.vllm import MASK_FIELD, MaskParameters
from schemas.errors import ModelError


class SliceMask(LogitsProcessor):  # type: ignore[misc]
    """Mask over the rows of requests that carry a slice. B rows, V tokens of the vocabulary."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ``ModelError`` for an invalid slice before it reaches the engine, which it would end."""
        _read_mask(sampling_params)

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self._device = device
        self._pin_memory = is_pin_memory
        self._places: dict[int, _SliceCursor] = {}

    def is_argmax_invariant(self) -> bool:
        """False: it changes which token is likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that came, went, or moved between rows."""

        def follow(params: Any, _: list[int] | None, output_ids: list[int]) -> _SliceCursor | None:
            mask = _read_mask(params)
            return None if mask is None else _SliceCursor(mask, output_ids, self._vocabulary)

        process_dict_updates(self._places, batch_update, follow)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the (B, V) logits of each slice's row to the tokens that its place allows."""
        allowed = {row: tokens for row, place in self._places.items() if (tokens := place.allowed()) is not None}
        if allowed:
            masked = np.fromiter(allowed, np.int64, len(allowed))
            columns = np.concatenate(list(allowed.values()))
            rows = np.repeat(masked, [len(tokens) for tokens in allowed.values()])
            staged = torch.from_numpy(np.concatenate([rows, columns, masked]))
            if self._pin_memory:
                # From pageable memory the copy would wait for all work that is queued on the device.
                staged = staged.pin_memory()
            indices = staged.to(self._device, non_blocking=True)
            at = indices[: len(rows)], indices[len(rows) : 2 * len(rows)]
            kept = logits[at]
            logits.index_fill_(0, indices[2 * len(rows) :], -torch.inf)
            logits[at] = kept
        return logits


class _SliceCursor:
    """The place of a request in its slice."""

    def __init__(self, mask: MaskParameters, output_ids: list[int], vocabulary: int) -> None:
        self._place = SliceState(mask.constraint_slice)
        self._end = np.array([mask.end % vocabulary])
        self._output_ids = output_ids
        """vLLM's own list, which grows as tokens are sampled."""
        self._vocabulary = vocabulary
        self._read = 0
        self._over = False

    def allowed(self) -> np.ndarray | None:
        """The allowed tokens, at least one, since none would end vLLM's engine; None for all."""
        for token in self._output_ids[self._read :]:
            self._read += 1
            self._over = self._over or not self._place.allowed()
            if not self._over:
                self._place = self._place.advance(token)
        allowed = () if self._over else self._place.allowed()
        if allowed is ANY_TOKEN:
            return None
        tokens = np.asarray(allowed, np.int64)
        # Ascending, so that those which the model does not have are the last.
        known = tokens[: np.searchsorted(tokens, self._vocabulary)]
        return known if len(known) else self._end


def _read_mask(params: Any) -> MaskParameters | None:
    """The slice that a request carries, if any."""
    text = (getattr(params, "extra_args", None) or {}).get(MASK_FIELD)
    if text is None:
        return None
    try:
        return msgspec.msgpack.decode(b64decode(text, validate=True), type=MaskParameters)
    except (TypeError, ValueError) as error:
        raise ModelError(f"inference: {MASK_FIELD} is not a slice of a constraint ({error})") from error
