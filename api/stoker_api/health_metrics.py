"""The api's own health: whether its caches are current, how full its folders are, whether what could run is started;
and which GPUs are sick, as it keeps it.

Owns those families of `/metrics`, and since when each job has been startable that does not start, by the api's own run
of `decide`: the operator starts a job within a second; one that stays startable for minutes means that no operator
leads, or that operator and api see different things (in `stoker up`, where both use one state, only that the operator's
loop stands still). Disks are asked every 30 s off the loop (a network volume may hang), the rest when scraped. Never
starts anything, and never decides what is done about it: that is the alerts'. Run by `services`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stoker.spec.meta import Key
from stoker.spec.queue import Queue
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock

from .scheduler_view import SchedulerView

log = logging.getLogger(__name__)

EVERY_S = 30.0
SHARE = 0.01
"""The most of the time that a look at startable jobs may take: the api answers requests on the same loop."""
MOST = 32
"""Startable jobs looked at."""
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "stoker_api_watch_stale_seconds": (
        "Since the API server last said where it stands; it does so about once a minute. 0 where the store is in the "
        "same process.",
        ("kind",),
    ),
    "stoker_api_disk_used_ratio": ("How full the disk is that this folder lies on.", ("folder",)),
    "stoker_queue_startable_seconds": (
        "How long a job has waited that the api's own run of the scheduler would start; 0: there is none.",
        ("queue",),
    ),
    "stoker_api_startable_check_seconds": ("How long that run took.", ()),
    "stoker_sick_gpus": (
        "GPUs that take no new job for this, as their exporters report and administrators have not cleared. Absent: "
        "none.",
        ("node", "cause"),
    ),
}


class StartableJobs:
    """One observer of one feed. Cost: tools/bench/metrics.py; changes of jobs are taken in in small pieces."""

    def __init__(self, scheduler: SchedulerView, queues: WatchCache[Queue], clock: Clock) -> None:
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


class HealthMetrics(Collector):
    """`caches`: by the name of their kind; `folders`: name → path."""

    def __init__(
        self,
        caches: Mapping[str, WatchCache[Any]],
        folders: Mapping[str, Path],
        startable: StartableJobs,
        clock: Clock,
    ) -> None:
        self._caches, self._folders, self._startable, self._clock = caches, folders, startable, clock
        self._used: dict[str, float] = {}

    async def run(self) -> None:
        """Measure how full the folders are every `EVERY_S`, until cancelled."""
        while True:
            for name, folder in self._folders.items():
                try:
                    self._used[name] = await asyncio.to_thread(used_ratio, folder)
                except OSError as error:
                    self._used.pop(name, None)  # unknown is absent
                    log.warning("can't read how full %s is: %s", folder, error)
            await self._clock.sleep(EVERY_S)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for name, (text, labels) in FAMILIES.items():
            yield GaugeMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = stale, used, startable, check, sick = list(self.describe())
        for kind, cache in self._caches.items():
            stale.add_metric((kind,), cache.stale_s)
        for folder, ratio in self._used.items():
            used.add_metric((folder,), ratio)
        for queue, seconds in sorted(self._startable.seconds().items()):
            startable.add_metric((queue,), seconds)
        if self._startable.looked_at is not None:
            check.add_metric((), self._startable.took_s)
        nodes = self._caches.get("Node")
        for node in nodes.values() if nodes is not None else ():
            counts = Counter(cause.code for gpu in node.status.sick for cause in gpu.causes)
            for code, count in sorted(counts.items()):
                sick.add_metric((node.metadata.name, code), count)
        return families


def used_ratio(folder: Path) -> float:
    """Of what the disk lets us use, as `df` shows it. Raises: OSError."""
    disk = os.statvfs(folder)
    used = disk.f_blocks - disk.f_bfree
    usable = used + disk.f_bavail
    return used / usable if usable else 0.0
