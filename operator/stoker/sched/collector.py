"""Work all of whose objects live on: the garbage collector, which would walk them again and again, waits meanwhile.

Called by `decide` and `fork`.
"""

from __future__ import annotations

import gc


class CollectorWaits:
    """Of several threads inside at a time, each one that turned it off turns it on again."""

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        if self._was_on:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()
