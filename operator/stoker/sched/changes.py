"""What changed since the last decide, as far as that says what is to be tried again.

Owns these marks. Set by `state` and what it is made of, read by `decide`, `wake` and `claims`.
"""

from __future__ import annotations

from .journal import Journal


class Changes:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.freed_nodes: set[str] = set()
        self.freed_queues: set[str] = set()
        self.filled_nodes: set[str] = set()
        """On which claims may have come to nothing."""
        self.filled_queues: set[str] = set()
        """In whose limits, or those of queues above, claims may have come to nothing."""
        self.kept_nodes: set[str] = set()
        """Reservations keep something there, or did when all had been decided on last, and it holds lanes back."""
        self.kept_queues: set[str] = set()
        """So much of their limits is, or was, kept that some of their lanes were passed over."""
        self.shifted = False
        """Something that reservations depend on."""

    def __bool__(self) -> bool:
        """Something may start, or reserve elsewhere, that did not before."""
        return bool(self.freed_nodes or self.freed_queues or self.shifted)

    def free_node(self, name: str) -> None:
        """It may have more room."""
        self._journal.add(self.freed_nodes, name)

    def free_queue(self, name: str) -> None:
        self._journal.add(self.freed_queues, name)

    def turn_node(self, name: str) -> None:
        """It has another size, lets others in, or has come or gone."""
        self.free_node(name)
        self.fill_node(name)

    def fill_node(self, name: str) -> None:
        """Something else than a decision may have taken of it, or has not left it."""
        self.shift()  # reservations may move to other nodes
        self._journal.add(self.filled_nodes, name)

    def fill_queue(self, name: str) -> None:
        """A job that others counted on has not left it."""
        self._journal.add(self.filled_queues, name)

    def shift(self) -> None:
        if not self.shifted:
            self._journal.set(self, "shifted", True)

    def keep_node(self, name: str) -> None:
        self._journal.add(self.kept_nodes, name)

    def keep_queue(self, name: str) -> None:
        self._journal.add(self.kept_queues, name)

    def settle(self) -> None:
        """Everything changed so far has been decided on."""
        for name in ("freed_nodes", "freed_queues", "filled_nodes", "filled_queues"):
            if getattr(self, name):
                self._journal.set(self, name, set())
        if self.shifted:
            self._journal.set(self, "shifted", False)
