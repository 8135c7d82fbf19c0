"""Owns what every recipe's settings have in common, and the limits a field may state. Read by `config`, extended by
`recipes.settings`. Needs no torch: a bad config is refused before torch is imported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal


def at_least(minimum: float) -> Any:
    return field(metadata={"at_least": minimum})


def fraction() -> Any:
    return field(metadata={"at_least": 0.0, "below": 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    name: Literal["sgd", "adamw", "muon"]
    lr: Literal["given", "find"]
    learning_rate: float = at_least(0)
    scaling: Literal["none", "linear", "sqrt"]
    base_batch: int | None = at_least(1)
    """The batch that the rate is meant for, or is found with."""
    weight_decay: float = at_least(0)
    momentum: float = fraction()
    beta2: float = fraction()
    schedule: Literal["cosine", "linear", "wsd", "constant"]
    warmup: float = at_least(0)
    cooldown: float = at_least(0)
    """Of the schedule wsd. Both are a share of all steps below 1, else a number of steps."""
    grad_clip: float = at_least(0)
    ema: float = fraction()
    """0: no average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A recipe's part of the config."""

    data: str
    optimizer: Optimizer
    loss_scale_growth_steps: int = at_least(1)
    compile: Literal["off", "blocks"]
    activation_checkpointing: bool
    cuda_graph: Literal["off", "step"]
    batch: Literal["whole", "auto"]
    batch_size: int = at_least(1)
    seed: int = at_least(0)
    deterministic: bool

    @property
    def rate_factor(self) -> float:
        """By how much the rate of `baseBatch` samples is scaled to that of `batchSize`.

        Source: linear, for SGD: Goyal et al. 2017; the square root, for Adam: Malladi et al. 2022.
        """
        ratio = self.batch_size / (self.optimizer.base_batch or self.batch_size)
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.optimizer.scaling]

    def steps_per_epoch(self, train_rows: int) -> int:
        return math.ceil(train_rows / self.batch_size)

    def total_steps(self, train_rows: int) -> int:
        raise NotImplementedError

    def evaluates(self, step: int, epochs_done: int | None) -> bool:
        """Whether an evaluation is due after `step` (the last one's always is); `epochs_done` within an epoch: None."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ByEpochs(Settings):
    """A course over a small set of data, counted in epochs."""

    epochs: int = at_least(1)
    eval_every_epochs: int = at_least(1)

    def total_steps(self, train_rows: int) -> int:
        return self.epochs * self.steps_per_epoch(train_rows)

    def evaluates(self, step: int, epochs_done: int | None) -> bool:
        return epochs_done is not None and epochs_done % self.eval_every_epochs == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BySteps(Settings):
    """A course over data that may be too large for an epoch, counted in steps."""

    steps: int = at_least(1)
    eval_every_steps: int = at_least(1)

    def total_steps(self, train_rows: int) -> int:
        return self.steps

    def evaluates(self, step: int, epochs_done: int | None) -> bool:
        return step % self.eval_every_steps == 0
