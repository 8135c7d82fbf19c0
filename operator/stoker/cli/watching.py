"""`-w`: a table shown anew as it changes, until Ctrl-C. A terminal shows it in place, a pipe gets what has changed."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

from .output import values

EVERY_S = 2.0
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Changes:
    """Which objects are other than at the last look."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.first = True
        """Nothing has been shown."""

    def of(self, items: Sequence[Any]) -> list[Any]:
        """Those that are new or changed; what is live (steps, ages) is no change of a job."""
        marks = {_name(item): _mark(item) for item in items}
        found = [item for item in items if self._known.get(_name(item)) != marks[_name(item)]]
        self._known = marks
        return found


class _Screen(io.StringIO):
    """Text for a terminal."""

    def isatty(self) -> bool:
        return True


Show = Callable[[Changes | None], object]
"""Prints all, or what has changed. True: it has waited for that."""


def watch(show: Show, *, sleep: Callable[[float], object] = time.sleep) -> None:
    """Call `show` until Ctrl-C. Raises: what `show` does."""
    if not sys.stdout.isatty():
        changes = Changes()
        while True:
            waited = show(changes)
            changes.first = False
            sys.stdout.flush()
            if not waited:
                sleep(EVERY_S)
    while True:
        screen = _Screen()
        with redirect_stdout(screen):
            show(None)
        size = shutil.get_terminal_size()
        lines = screen.getvalue().splitlines()[: max(1, size.lines - 1)]
        sys.stdout.write(_HOME + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST_OF_SCREEN)
        sys.stdout.flush()
        sleep(EVERY_S)


def _name(item: Any) -> str:
    return "/".join(str(part) for part in values(item, "metadata.namespace metadata.name"))


def _mark(item: Any) -> str:
    """`usage`: of a queue or node, which no version counts."""
    return json.dumps(values(item, "metadata.uid metadata.resourceVersion usage"), sort_keys=True)
