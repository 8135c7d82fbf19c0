"""Owns number formats: what `precision` means on a device, autocast, and the loss scale. Called by set-up, step and
evaluation.

Weights, their updates and the loss stay float32; autocast runs convolutions and matrix products in 16 bits. In fp16 the
loss is scaled so that small gradients don't vanish; a step whose gradient is not finite is skipped (in every format)
and halves the scale. The scale lives on the device: no step waits for the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
FIRST_SCALE = 2.0**16
HIGHEST_SCALE = 2.0**24
SCALE_FLOOR = 1.0
BAD_STEPS = 20  # non-finite steps in a row, with the scale at its floor, before the training counts as diverged


def resolve(precision: str, device: torch.device) -> str:
    """`precision` with "auto" decided.

    On CPUs 16-bit arithmetic is far slower than fp32 where the instructions are missing, so auto means fp32 there; on
    CUDA bf16 from compute capability 8.0 on, else fp16. TF32 is arithmetic of the same GPUs; elsewhere it is fp32.
    """
    ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == "tf32":
        return "tf32" if ampere else "fp32"
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if ampere else "fp16"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which the model runs forward."""
    enabled = precision in _DTYPES
    dtype = _DTYPES.get(precision, torch.bfloat16)
    return cast(AbstractContextManager[Any], torch.autocast(device.type, dtype=dtype, enabled=enabled))


def switch_tf32(on: bool) -> None:
    """Whether CUDA may round the inputs of float32 products to 10 bits of mantissa; torch's own default is a mixture.

    By torch's newer switches where there are any (2.9): reading the older ones after that raises an error.
    """
    if hasattr(torch.backends.cudnn, "conv"):
        for product in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
            product.fp32_precision = "tf32" if on else "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


class LossScaler:
    """The dynamic loss scale, and the count of steps it could not save. With fp32 and bf16 the scale stays 1.

    Invariant: equal on all ranks, because it is moved only by `update`'s flag, which the ranks share.
    """

    def __init__(self, precision: str, device: torch.device, growth_steps: int) -> None:
        self.enabled, self._growth_steps = precision == "fp16", growth_steps
        self.scale = torch.tensor(FIRST_SCALE if self.enabled else 1.0, device=device)
        self._good = torch.zeros((), dtype=torch.int64, device=device)
        self._bad = torch.zeros((), dtype=torch.int64, device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    def state(self) -> dict[str, torch.Tensor]:
        return {"scale": self.scale, "good": self._good, "bad": self._bad, "skipped": self._skipped}

    def update(self, go: torch.Tensor) -> None:
        """After a step: `go` says that its gradient was finite on all ranks."""
        at_floor = self.scale <= SCALE_FLOOR if self.enabled else torch.ones_like(go)
        self._skipped += ~go
        self._bad.copy_(torch.where(go, 0, self._bad + at_floor))
        good = torch.where(go, self._good + 1, 0)
        if self.enabled:
            grown = torch.where(good >= self._growth_steps, self.scale * 2, self.scale).clamp(max=HIGHEST_SCALE)
            self.scale.copy_(torch.where(go, grown, (self.scale / 2).clamp(min=SCALE_FLOOR)))
            good = torch.where(good >= self._growth_steps, 0, good)
        self._good.copy_(good)

    def skipped(self) -> int:
        """Steps skipped so far. Cost: waits for the device."""
        return int(self._skipped.item())

    def too_many_skipped(self) -> bool:
        """Too many steps in a row were skipped. Cost: waits for the device."""
        return int(self._bad.item()) >= BAD_STEPS
