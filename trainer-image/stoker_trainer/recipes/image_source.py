"""Owns images as batches: which rows, changed at random, laid out as the model reads them. Made by recipes for images.

Legend: B samples, H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stoker_trainer.augment import cropped, fill_holes, zoomed
from stoker_trainer.counter import Epoch
from stoker_trainer.errors import BadConfig
from stoker_trainer.packed_images import Packed
from stoker_trainer.prefetch import Prefetched, fits
from stoker_trainer.recipe import Batch

from .settings import Crop


@dataclass(frozen=True)
class ImageSource:
    packed: Packed
    rule: Crop
    images: torch.Tensor | Prefetched
    """Shape: [rows, H, W, C] uint8; on the device where they fit."""
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
        labels, train, test = (torch.from_numpy(rows).to(device) for rows in (packed.labels, packed.train, packed.test))
        mapped = torch.from_numpy(packed.images)
        resident = fits(packed.images.nbytes, device)
        images = mapped.to(device) if resident else Prefetched(mapped, torch.from_numpy(packed.train), device)
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
            f"{'' if isinstance(self.images, torch.Tensor) else 'streamed, '}split sha256:{packed.digest}"
        )

    @property
    def streamed(self) -> bool:
        return isinstance(self.images, Prefetched)

    def expect(self, samples_B: torch.Tensor) -> None:
        if isinstance(self.images, Prefetched):
            self.images.expect(samples_B)

    def batch(self, seed: int, epoch: Epoch, samples_B: torch.Tensor) -> Batch:
        rows_B = at_B = self.train[samples_B]
        images = self.images
        if isinstance(images, Prefetched):
            images, at_B = images.take(samples_B), torch.arange(len(samples_B), device=samples_B.device)
        changed = self._normalised(cropped(images, at_B, samples_B, seed, epoch, self.rule))
        if self.rule.area < 1:
            changed = zoomed(changed, samples_B, seed, epoch, self.rule)
        if self.rule.cutout:
            fill_holes(changed, samples_B, seed, epoch, self.rule)
        return Batch(_laid_out(changed), self.labels[rows_B], samples_B, seed, epoch)

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        rows_B = self.test[samples_B]
        images = self.images.rows(rows_B) if isinstance(self.images, Prefetched) else self.images[rows_B]
        return Batch(_laid_out(self._normalised(images)), self.labels[rows_B], samples_B)

    def _normalised(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        return images_BHWC.to(torch.float32).sub_(self.mean_C).mul_(self.scale_C)


def _laid_out(images_BHWC: torch.Tensor) -> torch.Tensor:
    """Shape: → [B, C, H, W]; on CUDA channels last in memory, as they are, else first.

    A copy: of one channel `contiguous` keeps the strides, which then count as both layouts; given these oneDNN wrote
    past its buffers in the backward pass of a narrow network (torch 2.15).
    """
    images_BCHW = images_BHWC.permute(0, 3, 1, 2)
    return images_BCHW if images_BCHW.is_cuda else images_BCHW.clone(memory_format=torch.contiguous_format)
