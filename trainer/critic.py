"""Critic: the value of a prompt, from a separate LoRA adapter on the policy's base and a linear head.

The value is read from the hidden state of the prompt's last token. All parameters are one flat vector, as an adapter's.

Shape suffixes: P parameters of the adapter, D model width, C parameters of adapter, head and bias, S model call of all
trajectories, T token of all prompts, B sequence of a rectangle, L position in it.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from models import adapters
from models.adapters import Lora, LoraConfig
from models.decoder import Decoder
from models.forward import Weights, detach_weights, forward_rectangle, padded_rectangles
from schemas.trajectories import Trajectory
from trainer.advantages.base import Array, CriticConfig
from trainer.batch import Ints, run_starts
from trainer.optimizer import FlatAdamW, OptimizerState
from trainer.ranks import SINGLE_RANK, RankComm

TENSORS = {"critic": "flat", "critic_exp_avg": "exp_avg", "critic_exp_avg_sq": "exp_avg_sq"}
"""Names under which the tensors of the optimiser's state are saved."""


class Critic:
    """A learned value function of one policy."""

    def __init__(
        self, decoder: Decoder, config: CriticConfig, seed: int, cells: int, ranks: RankComm = SINGLE_RANK
    ) -> None:
        """Begin by predicting 0; ``cells`` are tokens per forward pass, ``ranks`` share the minibatches of ``fit``."""
        self.decoder = decoder
        self._ranks = ranks
        self.config = config
        self._cells = cells
        self._lora = adapters.create(decoder.shape, LoraConfig(config.rank, config.alpha), seed, decoder.device)
        head = torch.zeros(decoder.shape.hidden_size + 1, device=decoder.device)
        self.flat_C = torch.cat([self._lora.flat_P.detach(), head]).requires_grad_(True)
        self._optimizer = FlatAdamW(self.flat_C, config.grad_clip)

    @property
    def updates(self) -> int:
        """Number of optimiser updates so far."""
        return self._optimizer.updates

    @torch.no_grad()
    def predict_values(self, trajectories: Sequence[Trajectory]) -> list[Array]:
        """Values of each trajectory's prompts, before each of its model calls."""
        prompts = _Prompts(trajectories)
        values_S = np.empty(len(prompts.length_S))
        weights = self.decoder.weights(self._adapter())
        for chosen_B, ids_BL, last_B in prompts.chunks(np.arange(len(values_S)), self._cells):
            values_S[chosen_B] = self._forward(weights, ids_BL, last_B).double().cpu().numpy()
        return np.split(values_S, np.cumsum([len(trajectory.steps) for trajectory in trajectories])[:-1])

    def fit(
        self, trajectories: Sequence[Trajectory], returns: Sequence[Array], rng: np.random.Generator, minibatch: int
    ) -> float:
        """Fit the returns, [S] per trajectory, and return the mean squared error over the updates.

        If a gradient is not finite, the critic is left unchanged and NaN is returned. ``minibatch`` is the approximate
        number of model calls per update.
        """
        prompts = _Prompts(trajectories)
        returns_S = torch.from_numpy(np.concatenate(returns)).to(self.flat_C.dtype)
        count = len(returns_S)
        before, errors = self.snapshot(), []
        for _ in range(self.config.epochs):
            for steps_S in np.array_split(rng.permutation(count), max(round(count / minibatch), 1)):
                error = self._accumulate(prompts, returns_S, steps_S)
                if not math.isfinite(self._optimizer.step(self.config.learning_rate, self._ranks)):
                    self.restore(*before)
                    return math.nan
                errors.append(error)
        return float(np.mean(errors))

    def snapshot(self) -> tuple[dict[str, Tensor], int]:
        """Copies of all changing tensors, by the names of ``TENSORS``, and the number of updates."""
        state = self._optimizer.state()
        return {name: state.tensors[key].clone() for name, key in TENSORS.items()}, state.updates

    def restore(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Restore a ``snapshot``."""
        self._optimizer.load(OptimizerState(updates, {key: tensors[name] for name, key in TENSORS.items()}))

    def _adapter(self) -> Lora:
        return dataclasses.replace(self._lora, flat_P=self.flat_C[: self._lora.flat_P.numel()])

    def _forward(self, weights: Weights, ids_BL: Tensor, last_B: Tensor) -> Tensor:
        """Values [B] at the last tokens."""
        device = self.decoder.device
        hidden_BD = forward_rectangle(weights, ids_BL.to(device), last_B.to(device)[:, None])[:, 0]
        head = self.flat_C[self._lora.flat_P.numel() :]
        return hidden_BD.to(head.dtype) @ head[:-1] + head[-1]

    def _accumulate(self, prompts: "_Prompts", returns_S: Tensor, steps_S: Ints) -> float:
        """Compute this rank's share of a minibatch's gradient; return the mean squared error of all of it."""
        self._optimizer.zero_grad()
        shared, total = detach_weights(self.decoder.weights(self._adapter())), torch.zeros((), dtype=torch.float64)
        own_S = self._ranks.shard(steps_S, prompts.length_S)
        for chosen_B, ids_BL, last_B in prompts.chunks(own_S, self._cells):
            wanted_B = returns_S[torch.from_numpy(chosen_B)].to(self.decoder.device)
            loss = (self._forward(shared.weights, ids_BL, last_B) - wanted_B).square().sum() / len(steps_S)
            torch.autograd.backward(0.5 * loss)
            total += float(loss.detach())
        shared.backward()
        self._ranks.all_reduce_sum(total)
        return float(total)


class _Prompts:
    """The prompts of all model calls of some trajectories, as flat arrays."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        prompts = [step.prompt_ids for trajectory in trajectories for step in trajectory.steps]
        self.length_S = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self.ids_T = np.fromiter(chain.from_iterable(prompts), dtype=np.int64)
        self._first_S = run_starts(self.length_S)

    def chunks(self, steps_S: Ints, cells: int) -> Iterator[tuple[Ints, Tensor, Tensor]]:
        """Yield rectangles of the prompts: their indices [B], token ids [B, L], position of the last token [B]."""
        for sequences_B in padded_rectangles(self.length_S[steps_S], cells):
            chosen_B = steps_S[sequences_B]
            last_B = self.length_S[chosen_B] - 1
            columns_BL = np.minimum(np.arange(last_B.max() + 1), last_B[:, None])
            ids_BL = self.ids_T[self._first_S[chosen_B, None] + columns_BL]
            yield chosen_B, torch.from_numpy(ids_BL), torch.from_numpy(last_B)
