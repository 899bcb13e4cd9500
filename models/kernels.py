"""Element-wise pieces of the decoder with hand-written gradients.

On a CPU a small model spends more time moving memory between element-wise operations than multiplying matrices.
These three save fewer intermediates than autograd would, which halves their cost. Each is tested against autograd.

Shape suffixes: B sequence, L position in it, H head, K dimension of a head, P = K/2 rotary pairs, D any last axis.
"""

from typing import Any

import torch
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        # In float32 for narrower types, cast back before the weight is applied: what Hugging Face models do.
        x32_D = x_D.float() if x_D.dtype in (torch.bfloat16, torch.float16) else x_D
        width = x_D.shape[-1]
        norm = torch.linalg.vector_norm(x32_D, dim=-1, keepdim=True)
        scale = norm.square_().div_(width).add_(eps).rsqrt_()
        normal_D = (x32_D * scale).to(x_D.dtype)
        ctx.save_for_backward(normal_D, scale, weight_D)
        out_D: Tensor = normal_D * weight_D
        return out_D

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normal_D, scale, weight_D = ctx.saved_tensors
        weighted_D = (grads[0] * weight_D).to(scale.dtype)
        along = (weighted_D * normal_D).mean(-1, keepdim=True)
        grad_D = torch.addcmul(weighted_D, normal_D.to(scale.dtype), along, value=-1).mul_(scale)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grads[0] * normal_D).sum_to_size(weight_D.shape)
        return grad_D.to(normal_D.dtype), grad_weight, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        silu = sigmoid * gate
        ctx.save_for_backward(gate_up, sigmoid, silu)
        return silu * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gate_up, sigmoid, silu = ctx.saved_tensors
        grad = torch.empty_like(gate_up)
        grad_gate, grad_up = grad.chunk(2, -1)
        torch.mul(grads[0], silu, out=grad_up)
        # d silu / d gate = sigmoid + silu (1 - sigmoid)
        slope = torch.addcmul(sigmoid + silu, silu, sigmoid, value=-1)
        torch.mul(grads[0] * gate_up.chunk(2, -1)[1], slope, out=grad_gate)
        return grad


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_LHK: Tensor, cos_LP: Tensor, sin_LP: Tensor) -> Tensor:
        ctx.save_for_backward(cos_LP, sin_LP)
        return _rotate(x_LHK, cos_LP, sin_LP)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos_LP, sin_LP = ctx.saved_tensors
        return _rotate(grads[0], cos_LP, -sin_LP), None, None


def _rotate(x_LHK: Tensor, cos_LP: Tensor, sin_LP: Tensor) -> Tensor:
    out = torch.empty_like(x_LHK, memory_format=torch.contiguous_format)
    low, high = x_LHK.chunk(2, -1)
    out_low, out_high = out.chunk(2, -1)
    cos, sin = cos_LP.unsqueeze(-2), sin_LP.unsqueeze(-2)
    torch.mul(low, cos, out=out_low).addcmul_(high, sin, value=-1)
    torch.mul(high, cos, out=out_high).addcmul_(low, sin)
    return out


def rms_norm(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square over the last axis, then scale (Zhang & Sennrich 2019, eq. 4).

    The weight has one axis, or the trailing axes of ``x_D`` when several heads carry weights of their own.
    """
    result: Tensor = _RmsNorm.apply(x_D, weight_D, eps)  # type: ignore[no-untyped-call]
    return result


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of a last axis that holds gate and up one after the other (Shazeer 2020, eq. 6)."""
    result: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
    return result


def rotary(x_LHK: Tensor, cos_LP: Tensor, sin_LP: Tensor) -> Tensor:
    """Rotate pairs (i, i + K/2) of every head by its position's angles (RoFormer eq. 34, in Hugging Face's order).

    Queries or keys are [..., L, H, K], cosines and sines [..., L, P], from ``rotary_tables``.
    """
    result: Tensor = _Rotary.apply(x_LHK, cos_LP, sin_LP)  # type: ignore[no-untyped-call]
    return result


def rotary_tables(positions: Tensor, frequencies_P: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., P] of integer positions [...]; angles are float32, as in Hugging Face models."""
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies_P
    return angles.cos().to(dtype), angles.sin().to(dtype)
