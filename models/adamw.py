"""AdamW (Loshchilov and Hutter, 2019): torch's kernel under an optimiser of this project's.

``torch.optim.AdamW`` imports torch's compiler when it is made, which nothing here uses: a second of processor time in
every process that trains.
"""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class ParameterGroup(TypedDict):
    """Parameters with their settings, changed between updates as needed."""

    params: list[Tensor]
    lr: float
    weight_decay: float


class AdamW:
    """The updates of ``torch.optim.AdamW``, to the bit; parameters without a gradient are left as they are.

    ``undecayed`` are further parameters, without weight decay. ``foreach`` updates all at once; by default on
    accelerators.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        undecayed: Sequence[Tensor] = (),
        betas: tuple[float, float] = (0.9, 0.999),
        foreach: bool | None = None,
    ) -> None:
        self.param_groups: list[ParameterGroup] = [{"params": [*params], "lr": lr, "weight_decay": weight_decay}]
        if undecayed:
            self.param_groups.append({"params": [*undecayed], "lr": lr, "weight_decay": 0.0})
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        """``step``, ``exp_avg`` and ``exp_avg_sq`` of each parameter from its first update on."""
        self._betas = betas
        self._foreach = foreach

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters by their gradients."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                if param not in self.state:
                    moments = {key: torch.zeros_like(param) for key in ("exp_avg", "exp_avg_sq")}
                    self.state[param] = moments | {"step": torch.tensor(0.0)}
            states = [self.state[param] for param in params]
            adamw(
                params,
                [param.grad for param in params if param.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                foreach=self._foreach,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=1e-8,
                maximize=False,
            )
