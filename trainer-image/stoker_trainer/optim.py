"""Owns the update: AdamW and SGD with Nesterov momentum on flat buffers, and the learning rate of a step. Called by the
step.

Not torch.optim: building any of its optimizers imports torch._dynamo (4.0 s on the development machine, about as
long as torch itself; a restarted job would pay it each time), and on one flat buffer the update is fused already.
Whether a step counts is a tensor (`go`), so a skipped step needs no word between device and host.
`tests/trainer/test_optim.py` holds both against torch.optim.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

from .flat import FlatModel
from .settings import Optimizer


class Update(Protocol):
    def step(self, learning_rate: float, go: torch.Tensor) -> None: ...

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

    def step(self, learning_rate: float, go: torch.Tensor) -> None:
        """One update from the flat gradient; with `go` false nothing changes, whatever the gradient holds."""
        p, live = self._flat.parameters, go.to(torch.float32)
        g = torch.where(go, self._flat.gradient, 0.0)
        self._steps += go
        self._mean.lerp_(g, (1 - self.beta1) * live)
        self._square.lerp_(g * g, (1 - self.beta2) * live)
        t = self._steps.clamp(min=1)
        correct1, correct2 = 1 - self.beta1**t, 1 - self.beta2**t
        p[: self._flat.decayed].mul_(1 - learning_rate * self._decay * live)
        step_size = (learning_rate * live / correct1).to(torch.float32)
        denominator = (self._square.sqrt() / correct2.sqrt().to(torch.float32)).add_(self.epsilon)
        p.sub_(self._mean / denominator * step_size)


class NesterovSgd:
    """Momentum after Nesterov with the decay added to the gradient, as torch.optim.SGD(nesterov=True)."""

    def __init__(self, flat: FlatModel, weight_decay: float, momentum: float) -> None:
        self._flat, self._decay, self._momentum = flat, weight_decay, momentum
        self._velocity = torch.zeros_like(flat.parameters)

    def state(self) -> dict[str, torch.Tensor]:
        return {"velocity": self._velocity}

    def step(self, learning_rate: float, go: torch.Tensor) -> None:
        """One update from the flat gradient; with `go` false nothing changes, whatever the gradient holds."""
        p, decayed = self._flat.parameters, self._flat.decayed
        g = torch.where(go, self._flat.gradient, 0.0)
        g[:decayed] += self._decay * p[:decayed]
        velocity = self._velocity * self._momentum + g
        self._velocity.copy_(torch.where(go, velocity, self._velocity))
        p.sub_(torch.where(go, (g + self._momentum * velocity) * learning_rate, 0.0))


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
