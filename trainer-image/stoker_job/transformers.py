"""`StokerCallback` for Hugging Face's Trainer: progress and metrics are shown, and a stop saves before it leaves.

trainer = Trainer(model, TrainingArguments(output_dir=checkpoint_folder()), …, callbacks=[StokerCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint())
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from transformers import TrainerCallback

from .progress import report
from .stopping import STOPPED, Stop

_LAST_WRITTEN = "trainer_state.json"


def checkpoint_folder() -> str:
    """Where the job's checkpoints outlive an attempt; by hand a folder beside the script."""
    return os.environ.get("STOKER_CHECKPOINT_DIR", "checkpoints")


def last_checkpoint(folder: str | None = None) -> str | None:
    """The newest of the Trainer's checkpoints that is whole; one whose writing was cut off is passed over."""
    folder = folder or checkpoint_folder()
    found = [re.fullmatch(r"checkpoint-(\d+)", name) for name in (os.listdir(folder) if os.path.isdir(folder) else ())]
    steps = sorted((int(match.group(1)) for match in found if match), reverse=True)
    paths = (os.path.join(folder, "checkpoint-%d" % step) for step in steps)
    return next((path for path in paths if os.path.exists(os.path.join(path, _LAST_WRITTEN))), None)


class StokerCallback(TrainerCallback):  # type: ignore[misc]
    """Once asked to stop it has the Trainer save at the end of the step and leaves with exit code 75, on all ranks."""

    def __init__(self) -> None:
        self._stop = Stop()
        self._leaving = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report(state.global_step, total_steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report(state.global_step, total_steps=state.max_steps, epoch=int(state.epoch or 0))
        if self._stop.asked() and state.global_step < state.max_steps:
            self._leaving = control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report(state.global_step, checkpoint=os.path.join(args.output_dir, "checkpoint-%d" % state.global_step))
        if self._leaving:
            sys.exit(STOPPED)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        numbers = {name: value for name, value in (logs or {}).items() if name not in ("epoch", "step")}
        if "train_runtime" in numbers:  # the last word of a training
            report(summary=numbers)
        else:
            report(state.global_step, **numbers)
