"""Owns the recipe `image-classification`: its data on the device, its network's loss. Made by the trainer's set-up.

Legend: B samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from stoker_trainer import data
from stoker_trainer.augment import Scaling, augmented, normalised
from stoker_trainer.counter import Epoch, keep_mask
from stoker_trainer.recipe import Batch, Export, Group

from . import digit_net
from .digit_net import DigitNet
from .settings import ImageClassification

_LOAD = '''\
"""Loads these weights in plain PyTorch; needs nothing but torch and the files of this folder."""

import json
from pathlib import Path

import torch
from model import DigitNet

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
net = DigitNet(**about["arguments"])
net.load_state_dict(torch.load(here / "weights.pt", map_location="cpu", weights_only=True))
net.eval()


def classify(images):
    """The class of each image. Shape: [rows, size, size], values from 0 (background) to about["maxValue"]."""
    x = (images[:, None].float() / about["maxValue"] - about["mean"]) / about["std"]
    with torch.no_grad():
        return net(x).argmax(1)


def predict(path):
    """The classes of the images in a file that numpy saved. Shape: [rows, size, size]."""
    import numpy

    return " ".join(str(int(label)) for label in classify(torch.from_numpy(numpy.load(path))))


if __name__ == "__main__":
    print(about["data"], about["arguments"], f"test accuracy {about['accuracy']:.4f}")
'''


@dataclass(frozen=True)
class Images:
    """All images as bytes on the device: no loader, no copies. Shape: [rows, size, size] uint8, labels [rows] int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    scaling: Scaling
    settings: ImageClassification
    split_digest: str
    dropped: int

    @property
    def train_rows(self) -> int:
        return len(self.train_labels)

    @property
    def test_rows(self) -> int:
        return len(self.test_labels)

    @property
    def facts(self) -> dict[str, Any]:
        return {"droppedRows": self.dropped, "splitDigest": self.split_digest}

    @property
    def words(self) -> str:
        size = self.train_images.shape[-1]
        return (
            f"{self.settings.data}: {self.train_rows} training and {self.test_rows} test images of {size}x{size}, "
            f"{self.dropped} dropped as copies of test images, split sha256:{self.split_digest}"
        )

    def batch(self, seed: int, epoch: Epoch, samples_B: torch.Tensor) -> Batch:
        images = augmented(self.train_images[samples_B], samples_B, seed, epoch, self.settings.augment, self.scaling)
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
        settings=settings,
        split_digest=parts.digest,
        dropped=parts.dropped,
    )


class Recipe:
    """A small convolutional network on images."""

    units = 1
    groups = MappingProxyType({"classify.weight": Group.DECAYED})
    metrics: Mapping[str, Literal["max", "min"]] = MappingProxyType({"accuracy": "max", "loss": "min"})

    def __init__(self, settings: ImageClassification, source: Images) -> None:
        self._settings, self._source = settings, source
        self._arguments = {
            "width": settings.model.width,
            "size": source.train_images.shape[-1],
            "classes": data.CLASSES,
        }
        self.net = DigitNet(**self._arguments)
        self.blocks = (self.net.convolutions,)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        keep, dropout = None, self._settings.model.dropout
        if dropout > 0:
            keep = keep_mask(batch.seed, batch.epoch, batch.samples_B, self.net.features, dropout)
        scores = self.net(batch.inputs, keep).float()
        smoothing = self._settings.label_smoothing
        loss = F.cross_entropy(scores, batch.targets, reduction="sum", label_smoothing=smoothing)
        return loss, len(batch.targets)

    def score(self, batch: Batch) -> tuple[torch.Tensor, int]:
        scores = self.net(batch.inputs)
        correct = (scores.argmax(1) == batch.targets).sum()
        loss = F.cross_entropy(scores.float(), batch.targets, reduction="sum")
        return torch.stack([correct, loss]), len(batch.targets)

    def export(self) -> Export:
        source = self._source
        about = {
            "class": "DigitNet",
            "arguments": self._arguments,
            "maxValue": source.scaling.max_value,
            "mean": source.scaling.mean,
            "std": source.scaling.std,
            "splitDigest": source.split_digest,
        }
        return Export(Path(digit_net.__file__), about, _LOAD)


def _laid_out(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images
