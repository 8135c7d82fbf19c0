"""Wakes the followers of a job: when it, one of its events or its live progress changed.

Level-triggered: a follower learns that there is news, never what; it reads the caches again. So a slow one costs
nothing and misses no state, and there is no queue that could grow. Called by the stream generators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.spec.event import Event
from stoker.spec.job import TrainingJob
from stoker.spec.pod import Pod
from stoker.spec.worker_pod import owning_job
from stoker.store.cache import Change, WatchCache


class Follower:
    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def clear(self) -> None:
        """Call before reading the caches: news from then on are not lost."""
        self._woken.clear()

    async def wait(self, timeout_s: float) -> bool:
        """True: there is news; False: the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


class Followers:
    """The followers of every job, by its uid, and those of lists of jobs."""

    def __init__(self, jobs: WatchCache[TrainingJob], events: WatchCache[Event], pods: WatchCache[Pod]) -> None:
        self._followers: dict[str, set[Follower]] = {}
        self._of_all: set[Follower] = set()
        self._unsubscribe = [
            jobs.subscribe(self._on_job),
            events.subscribe(self._on_event),
            pods.subscribe(self._on_pod),
        ]

    def close(self) -> None:
        for stop in self._unsubscribe:
            stop()

    def __len__(self) -> int:
        return len(self._of_all) + sum(len(followers) for followers in self._followers.values())

    @contextmanager
    def follow(self, uid: str) -> Iterator[Follower]:
        follower = Follower()
        followers = self._followers.setdefault(uid, set())
        followers.add(follower)
        try:
            yield follower
        finally:
            followers.discard(follower)
            if not followers and self._followers.get(uid) is followers:
                del self._followers[uid]

    @contextmanager
    def follow_all(self) -> Iterator[Follower]:
        """One that is woken by each change of any job and its progress, not by events and pods."""
        follower = Follower()
        self._of_all.add(follower)
        try:
            yield follower
        finally:
            self._of_all.discard(follower)

    def wake(self, uid: str) -> None:
        """The job itself has changed, or its progress."""
        self._wake_job(uid)
        for follower in self._of_all:
            follower.wake()

    def _wake_job(self, uid: str) -> None:
        for follower in self._followers.get(uid, ()):
            follower.wake()

    def _on_job(self, change: Change[TrainingJob]) -> None:
        job = change.new or change.old
        if job is not None:
            self.wake(job.uid)

    def _on_event(self, change: Change[Event]) -> None:
        if change.new is not None:
            self._wake_job(change.new.involved_object.uid)

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        owner = owning_job(pod.metadata) if pod is not None else None
        if owner is not None:
            self._wake_job(owner.uid)
