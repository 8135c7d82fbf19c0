"""Owns the seams between the trainer and what it trains: a recipe (the model and its loss) and a source (the data).
Implemented in `recipes`; used by set-up, step, evaluation, report and export, which know no model.

Legend: B samples of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from .counter import Epoch


@dataclass(frozen=True)
class Batch:
    """Some samples on the device, and where in the training they stand: what is random follows from that."""

    inputs: torch.Tensor
    targets: torch.Tensor
    samples_B: torch.Tensor
    seed: int = 0
    epoch: Epoch = 0


class Group(IntEnum):
    """How the update treats a parameter; their order in the flat buffers."""

    MATRIX = 0
    """A hidden matrix or kernel: decays, and Muon makes its update orthogonal."""
    DECAYED = 1
    """Decays; an output layer of its own."""
    PLAIN = 2
    """Does not decay: norms, biases, embeddings."""


@dataclass(frozen=True)
class Export:
    """What makes weights of use in plain PyTorch."""

    network: Path
    """The file that defines the network; it needs torch alone."""
    about: Mapping[str, Any]
    """For `model.json`: the network's class and arguments, and what its inputs and outputs mean."""
    load: str
    """A program that loads the weights beside it."""


class Source(Protocol):
    """The data: training samples 0 to `train_rows`, and test samples that are never trained on."""

    @property
    def train_rows(self) -> int: ...

    @property
    def test_rows(self) -> int: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was read, for the summary."""

    @property
    def words(self) -> str:
        """The same, as a line for the log."""

    def batch(self, seed: int, epoch: Epoch, samples_B: torch.Tensor) -> Batch:
        """Training samples as the model reads them, augmented: a pure function of its arguments."""

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        """Test samples, not augmented."""


@runtime_checkable
class PrefetchingSource(Source, Protocol):
    """A source that fetches ahead."""

    @property
    def streamed(self) -> bool:
        """Whether it does; else all of it lies on the device already."""

    def expect(self, samples_B: torch.Tensor) -> None:
        """These samples, in parts, are this rank's next batch: they may be fetched while the device computes."""


class Recipe(Protocol):
    """A model on the device and what is asked of it."""

    net: nn.Module
    blocks: Sequence[nn.Module]
    """Parts of the net, one after the other, that can be compiled and whose activations can be computed again; most of
    its work. Empty: neither is offered.
    """
    units: int
    """Terms of the loss in one sample: 1 for an image, about the number of predicted tokens for a text."""
    groups: Mapping[str, Group]
    """Parameters by name that are not in the usual group: MATRIX with two dimensions or more, else PLAIN."""
    metrics: Mapping[str, Literal["max", "min"]]
    """What an evaluation measures, and which way is better. `loss` is one of them."""

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int | torch.Tensor]:
        """The sum of a training batch's losses, and the number of its terms (a tensor where the host does not know).

        Runs under autocast.
        """

    def score(self, batch: Batch) -> tuple[torch.Tensor, int | torch.Tensor]:
        """Sums of the metrics over a test batch, in their order, and the number of terms. Runs under autocast.

        Shape: [metrics].
        """

    def export(self) -> Export: ...
