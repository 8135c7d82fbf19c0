"""Group commit: one thread that writes to the file, and everything that waits while it does goes into its next commit.

Owns the order of writes and their outcome: all of a batch or none, acknowledged after the commit. A batch that fails
takes with it every write that waits, since those were decided on top of it. Never decides what is written.
Called by `store.EmbeddedStore` from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable

from stoker.store.port import CannotWrite, Unavailable, WatchType
from stoker.store.seam import Seam

from .db import BATCH_LIMIT, Database, ObjectRow
from .table import AnyWrite
from .transitions import to_json

logger = logging.getLogger(__name__)

PROBE_S = 2.0
"""How often a disk that refused a commit is asked again while there is none to make."""


class GroupCommit:
    def __init__(
        self,
        database: Database,
        seam: Seam,
        *,
        publish: Callable[[list[AnyWrite]], None],
        abort: Callable[[list[AnyWrite]], None],
    ) -> None:
        """`publish` makes committed writes visible, `abort` forgets failed ones; both run on the event loop."""
        self._database, self._seam = database, seam
        self._publish, self._abort = publish, abort
        self._loop = asyncio.get_running_loop()
        self._waiting: list[AnyWrite] = []
        self._flush_due = False
        self._in_flight = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusal: str | None = None
        self.trouble = ""
        """Why the disk took nothing at the last try; '': it took it."""
        self._batches: queue.SimpleQueue[list[AnyWrite] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_batches, name="stoker-store-writer", daemon=True)
        self._thread.start()

    def submit(self, write: AnyWrite) -> None:
        """Take the write into the next commit. Raises: Unavailable when there will be none."""
        if self._refusal is not None:
            raise Unavailable(self._refusal)
        self._waiting.append(write)
        self._idle.clear()
        if not self._flush_due and not self._in_flight:
            # At the end of this turn of the loop, so that everything it brings goes in one commit.
            self._flush_due = True
            self._loop.call_soon(self._flush)

    async def close(self) -> None:
        """Take no more writes, commit those that wait, end the thread."""
        self._refusal = "the store is closed"
        await self._idle.wait()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._waiting:
            self._idle.set()
            return
        batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
        self._in_flight = True
        self._batches.put(batch)

    def _finished(self, batch: list[AnyWrite], error: Exception | None) -> None:
        self._in_flight = False
        self.trouble = str(error) if isinstance(error, sqlite3.Error) else ""
        if error is None:
            self._publish(batch)
        else:
            batch, self._waiting = batch + self._waiting, []
            self._abort(batch)
        for write in batch:
            for waiter in write.waiters:
                if waiter.done():
                    continue
                if error is None:
                    waiter.set_result(None)
                else:
                    why = CannotWrite if self.trouble else Unavailable
                    waiter.set_exception(why(f"the store can't write: {error}"))
        self._flush()

    def _recovered(self) -> None:
        self.trouble = ""

    # On the writer thread.

    def _write_batches(self) -> None:
        failing = False
        while True:
            try:
                batch = self._batches.get(timeout=PROBE_S if failing else None)
            except queue.Empty:
                failing = not self._takes_writes()
                if not failing:
                    self._loop.call_soon_threadsafe(self._recovered)
                continue
            if batch is None:
                return
            error = self._write(batch)
            failing = error is not None
            self._loop.call_soon_threadsafe(self._finished, batch, error)
            try:
                self._database.sweep_if_due()
            except sqlite3.Error as trouble:  # housekeeping: the next sweep will do
                logger.warning("can't sweep the store: %s", trouble)

    def _takes_writes(self) -> bool:
        try:
            self._database.probe()
        except sqlite3.Error:
            return False
        return True

    def _write(self, batch: list[AnyWrite]) -> Exception | None:
        newest = {(write.table.kind.kind, write.obj.key): write for write in batch}  # one row per object
        rows = [_row(write) for write in newest.values()]
        try:
            with self._seam.crossing("sqlite.commit"):
                self._database.write(rows)
        except Exception as error:  # noqa: BLE001 - the thread's edge: all who wait must hear of it, whatever it is
            try:
                return None if self._database.holds(rows[-1]) else error
            except sqlite3.Error as trouble:
                # It is not known what is in the file, so memory can't be trusted either; a new start reads it afresh.
                self._refusal = f"a commit failed ({error}) and the file can't be read ({trouble}): start again"
                return error
        return None


def _row(write: AnyWrite) -> ObjectRow:
    key = write.obj.key
    json = None if write.type is WatchType.DELETED else to_json(write.obj)
    return ObjectRow(write.table.kind.kind, key.namespace, key.name, write.obj.uid, write.version, json)
