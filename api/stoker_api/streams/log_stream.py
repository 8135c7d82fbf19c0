"""A worker's log followed over growth, pauses and new attempts, as raw bytes or as resumable SSE.

Owns which log is read from where, when it is over and what comes next. Reads through a `LogSource` and the caches.
Called by `routes/logs.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NamedTuple

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.worker_pod import identity
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker_api.jobs.change import ended
from stoker_api.ports import LogSource

from .job_events import end_of
from .lines import LineCutter
from .news import News
from .sse import HEARTBEAT, RETRY, StreamSettings, frame

CHUNK = 64 * 1024
_LOOK_AGAIN_S = 5.0
_LAST_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class LogQuery:
    job: TrainingJob
    worker: int
    attempt: int | None
    """None: the newest, and when following the ones after it."""
    follow: bool
    tail_lines: int | None = None


class Position(NamedTuple):
    """An SSE id: how far a follower has come."""

    attempt: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises: ValueError."""
        attempt, dot, offset = text.partition(".")
        if not (dot and attempt.isdecimal() and offset.isdecimal() and len(text) <= 40 and text.isascii()):
            raise ValueError("must be an id this stream gave out: <attempt>.<offset>")
        return cls(int(attempt), int(offset))


# What following a log yields.
class Data(NamedTuple):
    attempt: int
    data: bytes


class Over(NamedTuple):
    """Nothing more will come of this attempt's log."""

    attempt: int


class NextAttempt(NamedTuple):
    attempt: int


class Pause(NamedTuple):
    """Nothing new for a while."""


class End(NamedTuple):
    job: TrainingJob


Piece = Data | Over | NextAttempt | Pause | End


class LogStreams:
    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        pods: WatchCache[Pod],
        logs: LogSource,
        news: News,
        clock: Clock,
        settings: StreamSettings,
    ) -> None:
        self._jobs, self._pods, self._logs = jobs, pods, logs
        self._news, self._clock, self._settings = news, clock, settings

    async def begin(self, query: LogQuery) -> Position | None:
        """Where a new reader begins; None if there is no such log now."""
        attempt = query.attempt or query.job.status.attempt
        pod_uid = self._pod_uid(query.job, attempt, query.worker)
        chunk = None if pod_uid is None else await self._logs.read(pod_uid, 0, 1)
        if pod_uid is None or chunk is None:
            return None
        if query.tail_lines is None:
            return Position(attempt, 0)
        return Position(attempt, await self._tail(pod_uid, chunk.size, query.tail_lines))

    async def raw(self, query: LogQuery, begin: Position) -> AsyncGenerator[bytes, None]:
        """The log's bytes as they are."""
        async for piece in self._pieces(query, begin):
            if isinstance(piece, Data):
                yield piece.data

    async def sse(self, query: LogQuery, begin: Position) -> AsyncGenerator[bytes, None]:
        """Frames `log`, `attempt`, `end`; the id of each `log` is where a resume goes on."""
        cutter, attempt = LineCutter(begin.offset), begin.attempt
        sent_s = self._clock.monotonic()
        yield RETRY
        async for piece in self._pieces(query, begin):
            frames: list[bytes] = []
            match piece:
                case Data(_, data):
                    frames = [_log(attempt, *lines) for lines in cutter.feed(data)]
                case Over():
                    frames = [_log(attempt, *lines) for lines in cutter.flush()]
                case NextAttempt(attempt):
                    cutter = LineCutter(0)
                    frames = [frame("attempt", json.dumps({"attempt": attempt}))]
                case End(job):
                    frames = [frame("end", end_of(job))]
                case Pause():
                    if self._clock.monotonic() - sent_s >= self._settings.heartbeat_s:
                        frames = [HEARTBEAT]
            if frames:
                sent_s = self._clock.monotonic()
                yield b"".join(frames)

    async def _pieces(self, query: LogQuery, begin: Position) -> AsyncGenerator[Piece, None]:
        attempt, offset = begin
        until: int | None = None
        looked_last = False
        pause_s = min(self._settings.heartbeat_s, _LOOK_AGAIN_S)
        with self._news.follow(query.job.uid) as follower:
            while True:
                follower.clear()
                job = self._jobs.get(query.job.key)
                if job is None or job.uid != query.job.uid:
                    yield Over(attempt)
                    yield End(query.job)
                    return
                pod_uid = self._pod_uid(job, attempt, query.worker)
                limit = CHUNK if until is None else min(CHUNK, until - offset)
                chunk = None if pod_uid is None or limit == 0 else await self._logs.read(pod_uid, offset, limit)
                if chunk is not None and chunk.data:
                    offset += len(chunk.data)
                    if not query.follow and until is None:
                        until = max(chunk.size, offset)  # what is there now; it may grow as fast as we read
                    looked_last = False
                    yield Data(attempt, chunk.data)
                    continue
                over = _attempt_over(job, attempt)
                complete = over and (chunk is None or chunk.ended or looked_last)
                if complete:
                    yield Over(attempt)
                    if query.follow and query.attempt is None and attempt < job.status.attempt:
                        attempt, offset, looked_last = attempt + 1, 0, False
                        yield NextAttempt(attempt)
                        continue
                    if query.attempt is not None or ended(job):
                        yield End(job)
                        return
                if not query.follow:
                    return
                if pod_uid is None or chunk is None or chunk.ended:
                    await follower.wait(pause_s)
                else:
                    # An attempt that is over while its log is not: its supervisor was lost; one last look.
                    await self._logs.wait_growth(pod_uid, offset, _LAST_LOOK_S if over else pause_s)
                    looked_last = over
                yield Pause()

    def _pod_uid(self, job: TrainingJob, attempt: int, worker: int) -> str | None:
        for past in job.status.attempts:
            if past.number == attempt:
                found = next((end.pod_uid for end in past.workers if end.worker == worker), "")
                if found:
                    return found
        pod = self._pods.get(Key(job.metadata.namespace, f"{job.metadata.name}-{attempt}-{worker}"))
        said = identity(pod.metadata) if pod is not None else None
        return pod.uid if pod is not None and said is not None and said.job_uid == job.uid else None

    async def _tail(self, pod_uid: str, size: int, lines: int) -> int:
        """The offset at which the last `lines` lines begin. Cost: reads only these."""
        if lines == 0:
            return size
        begin, end, wanted = size, size, lines
        while begin > 0:
            begin = max(0, end - CHUNK)
            chunk = await self._logs.read(pod_uid, begin, end - begin)
            if chunk is None:
                return 0
            data = chunk.data
            at = len(data) - 1 if end == size and data.endswith(b"\n") else len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return begin + at + 1
            end = begin
        return 0


def _attempt_over(job: TrainingJob, attempt: int) -> bool:
    return attempt < job.status.attempt or ended(job) or any(past.number == attempt for past in job.status.attempts)


def _log(attempt: int, text: str, end: int) -> bytes:
    return frame("log", text, event_id=f"{attempt}.{end}")
