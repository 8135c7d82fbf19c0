"""Owns the loss and the score of a model that picks one of many tokens at each position. Called by recipes for text.

All scores of a batch are by far its largest tensor (64 samples of 1,024 tokens and 50,000 to choose from: 13 GB in
fp32), so they are made a chunk of positions at a time, and a chunk's gradients at once with them: the loss is a plain
sum, so nothing of later layers is needed. That costs no product more than the plain way.
Source: the idea is Liger Kernel's fused linear cross-entropy (Hsu et al. 2024).
Legend: N positions, W width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

CHUNK = 1 << 28
"""Scores at a time on a GPU: 1 GB in fp32."""
_CPU_CHUNK = 1 << 20
"""On a CPU: what its cache holds."""
_FP16_SHRINK = 2.0**-6
"""A chunk's sums of fp16 gradients stay within fp16."""


def loss(
    x_NW: torch.Tensor, weight_VW: torch.Tensor, bias_V: torch.Tensor | None, targets_N: torch.Tensor
) -> torch.Tensor:
    """The sum of the cross-entropies of `x @ weight.T + bias` against `targets`. Shape: scalar.

    Raises: RuntimeError where the gradient is asked for twice.
    """
    return _Chunked.apply(x_NW, weight_VW, bias_V, targets_N)


def score(
    x_NW: torch.Tensor, weight_VW: torch.Tensor, bias_V: torch.Tensor | None, targets_N: torch.Tensor
) -> torch.Tensor:
    """That sum, and how many targets have the highest score. Shape: [2]."""
    total = torch.zeros(2, device=x_NW.device)
    for part, scores, _, _ in _chunks(x_NW, weight_VW, bias_V):
        total[0] += F.cross_entropy(scores.float(), targets_N[part], reduction="sum")
        total[1] += (scores.argmax(-1) == targets_N[part]).sum()
    return total


class _Chunked(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x_NW: torch.Tensor, weight_VW: torch.Tensor, bias_V: torch.Tensor | None, targets_N: torch.Tensor
    ) -> torch.Tensor:
        total = torch.zeros((), device=x_NW.device)
        grad_x, grad_weight = torch.empty_like(x_NW), torch.zeros_like(weight_VW)
        grad_bias = None if bias_V is None else torch.zeros_like(bias_V)
        shrink = 1.0
        for part, scores, x, weight in _chunks(x_NW, weight_VW, bias_V):
            shrink = _FP16_SHRINK if scores.dtype == torch.float16 else 1.0
            logs = F.log_softmax(scores, -1, dtype=torch.float32)
            total += F.nll_loss(logs, targets_N[part], reduction="sum")
            grad = logs.exp_()
            grad[torch.arange(len(grad), device=grad.device), targets_N[part]] -= 1
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            low = grad.mul_(shrink).to(scores.dtype)
            grad_x[part] = low @ weight
            if low.dtype == grad_weight.dtype:
                grad_weight.addmm_(low.T, x)
            else:
                grad_weight += low.T @ x
        ctx.shrink = shrink
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_x, grad_weight, grad_bias = ctx.saved_tensors
        factor = outer[0] / ctx.shrink
        return grad_x * factor, grad_weight * factor, None if grad_bias is None else grad_bias * outer[0], None


def _chunks(
    x_NW: torch.Tensor, weight_VW: torch.Tensor, bias_V: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Chunks of positions: where, their scores, and the two factors in autocast's type."""
    kind = x_NW.device.type
    known = kind != "meta"  # the dry run's device has no autocast
    dtype = torch.get_autocast_dtype(kind) if known and torch.is_autocast_enabled(kind) else x_NW.dtype
    rows = max(1, (_CPU_CHUNK if kind == "cpu" else CHUNK) // len(weight_VW))
    with torch.autocast(kind, enabled=False) if known else nullcontext():
        weight, bias = weight_VW.to(dtype), None if bias_V is None else bias_V.to(dtype)
        for start in range(0, len(x_NW), rows):
            part = slice(start, start + rows)
            x = x_NW[part].to(dtype)
            yield part, F.linear(x, weight, bias), x, weight
