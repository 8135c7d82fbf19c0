"""Owns images as batches: which rows, changed at random, laid out as the model reads them. Made by recipes for images.

Legend: B samples, H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stoker_trainer.augment import cropped, fill_holes
from stoker_trainer.errors import BadConfig
from stoker_trainer.packed_images import Packed
from stoker_trainer.recipe import Batch

from .settings import Crop


@dataclass(frozen=True)
class ImageSource:
    packed: Packed
    rule: Crop
    images: torch.Tensor
    """Shape: [rows, H, W, C] uint8, on the device."""
    labels: torch.Tensor
    train: torch.Tensor
    test: torch.Tensor
    mean_C: torch.Tensor
    scale_C: torch.Tensor

    @classmethod
    def of(cls, packed: Packed, rule: Crop, device: torch.device) -> ImageSource:
        """Raises: BadConfig where the images are too small for `rule.pad`."""
        side = min(packed.images.shape[1:3])
        if rule.pad >= side:
            raise BadConfig(f"config.augment.pad: must be below the images' side, {side} in {packed.name}")
        images, labels, train, test = (
            torch.from_numpy(array).to(device) for array in (packed.images, packed.labels, packed.train, packed.test)
        )
        mean_C, std_C = (torch.tensor(numbers, device=device) for numbers in (packed.mean, packed.std))
        return cls(packed, rule, images, labels, train, test, mean_C, 1 / std_C)

    @property
    def train_rows(self) -> int:
        return len(self.train)

    @property
    def test_rows(self) -> int:
        return len(self.test)

    @property
    def facts(self) -> dict[str, Any]:
        return {"droppedRows": self.packed.dropped, "splitDigest": self.packed.digest}

    @property
    def words(self) -> str:
        packed = self.packed
        shape = "x".join(map(str, packed.images.shape[1:]))
        return (
            f"{packed.name}: {self.train_rows:,} training and {self.test_rows:,} test images of {shape}, "
            f"{len(packed.classes)} classes, {packed.dropped} dropped as copies of test images, "
            f"split sha256:{packed.digest}"
        )

    def batch(self, seed: int, epoch: int, samples_B: torch.Tensor) -> Batch:
        rows_B = self.train[samples_B]
        images = self._normalised(cropped(self.images, rows_B, samples_B, seed, epoch, self.rule))
        if self.rule.cutout:
            fill_holes(images, samples_B, seed, epoch, self.rule)
        return Batch(_laid_out(images), self.labels[rows_B], samples_B, seed, epoch)

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        rows_B = self.test[samples_B]
        return Batch(_laid_out(self._normalised(self.images[rows_B])), self.labels[rows_B], samples_B)

    def _normalised(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        return images_BHWC.to(torch.float32).sub_(self.mean_C).mul_(self.scale_C)


def _laid_out(images_BHWC: torch.Tensor) -> torch.Tensor:
    """Shape: → [B, C, H, W]; on CUDA channels last in memory, as they are, else first."""
    images_BCHW = images_BHWC.permute(0, 3, 1, 2)
    return images_BCHW if images_BCHW.is_cuda else images_BCHW.contiguous()
