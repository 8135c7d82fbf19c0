"""`report`: how far the training is and what it measured, into the worker's progress file.

Owns the file's writes: whole or not at all, twice a second at most, the last one always. Never raises into a training,
never waits for a device more often than it writes. Of several processes of a worker the first writes.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from typing import Any, Callable, Mapping

EVERY_S = 0.5


def report(
    step: int | None = None,
    *,
    total_steps: int | None = None,
    epoch: int | None = None,
    samples: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    summary: Mapping[str, Any] | None = None,
    **metrics: Any,
) -> None:
    """Show this in `stoker get` and keep the metrics as curves; what was reported before and is not reported now stays.

    `checkpoint`: the path of what was saved at this step. `summary`: what the job ends with. Metrics are numbers, or
    what `float()` takes (a tensor of one element); others are left out. Outside of a job nothing happens.
    """
    path = os.environ.get("STOKER_PROGRESS_FILE")
    if not path or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    fields = {"step": step, "totalSteps": total_steps, "epoch": epoch, "samples": samples, "summary": summary}
    try:
        _file_of(path).take({name: value for name, value in fields.items() if value is not None}, metrics, checkpoint)
    except Exception as error:  # noqa: BLE001 (a training must not end because it is watched)
        _warn_once(error)


class ProgressFile:
    def __init__(self, path: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now, self.pid = path, now, os.getpid()
        self._lock = threading.Lock()
        self._fields: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._due_s = -math.inf
        self._waiting = False

    def take(self, data: dict[str, Any], metrics: Mapping[str, Any], checkpoint: str | os.PathLike[str] | None) -> None:
        with self._lock:
            self._fields.update(data)
            # Without its graph, and read from the device only when it is written.
            self._metrics.update(
                {name: getattr(value, "detach", lambda kept=value: kept)() for name, value in metrics.items()}
            )
            if checkpoint is not None:
                self._fields["checkpoint"] = {"step": self._fields.get("step", 0), "path": os.fspath(checkpoint)}
            pause_s = self._due_s - self._now()
            if pause_s <= 0:
                self._write()
            elif not self._waiting:
                self._waiting = True
                timer = threading.Timer(pause_s, self.flush)
                timer.daemon = True
                timer.start()

    def flush(self) -> None:
        """Write what waits."""
        try:
            with self._lock:
                if self._waiting:
                    self._write()
        except Exception as error:  # noqa: BLE001
            _warn_once(error)

    def _write(self) -> None:
        self._waiting, self._due_s = False, self._now() + EVERY_S
        numbers = {name: _number(value) for name, value in self._metrics.items()}
        metrics = {name: number for name, number in numbers.items() if number is not None}
        data = json.dumps({"at": time.time(), **self._fields, "metrics": metrics}, default=_plain)
        aside = "%s.%d.new" % (self._path, self.pid)
        with open(aside, "w", encoding="utf-8") as file:
            file.write(data)
        os.replace(aside, self._path)


_files: dict[str, ProgressFile] = {}
_warned = False


def _file_of(path: str) -> ProgressFile:
    file = _files.get(path)
    if file is None or file.pid != os.getpid():  # a fork has its own lock: its parent's may be held
        file = _files[path] = ProgressFile(path)
        atexit.register(file.flush)
    return file


def _number(value: Any) -> float | None:
    """None: it is none, or not finite."""
    try:
        number = float(value)
    except Exception:  # noqa: BLE001 (any object at all)
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    """What JSON does not know: numbers of numpy and tensors by their value, all else as text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


def _warn_once(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        sys.stderr.write("[stoker] progress can't be reported: %r\n" % error)
