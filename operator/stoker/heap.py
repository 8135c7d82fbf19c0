"""The C library's heap, set up so that a process that runs for weeks does not spread. Called by the processes' mains.

Python's own objects lie elsewhere; here lie buffers, strings over 512 bytes and what SQLite, TLS and uvloop take.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Source: glibc's malloc.h, mallopt(3)."""
_LARGE_BYTES = 256 << 10


def hold_heap_together() -> None:
    """One heap for all threads, and large blocks by themselves. Call it before the first thread starts.

    Threads take turns by the interpreter's lock anyway; with an arena for each, what one frees the next can't use.
    Large blocks (a page of metrics, a body, a part of a log) go back to the system at once: by default the C library
    moves them onto the heap after the first few. Does nothing where the C library is another. Unlike variables of the
    environment this does not reach the workers' processes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 4 * _LARGE_BYTES)


def give_back_heap() -> None:
    """Let the system have what is free in the heap, which the C library keeps otherwise. Cost: milliseconds."""
    with contextlib.suppress(OSError, AttributeError):  # another library than glibc
        ctypes.CDLL(None).malloc_trim(0)
