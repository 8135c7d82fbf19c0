"""A job's files where the api has no disk in common with its workers: asked of a pod that has them, over a session.

Owns which pod is asked, a running worker or else one that is made for it (`readers.py`), and the few sessions with
each. Knows no path and follows no link;
`stoker_worker.result_files` does, in the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.rest import FileList, JobFile
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec, checkpoint_claim, effective_runtime
from stoker.spec.worker_pod import identity
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker_api.ports import FileStamp, SessionCaller
from stoker_api.problems import Problem, ProblemCode
from stoker_api.sessions.registry import Sessions

from .channel import ChannelLost, FileChannel
from .readers import FileReaders

PIECE_BYTES = 1 << 20
AT_ONCE = 3
"""Sessions with one pod."""
TURN_S = 5.0
"""How long a request waits for one of them."""
IDLE_S = 60.0
"""How long a session is kept for the next request."""
_BESIDE_CODE = re.compile(r"beside-code-([1-9][0-9]{0,3})(?:/|$)")


@dataclass
class _Pool:
    """The sessions with one pod."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    idle: list[tuple[float, FileChannel]] = field(default_factory=list)
    """Since when (monotonic), which."""


class RemoteFiles:
    """`run` while the app lives: it ends what is no longer used."""

    def __init__(
        self,
        sessions: Sessions,
        caller: SessionCaller | None,
        pods: WatchCache[Pod],
        runtimes: WatchCache[TrainingRuntime] | None,
        readers: FileReaders,
        clock: Clock,
    ) -> None:
        self._sessions, self._caller, self._pods, self._runtimes = sessions, caller, pods, runtimes
        self._readers, self._clock = readers, clock
        self._pools: dict[str, _Pool] = {}

    async def run(self) -> None:
        """Never returns."""
        try:
            while True:
                await self._clock.sleep(IDLE_S / 4)
                await self.close_idle(self._clock.monotonic() - IDLE_S)
        finally:
            await self.close_idle(float("inf"))

    def place(self, job: TrainingJob) -> str | None:
        claim = self._claim(job) if job.status.attempt else None
        return None if claim is None else f"claim {claim}, {job.uid}/output"

    async def list(self, job: TrainingJob, folder: str, limit: int) -> FileList:
        async with self._channel(job, folder) as channel:
            _, data = await _asked(channel, list=folder, limit=limit)
        try:
            found = json.loads(data)
            items = tuple(
                JobFile(path=path, kind=kind, size=size, modified_at=_time(at))
                for path, kind, size, at in found["files"][:limit]
            )
            return FileList(items=items, folder=found["folder"], truncated=found["truncated"] is True)
        except (ValueError, TypeError, KeyError, ValidationError):  # a tenant's process answers
            raise _unreadable("its answer is not valid") from None

    async def open(self, job: TrainingJob, path: str) -> RemoteFile:
        async with contextlib.AsyncExitStack() as stack:
            channel = await stack.enter_async_context(self._channel(job, path))
            found, _ = await _asked(channel, open=path)
            return RemoteFile(channel, _stamp(found), stack.pop_all())

    @contextlib.asynccontextmanager
    async def _channel(self, job: TrainingJob, path: str) -> AsyncIterator[FileChannel]:
        """A session with a pod that has the path. Raises: Problem."""
        pod, worker = self._worker(job, path) or (await self._readers.pod(job, self._claim(job)), 0)
        pool = self._pools.setdefault(pod.uid, _Pool())
        async with self._turn(pool):
            channel = self._idle(pool)
            if channel is None:
                try:
                    channel = await FileChannel.open(self._sessions, self._caller, job, pod, worker)
                except ChannelLost as lost:
                    raise _unreadable(str(lost)) from None
            try:
                yield channel
            finally:
                if channel.over:
                    await channel.close()
                else:
                    pool.idle.append((self._clock.monotonic(), channel))

    @contextlib.asynccontextmanager
    async def _turn(self, pool: _Pool) -> AsyncIterator[None]:
        """One of the pod's sessions for the caller. Raises: Problem, where others have them all for too long."""
        try:
            async with asyncio.timeout(TURN_S):
                await pool.free.acquire()
        except TimeoutError:
            raise Problem(
                ProblemCode.TOO_MANY_STREAMS,
                f"{AT_ONCE} of the job's files are being read, the most there may be at once; try again.",
                retry_after_s=5,
            ) from None
        try:
            yield
        finally:
            pool.free.release()

    def _idle(self, pool: _Pool) -> FileChannel | None:
        while pool.idle:
            _, channel = pool.idle.pop()
            if not channel.over:
                return channel
            self._sessions.remove(channel.session)
        return None

    async def close_idle(self, before: float) -> None:
        """End the sessions that are unused since before then (monotonic)."""
        for uid, pool in list(self._pools.items()):
            for since, channel in list(pool.idle):
                if since <= before or channel.over:
                    pool.idle.remove((since, channel))
                    await channel.close()
            if not pool.idle and self._pods.by_uid(uid) is None:
                del self._pools[uid]

    def _worker(self, job: TrainingJob, path: str) -> tuple[Pod, int] | None:
        """Of several workers the one whose own files are asked for, else the first that runs; None: none does."""
        own = _BESIDE_CODE.match(path.lstrip("/"))
        first = [int(own[1])] if own else []
        for worker in dict.fromkeys((*first, *range(job.spec.most_workers))):
            key = Key(job.metadata.namespace, f"{job.metadata.name}-{job.status.attempt}-{worker}")
            pod = self._pods.get(key) if job.status.attempt else None
            if pod is None or pod.status.phase is not PodPhase.RUNNING or pod.metadata.deletion_timestamp is not None:
                continue
            found = identity(pod.metadata)
            if found is not None and found.job_uid == job.uid:
                return pod, worker
        return None

    def _claim(self, job: TrainingJob) -> str | None:
        runtimes = () if self._runtimes is None else tuple(self._runtimes.values())
        name = effective_runtime(job.spec.runtime, job.metadata.namespace, runtimes)
        runtime = next((one for one in runtimes if one.metadata.name == name), None)
        spec = TrainingRuntimeSpec() if runtime is None else runtime.spec
        return checkpoint_claim(job.metadata.name, job.spec.checkpoint.claim, spec)


class RemoteFile:
    """One open file; it has the session for itself. `close` in any case."""

    def __init__(self, channel: FileChannel, stamp: FileStamp, hold: contextlib.AsyncExitStack) -> None:
        self._channel, self._hold = channel, hold
        self.stamp = stamp

    async def pieces(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` up to before `end`. Raises: OSError."""
        while start < end:
            wanted = min(PIECE_BYTES, end - start)
            try:
                _, piece = await self._channel.ask(read=[start, start + wanted])
            except (ChannelLost, Problem) as error:
                raise OSError(str(error)) from None
            if len(piece) != wanted:
                raise OSError("the file has become shorter while it was read")
            start += wanted
            yield piece

    async def close(self) -> None:
        await self._hold.aclose()


async def _asked(channel: FileChannel, **request: Any) -> tuple[dict[str, Any], bytes]:
    """Raises: Problem."""
    try:
        return await channel.ask(**request)
    except ChannelLost as lost:
        raise _unreadable(str(lost)) from None


def _stamp(found: dict[str, Any]) -> FileStamp:
    """Raises: Problem."""
    size, at_ns, inode = (found.get(name) for name in ("size", "mtimeNs", "inode"))
    if not (isinstance(size, int) and isinstance(at_ns, int) and isinstance(inode, int)) or not 0 <= size < 1 << 62:
        raise _unreadable("its answer is not valid")
    return FileStamp(size, _time(at_ns / 1e9), f'"{abs(at_ns):x}-{size:x}-{abs(inode):x}"')


def _unreadable(why: str) -> Problem:
    shown = "".join(c if c.isprintable() else "?" for c in why)
    return Problem(ProblemCode.UNAVAILABLE, f"The job's files can't be read now: {shown}; try again.", retry_after_s=2)


def _time(at_s: Any) -> datetime:
    """A file's time may be anything."""
    try:
        return datetime.fromtimestamp(int(at_s), UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
