"""Owns the update on flat buffers (AdamW, SGD with Nesterov momentum, Muon), the average of the weights, and the
learning rate of a step. Called by the step.

Torch's fused kernels, without torch.optim: building any of its optimizers imports torch._dynamo (4.0 s on the
development machine, about as long as torch itself; a restarted job would pay it each time). One pass over the buffers
divides, clips and updates. Whether a step counts is a tensor (`go`): CUDA's kernels read it on the device, so a skipped
step needs no exchange between device and host; the CPU's ignore it (torch 2.15), and there looking costs nothing.
`tests/trainer/test_optim.py` compares both with torch.optim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch

from .flat import FlatModel, buffers
from .settings import Optimizer

Rate: TypeAlias = float | torch.Tensor
"""A tensor in a recorded step: a scalar on the device, of the type that its kernels read (`graph`)."""


class Update(Protocol):
    def step(self, learning_rate: Rate, go: torch.Tensor, divisor: torch.Tensor) -> None:
        """One update from the flat gradient divided by `divisor`; with `go` false weights and state keep every bit."""

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps, in place."""


class AdamW:
    """Decoupled weight decay, on the flat buffers from `start` on.

    Source: Loshchilov & Hutter 2019; constants as in torch.optim.AdamW.
    """

    beta1, epsilon = 0.9, 1e-8

    def __init__(self, flat: FlatModel, weight_decay: float, beta2: float = 0.999, start: int = 0) -> None:
        self._flat, self._decay, self._beta2, self._start = flat, weight_decay, beta2, start
        self._mean = torch.zeros_like(flat.parameters[start:])
        self._square = torch.zeros_like(self._mean)
        self._steps = torch.zeros((), dtype=torch.float64, device=self._mean.device)

    def state(self) -> dict[str, torch.Tensor]:
        kept = {"mean": self._mean, "square": self._square}
        return _by_name(self._flat, self._start, kept) | {"steps": self._steps}

    def step(self, learning_rate: Rate, go: torch.Tensor, divisor: torch.Tensor) -> None:
        if _skipped_on_host(go):
            return
        self._steps += go
        flat, steps, skip = self._flat, self._steps.to(torch.float32), _skip_on_device(go)
        for part, decay in _parts(flat, self._decay, self._start):
            mine = slice(part.start - self._start, part.stop - self._start)
            torch._fused_adamw_(
                [flat.parameters[part]],
                [flat.gradient[part]],
                [self._mean[mine]],
                [self._square[mine]],
                [],
                [steps],
                lr=learning_rate,
                beta1=self.beta1,
                beta2=self._beta2,
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
        return _by_name(self._flat, 0, {"velocity": self._velocity})

    def step(self, learning_rate: Rate, go: torch.Tensor, divisor: torch.Tensor) -> None:
        if _skipped_on_host(go):
            return
        flat, skip = self._flat, _skip_on_device(go)
        for part, decay in _parts(flat, self._decay, 0):
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


class Muon:
    """Orthogonalised Nesterov momentum for the group MATRIX, AdamW for the rest.

    A kernel counts as a matrix of its output channels. Updates have the root mean square of AdamW's (0.2), so both
    share one learning rate and decay. Every rank computes all of it, from equal gradients.
    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the scale from Liu et al.
    2025, "Muon is scalable for LLM training".
    """

    def __init__(self, flat: FlatModel, weight_decay: float, beta2: float, momentum: float) -> None:
        self._flat, self._decay, self._momentum = flat, weight_decay, momentum
        self._rest = AdamW(flat, weight_decay, beta2, flat.matrices)
        self._velocity = torch.zeros_like(flat.parameters[: flat.matrices])
        self._alike: dict[torch.Size, list[str]] = {}
        """Names of the matrices of each shape: they go in one batch."""
        for name, view in flat.views(self._velocity).items():
            self._alike.setdefault(view.flatten(1).shape, []).append(name)

    def state(self) -> dict[str, torch.Tensor]:
        return _by_name(self._flat, 0, {"velocity": self._velocity}) | self._rest.state()

    def step(self, learning_rate: Rate, go: torch.Tensor, divisor: torch.Tensor) -> None:
        self._rest.step(learning_rate, go, divisor)
        if _skipped_on_host(go):
            return
        flat, end = self._flat, self._flat.matrices
        direction = flat.gradient[:end] / divisor
        velocity = torch.add(direction, self._velocity, alpha=self._momentum)
        self._velocity.copy_(torch.where(go, velocity, self._velocity))
        direction.add_(velocity, alpha=self._momentum)
        views = flat.views(direction)
        for (rows, columns), names in self._alike.items():
            whole = orthogonal(torch.stack([views[name].flatten(1) for name in names]))
            whole *= 0.2 * max(rows, columns) ** 0.5
            for name, update in zip(names, whole, strict=True):
                views[name].copy_(update.view_as(views[name]))
        parameters = flat.parameters[:end]
        parameters *= torch.where(go, 1 - learning_rate * self._decay, 1.0)
        parameters.sub_(torch.where(go, direction, 0.0), alpha=learning_rate)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Each matrix with its singular values moved to about 1 (0.7 to 1.2), by five Newton-Schulz steps.

    Shape: [N, rows, columns]. On CUDA in bfloat16. Source: Jordan et al. 2024, coefficients included.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.mT if tall else x).to(matrices.dtype)


class Average:
    """The exponential moving average of the weights and of running statistics; evaluated and exported in their place.

    Its decay grows from 0.1 to `decay`, so that the first weights are soon forgotten.
    """

    def __init__(self, flat: FlatModel, decay: float) -> None:
        self._flat, self._decay = flat, decay
        self._values = flat.parameters.clone()
        self._live = {name: tensor for name, tensor in buffers(flat.module).items() if tensor.is_floating_point()}
        self.buffers = {name: tensor.clone() for name, tensor in self._live.items()}

    def restart(self) -> None:
        """The weights were replaced before the first step."""
        self._values.copy_(self._flat.parameters)
        for name, tensor in self.buffers.items():
            tensor.copy_(self._live[name])

    def state(self) -> dict[str, torch.Tensor]:
        return self._flat.views(self._values) | self.buffers

    def share(self, step: int) -> float:
        """What the weights after `step` (from 0) count for."""
        return 1 - min(self._decay, (1 + step) / (10 + step))

    def update(self, share: Rate, go: torch.Tensor) -> None:
        """After an update."""
        share = torch.where(go, share, 0.0)
        self._values.lerp_(self._flat.parameters, share)
        if self.buffers:  # three kernels for all of them
            kept = list(self.buffers.values())
            moves = torch._foreach_sub(list(self._live.values()), kept)
            torch._foreach_mul_(moves, share)
            torch._foreach_add_(kept, moves)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model's weights are the average inside; outside they have their own bits again."""
        pairs = [
            (self._flat.parameters, self._values),
            *((self._live[name], self.buffers[name]) for name in self._live),
        ]
        own = [live.clone() for live, _ in pairs]
        for live, average in pairs:
            live.copy_(average)
        try:
            yield
        finally:
            for (live, _), before in zip(pairs, own, strict=True):
                live.copy_(before)


def _skipped_on_host(go: torch.Tensor) -> bool:
    return go.device.type == "cpu" and not go.item()


def _skip_on_device(go: torch.Tensor) -> torch.Tensor | None:
    return None if go.device.type == "cpu" else (~go).to(torch.float32)


def _parts(flat: FlatModel, decay: float, start: int) -> list[tuple[slice, float]]:
    parts = [(slice(start, flat.decayed), decay), (slice(flat.decayed, len(flat.parameters)), 0.0)]
    return [(part, rate) for part, rate in parts if part.start < part.stop]


def _by_name(flat: FlatModel, start: int, kept: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state that depends on no layout: views by the parameters' names."""
    return {f"{kind}/{name}": v for kind, vector in kept.items() for name, v in flat.views(vector, start).items()}


def build(rule: Optimizer, flat: FlatModel) -> Update:
    if rule.name == "adamw":
        return AdamW(flat, rule.weight_decay, rule.beta2)
    if rule.name == "muon":
        return Muon(flat, rule.weight_decay, rule.beta2, rule.momentum)
    return NesterovSgd(flat, rule.weight_decay, rule.momentum)


def learning_rate(rule: Optimizer, step: int, total_steps: int) -> float:
    """The rate of `step` (from 0): a linear warm-up to the peak, then what the schedule says up to the last step."""
    warmup = _steps(rule.warmup, total_steps)
    if step < warmup:
        return rule.learning_rate * min(1.0, (step + 1) / warmup)
    done, left = step - warmup, total_steps - step
    if rule.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * done / max(1.0, total_steps - warmup)))
    elif rule.schedule == "linear":
        share = left / max(1.0, total_steps - warmup)
    elif rule.schedule == "wsd":
        share = left / max(1.0, _steps(rule.cooldown, total_steps))
    else:
        share = 1.0
    return rule.learning_rate * min(1.0, share)


def _steps(length: float, total_steps: int) -> float:
    return length if length >= 1 else length * total_steps
