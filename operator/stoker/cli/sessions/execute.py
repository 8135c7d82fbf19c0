"""`stoker exec`: a command in a worker, with this process's terminal or pipes. Called by `commands/sessions.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from stoker.client.sessions.connection import READER_S, TYPIST_S, WorkerTarget, session
from stoker.client.sessions.execution import END, ERROR, EXIT, INPUT, OUTPUT, RESIZE, exit_of

from . import terminal
from .streams import Output, read_pieces

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def execute(target: WorkerTarget, argv: Sequence[str], say: Callable[[str], None]) -> int:
    """Run it to its end; the command's exit code. Raises: StokerError, BrokenPipeError, KeyboardInterrupt."""
    try:
        return asyncio.run(_execute(target, argv, say))
    except terminal.Ended as ended:
        return ended.exit_code


async def _execute(target: WorkerTarget, argv: Sequence[str], say: Callable[[str], None]) -> int:
    with_terminal = terminal.is_terminal(_STDIN, _STDOUT)
    opening: dict[str, Any] = {"kind": "exec", "argv": list(argv), "tty": with_terminal}
    if with_terminal:
        size = terminal.size_of(_STDOUT)
        opening |= {"columns": size.columns, "rows": size.lines, "term": os.environ.get("TERM") or "xterm"}
    patience_s = TYPIST_S if with_terminal else READER_S
    async with session(target, "exec", opening, say, patience_s) as socket:
        with _terminal(socket) if with_terminal else contextlib.nullcontext():
            # A terminal that is not the command's belongs to others: to the pager behind the pipe, say.
            reading = _read_input(socket) if with_terminal or not terminal.is_terminal(_STDIN) else socket.send(END)
            sending = asyncio.create_task(reading)
            try:
                code, message = await _carry(socket)
            finally:
                sending.cancel()
    if message:
        say(message)
    return code


async def _read_input(socket: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):  # `_carry` says so
        async for data in read_pieces(_STDIN):
            await socket.send(INPUT + data)
        await socket.send(END)


async def _carry(socket: ClientConnection) -> tuple[int, str]:
    """Bring the command's output out until its end. Returns: its exit code, and a word about it."""
    output = Output()
    while True:
        message = await socket.recv()
        channel, data = (message[:1], message[1:]) if isinstance(message, bytes) else (b"", b"")
        if channel == OUTPUT:
            await output.write(_STDOUT, data)
        elif channel == ERROR:
            await output.write(_STDERR, data)
        elif channel == EXIT:
            return exit_of(data)


@contextlib.contextmanager
def _terminal(socket: ClientConnection) -> Iterator[None]:
    sending: set[asyncio.Task[None]] = set()

    async def send_size() -> None:
        size = terminal.size_of(_STDOUT)
        with contextlib.suppress(ConnectionClosed):
            await socket.send(RESIZE + json.dumps({"columns": size.columns, "rows": size.lines}).encode())

    def resized() -> None:
        task = asyncio.ensure_future(send_size())
        sending.add(task)
        task.add_done_callback(sending.discard)

    with terminal.raw(_STDIN, resized):
        resized()  # it may have changed while the worker came
        yield
