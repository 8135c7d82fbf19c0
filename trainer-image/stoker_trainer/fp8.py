"""Owns matrix products in 8 bits: which linear layers of a net run so, and how their numbers are scaled. Called by
set-up.

Inputs and weights are rounded to e4m3 (3 bits of mantissa), gradients of outputs to e5m2 (a wider range), each tensor
by one scale from its own largest number, taken in every pass: nothing is carried from step to step, so checkpoints
are as they are without. Products add up in float32 on the device and come out as bfloat16 (gradients of weights as
float32); all else is as in bf16.
Weights stay float32, and an evaluation runs in bf16.
Source: dynamic tensorwise scaling as in torchao's float8 training; the formats by use: Micikevicius et al. 2022, "FP8
formats for deep learning".
Legend: N rows (all but a tensor's last dimension), I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .errors import BadConfig

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""What the GPU's kernels ask of both dimensions of a weight."""
CAPABILITY = (8, 9)
_NEEDS = "precision: fp8 needs a GPU of compute capability 8.9 or newer"
_LEAST = 1e-12


def check(device: torch.device) -> None:
    """Raises: BadConfig where the hardware has no such products."""
    if device.type != "cuda":
        raise BadConfig(f"{_NEEDS}, and this rank trains on the CPU")
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise BadConfig(f"{_NEEDS}; {name} has {found[0]}.{found[1]}: take bf16")


def convert(blocks: Sequence[nn.Module], recipe: str) -> int:
    """Makes the linear layers within the blocks multiply in 8 bits while they train; how many. Embeddings, norms and
    output layers are in no block.

    Raises: BadConfig where there are none.
    """
    layers = [layer for block in blocks for layer in block.modules() if isinstance(layer, nn.Linear) and suits(layer)]
    if not layers:
        raise BadConfig(f"precision: the recipe {recipe} has no linear layers that can run in fp8; take bf16")
    for layer in layers:
        layer.forward = _forward(layer)
    return len(layers)


def suits(layer: nn.Linear) -> bool:
    return not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)


def _forward(layer: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    plain = layer.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if not layer.training:
            return plain(x)
        y = product(x.to(torch.bfloat16).flatten(0, -2), layer.weight).unflatten(0, x.shape[:-1])
        return y if layer.bias is None else y + layer.bias.to(y.dtype)

    return forward


def product(x_NI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T` with 8-bit factors, and 8-bit factors in its two gradients. Shape: [N, O], bfloat16."""
    return _Product.apply(x_NI, weight_OI)


def rounded(tensor: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`tensor` in 8 bits, and the number to multiply it with (float32 scalar, on the device: nothing waits for it).

    One that is not finite stays so: the step is skipped.
    """
    limit = torch.finfo(kind).max
    scale = tensor.abs().amax().float().clamp(min=_LEAST) / limit
    return (tensor.float() / scale).clamp(-limit, limit).to(kind), scale


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x_NI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
        x8_NI, x_scale = rounded(x_NI, E4M3)
        w8_OI, w_scale = rounded(weight_OI, E4M3)
        ctx.save_for_backward(x8_NI, x_scale, w8_OI, w_scale)
        return _scaled(x8_NI, w8_OI.T, x_scale, w_scale, fast=True)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x8_NI, x_scale, w8_OI, w_scale = ctx.saved_tensors
        g8_NO, g_scale = rounded(outer[0], E5M2)
        grad_x = _scaled(g8_NO, _by_columns(w8_OI), g_scale, w_scale)
        rest = -len(x8_NI) % MULTIPLE  # rows of zeros, for the kernels' sake
        g8_ON, x8_NI = F.pad(g8_NO.T, (0, rest)).contiguous(), F.pad(x8_NI, (0, 0, 0, rest))
        return grad_x, _scaled(g8_ON, _by_columns(x8_NI), g_scale, x_scale, torch.float32)


def _by_columns(matrix: torch.Tensor) -> torch.Tensor:
    """The same numbers, a column's next to each other: so the kernels read the second factor."""
    return matrix.T.contiguous().T


def _scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    out: torch.dtype = torch.bfloat16,
    *,
    fast: bool = False,
) -> torch.Tensor:
    """`fast`: sums of the forward pass may be kept shorter (gradients are not)."""
    return torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=out, use_fast_accum=fast)
