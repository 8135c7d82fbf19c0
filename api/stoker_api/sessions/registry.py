"""All open sessions: who may have one more, which worker is to come for which, and what ends them from outside.

Owns the bounds, the sessions' ids and the watch over their pods and jobs. Never touches a socket. Called by
`rendezvous.py` (both sides), `routes/report.py` (what a worker that asks gets) and `serve.py` (the server's stop).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker_api.problems import Problem, ProblemCode

from .relay import GOING_AWAY, RESTART, SessionEnd, Side

STOPPING = SessionEnd(RESTART, "the server is stopping")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    per_pod: int = 8
    of_caller: int = 20
    total: int = 200
    first_message_s: float = 10.0
    come_s: float = 30.0
    """How long a worker may take to come."""
    idle_s: float = 3600.0
    """How long nothing may be sent in a session."""
    stop_s: float = 2.0
    """How long sessions may take to close when the server stops."""


@dataclass(eq=False)
class Session:
    id: str
    job: Key
    job_uid: str
    pod_uid: str
    worker: int
    who: str
    opened_at: float
    """Units: the clock's monotonic seconds; so is `moved_at`."""
    moved_at: float
    came: asyncio.Future[Side] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The worker's side, once it is there."""
    end_order: asyncio.Future[SessionEnd] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Set from outside: the session must be over."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    calling: bool = False
    """Its worker is to be called."""

    def end(self, why: SessionEnd) -> None:
        if not self.end_order.done():
            self.end_order.set_result(why)


class Sessions:
    """Sessions by id. `close` once, at the end."""

    def __init__(
        self, jobs: WatchCache[TrainingJob], pods: WatchCache[Pod], clock: Clock, settings: SessionSettings
    ) -> None:
        self.settings = settings
        self._jobs, self._pods, self._clock = jobs, pods, clock
        self._by_id: dict[str, Session] = {}
        self._closed = False
        self._unsubscribe: list[Callable[[], None]] = [jobs.subscribe(self._on_job), pods.subscribe(self._on_pod)]

    def __len__(self) -> int:
        return len(self._by_id)

    def create(self, job: TrainingJob, pod: Pod, worker: int, who: str) -> Session:
        """Raises: Problem (Unavailable, TooManyOwnSessions, TooManySessions, TooManyWorkerSessions)."""
        if self._closed:
            raise Problem(ProblemCode.UNAVAILABLE, "The server is stopping; come back shortly.", retry_after_s=1)
        if sum(one.who == who for one in self._by_id.values()) >= self.settings.of_caller:
            raise Problem(
                ProblemCode.TOO_MANY_OWN_SESSIONS,
                f"{who!r} has {self.settings.of_caller} sessions open, the most one caller may have; end some.",
                retry_after_s=5,
            )
        if len(self._by_id) >= self.settings.total:
            raise Problem(
                ProblemCode.TOO_MANY_SESSIONS,
                f"{len(self._by_id)} sessions are open, the most there may be; end some.",
                retry_after_s=5,
            )
        if sum(one.pod_uid == pod.uid for one in self._by_id.values()) >= self.settings.per_pod:
            raise Problem(
                ProblemCode.TOO_MANY_WORKER_SESSIONS,
                f"Worker {worker} of job {job.metadata.name!r} has {self.settings.per_pod} sessions, the most there "
                "may be; end one.",
            )
        now_s = self._clock.monotonic()
        session = Session(secrets.token_hex(16), job.key, job.uid, pod.uid, worker, who, now_s, now_s)
        self._by_id[session.id] = session
        return session

    def remove(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
        session.over.set()
        session.came.cancel()
        session.end_order.cancel()

    def waiting(self, pod_uid: str) -> list[str]:
        """The sessions that the worker in this pod is to come for; again and again until it came."""
        return [one.id for one in self._by_id.values() if one.pod_uid == pod_uid and one.calling]

    def wanted(self, session_id: str, pod_uid: str) -> Session | None:
        """The session that waits for this very pod's worker."""
        session = self._by_id.get(session_id)
        return session if session is not None and session.pod_uid == pod_uid and session.calling else None

    async def close(self) -> None:
        """End every session, and each new one at once; returns when they are over, or soon after."""
        self._closed = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        open_ones = list(self._by_id.values())
        for session in open_ones:
            session.end(STOPPING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_s):
                for session in open_ones:
                    await session.over.wait()

    def _on_pod(self, change: Change[Pod]) -> None:
        if not self._by_id:
            return
        for uid in {pod.uid for pod in (change.old, change.new) if pod is not None}:
            pod = self._pods.by_uid(uid)
            if pod is None or pod.ended:
                for session in [one for one in self._by_id.values() if one.pod_uid == uid]:
                    session.end(SessionEnd(GOING_AWAY, f"worker {session.worker} has ended"))

    def _on_job(self, change: Change[TrainingJob]) -> None:
        if not self._by_id:
            return
        for uid in {job.uid for job in (change.old, change.new) if job is not None}:
            job = self._jobs.by_uid(uid)
            if job is None or job.metadata.deletion_timestamp is not None:
                for session in [one for one in self._by_id.values() if one.job_uid == uid]:
                    session.end(SessionEnd(GOING_AWAY, f"job {session.job.name} is deleted"))
