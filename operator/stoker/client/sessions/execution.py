"""A command in a worker whose input and output are bytes: `Client.exec`; and what both ends call its channels.

`stoker exec` brings them to a terminal or pipes instead (`stoker.cli.sessions.execute`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from subprocess import CompletedProcess

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from stoker.client.errors import TimedOut

from .background import Background
from .connection import PIECE_BYTES, Broken, WorkerTarget, session

INPUT, OUTPUT, ERROR, RESIZE, END, EXIT = (bytes((channel,)) for channel in range(6))
MOST_BYTES = 64 << 20
"""Of what a command prints, kept in memory."""


def run_in_worker(
    target: WorkerTarget, argv: Sequence[str], given: bytes, timeout_s: float | None
) -> CompletedProcess[bytes]:
    """What came of it. Raises: StokerError; TimedOut, and the command is ended."""
    with Background() as background:
        running = background.start(_run(target, argv, given))
        try:
            return running.result(timeout_s)
        except TimeoutError:
            raise TimedOut(f"{argv[0]} has not ended after {timeout_s:g} s in {target.job}; it is ended") from None


async def _run(target: WorkerTarget, argv: Sequence[str], given: bytes) -> CompletedProcess[bytes]:
    opening = {"kind": "exec", "argv": list(argv), "tty": False}
    async with session(target, "exec", opening, lambda text: None) as socket:
        sending = asyncio.create_task(_send(socket, given))
        try:
            return await _receive(socket, argv)
        finally:
            sending.cancel()


async def _send(socket: ClientConnection, given: bytes) -> None:
    with contextlib.suppress(ConnectionClosed):  # who receives says so
        for start in range(0, len(given), PIECE_BYTES):
            await socket.send(INPUT + given[start : start + PIECE_BYTES])
        await socket.send(END)


async def _receive(socket: ClientConnection, argv: Sequence[str]) -> CompletedProcess[bytes]:
    printed = {OUTPUT: bytearray(), ERROR: bytearray()}
    while True:
        message = await socket.recv()
        channel, data = (message[:1], message[1:]) if isinstance(message, bytes) else (b"", b"")
        if channel in printed:
            printed[channel] += data
            if sum(map(len, printed.values())) > MOST_BYTES:
                raise Broken(f"the command printed over {MOST_BYTES >> 20} MiB; it is ended")
        elif channel == EXIT:
            code, why = exit_of(data)
            error = bytes(printed[ERROR]) + (f"{why}\n".encode() if why else b"")
            return CompletedProcess(list(argv), code, bytes(printed[OUTPUT]), error)


def exit_of(data: bytes) -> tuple[int, str]:
    """A command's exit code, and a word about it. Raises: Broken."""
    try:
        found = json.loads(data)
        return int(found["exitCode"]), str(found.get("message") or "")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Broken("the worker reports the command's end in a form this client does not know") from None
