"""The live view of running jobs: one bar per job on a terminal, plain lines every few seconds elsewhere.

Owns rendering only: it gets updates and prints. Called by `run`, `follow` and the demo.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TextIO

from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.quantity import format_duration

from .job_text import state_text

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_EVERY_S = 3.0


class BoardLines:
    """One line per change of phase, and one every `every_s` per job while it makes progress."""

    def __init__(
        self, stream: TextIO, *, every_s: float = LINE_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._start = clock()
        self._last: dict[str, tuple[Phase, int, str, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, job: TrainingJob) -> None:
        now, name, status = self._clock(), job.metadata.name, job.status
        text = state_text(job.dump())
        last = self._last.get(name)
        if last is not None and last[:2] == (status.phase, status.attempt):
            same = last[2] == text
            waits = status.phase is not Phase.RUNNING or status.held is not None
            if same or (not waits and now - last[3] < self._every_s):
                return
        self._last[name] = (status.phase, status.attempt, text, now)
        self.say(f"{format_duration(round(now - self._start, 1)):>6}  {name:<16} {status.phase:<10} {text}".rstrip())

    def say(self, text: str) -> None:
        """A line of text beside the progress."""
        self._stream.write(text + "\n")
        self._stream.flush()


class Bars:
    """A bar per job, redrawn in place; fits narrow terminals by leaving out what has no room."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._console = Console(file=stream, highlight=False, markup=False)
        wide = self._console.width >= 80
        columns: list[Any] = [
            TextColumn("{task.fields[job]}", markup=False, table_column=Column(no_wrap=True, max_width=24)),
            TextColumn("{task.fields[phase]}", markup=False, table_column=Column(no_wrap=True, width=9)),
        ]
        if wide:
            columns.append(BarColumn(bar_width=16, complete_style="cyan", finished_style="green"))
        columns.append(
            TextColumn(
                "{task.fields[state]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
            )
        )
        columns.append(TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, expand=True, refresh_per_second=5)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def update(self, job: TrainingJob) -> None:
        name, status = job.metadata.name, job.status
        progress = status.progress
        total = progress.total_steps if progress else None
        done = progress.step if progress else 0
        if status.phase in ENDED:  # a target reached early is a full bar, not an unfinished one
            total = done = total or 1
        if status.phase in (Phase.QUEUED, Phase.SUSPENDED):
            total, done = 1, 0
        shown: dict[str, Any] = {"phase": str(status.phase), "state": state_text(job.dump())}
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = self._progress.add_task(name, total=None, job=name, **shown)
        self._progress.update(task, total=total, completed=done, **shown)
        if status.phase in ENDED:
            self._progress.stop_task(task)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


Board = BoardLines | Bars
"""Where the progress of jobs is shown."""


def open_board(stream: TextIO | None = None) -> Board:
    """Bars where `stream` (standard output) is a terminal that can, lines where not."""
    stream = stream or sys.stdout
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return Bars(stream)
    return BoardLines(stream)
