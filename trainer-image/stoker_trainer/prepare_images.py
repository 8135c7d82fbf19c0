"""Owns `python -m stoker_trainer prepare images`: pictures as they are found, packed once into a folder. Called by
`main`. Sources are a folder of files, CIFAR-10's archive and npz files; all may be hostile.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from . import cifar10, packed_images
from .errors import BadConfig

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
_FORMATS = ["PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF"]  # no EPS: that runs another program
_LARGEST_PICTURE = 64 << 20  # pixels
_LARGEST_SIDE = 4096
_MOST_CLASSES = 65_536
_KEYS = (  # training images and labels; with an official split the test ones too
    ("x", "y"),
    ("images", "labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
_MOST_ROWS = 1 << 27
_MOST_PACKED = 200  # images of an npz file take at most so many times their compressed size
_CHUNK = 1024  # rows
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, LookupError, RuntimeError, struct.error, zlib.error)
_BAD_ZIP = (OSError, ValueError, EOFError, LookupError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile)


@dataclass(frozen=True)
class _Found:
    shape: tuple[int, ...]
    """[rows, height, width, channels]."""
    labels: NDArray[np.int64]
    classes: list[str]
    is_test: NDArray[np.bool_] | None
    fill: Callable[[NDArray[np.uint8]], object]
    """Puts the images into an array of that shape."""


def prepare(source: Path, out: Path, size: int | None) -> str:
    """Packs the images of `source` into the new folder `out`; what was packed, as text.

    Raises: BadConfig where there is nothing to pack, `out` holds something or the disk is too small.
    """
    if size is not None and (not source.is_dir() or not 0 < size <= _LARGEST_SIDE):
        raise BadConfig(f"prepare: --size is the side of the images of a folder, from 1 to {_LARGEST_SIDE} pixels")
    try:
        found = _find(source, size)
        _check(found, source)
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadConfig(f"prepare: {out} is not empty")
        needed, free = math.prod(found.shape), shutil.disk_usage(out).free
        if needed > free:
            raise BadConfig(f"prepare: the images take {needed / 1e9:,.1f} GB, {out} has {free / 1e9:,.1f} GB left")
        path = out / "images.npy"
        try:
            images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=found.shape)
            found.fill(images)
            images.flush()
            packed = packed_images.of(str(source), images.view(np.ndarray), found.labels, found.classes, found.is_test)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        packed_images.write(packed, out)
    except OSError as error:
        raise BadConfig(f"prepare: {error}") from None
    return f"{out}: {len(packed.train):,} training and {len(packed.test):,} test images, sha256:{packed.digest}"


def _find(source: Path, size: int | None) -> _Found:
    if source.is_dir():
        return _folder(source, size)
    if not source.is_file():
        raise BadConfig(f"prepare: {source} is not there")
    if source.name.endswith((".tar.gz", ".tgz")):
        images, labels, classes, is_test = cifar10.read(source)
        return _Found(images.shape, labels, classes, is_test, partial(np.copyto, src=images))
    if source.suffix == ".npz":
        return _npz(source)
    raise BadConfig(f"prepare: {source} is no folder of images, no npz file and not cifar-10-python.tar.gz")


def _check(found: _Found, source: Path) -> None:
    count, height, width, channels = found.shape
    if channels not in packed_images.CHANNELS or not 0 < min(height, width) <= max(height, width) <= _LARGEST_SIDE:
        raise BadConfig(
            f"prepare: {source} has images of shape {found.shape[1:]}; they must be [height, width] or "
            f"[height, width, 1 or 3], with sides up to {_LARGEST_SIDE} pixels"
        )
    if count == 0 or len(found.labels) != count:
        raise BadConfig(f"prepare: {source} has {count} images and {len(found.labels)} labels")
    if len(found.classes) > _MOST_CLASSES:
        raise BadConfig(f"prepare: {source} has {len(found.classes):,} classes, at most {_MOST_CLASSES:,} are taken")


# -- a folder: a sub-folder per class, or `train` and `test` (or `val`) with such


def _folder(source: Path, size: int | None) -> _Found:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise BadConfig("prepare: reading image files takes the package Pillow: pip install pillow") from None
    sides = [(source / "train", False), *((source / name, True) for name in ("test", "val"))]
    official = sides[0][0].is_dir() and any(side.is_dir() for side, _ in sides[1:])
    paths, names, tests = [], [], []
    for side, is_test in sides if official else [(source, False)]:
        for path in sorted(side.rglob("*")) if side.is_dir() else ():
            if path.suffix.lower() in _SUFFIXES and path.is_file() and len(path.relative_to(side).parts) > 1:
                paths.append(path)
                names.append(path.relative_to(side).parts[0])
                tests.append(is_test)
    if not paths:
        raise BadConfig(f"prepare: {source} has no image files in a sub-folder per class")
    classes = sorted(set(names))
    places = {name: place for place, name in enumerate(classes)}

    def picture(path: Path) -> Any:
        """Opened, not yet decoded."""
        try:
            opened = Image.open(path, formats=_FORMATS)
        except (*_BROKEN, Image.DecompressionBombError) as error:
            raise BadConfig(f"prepare: {path} is no image that Pillow reads: {error}") from None
        if opened.width * opened.height > _LARGEST_PICTURE:
            raise BadConfig(f"prepare: {path} has {opened.width}x{opened.height} pixels, too many")
        return opened

    with picture(paths[0]) as first:
        height, width = (size, size) if size else (first.height, first.width)

    def put(row: int, images: NDArray[np.uint8]) -> None:
        path = paths[row]
        with picture(path) as opened:
            if size:
                opened.draft("RGB", (2 * size, 2 * size))  # a JPEG is decoded smaller, where that is enough
            try:
                image = ImageOps.exif_transpose(opened).convert("RGB")
            except _BROKEN as error:
                raise BadConfig(f"prepare: {path} is damaged: {error}") from None
        if size:
            image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
        elif image.size != (width, height):
            raise BadConfig(
                f"prepare: images differ in size ({paths[0]} has {width}x{height}, {path} {image.width}x{image.height})"
                ": give --size, and all are scaled and cropped to that"
            )
        images[row] = np.asarray(image)

    def fill(images: NDArray[np.uint8]) -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # Pillow decodes without the interpreter's lock
            for start in range(0, len(paths), _CHUNK):
                for _ in pool.map(partial(put, images=images), range(start, min(start + _CHUNK, len(paths)))):
                    pass

    return _Found(
        (len(paths), height, width, 3),
        np.array([places[name] for name in names], dtype=np.int64),
        classes,
        np.array(tests) if official else None,
        fill,
    )


# -- npz


def _npz(source: Path) -> _Found:
    try:
        with zipfile.ZipFile(source) as archive:
            held = {name.removesuffix(".npy") for name in archive.namelist()}
            keys = next((keys for keys in _KEYS if held.issuperset(keys)), None)
            if keys is None:
                wanted = "; or ".join(", ".join(keys) for keys in _KEYS)
                raise BadConfig(f"prepare: {source} holds {', '.join(sorted(held)[:9])}; it must hold {wanted}")
            shapes = [_shape(archive, key) for key in keys[::2]]
            labels = [_labels(archive, key) for key in keys[1::2]]
    except _BAD_ZIP as error:
        raise BadConfig(f"prepare: {source} is no npz file of images ({type(error).__name__}: {error})") from None
    if any(shape[1:] != shapes[0][1:] for shape in shapes):
        raise BadConfig(f"prepare: {source} has training images of shape {shapes[0][1:]}, test {shapes[1][1:]}")
    for shape, some in zip(shapes, labels, strict=True):
        if shape[0] != len(some):
            raise BadConfig(f"prepare: {source} has {shape[0]} images and {len(some)} labels beside them")

    def fill(images: NDArray[np.uint8]) -> None:
        try:
            with zipfile.ZipFile(source) as archive:
                at = 0
                for key, shape in zip(keys[::2], shapes, strict=True):
                    with archive.open(f"{key}.npy") as file:
                        _read_header(file)
                        for start in range(at, at + shape[0], _CHUNK):
                            part = images[start : min(start + _CHUNK, at + shape[0])]
                            part[:] = np.frombuffer(file.read(part.size), np.uint8).reshape(part.shape)
                    at += shape[0]
        except _BAD_ZIP as error:
            raise BadConfig(f"prepare: {source} is damaged ({type(error).__name__}: {error})") from None

    all_labels = np.concatenate(labels)
    is_test = np.repeat([False, True], [len(some) for some in labels]) if len(labels) > 1 else None
    classes = [str(label) for label in range(int(all_labels.max(initial=0)) + 1)]
    return _Found((len(all_labels), *shapes[0][1:]), all_labels, classes, is_test, fill)


def _header(archive: zipfile.ZipFile, key: str) -> tuple[tuple[int, ...], np.dtype[Any], zipfile.ZipInfo]:
    """Shape and type of an array; nothing is allocated for it yet.

    Raises: ValueError where the member is not as long as they say.
    """
    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{key} is packed by another way than numpy's")
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file)
    if fortran or not shape or min(shape) < 0 or shape[0] > _MOST_ROWS:
        raise ValueError(f"{key} has the shape {list(shape)}; it must be in C order, with at most {_MOST_ROWS:,} rows")
    if info.file_size < math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{key} is shorter than its shape {list(shape)} says")
    return shape, dtype, info


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    read = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(file) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    return read(file)


def _shape(archive: zipfile.ZipFile, key: str) -> tuple[int, ...]:
    """[rows, height, width, channels]."""
    shape, dtype, info = _header(archive, key)
    if dtype != np.uint8 or len(shape) not in (3, 4):
        raise ValueError(
            f"{key} is {dtype}{list(shape)}; images must be uint8, [rows, height, width] or with channels behind"
        )
    if info.file_size > _MOST_PACKED * max(info.compress_size, 1 << 20):
        raise ValueError(f"{key} unpacks to more than {_MOST_PACKED} times its size, as no images do")
    return shape if len(shape) == 4 else (*shape, 1)


def _labels(archive: zipfile.ZipFile, key: str) -> NDArray[np.int64]:
    shape, dtype, info = _header(archive, key)
    if dtype.kind not in "iu" or shape[1:] not in ((), (1,)):
        raise ValueError(f"{key} is {dtype}{list(shape)}; labels must be whole numbers, one for each image")
    with archive.open(info) as file:
        _read_header(file)
        labels = np.frombuffer(file.read(shape[0] * dtype.itemsize), dtype)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < _MOST_CLASSES:
        raise ValueError(
            f"{key} holds {labels.min()} to {labels.max()}; labels begin at 0 and end below {_MOST_CLASSES}"
        )
    return labels.astype(np.int64)
