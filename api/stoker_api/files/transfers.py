"""How many file requests are under way: of one caller, and in all. Called by `routes/files.py`."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self

from stoker_api.problems import Problem, ProblemCode

OF_CALLER = 8
TOTAL = 64


class Transfers:
    def __init__(self) -> None:
        self._of_caller: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        return self._of_caller.total()

    def begin(self, caller: str) -> Transfer:
        """Raises: Problem (TooManyOwnStreams, TooManyStreams)."""
        if self._of_caller[caller] >= OF_CALLER:
            raise Problem(
                ProblemCode.TOO_MANY_OWN_STREAMS,
                f"{caller!r} reads {OF_CALLER} files at once, the most one caller may; wait for one of them.",
                retry_after_s=2,
            )
        if self._of_caller.total() >= TOTAL:
            raise Problem(
                ProblemCode.TOO_MANY_STREAMS,
                f"{TOTAL} files are being read, the most there may be at once; try again.",
                retry_after_s=2,
            )
        self._of_caller[caller] += 1
        return Transfer(self, caller)

    def end(self, caller: str) -> None:
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]


class Transfer:
    """One request's place; as a context it ends with the block, unless it was handed on."""

    def __init__(self, transfers: Transfers, caller: str) -> None:
        self._transfers, self._caller = transfers, caller
        self._ended = self._handed_on = False

    def hand_on(self) -> Self:
        """It is to outlast the block: `end` comes later."""
        self._handed_on = True
        return self

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._transfers.end(self._caller)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if not self._handed_on:
            self.end()
