"""The user's terminal while a session has it: raw, its size sent, and given back as it was whatever ends the session.

Called by `execute.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator

DEFAULT_SIZE = os.terminal_size((80, 24))
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def is_terminal(*fds: int) -> bool:
    return all(os.isatty(fd) for fd in fds)


def size_of(fd: int) -> os.terminal_size:
    """Units: cells. The usual ones where the terminal does not know."""
    with contextlib.suppress(OSError):
        found = os.get_terminal_size(fd)
        if found.columns > 0 and found.lines > 0:
            return found
    return DEFAULT_SIZE


@contextlib.contextmanager
def raw(fd: int, resized: Callable[[], None]) -> Iterator[None]:
    """Every key goes to the worker, Ctrl-C too; `resized` is called when the window changes.

    SIGTERM and SIGHUP end the running task, so that the terminal is given back; SIGINT does already.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    # Both ways by TCSANOW: flushing would lose what was typed ahead, draining waits for a terminal that stands still.
    before = termios.tcgetattr(fd)
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        task.cancel()

    try:
        loop.add_signal_handler(signal.SIGWINCH, resized)
        for number in _ENDING:
            loop.add_signal_handler(number, end, number)
        tty.setraw(fd, termios.TCSANOW)
        yield
    except asyncio.CancelledError:
        if not ended_by:
            raise
        raise Ended(ended_by[0]) from None
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
        for number in (signal.SIGWINCH, *_ENDING):
            loop.remove_signal_handler(number)


class Ended(Exception):
    """A signal ended the session."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
