"""Owns TensorBoard's event files, where a folder for them is given: the numbers of the progress file. Called by the
report. The package `tensorboard` is imported only then.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from .errors import BadConfig


class Board:
    def __init__(self, folder: Path, step: int) -> None:
        """Events after `step`, of an attempt that was rolled back, are no longer shown.

        Raises: BadConfig where tensorboard is not installed.
        """
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise BadConfig(
                f"STOKER_TENSORBOARD_DIR is set, but tensorboard can't be imported ({error}): pip install tensorboard"
            ) from None
        self._writer = module.SummaryWriter(str(folder), purge_step=step + 1)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Raises: OSError."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
