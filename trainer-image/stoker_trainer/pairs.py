"""Owns pairs of texts, as bytes: where they come from and how they are packed. Used by the recipe `seq2seq`.

A folder of pairs (`python -m stoker_trainer prepare pairs` writes one) holds `train.npy` and `test.npy`, uint16 of
shape [pairs, 2, length], each text ended and filled up by END, and `pairs.json`. They are resident on the device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .counter import Epoch
from .errors import BadConfig
from .recipe import Batch

REVERSE = "reverse"
END = 257
TEST_PERCENT = 10
ABOUT = "pairs.json"


@dataclass(frozen=True)
class Pairs:
    """Shape: train, test [pairs, 2, context] int16."""

    name: str
    train: torch.Tensor
    test: torch.Tensor
    test_samples: int
    dropped: int
    """Pairs that are longer than the context."""
    mean_length: int
    """Of a training target, its END included."""
    digest: str

    @property
    def train_rows(self) -> int:
        return len(self.train)

    @property
    def test_rows(self) -> int:
        return min(self.test_samples, len(self.test))

    @property
    def facts(self) -> dict[str, Any]:
        return {"splitDigest": self.digest, "droppedRows": self.dropped}

    @property
    def words(self) -> str:
        return (
            f"{self.name}: {len(self.train):,} training and {len(self.test):,} test pairs, {self.dropped:,} dropped as "
            f"too long, split sha256:{self.digest}"
        )

    def batch(self, seed: int, epoch: Epoch, samples_B: torch.Tensor) -> Batch:
        source, target = self.train[samples_B].long().unbind(1)
        return Batch(source, target, samples_B, seed, epoch)

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        source, target = self.test[samples_B].long().unbind(1)
        return Batch(source, target, samples_B)


def load(data: str, context: int, test_samples: int, device: torch.device) -> Pairs:
    """Raises: BadConfig where `data` is neither `reverse` nor a prepared folder, or holds too little."""
    sides, digest = _reversed() if data == REVERSE else _folder(Path(data))
    placed, dropped = [], 0
    for name, side in zip(("training", "test"), sides, strict=True):
        fits = (side[:, :, context - 1 :] == END).all(axis=(1, 2))
        dropped += int((~fits).sum())
        if not fits.any():
            raise BadConfig(f"config.data: {data} has no {name} pair that fits into a context of {context}")
        fitting = side[fits, :, :context].astype(np.int16)
        missing = context - fitting.shape[2]
        placed.append(np.pad(fitting, ((0, 0), (0, 0), (0, max(0, missing))), constant_values=END))
    mean = round(float((placed[0][:, 1] != END).sum(axis=1).mean())) + 1
    train, test = (torch.from_numpy(side).to(device) for side in placed)
    return Pairs(data, train, test, test_samples, dropped, mean, digest)


def _reversed() -> tuple[tuple[NDArray[Any], NDArray[Any]], str]:
    """A made task: 20,000 words of 3 to 10 letters and their reverse. A guess that does not look costs 3.10 nats
    a token."""
    drawn = np.random.default_rng(7)
    texts = [bytes(drawn.integers(97, 123, drawn.integers(3, 11)).astype(np.uint8)) for _ in range(20_000)]
    return _split([(text, text[::-1]) for text in texts])


def _split(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[NDArray[Any], NDArray[Any]], str]:
    """Of all sources the tenth whose hashes are lowest is for testing, so copies share a side; and the digest."""
    keys = [hashlib.sha256(source).digest() for source, _ in pairs]
    border = sorted(set(keys))[-(-len(set(keys)) * TEST_PERCENT // 100) - 1] if len(set(keys)) > 1 else b""
    length = max(len(text) for pair in pairs for text in pair) + 1
    packed = np.full((len(pairs), 2, length), END, dtype=np.uint16)
    for row, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            packed[row, side, : len(text)] = np.frombuffer(text, dtype=np.uint8)
    is_test = np.array([key <= border for key in keys], dtype=bool)
    train, test = packed[~is_test], packed[is_test]
    return (train, test), hashlib.sha256(train.tobytes() + b"|" + test.tobytes()).hexdigest()


def _folder(folder: Path) -> tuple[tuple[NDArray[Any], NDArray[Any]], str]:
    try:
        digest = str(json.loads((folder / ABOUT).read_text())["digest"])
        train, test = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("train", "test"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadConfig(
            f"config.data: {folder} is no folder of pairs ({type(error).__name__}: {error}); "
            "`python -m stoker_trainer prepare pairs FILE OUT` writes one"
        ) from None
    for name, side in (("train", train), ("test", test)):
        if side.ndim != 3 or side.shape[1] != 2 or side.dtype != np.uint16 or side.max(initial=0) > END:
            raise BadConfig(f"config.data: {folder}/{name}.npy must be [pairs, 2, length], uint16, at most {END}")
    return (train, test), digest


def prepare(source: Path, out: Path) -> None:
    """Packs the lines of `source` (a text, a tab, its target) into the new folder `out`.

    Raises: BadConfig where the file is missing, a line is no pair, or `out` holds something.
    """
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise BadConfig(f"prepare: {error}") from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        first, tab, second = line.partition(b"\t")
        if not tab or b"\t" in second:
            raise BadConfig(f"prepare: line {number} of {source} is not a text, one tab, and its target")
        pairs.append((first, second))
    if len({first for first, _ in pairs}) < 2:
        raise BadConfig(f"prepare: {source} has fewer than two pairs of different texts")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise BadConfig(f"prepare: {out} is not empty")
    (train, test), digest = _split(pairs)
    np.save(out / "train.npy", train)
    np.save(out / "test.npy", test)
    (out / ABOUT).write_text(
        json.dumps({"digest": digest, "pairs": len(pairs)}) + "\n"
    )  # last: it makes the folder one
