"""What of a folder stays behind: measured within a bound, said in a line, and sent with the job, largest first.

What the job is sent with lets `stoker why` say of a missing file that it was left out. Called by the commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.job_parts import MAX_LEFT_OUT, MAX_LEFT_OUT_PATH

from .bundle import Bundle
from .folder import VIRTUAL_ENV, SkippedPath, shown
from .sizes import size_text

MOST_MEASURED = 20_000
"""Files and folders that are looked at for their sizes, in all."""
MEASURE_S = 0.2
_SIZE_FROM_BYTES = 1_000_000
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LeftOutPath:
    """A file, or a folder with all that is below it (a slash at its end)."""

    path: str
    by: str
    """The rule: its file, seen from the folder, and the line."""
    size_bytes: int
    whole: bool
    """Else it is larger: not all of it was looked at."""


def left_out(bundle: Bundle, *, clock: Callable[[], float] = time.monotonic) -> list[LeftOutPath]:
    """What rules left out of the folder, the largest first. Virtual environments are omitted: workers have their own.

    Cost: MEASURE_S at most, and one system call for each that is left out.
    """
    measure = _Measure(clock() + MEASURE_S, clock)
    found = [
        LeftOutPath(skipped.path, _rule(skipped, bundle.folder), *measure.size(f"{bundle.folder}/{skipped.path}"))
        for skipped in bundle.skipped
        if not _is_virtual_env(f"{bundle.folder}/{skipped.path}")
    ]
    return sorted(found, key=lambda one: (-one.size_bytes, one.path))


def left_out_text(found: list[LeftOutPath]) -> str:
    """For people: `data/ (90 MB), runs/ and 2 more (.gitignore)`; '' if there is nothing."""
    if not found:
        return ""
    largest = ", ".join(_with_size(one) for one in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    files = dict.fromkeys(one.by.rpartition(":")[0] for one in found[:_SHOWN])
    return f"{largest}{more} ({', '.join(shown(file) for file in files)})"


def left_out_field(found: list[LeftOutPath]) -> list[dict[str, str]]:
    """As `trainer.leftOut` of a job."""
    sendable = (one for one in found if _is_sendable(one.path) and _is_sendable(one.by))
    return [{"path": one.path, "by": one.by} for one, _ in zip(sendable, range(MAX_LEFT_OUT), strict=False)]


class _Measure:
    """Sizes of files and folders, as far as a common bound of time and number allows."""

    def __init__(self, until: float, clock: Callable[[], float]) -> None:
        self._until, self._clock = until, clock
        self._left = MOST_MEASURED

    def size(self, path: str) -> tuple[int, bool]:
        """Bytes, and whether that is all. No link is followed."""
        if not path.endswith("/"):
            return self._of_file(path)
        total, waiting = 0, [path]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as listing:
                    for entry in listing:
                        if self._is_spent():
                            return total, False
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue  # not ours to see, or gone meanwhile
        return total, True

    def _of_file(self, path: str) -> tuple[int, bool]:
        try:
            return (0, False) if self._is_spent() else (Path(path).lstat().st_size, True)
        except OSError:
            return 0, False

    def _is_spent(self) -> bool:
        self._left -= 1
        return self._left < 0 or self._clock() > self._until


def _is_virtual_env(path: str) -> bool:
    try:
        return path.endswith("/") and Path(path, VIRTUAL_ENV).exists()
    except OSError:
        return False


def _rule(skipped: SkippedPath, folder: str) -> str:
    return f"{os.path.relpath(skipped.by.path, folder)}:{skipped.by.number}"


def _with_size(one: LeftOutPath) -> str:
    size = f"{'' if one.whole else 'over '}{size_text(one.size_bytes)}"
    return shown(one.path) + (f" ({size})" if one.size_bytes >= _SIZE_FROM_BYTES else "")


def _is_sendable(text: str) -> bool:
    return text.isprintable() and len(text) <= MAX_LEFT_OUT_PATH
