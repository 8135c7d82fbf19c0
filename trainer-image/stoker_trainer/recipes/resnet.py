"""Owns the recipe `resnet`, a residual network that classifies images. Made by the trainer's set-up.

Legend: B samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F

from stoker_trainer import packed_images
from stoker_trainer.recipe import Batch, Export, Group

from . import resnet_net
from .image_source import ImageSource
from .settings import ResNet as Settings

SMALL_PIXELS = 64  # `stem: auto` takes images up to this side for small
_LOAD = '''\
"""Loads these weights in plain PyTorch; needs nothing but torch and the files of this folder."""

import json
from pathlib import Path

import torch
from model import ResNet

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
net = ResNet(**about["arguments"])
net.load_state_dict(torch.load(here / "weights.pt", map_location="cpu", weights_only=True))
net.eval()


def classify(images):
    """The class of each image, a place in about["classes"]. Shape: [rows, height, width, channels], bytes."""
    x = (images.float() - torch.tensor(about["mean"])) / torch.tensor(about["std"])
    with torch.no_grad():
        return net(x.permute(0, 3, 1, 2)).argmax(1)


def predict(path):
    """The classes of the images in a file that numpy saved. Shape: [rows, height, width, channels]."""
    import numpy

    return " ".join(about["classes"][label] for label in classify(torch.from_numpy(numpy.load(path))).tolist())


if __name__ == "__main__":
    print(about["data"], about["arguments"], f"test accuracy {about['accuracy']:.4f}")
'''


def load(settings: Settings, device: torch.device) -> ImageSource:
    """Raises: BadConfig where the data is missing, or its images are too small for `augment.pad`."""
    return ImageSource.of(packed_images.load(settings.data), settings.augment, device)


class Recipe:
    units = 1
    groups = MappingProxyType({"classify.weight": Group.DECAYED})
    metrics: Mapping[str, Literal["max", "min"]] = MappingProxyType({"accuracy": "max", "loss": "min"})

    def __init__(self, settings: Settings, source: ImageSource) -> None:
        self._smoothing, self._packed = settings.label_smoothing, source.packed
        _, height, width, channels = source.packed.images.shape
        small = max(height, width) <= SMALL_PIXELS
        self._arguments = {
            "depth": settings.model.depth,
            "width": settings.model.width,
            "stem": ("cifar" if small else "imagenet") if settings.model.stem == "auto" else settings.model.stem,
            "channels": channels,
            "classes": len(source.packed.classes),
        }
        self.net = resnet_net.ResNet(**self._arguments)
        self.blocks = self.net.blocks

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        scores = self.net(batch.inputs).float()
        loss = F.cross_entropy(scores, batch.targets, reduction="sum", label_smoothing=self._smoothing)
        return loss, len(batch.targets)

    def score(self, batch: Batch) -> tuple[torch.Tensor, int]:
        scores = self.net(batch.inputs).float()
        correct = (scores.argmax(1) == batch.targets).sum()
        return torch.stack([correct, F.cross_entropy(scores, batch.targets, reduction="sum")]), len(batch.targets)

    def export(self) -> Export:
        packed = self._packed
        about = {
            "class": "ResNet",
            "arguments": self._arguments,
            "classes": packed.classes,
            "mean": packed.mean,
            "std": packed.std,
            "splitDigest": packed.digest,
        }
        return Export(Path(resnet_net.__file__), about, _LOAD)
