"""Standard input and output beside an event loop: a thread each, which may block and never keeps the process alive.

Files, pipes and terminals alike; back-pressure both ways: the next piece is read only once the one before was sent,
and `write` returns only once its piece was taken. Called by `execute.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator

from stoker.client.sessions.connection import PIECE_BYTES


class Output:
    """Writes to descriptors in order. `write` raises what the write raised: BrokenPipeError, OSError."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[int, bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    async def write(self, fd: int, data: bytes) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((fd, data, done))
        await done

    def _run(self) -> None:
        while True:
            fd, data, done = self._work.get()
            error: OSError | None = None
            try:
                while data:
                    data = data[os.write(fd, data) :]
            except OSError as met:
                error = met
            with contextlib.suppress(RuntimeError):  # the loop is over: there is no reader
                self._loop.call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


async def read_pieces(fd: int) -> AsyncIterator[bytes]:
    """What is read from `fd`, to its end; the next piece is read once this one was dealt with."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(0)

    def run() -> None:
        data = b"begin"
        while data:
            wanted.acquire()
            try:
                data = os.read(fd, PIECE_BYTES)
            except OSError:  # closed, or a terminal that is gone: nothing more will come
                data = b""
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, data)
            except RuntimeError:  # the loop is over: there is no reader
                return

    threading.Thread(target=run, daemon=True).start()
    while True:
        wanted.release()
        data = await pieces.get()
        if not data:
            return
        yield data
