"""Owns the recipe `image-classification`: its data on the device, its network's loss. Made by the trainer's set-up.

Legend: B samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from stoker_trainer import data
from stoker_trainer.augment import Scaling, augmented, normalised
from stoker_trainer.config import Augment, ImageClassification
from stoker_trainer.counter import keep_mask
from stoker_trainer.recipe import Batch

from .digit_net import DigitNet


@dataclass(frozen=True)
class Images:
    """All images as bytes on the device: no loader, no copies. Shape: [rows, size, size] uint8, labels [rows] int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    scaling: Scaling
    augment: Augment
    split_digest: str
    dropped: int

    @property
    def train_rows(self) -> int:
        return len(self.train_labels)

    @property
    def test_rows(self) -> int:
        return len(self.test_labels)

    def batch(self, seed: int, epoch: int, samples_B: torch.Tensor) -> Batch:
        images = augmented(self.train_images[samples_B], samples_B, seed, epoch, self.augment, self.scaling)
        return Batch(_laid_out(images), self.train_labels[samples_B], samples_B, seed, epoch)

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        images = normalised(self.test_images[samples_B], self.scaling)
        return Batch(_laid_out(images), self.test_labels[samples_B], samples_B)


def load(settings: ImageClassification, device: torch.device) -> Images:
    """Raises: BadConfig where the data set is not installed."""
    images = data.load(settings.data)
    parts = data.split(images)
    train = images.images[parts.train].astype(np.float64) / images.max_value
    scaling = Scaling(images.max_value, round(float(train.mean()), 6), round(float(train.std()), 6))

    def placed(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Images(
        train_images=placed(images.images[parts.train]),
        train_labels=placed(images.labels[parts.train]),
        test_images=placed(images.images[parts.test]),
        test_labels=placed(images.labels[parts.test]),
        scaling=scaling,
        augment=settings.augment,
        split_digest=parts.digest,
        dropped=parts.dropped,
    )


class Recipe:
    """A small convolutional network on images."""

    units = 1

    def __init__(self, settings: ImageClassification, source: Images) -> None:
        self._settings = settings
        self.net = DigitNet(settings.model.width, source.train_images.shape[-1], data.CLASSES)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        keep, dropout = None, self._settings.model.dropout
        if dropout > 0:
            keep = keep_mask(batch.seed, batch.epoch, batch.samples_B, self.net.features, dropout)
        scores = self.net(batch.inputs, keep).float()
        smoothing = self._settings.label_smoothing
        loss = F.cross_entropy(scores, batch.targets, reduction="sum", label_smoothing=smoothing)
        return loss, len(batch.targets)


def _laid_out(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images
