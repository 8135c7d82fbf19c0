"""Which domain of each level of the topology every node is in, as small numbers.

Owns the numbers: one lasts as long as a node of its domain, and is then used again, so that nodes that come and go with
labels of their own (`kubernetes.io/hostname`) leave nothing behind. Called by `nodes`; read by `topology`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .columns import DomainView
from .journal import Journal

NO_DOMAIN = 0
"""Of a node that lacks a label."""


class NodeDomains:
    def __init__(self, journal: Journal, levels: Sequence[str]) -> None:
        """`levels`: keys of node labels, outermost first."""
        self._journal = journal
        self.views = {level: DomainView(np.zeros(0, dtype=np.int64)) for level in levels}
        self._numbers: dict[tuple[str, ...], int] = {}
        """Labels of a level and those outside it → the domain."""
        self._nodes: dict[int, int] = {}
        """Domain → how many nodes are in it."""
        self._labels: dict[int, tuple[str, ...]] = {}
        self._spare: list[int] = []

    def put(self, slot: int, labels: Mapping[str, str]) -> None:
        path: tuple[str, ...] = ()
        for level, view in self.views.items():
            path = (*path, labels.get(level, ""))
            number = self._enter(path) if all(path) else NO_DOMAIN
            self._leave(int(view.ids[slot]))
            self._journal.cell(view.ids, slot, number)

    def drop(self, slot: int) -> None:
        self.put(slot, {})

    def _enter(self, path: tuple[str, ...]) -> int:
        number = self._numbers.get(path)
        if number is None:
            if self._spare:
                number = self._spare.pop()
                self._journal.note(self._spare.append, number)
            else:
                number = len(self._numbers) + 1
            self._journal.put(self._numbers, path, number)
            self._journal.put(self._labels, number, path)
        self._journal.put(self._nodes, number, self._nodes.get(number, 0) + 1)
        return number

    def _leave(self, number: int) -> None:
        if number == NO_DOMAIN:
            return
        if self._nodes[number] > 1:
            self._journal.put(self._nodes, number, self._nodes[number] - 1)
            return
        self._journal.drop(self._nodes, number)
        self._journal.drop(self._numbers, self._labels[number])
        self._journal.drop(self._labels, number)
        self._spare.append(number)
        self._journal.note(self._spare.pop)
