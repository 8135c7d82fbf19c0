"""A job followed as events: what happened to it, its state on each change, its live progress, its end.

Reads caches only; every follower of a job shares one rendering. Called by `routes/streams.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from stoker.spec.event import Event
from stoker.spec.job import TrainingJob
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker_api.bodies import dump
from stoker_api.jobs.change import ended
from stoker_api.jobs.progress import ProgressBoard
from stoker_api.jobs.render import JobRenderer
from stoker_api.pacing import Pacing

from .followers import Followers
from .sse import HEARTBEAT, RETRY, StreamSettings, frame

EVENTS_BY_OBJECT = "involved-uid"
"""The index of the event cache: the uid of the object an event is about."""


class JobEvents:
    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        events: WatchCache[Event],
        board: ProgressBoard,
        renderer: JobRenderer,
        followers: Followers,
        clock: Clock,
        settings: StreamSettings,
        pacing: Pacing,
    ) -> None:
        self._jobs, self._events, self._board, self._renderer = jobs, events, board, renderer
        self._followers, self._clock, self._settings, self._pacing = followers, clock, settings, pacing

    def listed(self, uid: str, after: int = 0) -> list[Event]:
        """The events about an object behind resourceVersion `after`, oldest first."""
        found = [event for event in self._events.by_index(EVENTS_BY_OBJECT, uid) if _version(event) > after]
        return sorted(found, key=_version)

    async def follow(self, last: TrainingJob, after: int) -> AsyncGenerator[bytes, None]:
        """SSE frames until the job has ended (or is gone); `last` is the job as it was found."""
        key, uid = last.key, last.uid
        settings = self._settings
        sent: tuple[str, float | None] | None = None
        progress_sent_s = 0.0
        lingered = False
        with self._followers.follow(uid) as follower:
            yield RETRY
            while True:
                frames: list[bytes] = []
                wait_s = settings.heartbeat_s
                async with self._pacing:
                    follower.clear()
                    for event in self.listed(uid, after):
                        after = _version(event)
                        frames.append(frame("event", dump(event).decode(), event_id=str(after)))
                    job = self._jobs.get(key)
                    if job is None or job.uid != uid:
                        break
                    last = job
                    progress = self._board.newest(job)
                    state = (job.metadata.resource_version, None if progress is None else progress.at)
                    if state != sent:
                        now_s = self._clock.monotonic()
                        due_s = progress_sent_s + settings.progress_every_s
                        if sent is None or sent[0] != state[0] or now_s >= due_s:
                            frames.append(frame("job", self._renderer.job(job).decode()))
                            sent, progress_sent_s = state, now_s
                        else:
                            wait_s = due_s - now_s
                if frames:
                    yield b"".join(frames)
                if ended(job):
                    if lingered:
                        yield frame("end", end_of(job))
                        return
                    wait_s = settings.linger_s
                    lingered = not await follower.wait(wait_s)
                    continue
                lingered = False
                if not await follower.wait(wait_s) and wait_s == settings.heartbeat_s:
                    yield HEARTBEAT
        yield b"".join(frames) + frame("end", end_of(last, reason="Deleted", message="the job was deleted"))


def end_of(job: TrainingJob, *, reason: str | None = None, message: str | None = None) -> str:
    """What `event: end` carries."""
    status = job.status
    return json.dumps(
        {
            "phase": status.phase,
            "reason": status.reason if reason is None else reason,
            "message": status.message if message is None else message,
        }
    )


def _version(event: Event) -> int:
    return int(event.metadata.resource_version or 0)
