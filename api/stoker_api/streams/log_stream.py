"""A worker's log followed over growth, pauses and new attempts, as raw bytes or as resumable SSE.

Owns which log is read from where, when it is over and what comes next, and what followers of one log share: what one
has read and framed serves all who stand at the same place. Reads through a `LogSource` and the caches.
Called by `routes/streams.py`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.worker import LogPart
from stoker.spec.worker_pod import identity
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker_api.jobs.change import ended
from stoker_api.pacing import Pacing
from stoker_api.ports import LogSource

from .followers import Followers
from .job_events import end_of
from .line_cutter import LineCutter
from .line_times import Stamper, TimedPart, stamp, timed_parts
from .sse import HEARTBEAT, RETRY, StreamSettings, frame

CHUNK = 32 * 1024
_PARTS_KEPT = 64
_FRESH_S = 0.2
_LOOK_AGAIN_S = 5.0
_LAST_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class LogRequest:
    job: TrainingJob
    worker: int
    attempt: int | None
    """None: the newest, and when following the ones after it."""
    follow: bool
    tail_lines: int | None = None
    since_s: float | None = None
    """Unix time: from what was written since; None: from the beginning."""
    timestamps: bool = False


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
@dataclass(eq=False, slots=True)
class Data:
    """Shared by all followers who stand where it begins."""

    part: LogPart
    read_at_s: float
    framed: dict[int, tuple[bytes, LineCutter]] = field(default_factory=dict)
    """Its frames, and the cutter behind them, by where the line began that it may continue."""

    @property
    def data(self) -> bytes:
        return self.part.data


class Over(NamedTuple):
    """Nothing more will come of this attempt's log."""

    attempt: int


class NextAttempt(NamedTuple):
    attempt: int


class Pause(NamedTuple):
    """Nothing new for a while."""


class LogEnd(NamedTuple):
    job: TrainingJob


Piece = Data | Over | NextAttempt | Pause | LogEnd


class LogStreams:
    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        pods: WatchCache[Pod],
        logs: LogSource,
        followers: Followers,
        clock: Clock,
        settings: StreamSettings,
        pacing: Pacing,
    ) -> None:
        self._jobs, self._pods, self._logs = jobs, pods, logs
        self._followers, self._clock, self._settings, self._pacing = followers, clock, settings, pacing
        self._parts: dict[tuple[str, int], Data] = {}
        """By pod and offset, the least used first."""

    async def begin(self, query: LogRequest) -> Position | None:
        """Where a new reader begins; None if there is no such log now."""
        attempt = query.attempt or query.job.status.attempt
        pod_uid = self._pod_uid(query.job, attempt, query.worker)
        async with self._pacing:
            whole = query.tail_lines is None and query.since_s is None
            if pod_uid is not None and query.follow and whole and (pod_uid, 0) in self._parts:
                return Position(attempt, 0)
            chunk = None if pod_uid is None else await self._logs.read(pod_uid, 0, 1)
        if pod_uid is None or chunk is None:
            return None
        since = 0 if query.since_s is None else await self._line_since(pod_uid, chunk.size, query.since_s)
        tail = 0 if query.tail_lines is None else await self._tail(pod_uid, chunk.size, query.tail_lines)
        return Position(attempt, max(since, tail))

    async def raw(self, query: LogRequest, begin: Position) -> AsyncGenerator[bytes, None]:
        """The log's bytes as they are, or with the time before each line."""
        stamper, (attempt, offset) = Stamper(), begin
        async for piece in self._pieces(query, begin):
            if isinstance(piece, NextAttempt):
                stamper, (attempt, offset) = Stamper(), (piece.attempt, 0)
            elif isinstance(piece, Data) and query.timestamps:
                parts = await self._timed(query, attempt, offset, piece.data)
                yield b"".join(stamper.stamped(part) for part in parts)
                offset += len(piece.data)
            elif isinstance(piece, Data):
                yield piece.data

    async def sse(self, query: LogRequest, begin: Position) -> AsyncGenerator[bytes, None]:
        """Frames `log`, `attempt`, `end`; the id of each `log` is where a resume goes on. With timestamps `time` before
        those that were written then."""
        cutter, (attempt, offset) = LineCutter(begin.offset), begin
        shown_s: float | None = None
        sent_s = self._clock.monotonic()
        yield RETRY
        async for piece in self._pieces(query, begin):
            frames: list[bytes] = []
            match piece:
                case Data() if query.timestamps:
                    for at_s, data in await self._timed(query, attempt, offset, piece.data):
                        if at_s != shown_s:
                            frames.append(frame("time", json.dumps({"at": stamp(at_s)})))
                            shown_s = at_s
                        frames += [_log(attempt, *lines) for lines in cutter.feed(data)]
                    offset += len(piece.data)
                case Data():
                    found, cutter = _framed(piece, attempt, cutter)
                    frames = [found] if found else []
                case Over():
                    frames = [_log(attempt, *lines) for lines in cutter.flush()]
                case NextAttempt(attempt):
                    cutter, offset = LineCutter(0), 0
                    frames = [frame("attempt", json.dumps({"attempt": attempt}))]
                case LogEnd(job):
                    frames = [frame("end", end_of(job))]
                case Pause():
                    if self._clock.monotonic() - sent_s >= self._settings.heartbeat_s:
                        frames = [HEARTBEAT]
            if frames:
                sent_s = self._clock.monotonic()
                yield b"".join(frames)

    async def _pieces(self, query: LogRequest, begin: Position) -> AsyncGenerator[Piece, None]:
        attempt, offset = begin
        until: int | None = None
        looked_last = False
        pause_s = min(self._settings.heartbeat_s, _LOOK_AGAIN_S)
        with self._followers.follow(query.job.uid) as follower:
            while True:
                limit = CHUNK if until is None else min(CHUNK, until - offset)
                pod_uid = found = None
                async with self._pacing:  # whatever wakes all followers at once
                    follower.clear()
                    job = self._jobs.get(query.job.key)
                    if job is not None and job.uid == query.job.uid:
                        pod_uid = self._pod_uid(job, attempt, query.worker)
                    if pod_uid is not None and limit:
                        found = await self._read(pod_uid, offset, limit, query.follow)
                if job is None or job.uid != query.job.uid:
                    yield Over(attempt)
                    yield LogEnd(query.job)
                    return
                chunk = None if found is None else found.part
                if found is not None and chunk is not None and chunk.data:
                    offset += len(chunk.data)
                    if not query.follow and until is None:
                        until = max(chunk.size, offset)  # what is there now; it may grow as fast as we read
                    looked_last = False
                    yield found
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
                        yield LogEnd(job)
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

    async def _read(self, pod_uid: str, offset: int, limit: int, follow: bool) -> Data | None:
        """What stands at `offset`, as another follower read it: a whole part, or in a crowd one of a moment ago."""
        key, now_s = (pod_uid, offset), self._clock.monotonic()
        kept = self._parts.pop(key, None)
        if kept is not None and len(kept.data) <= limit:
            fresh = self._pacing.crowded and now_s - kept.read_at_s < _FRESH_S
            if follow and (fresh or len(kept.data) == CHUNK):
                self._parts[key] = kept
                return kept
        part = await self._logs.read(pod_uid, offset, limit)
        if part is None:
            return None
        found = Data(part, now_s)
        if part.data:
            self._parts[key] = found
            while len(self._parts) > _PARTS_KEPT:
                del self._parts[next(iter(self._parts))]
        return found

    def _pod_uid(self, job: TrainingJob, attempt: int, worker: int) -> str | None:
        for past in job.status.attempts:
            if past.number == attempt:
                found = next((end.pod_uid for end in past.workers if end.worker == worker), "")
                if found:
                    return found
        pod = self._pods.get(Key(job.metadata.namespace, f"{job.metadata.name}-{attempt}-{worker}"))
        owner = identity(pod.metadata) if pod is not None else None
        return pod.uid if pod is not None and owner is not None and owner.job_uid == job.uid else None

    async def _timed(self, query: LogRequest, attempt: int, begin: int, data: bytes) -> list[TimedPart]:
        job = self._jobs.get(query.job.key) or query.job
        pod_uid = self._pod_uid(job, attempt, query.worker)
        times = [] if pod_uid is None else await self._logs.times(pod_uid, begin, begin + len(data))
        return timed_parts(data, begin, times)

    async def _line_since(self, pod_uid: str, size: int, since_s: float) -> int:
        """The offset of the first line that was written since."""
        offset = await self._logs.offset_since(pod_uid, since_s)
        if offset is None or offset > size:
            return size
        if offset == 0:
            return 0
        before = await self._logs.read(pod_uid, offset - 1, CHUNK)
        end = -1 if before is None else before.data.find(b"\n")
        return offset if end < 0 else offset + end

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


def _framed(piece: Data, attempt: int, cutter: LineCutter) -> tuple[bytes, LineCutter]:
    known = piece.framed.get(cutter.start)
    if known is None:
        after = copy.copy(cutter)
        known = b"".join([_log(attempt, *lines) for lines in after.feed(piece.data)]), after
        piece.framed[cutter.start] = known
    return known[0], copy.copy(known[1])


def _attempt_over(job: TrainingJob, attempt: int) -> bool:
    return attempt < job.status.attempt or ended(job) or any(past.number == attempt for past in job.status.attempts)


def _log(attempt: int, text: str, end: int) -> bytes:
    return frame("log", text, event_id=f"{attempt}.{end}")
