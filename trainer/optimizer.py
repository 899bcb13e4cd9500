"""The optimiser of all parameters that this process trains, and a learner's state on disk.

Shape suffix: P parameters of an adapter, or of a critic.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from models.adamw import AdamW
from models.canary import CanaryRecord
from schemas.errors import ModelError
from schemas.files import fsync_path
from trainer.ranks import RankComm

STATE_FILE = "learner.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running averages of the gradient and of its square."""
RESERVED_TENSORS = (*MOMENTS, "flat")
"""The tensors of every state: the adapter's."""


class OptimizerState(NamedTuple):
    """Weights and moments of an adapter at one update."""

    updates: int
    tensors: Mapping[str, Tensor] = {}
    """``flat``, ``exp_avg`` and ``exp_avg_sq``; none where a server keeps them."""
    path: str = ""
    """Path of the tensors on a server; empty without one."""

    def copy(self) -> "OptimizerState":
        """Copy the state into new memory."""
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
        # Separate zeros for each moment: the file format rejects tensors that share memory.
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


class LearnerState(msgspec.Struct, frozen=True):
    """The part of the state that is not tensors."""

    steps: int
    updates: int
    """Optimiser updates so far: AdamW's bias correction depends on them."""
    seed: int
    rank: int
    alpha: float
    sizes: dict[str, tuple[int, int]]
    """(out, in) of every adapted linear, by name."""
    baselines: dict[str, float] = {}
    """State of the advantage estimator."""
    transforms: dict[str, float] = {}
    """State of the transforms of final scores."""
    critic_updates: int = 0
    """Optimiser updates of the critic, where there is one."""
    path: str = ""
    """Path of weights and moments on a server; empty where they are the tensors beside this."""
    canary: CanaryRecord | None = None
    """The canary's answers by these weights, if they are known."""


def save_state(folder: Path, saved: LearnerState, tensors: Mapping[str, Tensor]) -> None:
    """Write the state; equal states give equal bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # One metadata key only: the format does not fix the order of several.
    metadata = {"state": msgspec.json.encode(saved, order="deterministic").decode()}
    data = to_bytes({name: tensor.detach().cpu() for name, tensor in tensors.items()}, metadata)
    partial = folder / f".{STATE_FILE}.{os.getpid()}"
    try:
        partial.write_bytes(data)
        fsync_path(partial)
        partial.replace(folder / STATE_FILE)
    except OSError:
        # Half a file would keep the disk full.
        partial.unlink(missing_ok=True)
        raise


def load_state(
    folder: Path, rank: int, alpha: float, sizes: Mapping[str, tuple[int, int]], parameters: int
) -> tuple[LearnerState, dict[str, Tensor]]:
    """Read a state of an adapter of the given shape, and whatever tensors were saved beside it.

    ``parameters`` is the length of the adapter's flat vector; 0 where a server keeps it.

    Raises:
        ModelError: no saved state, a damaged one, or one of an adapter of another shape.
    """
    path, reserved = Path(folder) / STATE_FILE, RESERVED_TENSORS if parameters else ()
    try:
        with safe_open(path, framework="pt") as file:
            saved = msgspec.json.decode((file.metadata() or {})["state"], type=LearnerState)
            tensors = {name: file.get_tensor(name) for name in sorted({*file.keys(), *reserved})}
    except (OSError, SafetensorError, KeyError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path}: no readable learner state ({error})") from error
    if (saved.rank, saved.alpha, saved.sizes) != (rank, alpha, dict(sizes)):
        raise ModelError(
            f"{path}: saved for an adapter of rank {saved.rank}, alpha {saved.alpha} on {len(saved.sizes)} linears, "
            f"expected rank {rank}, alpha {alpha} on {len(sizes)} of this base model's"
        )
    if any(tuple(tensors[name].shape) != (parameters,) for name in reserved):
        raise ModelError(f"{path}: tensors have other sizes than the adapter's {parameters} parameters")
    if bool(saved.path) == bool(parameters):
        raise ModelError(f"{path}: weights {saved.path or 'in the file'}; expected those of this trainer.backend")
    return saved, tensors
