"""A check of the scheduler from outside: jobs that could start now, by the api's own run of `decide`, and do not.

Owns since when each such job has been startable. The operator starts a job within a second; one that stays startable
for minutes means that no operator leads, or that operator and api see different things (in `stoker up`, where both use
one state, only that the operator's loop stands still). Never starts anything. Run by `services`, shown by
`health_metrics`.

The work is bounded, for the api answers requests on the same loop: every 30 s at most, and so that it takes no more
than a hundredth of the time; changes of jobs are taken in in small pieces; at most 32 startable jobs are looked at.
Cost: tools/bench/metrics.py.
"""

from __future__ import annotations

import logging

from stoker.spec.meta import Key
from stoker.spec.queue import Queue
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock

from .scheduler_view import FedScheduler

log = logging.getLogger(__name__)

EVERY_S = 30.0
SHARE = 0.01
MOST = 32


class StartableJobs:
    """One observer of one feed."""

    def __init__(self, scheduler: FedScheduler, queues: WatchCache[Queue], clock: Clock) -> None:
        self._scheduler, self._queues, self._clock = scheduler, queues, clock
        self._since: dict[tuple[Key, str], tuple[str, float]] = {}
        """(key, uid) → its queue, and when it was first seen to be startable (monotonic)."""
        self.looked_at: float | None = None
        """When it last looked (monotonic); None: not yet."""
        self.took_s = 0.0
        """How long the loop was held for the newest look."""

    async def run(self) -> None:
        """Look again and again, until cancelled. Expects the caches to have synced or to do so soon."""
        await self._queues.synced()
        while True:
            try:
                await self._scheduler.catch_up()
                await self.look()
            except Exception:
                log.exception("the check of the scheduler failed; it will be tried again")
            await self._clock.sleep(max(EVERY_S, self.took_s / SHARE))

    async def look(self) -> None:
        """Ask the scheduler once."""
        began = self._clock.monotonic()
        found = await self._scheduler.startable(self._clock.now(), MOST)
        self._since = {
            (key, uid): (queue, self._since[key, uid][1] if (key, uid) in self._since else began)
            for key, uid, queue in found
        }
        self.looked_at = began
        self.took_s = self._clock.monotonic() - began

    def seconds(self) -> dict[str, float]:
        """Queue → how long the oldest of its startable jobs has been; 0: there is none. Empty before the first look."""
        if self.looked_at is None:
            return {}
        found = {queue.metadata.name: 0.0 for queue in self._queues.values()}
        now = self._clock.monotonic()
        for queue, since in self._since.values():
            found[queue] = max(found.get(queue, 0.0), now - since)
        return found
