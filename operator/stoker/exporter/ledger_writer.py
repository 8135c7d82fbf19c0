"""Keeps the ledger on disk, on a thread of its own, and says what may be shown and sent: only what is kept.

A crash then never makes a counter fall: what was scraped or posted is in the file. A disk that fails or hangs delays
nothing but this: after a while the newest figures are shown all the same. Called by `loop`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .meters import ledger_file
from .meters.snapshot import Books
from .receipts import Receipt

EVERY_S = 1.8
"""Every other poll of one a second. What is shown of jobs is that old: their rates over a minute are off by 3 %."""
HANGS_AFTER_S = 30.0

log = logging.getLogger("stoker.exporter")


class LedgerCopy(NamedTuple):
    """The ledger at one moment, in its three forms."""

    data: bytes
    books: Books
    receipts: tuple[Receipt, ...]


class LedgerWriter:
    def __init__(self, state: Path | None, kept: Books, send: Callable[[tuple[Receipt, ...]], None]) -> None:
        """kept: What the file says as we begin. send: Gets receipts that are kept; must not block."""
        self._state, self._send = state, send
        self._books = kept
        self._waiting: LedgerCopy | None = None
        self._since_s: float | None = None
        """Monotonic seconds since when something waits to be written."""
        self._failing = False
        self._ending = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        if self._state is not None:
            self._thread.start()

    def offer(self, copy: LedgerCopy) -> None:
        """Never blocks on the disk; the newest copy is what counts."""
        if self._state is None:
            self._publish(copy)
            return
        with self._news:
            self._waiting = copy
            self._since_s = self._since_s or time.monotonic()
            self._news.notify()

    def stop(self, timeout_s: float) -> bool:
        """Whether all that was offered is kept."""
        with self._news:
            self._ending = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def books(self) -> Books:
        """What may be shown."""
        with self._news:
            copy = self._waiting
            if copy is not None and self._since_s is not None and time.monotonic() - self._since_s > HANGS_AFTER_S:
                return copy.books
            return self._books

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting is not None or self._ending)
                copy, self._waiting = self._waiting, None
            if copy is None:
                return
            self._write(copy)
            self._publish(copy)

    def _write(self, copy: LedgerCopy) -> None:
        assert self._state is not None
        try:
            ledger_file.write(self._state, copy.data)
        except OSError as error:
            if not self._failing:
                log.warning("the ledger can't be written to %s: %s; it is tried again and again", self._state, error)
            self._failing = True
            return
        if self._failing:
            log.warning("the ledger is written to %s again", self._state)
        self._failing = False

    def _publish(self, copy: LedgerCopy) -> None:
        with self._news:
            self._books, self._since_s = copy.books, None if self._waiting is None else time.monotonic()
        self._send(copy.receipts)
