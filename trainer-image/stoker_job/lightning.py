"""`StokerCallback` for Lightning: progress and metrics are shown, and a stop saves before it leaves.

    trainer = Trainer(…, callbacks=[StokerCallback()])
    trainer.fit(model, loader, ckpt_path=last_checkpoint())

Lightning's own handler of SIGTERM talks to the other ranks while they may be summing gradients, saves nothing, and
so ends by SIGKILL: ours takes its place while a training runs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .progress import report
from .stopping import STOPPED, Stop

try:
    from lightning.pytorch import Callback
except ImportError:  # the package's older name
    from pytorch_lightning import Callback

_NAME = "stopped.ckpt"


def last_checkpoint() -> str | None:
    """What the last attempt saved as it was stopped, or `ModelCheckpoint(save_last=True)` did later."""
    folder = _folder()
    paths = [os.path.join(folder, name) for name in (_NAME, "last.ckpt")]
    return max((path for path in paths if os.path.exists(path)), key=os.path.getmtime, default=None)


def _folder() -> str:
    return os.environ.get("STOKER_CHECKPOINT_DIR", "checkpoints")


class StokerCallback(Callback):  # type: ignore[misc]
    """Once asked to stop it saves at the end of the batch and leaves with exit code 75, on all ranks."""

    def __init__(self) -> None:
        self._stop = Stop()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._stop.listen()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._stop.listen()
        self._report(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._report(trainer)
        if self._stop.asked():
            path = os.path.join(_folder(), _NAME)
            trainer.save_checkpoint(path + ".new")
            if trainer.is_global_zero:
                os.replace(path + ".new", path)
                report(trainer.global_step, checkpoint=path)
            sys.exit(STOPPED)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        total = trainer.estimated_stepping_batches
        report(
            trainer.global_step,
            total_steps=int(total) if 0 < total < float("inf") else None,
            epoch=trainer.current_epoch,
            **trainer.callback_metrics,
        )
