"""The kubelet's copy of a worker's output, fetched into the stored logs where the worker itself does not ship it.

A supervisor prints to its stdout what it ships, so the kubelet has the same bytes, but only the newest of them (it
rotates) and perhaps with a newline at the end that was not printed. Owns how copies meet, and the tasks that follow
workers without a supervisor. Called by `source.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from stoker.spec.pod import Pod

from .log_file import Gap, LogOwner
from .storage import LogGone, LogsFull, ShippedLogs

log = logging.getLogger(__name__)

ANCHOR_BYTES = 4096
COPY_BYTES = 64 << 20
"""Of the kubelet's copy at most so much is looked at, the newest; its own limit is 10 MiB a file unless set."""
COPY_S = 60.0
TOGETHER = 64
"""Workers followed at a time: each is a connection to the API server and the kubelet."""
_UNREAD_S = 30.0
"""A follower whose log was not read for so long makes room for another."""
_ROTATED = b"[stoker] some output may be missing or repeated here: the kubelet had begun a new file\n"


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


class Puller:
    def __init__(self, shipped: ShippedLogs, tail: PodLogTail, grown: Callable[[str], None]) -> None:
        self._shipped, self._tail, self._grown = shipped, tail, grown
        self._follows: dict[str, asyncio.Task[None]] = {}
        self._read_at: dict[str, float] = {}

    def give_way(self, pod_uid: str) -> None:
        """The worker ships its log itself after all."""
        task = self._follows.get(pod_uid)
        if task is not None:
            task.cancel()

    def follow(self, pod: Pod, owner: LogOwner) -> None:
        """Its log is being read: follow this worker's output, unless that is done already."""
        now = asyncio.get_running_loop().time()
        if pod.uid in self._follows:
            self._read_at[pod.uid] = now
            return
        if len(self._follows) >= TOGETHER:
            longest = min(self._read_at, key=self._read_at.__getitem__)
            if now - self._read_at[longest] > _UNREAD_S:
                self._follows[longest].cancel()  # it goes on where it stopped when its log is read again
            return
        task = asyncio.create_task(self._follow(pod, owner))
        self._follows[pod.uid], self._read_at[pod.uid] = task, now
        task.add_done_callback(lambda _: self._forget(pod.uid))

    def _forget(self, pod_uid: str) -> None:
        del self._follows[pod_uid], self._read_at[pod_uid]

    async def complete(self, pod: Pod, owner: LogOwner, held: int, total: int | None) -> None:
        """Append what the copy has behind the `held` bytes. Raises: LogsFull, LogGone, OSError, LookupError."""
        following = self._follows.get(pod.uid)
        if following is not None:  # it ends with the container
            await asyncio.wait([following], timeout=COPY_S)
            following.cancel()
            held = await self._shipped.held(pod.uid, owner)
        copy = bytearray()
        async with asyncio.timeout(COPY_S), closing(self._tail.stream(pod, follow=False)) as parts:
            async for part in parts:
                copy += part
                if len(copy) > 2 * COPY_BYTES:
                    del copy[:-COPY_BYTES]
        rest = rest_of(bytes(copy), held, await self._anchor(pod.uid), total)
        if rest is not None:
            await self._append(pod.uid, owner, held, rest)
        elif total is not None and total > held:
            missing = total - held
            newest = bytes(copy[-missing:])
            await self._shipped.append(pod.uid, owner, total - len(newest), newest, lost=True)
        else:
            await self._append(pod.uid, owner, held, _ROTATED + bytes(copy))

    async def close(self) -> None:
        tasks = list(self._follows.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, pod: Pod, owner: LogOwner) -> None:
        try:
            held = await self._shipped.begin_pull(pod.uid, owner)
            anchor = await self._anchor(pod.uid)
            seen, window = 0, b""
            async with closing(self._tail.stream(pod, follow=True)) as parts:
                async for part in parts:
                    if seen < held:  # what an earlier follower has stored
                        already = min(held - seen, len(part))
                        window = (window + part[:already])[-ANCHOR_BYTES:]
                        seen, part = seen + already, part[already:]
                        if seen == held and window != anchor:
                            part = _ROTATED + part
                    if part:
                        seen = held = await self._append(pod.uid, owner, held, part)
        except (OSError, LookupError, LogGone, LogsFull, Gap) as error:
            log.info("following the output of pod %s ended: %s", pod.uid, error)
        except Exception:
            log.exception("following the output of pod %s failed", pod.uid)
        finally:
            self._grown(pod.uid)

    async def _append(self, pod_uid: str, owner: LogOwner, offset: int, data: bytes) -> int:
        held = await self._shipped.append(pod_uid, owner, offset, data)
        self._grown(pod_uid)
        return held

    async def _anchor(self, pod_uid: str) -> bytes:
        """The last bytes that are stored."""
        size = self._shipped.size(pod_uid) or 0
        found = await self._shipped.read(pod_uid, max(0, size - ANCHOR_BYTES), ANCHOR_BYTES)
        return b"" if found is None else found[0]
