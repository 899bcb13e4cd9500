"""AdamW on the adapter's flat vector, for backends that hold the weights in this process.

Shape suffixes: P parameters of the adapter.
"""

import math

import torch
from torch import Tensor

from models.adamw import AdamW
from trainer.backends import OptimizerState
from trainer.learner_config import LearnerConfig
from trainer.ranks import RankComm
from trainer.state import MOMENTS


class FlatAdamW:
    """An ``AdapterOptimizer`` on one tensor of this process.

    Args:
        flat_P: the parameters, changed in place.
        config: weight decay and gradient clipping.
    """

    def __init__(self, flat_P: Tensor, config: LearnerConfig) -> None:
        self.weights = (flat_P,)
        self._flat_P = flat_P
        self._bound = config.grad_clip
        self._adamw = AdamW([flat_P], lr=config.learning_rate, weight_decay=config.weight_decay)

    @property
    def updates(self) -> int:
        """See ``AdapterOptimizer.updates``."""
        moments = self._adamw.state.get(self._flat_P, {})
        return int(moments["step"]) if moments else 0

    def zero_grad(self) -> None:
        """See ``AdapterOptimizer.zero_grad``."""
        self._flat_P.grad = None

    def step(self, rate: float, ranks: RankComm, update: bool = True) -> float:
        """See ``AdapterOptimizer.step``."""
        ranks.all_reduce_gradient(self._flat_P)
        norm = float(torch.nn.utils.clip_grad_norm_([self._flat_P], self._bound))
        if update and math.isfinite(norm):
            self._adamw.param_groups[0]["lr"] = rate
            self._adamw.step()
        return norm

    def state(self) -> OptimizerState:
        """See ``AdapterOptimizer.state``."""
        moments = self._adamw.state.get(self._flat_P, {})
        # Separate zeros for each moment: the file format refuses tensors that share memory.
        tensors = {key: moments.get(key, torch.zeros_like(self._flat_P)) for key in MOMENTS}
        return OptimizerState(self.updates, tensors | {"flat": self._flat_P.detach()})

    def load(self, state: OptimizerState) -> None:
        """See ``AdapterOptimizer.load``."""
        own = {name: tensor.to(self._flat_P.device) for name, tensor in state.tensors.items()}
        with torch.no_grad():
            self._flat_P.copy_(own["flat"])
        self.reset()
        if state.updates:
            moments = {key: own[key].clone() for key in MOMENTS}
            self._adamw.state[self._flat_P] = moments | {"step": torch.tensor(float(state.updates))}

    def reset(self) -> None:
        """See ``AdapterOptimizer.reset``."""
        self._adamw.state.clear()
