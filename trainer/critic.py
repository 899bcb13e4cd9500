"""Critic: the value of a prompt, from a LoRA adapter of its own on the policy's base and a linear head.

The value is read from the hidden state of the prompt's last token. All parameters are one flat vector, as an adapter's.

Shape suffixes: P parameters of the adapter, D model width, C parameters of adapter, head and bias, S model call of all
trajectories, T token of all prompts, B sequence of a rectangle, L position in it.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import adapters
from models.adamw import AdamW
from models.adapters import Lora, LoraConfig
from models.decoder import Decoder
from models.forward import Weights, detach_weights, forward_rectangle
from models.packing import padded_rectangles
from schemas.trajectories import Trajectory
from trainer.advantages.base import CriticConfig
from trainer.batch import run_starts
from trainer.ranks import SINGLE_RANK, RankComm
from trainer.state import MOMENTS

Array = NDArray[np.float64]
TENSORS = ("critic", "critic_exp_avg", "critic_exp_avg_sq")
"""Names under which the parameters and AdamW's moments are saved."""


class Critic:
    """A learned value function of one policy."""

    def __init__(
        self, decoder: Decoder, config: CriticConfig, seed: int, cells: int, ranks: RankComm = SINGLE_RANK
    ) -> None:
        """Initialise a critic that predicts 0 everywhere.

        Args:
            decoder: the base model, frozen.
            config: rank, learning rate, epochs.
            seed: seed of the adapter.
            cells: tokens per forward pass, padding included.
            ranks: ranks among which the minibatches of ``fit`` are divided.
        """
        self.decoder = decoder
        self._ranks = ranks
        self.config = config
        self._cells = cells
        self._lora = adapters.create(decoder.shape, LoraConfig(config.rank, config.alpha), seed, decoder.device)
        head = torch.zeros(decoder.shape.hidden_size + 1, device=decoder.device)
        self.flat_C = torch.cat([self._lora.flat_P.detach(), head]).requires_grad_(True)
        self._optimizer = AdamW([self.flat_C], lr=config.learning_rate)

    @property
    def updates(self) -> int:
        """Number of optimiser updates so far."""
        moments = self._optimizer.state.get(self.flat_C, {})
        return int(moments["step"]) if moments else 0

    @torch.no_grad()
    def predict_values(self, rollouts: Sequence[Trajectory]) -> list[Array]:
        """Values of each trajectory's prompts, before each of its model calls."""
        prompts = _Prompts(rollouts)
        values_S = np.empty(len(prompts.length_S))
        weights = self.decoder.weights(self._adapter())
        for chosen_B, ids_BL, last_B in prompts.chunks(np.arange(len(values_S)), self._cells):
            values_S[chosen_B] = self._forward(weights, ids_BL, last_B).double().cpu().numpy()
        return np.split(values_S, np.cumsum([len(rollout.steps) for rollout in rollouts])[:-1])

    def fit(
        self, rollouts: Sequence[Trajectory], returns: Sequence[Array], rng: np.random.Generator, minibatch: int
    ) -> float:
        """Fit the returns and return the mean squared error over the updates.

        If a gradient is not finite, the critic is left unchanged and NaN is returned.

        Returns are [S] per trajectory; ``minibatch`` is the approximate number of model calls per update.
        """
        prompts, returns_S = _Prompts(rollouts), torch.from_numpy(np.concatenate(returns)).to(self.flat_C.dtype)
        count = len(returns_S)
        before, errors = self.snapshot(), []
        for _ in range(self.config.epochs):
            for steps_S in np.array_split(rng.permutation(count), max(round(count / minibatch), 1)):
                error, norm = self._accumulate(prompts, returns_S, steps_S)
                if not math.isfinite(norm):
                    self.restore(*before)
                    return math.nan
                self._optimizer.step()
                errors.append(error)
        return float(np.mean(errors))

    def snapshot(self) -> tuple[dict[str, Tensor], int]:
        """Copies of all changing tensors, by the names of ``TENSORS``, and the number of updates."""
        moments = self._optimizer.state.get(self.flat_C, {})
        parts = [self.flat_C.detach(), *(moments.get(key, torch.zeros_like(self.flat_C)) for key in MOMENTS)]
        return {name: part.clone() for name, part in zip(TENSORS, parts, strict=True)}, self.updates

    def restore(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Restore a ``snapshot``."""
        flat, *moments = (tensors[name].to(self.decoder.device) for name in TENSORS)
        with torch.no_grad():
            self.flat_C.copy_(flat)
        self._optimizer.state.clear()
        if updates:
            kept = {key: moment.clone() for key, moment in zip(MOMENTS, moments, strict=True)}
            self._optimizer.state[self.flat_C] = kept | {"step": torch.tensor(float(updates))}

    def _adapter(self) -> Lora:
        own = self._lora
        return Lora(own.rank, own.alpha, own.sizes, self.flat_C[: own.flat_P.numel()], own.rslora, own.targets)

    def _forward(self, weights: Weights, ids_BL: Tensor, last_B: Tensor) -> Tensor:
        """Values [B] at the last tokens."""
        device = self.decoder.device
        hidden_BD = forward_rectangle(weights, ids_BL.to(device), last_B.to(device)[:, None])[:, 0]
        head = self.flat_C[self._lora.flat_P.numel() :]
        return hidden_BD.to(head.dtype) @ head[:-1] + head[-1]

    def _accumulate(self, prompts: "_Prompts", returns_S: Tensor, steps_S: NDArray[np.int64]) -> tuple[float, float]:
        """Compute a minibatch's clipped gradient; return its mean squared error and the norm before clipping."""
        self.flat_C.grad = None
        shared, total = detach_weights(self.decoder.weights(self._adapter())), torch.zeros((), dtype=torch.float64)
        own_S = self._ranks.shard(steps_S, prompts.length_S)
        for chosen_B, ids_BL, last_B in prompts.chunks(own_S, self._cells):
            wanted_B = returns_S[torch.from_numpy(chosen_B)].to(self.decoder.device)
            loss = (self._forward(shared.weights, ids_BL, last_B) - wanted_B).square().sum() / len(steps_S)
            torch.autograd.backward(0.5 * loss)
            total += float(loss.detach())
        shared.backward()
        self._ranks.all_reduce_gradient(self.flat_C)
        self._ranks.all_reduce_sum(total)
        return float(total), float(torch.nn.utils.clip_grad_norm_([self.flat_C], self.config.grad_clip))


class _Prompts:
    """The prompts of all model calls of some trajectories, as flat arrays."""

    def __init__(self, rollouts: Sequence[Trajectory]) -> None:
        prompts = [step.prompt_ids for rollout in rollouts for step in rollout.steps]
        self.length_S = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self.ids_T = np.fromiter(chain.from_iterable(prompts), dtype=np.int64)
        self._first_S = run_starts(self.length_S)

    def chunks(self, steps_S: NDArray[np.int64], cells: int) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """Yield rectangles of the prompts: their indices [B], token ids [B, L], position of the last token [B]."""
        for sequences_B in padded_rectangles(self.length_S[steps_S], cells):
            chosen_B = steps_S[sequences_B]
            last_B = self.length_S[chosen_B] - 1
            columns_BL = np.minimum(np.arange(last_B.max() + 1), last_B[:, None])
            ids_BL = self.ids_T[self._first_S[chosen_B, None] + columns_BL]
            yield chosen_B, torch.from_numpy(ids_BL), torch.from_numpy(last_B)
