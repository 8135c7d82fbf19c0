"""Owns reading CIFAR-10's official archive for Python, which may come from anyone. Called by `prepare_images`.

The archive's members are pickles. They are read by an unpickler that knows four names and makes nothing of numpy's:
what they stand for here only keeps what it is given. Nothing is written to disk, so no member's path matters.
Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadConfig

SIDE, CLASSES = 32, 10
TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
TEST, NAMES = "test_batch", "batches.meta"
_LARGEST = 256 << 20  # unpacked; the official archive has 186 MB
_UNFIT = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(zlib.error, struct.error, tarfile.TarError, pickle.UnpicklingError),
)


class _DType:
    """In place of numpy.dtype."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None: ...


class _Array:
    """In place of numpy.ndarray."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def read(self) -> NDArray[np.uint8]:
        _, shape, dtype, fortran, raw = self.state
        if not isinstance(dtype, _DType) or dtype.code not in ("u1", b"u1") or fortran or not isinstance(raw, bytes):
            raise ValueError("an array is not of unsigned bytes")
        return np.frombuffer(raw, np.uint8).reshape(shape)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
}


class _Unpickler(pickle._Unpickler):
    """The one in Python: the one in C allocates what a number in the pickle says (its memo)."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 archive needs")
        return _KNOWN[module, name]


def read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[str], NDArray[np.bool_]]:
    """Images [rows, 32, 32, 3], labels, the classes' names, and which rows test.

    Raises: BadConfig where the archive is not CIFAR-10's.
    """
    try:
        with gzip.open(path) as file:
            tar = file.read(_LARGEST + 1)
        if len(tar) > _LARGEST:
            raise ValueError(f"it unpacks to more than {_LARGEST >> 20} MiB, CIFAR-10's has 178")
        found = dict(_members(tar))
        batches = [_batch(found[name]) for name in (*TRAIN, TEST)]
        classes = [name.decode() for name in found[NAMES][b"label_names"]]
    except _UNFIT as error:
        raise BadConfig(
            f"prepare: {path} is not CIFAR-10's archive for Python ({type(error).__name__}: {error})"
        ) from None
    if len(classes) != CLASSES:
        raise BadConfig(f"prepare: {path} names {len(classes)} classes, CIFAR-10 has {CLASSES}")
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    is_test = np.repeat([False] * len(TRAIN) + [True], [len(part) for _, part in batches])
    return images, labels, classes, is_test


def _members(tar: bytes) -> Iterator[tuple[str, Any]]:
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            file = archive.extractfile(member) if member.isfile() and name in (*TRAIN, TEST, NAMES) else None
            if file is not None:
                yield name, _Unpickler(io.BytesIO(file.read()), encoding="bytes").load()


def _batch(read: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images = read[b"data"].read().reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    labels = read[b"labels"]
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise ValueError(f"labels must be numbers from 0 to {CLASSES - 1}")
    if len(labels) != len(images):
        raise ValueError(f"{len(images)} images, {len(labels)} labels")
    return images, np.array(labels, dtype=np.int64)
