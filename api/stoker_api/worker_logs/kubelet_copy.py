"""The kubelet's copy of a worker's output, for what the worker itself did not ship: the protocol, and how copies meet.

A supervisor prints to its stdout what it ships, so the kubelet has the same bytes, but only the newest of them (it
rotates) and perhaps with a newline at the end that was not printed. Pure but for the protocol. Called by `source.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from stoker.spec.pod import Pod

ANCHOR_BYTES = 4096


class PodLogTail(Protocol):
    """Where the kubelet's copy is read (`pods/log` of the worker's container)."""

    def stream(self, pod: Pod, *, follow: bool) -> AsyncIterator[bytes]:
        """What there still is, oldest first; `follow`: and what comes, until the container ends.

        Raises: OSError, LookupError (the pod or its log is gone).
        """
        ...


@contextlib.asynccontextmanager
async def closing(stream: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The stream, whose connection is closed behind it also when it was not read to its end."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def rest_of(copy: bytes, held: int, anchor: bytes, total: int | None) -> bytes | None:
    """What stands in `copy` behind the `held` bytes we have; None if the copy begins later than that.

    `anchor`: the last bytes we have. `total`: how long the whole log is, where the exit record says so.
    """
    for end in _candidates(copy, held, anchor, total):
        if len(anchor) <= end <= len(copy) and copy.startswith(anchor, end - len(anchor)):
            rest = copy[end:]
            return rest if total is None else rest[: max(0, total - held)]
    return None


def _candidates(copy: bytes, held: int, anchor: bytes, total: int | None) -> list[int]:
    """Where what we have may end in `copy`, the likeliest first."""
    found = []
    if total is None or len(copy) >= total:  # never rotated
        found.append(held)
    if total is not None:
        missing = total - held
        found += [len(copy) - missing, len(copy) - missing - 1]  # the ends are the same
    # Less than a whole anchor may look the same in many places, and a file that was rotated is longer than that.
    if len(anchor) >= ANCHOR_BYTES and (at := copy.rfind(anchor)) >= 0:
        found.append(at + len(anchor))
    return found
