"""Workers' shipped logs as the api reads and takes them: growth, the end of a log, its removal with its job.

Owns what is known of a log beside its bytes: whose it is, whether it has ended, whether the kubelet's copy is needed to
complete it (the worker was killed before it had shipped all) or to have it at all (a worker without a supervisor).
Reads the pods' and jobs' caches. Implements `ports.LogSource`; `routes/report.py` posts into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator

from stoker.spec.job import TrainingJob
from stoker.spec.pod import CONTAINER, Pod
from stoker.spec.worker import LogPart, exit_record
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker_api.pacing import Rounds
from stoker_api.worker_logs.kubelet_copy import Puller

from .kubelet_copy import PodLogTail
from .log_file import LogOwner
from .storage import LogGone, LogsFull, ShippedLogs

log = logging.getLogger(__name__)

BARE_AFTER_S = 5.0
"""A container that ran this long without a post may have no supervisor: its log is fetched when it is read."""
COMPLETING_S = 10.0
"""How much longer than asked a reader waits for the rest of a log whose worker was killed."""
_WOKEN_AT_ONCE = 16
_COMPLETERS = 4
_TRIES_S = (1.0, 5.0, 15.0)
_SWEEP_S = 60.0


class WorkerLogSource:
    """`tail` None: only what workers ship."""

    def __init__(
        self,
        shipped: ShippedLogs,
        pods: WatchCache[Pod],
        jobs: WatchCache[TrainingJob],
        clock: Clock,
        tail: PodLogTail | None = None,
    ) -> None:
        self._shipped, self._pods, self._jobs, self._clock = shipped, pods, jobs, clock
        self._puller = None if tail is None else Puller(shipped, tail, self._wake_readers)
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._wakes = Rounds(_WOKEN_AT_ONCE)
        self._ended: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        """Pods that ended, and how often their logs have been tried to complete."""
        self._queued: set[str] = set()
        self._retries: set[asyncio.Task[None]] = set()
        self._given_up: set[str] = set()
        self._sweep = asyncio.Event()

    # What workers post.

    def owner_of(self, pod_uid: str) -> LogOwner | None:
        """Whose log this pod's is; None if neither the pod nor a log of it is known, or its job is gone."""
        pod = self._pods.by_uid(pod_uid)
        owner = self._shipped.owner(pod_uid) if pod is None else LogOwner.of(pod)
        return owner if owner is not None and self._jobs.by_uid(owner.job_uid) is not None else None

    async def take(self, pod_uid: str, owner: LogOwner, offset: int, data: bytes, *, lost: bool = False) -> int:
        """Take a worker's bytes from `offset` on; the offset to go on at. Raises: Gap, LogsFull, LogGone, OSError."""
        if self._puller is not None and self._shipped.is_pulled(pod_uid):
            await self._shipped.end_pull(pod_uid, owner)
            self._puller.give_way(pod_uid)
        try:
            return await self._shipped.append(pod_uid, owner, offset, data, lost=lost)
        finally:
            self._wake_readers(pod_uid)

    # What people read.

    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        """At most `limit` bytes from `offset` on; None if there is no such log (yet, or any more)."""
        ended = self._has_ended(pod_uid)  # first: what comes between the two is then seen, not lost
        self._pull_if_bare(pod_uid)
        found = await self._shipped.read(pod_uid, offset, limit)
        return None if found is None else LogPart(*found, ended)

    async def offset_since(self, pod_uid: str, since_s: float) -> int | None:
        return await self._shipped.offset_since(pod_uid, since_s)

    async def times(self, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
        return await self._shipped.times(pod_uid, begin, end)

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        """Return once the log is longer than `offset`, has ended, or `timeout_s` is over."""
        if (self._shipped.size(pod_uid) or 0) > offset or self._has_ended(pod_uid):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(pod_uid, set())
        waiters.add(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
            if not future.done() and pod_uid in self._queued:  # its rest is on its way from the kubelet
                await asyncio.wait([future], timeout=COMPLETING_S)
        finally:
            waiters.discard(future)
            if not waiters and self._waiters.get(pod_uid) is waiters:
                del self._waiters[pod_uid]

    # Keeping up with pods and jobs.

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Completes logs whose pods have ended and removes those whose jobs are gone, while inside."""
        stop = [self._pods.subscribe(self._on_pod), self._jobs.subscribe(self._on_job)]
        tasks = [asyncio.create_task(self._complete_ended()) for _ in range(_COMPLETERS)]
        tasks.append(asyncio.create_task(self._remove_orphans()))
        try:
            yield
        finally:
            for unsubscribe in stop:
                unsubscribe()
            tasks += self._retries
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._puller is not None:
                await self._puller.close()

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        if change.new is None:
            self._given_up.discard(pod.uid)
        elif pod.ended and pod.uid not in self._queued and not self._shipped.is_complete(pod.uid):
            self._queued.add(pod.uid)
            self._ended.put_nowait((pod.uid, 0))
        if pod.uid not in self._queued:  # else woken when the log is complete: what wakes a reader now may end it
            self._wake_readers(pod.uid)

    def _on_job(self, change: Change[TrainingJob]) -> None:
        if change.new is None:
            self._sweep.set()

    async def _remove_orphans(self) -> None:
        """Remove the logs of jobs that are gone; looks when one goes, and now and then for what came too late."""
        await self._jobs.synced()
        while True:
            for job_uid, pod_uids in self._shipped.of_jobs().items():
                if self._jobs.by_uid(job_uid) is not None:
                    continue
                for pod_uid in pod_uids:
                    try:
                        await self._shipped.remove(pod_uid)
                    except OSError as error:
                        log.warning("the log of pod %s can't be removed: %s", pod_uid, error)
                    self._wake_readers(pod_uid)
            try:
                async with asyncio.timeout(_SWEEP_S):
                    await self._sweep.wait()
            except TimeoutError:
                pass
            self._sweep.clear()

    async def _complete_ended(self) -> None:
        while True:
            pod_uid, tried = await self._ended.get()
            try:
                done = await self._complete(pod_uid)
            except Exception:
                log.exception("completing the log of pod %s failed", pod_uid)
                done = False
            if not done and tried < len(_TRIES_S):
                retry = asyncio.create_task(self._retry(pod_uid, tried))
                self._retries.add(retry)
                retry.add_done_callback(self._retries.discard)
                continue
            if not done:
                log.warning("the log of pod %s stays incomplete", pod_uid)
                self._given_up.add(pod_uid)
            self._queued.discard(pod_uid)
            self._wake_readers(pod_uid)

    async def _retry(self, pod_uid: str, tried: int) -> None:
        await self._clock.sleep(_TRIES_S[tried])
        self._ended.put_nowait((pod_uid, tried + 1))

    async def _complete(self, pod_uid: str) -> bool:
        """Whether the log of an ended pod is as complete as it can be."""
        pod, owner = self._pods.by_uid(pod_uid), self.owner_of(pod_uid)
        if pod is None or owner is None:
            return True
        record = exit_record(pod)
        try:
            held = await self._shipped.held(pod_uid, owner)
            if self._puller is not None and (record is None or held < record.log_bytes):
                try:
                    await self._puller.complete(pod, owner, held, None if record is None else record.log_bytes)
                except LookupError as error:
                    log.info("the kubelet's copy of pod %s is gone: %s", pod_uid, error)
            await self._shipped.finish(pod_uid, owner)
        except LogGone:
            return True
        except (LogsFull, OSError) as error:
            log.info("the log of pod %s is not complete yet: %s", pod_uid, error)
            return False
        return True

    def _pull_if_bare(self, pod_uid: str) -> None:
        pod = self._pods.by_uid(pod_uid) if self._puller is not None else None
        if pod is None or pod.ended or self._puller is None:
            return
        if self._shipped.size(pod_uid) is not None and not self._shipped.is_pulled(pod_uid):
            return
        began = _running_since_s(pod)
        owner = self.owner_of(pod_uid)
        if owner is not None and began is not None and self._clock.now().timestamp() - began > BARE_AFTER_S:
            self._puller.follow(pod, owner)

    def _has_ended(self, pod_uid: str) -> bool:
        if self._shipped.is_complete(pod_uid):
            return True
        pod = self._pods.by_uid(pod_uid)
        if pod is None:
            return self._pods.is_synced
        return pod.ended and (self._puller is None or pod_uid in self._given_up)

    def _wake_readers(self, pod_uid: str) -> None:
        # Taken out: one that has its turn coming needs no second.
        for future in self._waiters.pop(pod_uid, ()):
            self._wakes.call(functools.partial(_wake, future))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _running_since_s(pod: Pod) -> float | None:
    for status in pod.status.container_statuses:
        running = status.state.running
        if status.name == CONTAINER and running is not None and running.started_at is not None:
            return running.started_at.timestamp()
    return None
