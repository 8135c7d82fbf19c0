"""Owns the update: AdamW and SGD with Nesterov momentum on flat buffers, and the learning rate of a step. Called by the
step.

Torch's fused kernels, without torch.optim: building any of its optimizers imports torch._dynamo (4.0 s on the
development machine, about as long as torch itself; a restarted job would pay it each time). One pass over the buffers
divides, clips and updates. Whether a step counts is a tensor (`go`): CUDA's kernels read it on the device, so a skipped
step needs no word between device and host; the CPU's ignore it (torch 2.15), and there looking costs nothing.
`tests/trainer/test_optim.py` holds both against torch.optim.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

from .flat import FlatModel
from .settings import Optimizer


class Update(Protocol):
    def step(self, learning_rate: float, go: torch.Tensor, divisor: torch.Tensor) -> None:
        """One update from the flat gradient divided by `divisor`; with `go` false weights and state keep every bit."""

    def state(self) -> dict[str, torch.Tensor]: ...


class AdamW:
    """Decoupled weight decay. Source: Loshchilov & Hutter 2019; constants as in torch.optim.AdamW."""

    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, flat: FlatModel, weight_decay: float) -> None:
        self._flat, self._decay = flat, weight_decay
        self._mean = torch.zeros_like(flat.parameters)
        self._square = torch.zeros_like(flat.parameters)
        self._steps = torch.zeros((), dtype=torch.float64, device=flat.parameters.device)

    def state(self) -> dict[str, torch.Tensor]:
        return {"mean": self._mean, "square": self._square, "steps": self._steps}

    def step(self, learning_rate: float, go: torch.Tensor, divisor: torch.Tensor) -> None:
        if _skipped_on_host(go):
            return
        self._steps += go
        flat, steps, skip = self._flat, self._steps.to(torch.float32), _skip_on_device(go)
        for part, decay in _parts(flat, self._decay):
            torch._fused_adamw_(
                [flat.parameters[part]],
                [flat.gradient[part]],
                [self._mean[part]],
                [self._square[part]],
                [],
                [steps],
                lr=learning_rate,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=decay,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
                grad_scale=divisor,
                found_inf=skip,
            )


class NesterovSgd:
    """Momentum after Nesterov with the decay added to the gradient, as torch.optim.SGD(nesterov=True)."""

    def __init__(self, flat: FlatModel, weight_decay: float, momentum: float) -> None:
        self._flat, self._decay, self._momentum = flat, weight_decay, momentum
        self._velocity = torch.zeros_like(flat.parameters)

    def state(self) -> dict[str, torch.Tensor]:
        return {"velocity": self._velocity}

    def step(self, learning_rate: float, go: torch.Tensor, divisor: torch.Tensor) -> None:
        if _skipped_on_host(go):
            return
        flat, skip = self._flat, _skip_on_device(go)
        for part, decay in _parts(flat, self._decay):
            torch._fused_sgd_(
                [flat.parameters[part]],
                [flat.gradient[part]],
                [self._velocity[part]] if self._momentum else [],
                weight_decay=decay,
                momentum=self._momentum,
                lr=learning_rate,
                dampening=0.0,
                nesterov=self._momentum > 0,
                maximize=False,
                is_first_step=False,  # of a velocity of zeros the first step is like any other
                grad_scale=divisor,
                found_inf=skip,
            )


def _skipped_on_host(go: torch.Tensor) -> bool:
    return go.device.type == "cpu" and not go.item()


def _skip_on_device(go: torch.Tensor) -> torch.Tensor | None:
    return None if go.device.type == "cpu" else (~go).to(torch.float32)


def _parts(flat: FlatModel, decay: float) -> list[tuple[slice, float]]:
    parts = [(slice(0, flat.decayed), decay), (slice(flat.decayed, len(flat.parameters)), 0.0)]
    return [(part, rate) for part, rate in parts if part.start < part.stop]


def build(rule: Optimizer, flat: FlatModel) -> Update:
    if rule.name == "adamw":
        return AdamW(flat, rule.weight_decay)
    return NesterovSgd(flat, rule.weight_decay, rule.momentum)


def learning_rate(rule: Optimizer, step: int, total_steps: int) -> float:
    """The rate of `step` (from 0): a linear warm-up to the peak, then a cosine down to zero after the last step."""
    warmup = rule.warmup * total_steps
    if step < warmup:
        return rule.learning_rate * min(1.0, (step + 1) / warmup)
    return rule.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, total_steps - warmup)))
