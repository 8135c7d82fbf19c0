"""Owns tokens: where they come from, and the windows that a language model trains on. Used by the recipe `gpt`.

A folder of tokens (`python -m stoker_trainer prepare` writes one) holds `train.npy` and `test.npy`, one-dimensional,
uint8 or uint16, and `tokens.json`. They are mapped into memory; on a GPU they are resident.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stoker_trainer.counter import Epoch, Purpose, words
from stoker_trainer.errors import BadConfig
from stoker_trainer.recipe import Batch

STDLIB = "stdlib"
RUNS = "runs"
TEST_PERCENT = 10
ABOUT = "tokens.json"


@dataclass(frozen=True)
class Tokens:
    """Windows of `context` tokens; in each epoch they begin elsewhere. Shape: train, test [tokens] uint8 or int16."""

    name: str
    train: torch.Tensor
    test: torch.Tensor
    vocabulary: int
    context: int
    test_samples: int
    """The most windows that an evaluation takes; they are spread over the test tokens."""
    digest: str

    @property
    def train_rows(self) -> int:
        return len(self.train) // self.context - 1

    @property
    def test_rows(self) -> int:
        return min(self.test_samples, (len(self.test) - 1) // self.context)

    @property
    def facts(self) -> dict[str, Any]:
        return {"splitDigest": self.digest, "trainTokens": len(self.train), "testTokens": len(self.test)}

    @property
    def words(self) -> str:
        return (
            f"{self.name}: {len(self.train):,} training and {len(self.test):,} test tokens of {self.vocabulary:,} "
            f"kinds, {self.train_rows:,} windows of {self.context}, split sha256:{self.digest}"
        )

    def batch(self, seed: int, epoch: Epoch, samples_B: torch.Tensor) -> Batch:
        starts_B = samples_B * self.context + _shift(seed, epoch, self.context)
        return self._windows(self.train, starts_B, samples_B, seed, epoch)

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        apart = (len(self.test) - 1) // self.context // self.test_rows * self.context
        return self._windows(self.test, samples_B * apart, samples_B, 0, 0)

    def _windows(
        self, tokens: torch.Tensor, starts_B: torch.Tensor, samples_B: torch.Tensor, seed: int, epoch: Epoch
    ) -> Batch:
        at_BT = starts_B[:, None] + torch.arange(self.context + 1, device=starts_B.device)
        mask = 0xFF if tokens.dtype == torch.uint8 else 0xFFFF  # torch does not gather uint16
        window = tokens[at_BT].long() & mask
        return Batch(window[:, :-1], window[:, 1:], samples_B, seed, epoch)


def _shift(seed: int, epoch: Epoch, context: int) -> Epoch:
    """By how much an epoch's windows begin later."""
    if not isinstance(epoch, torch.Tensor):
        return _known_shift(seed, epoch, context)
    none = torch.zeros(1, dtype=torch.int64, device=epoch.device)
    return words(seed, epoch, Purpose.AUGMENT, none, 1)[0, 0] % context


@lru_cache(maxsize=4)
def _known_shift(seed: int, epoch: int, context: int) -> int:
    drawn = words(seed, epoch, Purpose.AUGMENT, torch.zeros(1, dtype=torch.int64), 1)
    return int(drawn.item()) % context


def load(data: str, context: int, test_samples: int, device: torch.device) -> Tokens:
    """Raises: BadConfig where `data` is neither `stdlib`, `runs` nor a prepared folder, or holds too little."""
    if made := {STDLIB: _stdlib, RUNS: _runs}.get(data):
        train, test, vocabulary = made()
        digest = hashlib.sha256(train.tobytes() + b"|" + test.tobytes()).hexdigest()
    else:
        train, test, vocabulary = _folder(Path(data))
        digest = _digest(data)
    for name, part in (("training", train), ("test", test)):
        if len(part) < 2 * context + 1:
            raise BadConfig(f"config.data: {data} has {len(part)} {name} tokens, too few for a context of {context}")
    placed = (torch.from_numpy(part.view(np.int16) if part.dtype == np.uint16 else part) for part in (train, test))
    on_device = [part.to(device) for part in placed]
    return Tokens(data, on_device[0], on_device[1], vocabulary, context, test_samples, digest)


def _stdlib() -> tuple[NDArray[Any], NDArray[Any], int]:
    """The bytes of the standard library's top-level sources; about a tenth, whole files, is for testing."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [file.read_bytes() for file in files]
    return (*split_documents(texts), 256)


def _runs() -> tuple[NDArray[Any], NDArray[Any], int]:
    """A made task: 16 kinds of token in runs of a hundred, so a hidden one is its neighbours'. A guess that does not
    look costs 2.77 nats."""
    drawn = np.random.default_rng(0)
    train, test = (np.repeat(drawn.integers(0, 16, runs), 100).astype(np.uint8) for runs in (400, 40))
    return train, test, 16


def split_documents(texts: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Training and test bytes, about a tenth of them for testing.

    Whole documents go to a side, by their content's hash, so copies share one. Where they are too few or too large for
    that, it is the last tenth of each.
    """
    keys = [hashlib.sha256(text).digest() for text in texts]
    wanted, size = sum(map(len, texts)) * TEST_PERCENT // 100, 0
    chosen: set[bytes] = set()
    for key, text in sorted(zip(keys, texts, strict=True)):
        if size < wanted and size + len(text) <= 1.5 * wanted:
            chosen.add(key)
            size += len(text)
    if size < wanted / 2:
        cuts = [len(text) * (100 - TEST_PERCENT) // 100 for text in texts]
        train = [text[:cut] for text, cut in zip(texts, cuts, strict=True)]
        test = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
    else:
        train = [text for key, text in zip(keys, texts, strict=True) if key not in chosen]
        test = [text for key, text in zip(keys, texts, strict=True) if key in chosen]
    return _bytes(train), _bytes(test)


def _bytes(texts: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(b"\n".join(texts)), dtype=np.uint8)


def _folder(folder: Path) -> tuple[NDArray[Any], NDArray[Any], int]:
    try:
        about = json.loads((folder / ABOUT).read_text())
        vocabulary = int(about["vocabulary"])
        # Copy on write: torch wants writable memory, and nothing is written.
        train, test = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("train", "test"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadConfig(
            f"config.data: {folder} is no folder of tokens ({type(error).__name__}: {error}); "
            "`python -m stoker_trainer prepare text FOLDER OUT` writes one"
        ) from None
    for name, part in (("train", train), ("test", test)):
        if part.ndim != 1 or part.dtype not in (np.uint8, np.uint16):
            raise BadConfig(f"config.data: {folder}/{name}.npy must be one-dimensional, uint8 or uint16")
        if len(part) and int(part.max()) >= vocabulary:
            raise BadConfig(
                f"config.data: {folder}/{name}.npy holds token {part.max()}, the vocabulary is {vocabulary}"
            )
    return train, test, vocabulary


def _digest(data: str) -> str:
    return str(json.loads((Path(data) / ABOUT).read_text())["digest"])


def prepare(source: Path, out: Path) -> None:
    """Packs every file below `source`, as bytes, into the new folder `out`.

    Raises: BadConfig where there is nothing to pack, or `out` holds something.
    """
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise BadConfig(f"prepare: there are no files below {source}")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise BadConfig(f"prepare: {out} is not empty")
    train, test = split_documents([path.read_bytes() for path in files])
    np.save(out / "train.npy", train)
    np.save(out / "test.npy", test)
    digest = hashlib.sha256(train.tobytes() + b"|" + test.tobytes()).hexdigest()
    about = {"vocabulary": 256, "digest": digest, "files": len(files)}
    (out / ABOUT).write_text(json.dumps(about) + "\n")  # last: without it this is no folder of tokens
