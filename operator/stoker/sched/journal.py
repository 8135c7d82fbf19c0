"""The undo log behind what-if: every change of the scheduler's state is written through it.

Owns how a change is taken back. Knows nothing of what is changed. Called by `state` and `nodes`.
Source: KAI-Scheduler's Statement and Kueue's snapshot revert; ours costs one `if` per change outside a what-if.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K")
V = TypeVar("V")

_ABSENT: Any = object()


class Journal:
    """Invariant: after `rollback(mark)` everything changed through the journal since `mark` is as it was."""

    __slots__ = ("_log", "_open")

    def __init__(self) -> None:
        self._log: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._open = 0

    def checkpoint(self) -> int:
        """A mark for `rollback`; marks nest and are rolled back in reverse order, each exactly once."""
        self._open += 1
        return len(self._log)

    def rollback(self, mark: int) -> None:
        log = self._log
        while len(log) > mark:
            undo, arguments = log.pop()
            undo(*arguments)
        self._open -= 1

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """Whatever happens inside is taken back at the end, whichever way it ends."""
        mark = self.checkpoint()
        try:
            yield
        finally:
            self.rollback(mark)

    def note(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Remember how to take back a change that the caller makes itself."""
        if self._open:
            self._log.append((undo, arguments))

    def put(self, mapping: dict[K, V], key: K, value: V) -> None:
        if self._open:
            old = mapping.get(key, _ABSENT)
            self._log.append((mapping.pop, (key,)) if old is _ABSENT else (mapping.__setitem__, (key, old)))
        mapping[key] = value

    def drop(self, mapping: dict[K, V], key: K) -> None:
        """Nothing happens where `key` is not there."""
        value = mapping.pop(key, _ABSENT)
        if value is not _ABSENT:
            if not mapping:
                mapping.clear()  # or else a walk over it goes on to cost what it was at its largest
            if self._open:
                self._log.append((mapping.__setitem__, (key, value)))

    def put_all(self, mapping: dict[K, V], new: Mapping[K, V]) -> None:
        if self._open:
            for key, value in new.items():
                self.put(mapping, key, value)
        else:
            mapping.update(new)

    def get_or_make(self, mapping: dict[K, V], key: K, make: Callable[[], V]) -> V:
        """What stands there; made, where nothing does."""
        found = mapping.get(key)
        if found is None:
            found = make()
            self.put(mapping, key, found)
        return found

    def add(self, members: set[K], item: K) -> None:
        if item not in members:
            members.add(item)
            if self._open:
                self._log.append((members.discard, (item,)))

    def set(self, owner: object, name: str, value: object) -> None:
        if self._open:
            self._log.append((setattr, (owner, name, getattr(owner, name))))
        setattr(owner, name, value)

    def assign(self, owner: object, **values: object) -> None:
        """`set` for several attributes."""
        for name, value in values.items():
            if self._open:
                self._log.append((setattr, (owner, name, getattr(owner, name))))
            setattr(owner, name, value)

    def cell(self, column: NDArray[Any], index: int, value: int | np.int64) -> None:
        if self._open:
            self._log.append((column.__setitem__, (index, column[index])))
        column[index] = value
