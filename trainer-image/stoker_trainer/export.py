"""Owns the result of a training: weights that load in plain PyTorch, and what is needed to use them. Called by `main`
(rank 0) after the last evaluation.

A plain state_dict and a copy of the network's file (which needs torch alone), not TorchScript (deprecated) or
torch.export (its archive binds the reader to a near torch version, and cost seconds of imports): what a person can
read, load and change.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

from .fence import Fence
from .files import replace, replace_json
from .training import Training


def export(training: Training, folder: Path, fence: Fence | None, summary: dict[str, Any]) -> Path:
    """Writes weights.pt (and unaveraged.pt where that is their average), model.json, model.py, load_example.py and
    result.json; the path of the weights.

    Raises: Superseded where a newer attempt runs; OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fence is None:
        return _write(training, folder, summary)
    with fence.publishing():
        return _write(training, folder, summary)


def _write(training: Training, folder: Path, summary: dict[str, Any]) -> Path:
    weights = folder / "weights.pt"
    with training.averaged():
        _write_weights(training, weights)
    if training.average is not None:
        _write_weights(training, folder / "unaveraged.pt")
    exported = training.recipe.export()
    about = {**exported.about, "data": training.config.config.data, **training.tally.metrics}
    replace_json(folder / "model.json", about, sync=True)
    replace(folder / "model.py", exported.network.read_bytes(), sync=True)
    replace(folder / "load_example.py", exported.load.encode(), sync=True)
    result = {**summary, "weights": str(weights), "steps": training.cursor.step, "torch": torch.__version__}
    replace(folder / "result.json", json.dumps(result, indent=1).encode(), sync=True)
    return weights


def _write_weights(training: Training, path: Path) -> None:
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in training.net.state_dict().items()}
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    replace(path, buffer.getvalue(), sync=True)
