"""Owns the folder of images that `python -m stoker_trainer prepare images` writes: its form, and reading it. Used by
`prepare_images` and by recipes for images.

`images.npy` [rows, height, width, channels] uint8 and `labels.npy` [rows] int64; `train.npy` and `test.npy` [count]
int64 say which rows train and which test; `images.json` holds the rest. All are mapped into memory.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import data as installed
from .errors import BadConfig

ABOUT = "images.json"
CHANNELS = (1, 3)
_CHUNK = 1024  # rows


@dataclass(frozen=True)
class Packed:
    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    classes: list[str]
    """Their names, in the order of the labels."""
    mean: list[float]
    """Of the training rows' bytes, per channel; `std` too."""
    std: list[float]
    dropped: int
    """Rows left out of training because their image is also a test image."""
    digest: str
    """sha256 over every row's content, label and side."""


def load(name: str) -> Packed:
    """A data set that a package ships (`digits`, `mnist5k`), or a prepared folder.

    Raises: BadConfig where there is neither.
    """
    if name not in installed.SOURCES:
        return _folder(Path(name))
    images = installed.load(name)
    return of(name, images.images[..., None], images.labels, [str(label) for label in range(installed.CLASSES)])


def of(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: list[str],
    is_test: NDArray[np.bool_] | None = None,
) -> Packed:
    """These images, split (unless `is_test` message which rows test) and measured.

    Raises: BadConfig where a side is empty.
    """
    parts = installed.split(installed.ImageSet(images, labels, 255), is_test)
    for side, rows in (("train on", parts.train), ("test on", parts.test)):
        if not len(rows):
            raise BadConfig(f"{name} has no images to {side}: a fifth of each class is set aside, five images at least")
    counts = np.zeros((images.shape[-1], 256), dtype=np.int64)  # exact, in whatever order rows are read
    for start in range(0, len(parts.train), _CHUNK):
        chunk = images[parts.train[start : start + _CHUNK]]
        for channel in range(len(counts)):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values, total = np.arange(256), counts[0].sum()
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 1e-6))
    rounded = ([round(float(x), 4) for x in numbers] for numbers in (mean, std))
    return Packed(
        name,
        images,
        labels,
        parts.train,
        parts.test,
        classes,
        next(rounded),
        next(rounded),
        parts.dropped,
        parts.digest,
    )


def write(packed: Packed, folder: Path) -> None:
    """Writes all but the images, which lie there already."""
    for name in ("labels", "train", "test"):
        np.save(folder / f"{name}.npy", getattr(packed, name))
    about = {name: getattr(packed, name) for name in ("classes", "mean", "std", "dropped", "digest")}
    (folder / ABOUT).write_text(json.dumps(about) + "\n")  # last: without it this is no folder of images


def _folder(folder: Path) -> Packed:
    try:
        about = json.loads((folder / ABOUT).read_text())
        # Copy on write: torch wants writable memory, and nothing is written.
        arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
            for name in ("images", "labels", "train", "test")
        }
        packed = Packed(
            str(folder),
            **arrays,
            **{name: about[name] for name in ("classes", "mean", "std", "dropped", "digest")},
        )
        _check(packed)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise BadConfig(
            f"config.data: {folder} is no folder of images ({type(error).__name__}: {error}); "
            "`python -m stoker_trainer prepare images SOURCE OUT` writes one"
        ) from None
    return packed


def _check(packed: Packed) -> None:
    """Raises: ValueError, TypeError where the parts do not fit each other."""

    def must(holds: Any, message: str) -> None:
        if not holds:
            raise ValueError(message)

    images = packed.images
    must(
        images.ndim == 4 and images.dtype == np.uint8 and images.shape[-1] in CHANNELS,
        "images.npy: wrong shape or type",
    )
    must(min(images.shape) > 0, "images.npy is empty")
    for name, below in (("labels", len(packed.classes)), ("train", len(images)), ("test", len(images))):
        rows = getattr(packed, name)
        must(rows.ndim == 1 and rows.dtype == np.int64 and len(rows) > 0, f"{name}.npy: wrong shape or type, or empty")
        must(int(rows.min()) >= 0 and int(rows.max()) < below, f"{name}.npy: a value is not from 0 to {below - 1}")
    must(len(packed.labels) == len(images), f"{len(images)} images, {len(packed.labels)} labels")
    for name in ("mean", "std"):
        numbers = getattr(packed, name)
        must(len(numbers) == images.shape[-1] and all(map(math.isfinite, numbers)), f"{name}: wrong numbers")
    must(all(number > 0 for number in packed.std), "std: must be above 0")
    must(isinstance(packed.digest, str) and isinstance(packed.dropped, int), "digest, dropped: wrong types")
