"""Owns the proof of exact resume: one JSON line per step with the loss's bits and a hash of every part of the state.
Called by the loop where `STOKER_TRACE_FILE` is set (tests, `tools/verify/resume.py`); reads the device each step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from .training import Training


class Trace:
    """Appends, so the attempts of one job write one after the other; each line is out before the next step begins."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stepped(self, training: Training) -> None:
        loss = training.loss.item()
        self._write({"step": training.cursor.step, "loss": float(loss).hex(), **digests(training)})

    def evaluated(self, training: Training) -> None:
        metrics = {name: value.hex() for name, value in training.tally.metrics.items()}
        self._write({"step": training.cursor.step, "evaluation": metrics})

    def _write(self, line: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def digests(training: Training) -> dict[str, str]:
    """sha256 of weights, optimizer, the weights' average, scaler, generators and cursor."""
    rng = [torch.get_rng_state()]
    if training.device.type == "cuda":
        rng.append(torch.cuda.get_rng_state(training.device))
    return {
        "weights": _digest(training.net.state_dict().values()),
        "optimizer": _digest(training.update.state().values()),
        "average": _digest(training.average.state().values() if training.average is not None else ()),
        "scaler": _digest(training.scaler.state().values()),
        "rng": _digest(rng),
        "cursor": hashlib.sha256(json.dumps(asdict(training.cursor)).encode()).hexdigest(),
    }


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    out = hashlib.sha256()
    for tensor in tensors:
        out.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return out.hexdigest()
