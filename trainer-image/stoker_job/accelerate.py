"""`StokerTracker` for Hugging Face Accelerate: what `accelerator.log` is given is shown and kept as curves.

    accelerator = Accelerator(log_with=StokerTracker(total_steps=steps))
    accelerator.init_trackers("mine")
    stop = Stop()
    …
        accelerator.log({"loss": loss}, step=step)
        if stop.asked():
            accelerator.save_state(folder)
            sys.exit(STOPPED)

The loop is yours, so the stop is asked for there, by `stoker_job.Stop`.
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from .progress import report


class StokerTracker(GeneralTracker):  # type: ignore[misc]
    name = "stoker"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, total_steps: int | None = None) -> None:
        self._total_steps = total_steps
        super().__init__()

    @property
    def tracker(self) -> StokerTracker:
        return self

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        report(step, total_steps=self._total_steps, **values)
