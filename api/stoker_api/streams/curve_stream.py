"""A job's metrics followed as they are reported: what is kept so far, then each sample, then the job's end.

Owns what a follower has had: a time, up to which it has all. What comes next is taken from the feed's memory; one that
begins, comes back or was too slow reads the file from there. Called by `routes/curves.py`.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import AsyncGenerator

from stoker.spec.job import TrainingJob
from stoker.store.cache import WatchCache
from stoker_api.curves import history
from stoker_api.curves.feed import CurveFeed
from stoker_api.curves.file import Sample
from stoker_api.curves.history import Range
from stoker_api.curves.render import curve_json, sample_json
from stoker_api.jobs.change import ended
from stoker_api.kept_file import FileUnavailable
from stoker_api.pacing import Pacing

from .followers import Followers
from .job_events import end_of
from .sse import HEARTBEAT, RETRY, StreamSettings, frame

_MICRO = 1_000_000


class CurveStreams:
    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        feed: CurveFeed,
        followers: Followers,
        settings: StreamSettings,
        pacing: Pacing,
    ) -> None:
        self._jobs, self._feed, self._followers = jobs, feed, followers
        self._settings, self._pacing = settings, pacing

    async def follow(self, last: TrainingJob, wanted: Range, after: int) -> AsyncGenerator[bytes, None]:
        """SSE frames until the job has ended (or is gone). `after`: the id of what the follower had last, 0: nothing.

        Ends without `end` where the file can't be read now: the follower comes back.
        """
        key, uid = last.key, last.uid
        gone, lingered, behind, first = False, False, True, after == 0
        with self._followers.follow(uid) as follower:
            yield RETRY
            while True:
                follower.clear()
                if behind or lingered:
                    try:
                        after, past = await self._past(uid, wanted, after, always=first)
                    except FileUnavailable:
                        return
                    behind = first = False
                    if past:
                        yield past
                job = self._jobs.get(key)
                gone = job is None or job.uid != uid
                last = last if job is None or gone else job
                over = gone or ended(last)
                if lingered and over:
                    break
                frames: list[bytes] = []
                async with self._pacing:
                    fresh, behind = self._feed.since(uid, after / _MICRO)
                    for sample in [] if behind else fresh:
                        after = _behind(sample.at)
                        shown = _wanted(sample, wanted)
                        if shown is not None:
                            frames.append(frame("sample", sample_json(shown).decode(), event_id=str(after)))
                if frames:
                    yield b"".join(frames)
                if behind:
                    continue
                woken = await follower.wait(self._settings.linger_s if over else self._settings.heartbeat_s)
                lingered = over and not woken
                if not over and not woken:
                    yield HEARTBEAT
        end = end_of(last, reason="Deleted", message="the job was deleted") if gone else end_of(last)
        yield frame("end", end)

    async def _past(self, uid: str, wanted: Range, after: int, *, always: bool) -> tuple[int, bytes]:
        """What is kept beyond `after`, as one frame, and the id behind it. Raises: FileUnavailable."""
        horizon = _behind(self._feed.newest_at(uid))
        await self._feed.written(uid)
        beyond = dataclasses.replace(wanted, since=max(after / _MICRO, wanted.since or 0.0))

        def read(reader: sqlite3.Connection) -> tuple[int, list[bytes]]:
            newest, lines = max(after, horizon), []
            for curve in history.curves(reader, uid, beyond):
                newest = max(newest, _behind(max(point.at for point in curve.points)))
                lines.append(curve_json(curve))
            return newest, lines

        newest, lines = await self._feed.store.read(read)
        if not lines and not always:
            return newest, b""
        body = b'{"curves":[' + b",".join(lines) + b"]}"
        return newest, frame("curves", body.decode(), event_id=str(newest))


def _behind(at: float) -> int:
    """Microseconds behind this time, and before the next: a job's samples are a millisecond apart."""
    return math.ceil(at * _MICRO) + 1


def _wanted(sample: Sample, wanted: Range) -> Sample | None:
    if wanted.attempt not in (None, sample.attempt):
        return None
    if wanted.metric is None:
        return sample
    if wanted.metric not in sample.values:
        return None
    return sample._replace(values={wanted.metric: sample.values[wanted.metric]})
