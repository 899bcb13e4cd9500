"""The optimiser of all parameters that this process trains, and its state.

Shape suffix: P parameters of an adapter, or of a critic.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from models.adamw import AdamW
from trainer.ranks import RankComm
from trainer.state import MOMENTS


class OptimizerState(NamedTuple):
    """Weights and moments of an adapter at one update."""

    updates: int
    tensors: Mapping[str, Tensor] = {}
    """``flat``, ``exp_avg`` and ``exp_avg_sq``; none where a server keeps them."""
    path: str = ""
    """Where the server keeps them."""

    def copy(self) -> "OptimizerState":
        """The same with memory of its own."""
        return self._replace(tensors={name: tensor.clone() for name, tensor in self.tensors.items()})


class FlatAdamW:
    """AdamW on a flat vector: the critic's, and an ``AdapterOptimizer`` for backends that hold weights in this process.

    The parameters are changed in place; ``grad_clip`` is the largest L2 norm of a gradient.
    """

    def __init__(self, flat_P: Tensor, grad_clip: float, weight_decay: float = 0.0) -> None:
        self.weights: tuple[Tensor, ...] = (flat_P,)
        self._flat_P = flat_P
        self._bound = grad_clip
        # The rate is that of each update.
        self._adamw = AdamW([flat_P], lr=0.0, weight_decay=weight_decay)

    @property
    def updates(self) -> int:
        """Updates since the moments were reset."""
        return int(self._adamw.state.get(self._flat_P, {}).get("step", 0))

    def zero_grad(self) -> None:
        """Drop the gradient."""
        self._flat_P.grad = None

    def step(self, rate: float, ranks: RankComm, update: bool = True) -> float:
        """Sum the gradient over the ranks, clip it and update, unless it is not finite; returns the norm before."""
        if self._flat_P.grad is None:
            # A rank without a share of the minibatch.
            self._flat_P.grad = torch.zeros_like(self._flat_P)
        ranks.all_reduce_sum(self._flat_P.grad)
        norm = float(torch.nn.utils.clip_grad_norm_([self._flat_P], self._bound))
        if update and math.isfinite(norm):
            self._adamw.param_groups[0]["lr"] = rate
            self._adamw.step()
        return norm

    def state(self) -> OptimizerState:
        """Parameters and moments; the tensors are those in use."""
        moments = self._adamw.state.get(self._flat_P, {})
        # Separate zeros for each moment: the file format refuses tensors that share memory.
        tensors = {key: moments.get(key, torch.zeros_like(self._flat_P)) for key in MOMENTS}
        return OptimizerState(self.updates, tensors | {"flat": self._flat_P.detach()})

    def load(self, state: OptimizerState) -> None:
        """Restore a state."""
        own = {name: tensor.to(self._flat_P.device) for name, tensor in state.tensors.items()}
        with torch.no_grad():
            self._flat_P.copy_(own["flat"])
        self.reset()
        if state.updates:
            moments = {key: own[key].clone() for key in MOMENTS}
            self._adamw.state[self._flat_P] = moments | {"step": torch.tensor(float(state.updates))}

    def reset(self) -> None:
        """Start over with the present parameters."""
        self._adamw.state.clear()
