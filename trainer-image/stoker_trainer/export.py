"""Owns the result of a training: weights that load in plain PyTorch, and what is needed to use them. Called on rank 0:
by the loop after an evaluation that is the best so far, by `main` after the last one.

A plain state_dict and a copy of the network's file (which needs torch alone), not TorchScript (deprecated) or
torch.export (its archive binds the reader to a near torch version, and cost seconds of imports): what a person can
read, load and change.
"""

from __future__ import annotations

import io
import json
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from .fence import Fence
from .files import replace, replace_json
from .training import Training

log = logging.getLogger(__name__)


class Results:
    """The output folder of one training of this config (JSON); the fence says whether this attempt may still write."""

    def __init__(self, training: Training, config: str, folder: Path, fence: Fence | None) -> None:
        self._training, self._config, self._folder, self._fence = training, config, folder, fence

    def best(self) -> None:
        """best.pt: the weights as they are now. A disk that is full does not stop the training.

        Raises: Superseded where a newer attempt runs.
        """
        try:
            with self._publishing(), self._training.averaged():
                _write_weights(self._training, self._folder / "best.pt")
        except OSError as error:
            log.error("no best.pt of step %d: %s", self._training.cursor.step, error)

    def final(self, summary: dict[str, Any]) -> Path:
        """weights.pt (and unaveraged.pt where that is their average), config.json, model.json, model.py,
        load_example.py and result.json; the path of the weights.

        Raises: Superseded where a newer attempt runs; OSError.
        """
        training, weights = self._training, self._folder / "weights.pt"
        exported = training.recipe.export()
        about = {**exported.about, "data": training.config.config.data, **training.tally.metrics}
        result = {**summary, "weights": str(weights), "steps": training.cursor.step, "torch": torch.__version__}
        with self._publishing():
            with training.averaged():
                _write_weights(training, weights)
            if training.average is not None:
                _write_weights(training, self._folder / "unaveraged.pt")
            replace_json(self._folder / "config.json", json.loads(self._config), sync=True)
            replace_json(self._folder / "model.json", about, sync=True)
            replace(self._folder / "model.py", exported.network.read_bytes(), sync=True)
            replace(self._folder / "load_example.py", exported.load.encode(), sync=True)
            replace(self._folder / "result.json", json.dumps(result, indent=1).encode(), sync=True)
        return weights

    def _publishing(self) -> AbstractContextManager[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._fence.publishing() if self._fence is not None else nullcontext()


def _write_weights(training: Training, path: Path) -> None:
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in training.net.state_dict().items()}
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    replace(path, buffer.getvalue(), sync=True)
