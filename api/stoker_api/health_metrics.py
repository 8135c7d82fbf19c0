"""How the api itself is: whether its caches are current, how full its folders are, whether what could run is started.

Owns three families of `/metrics`. Disks are asked every 30 s off the loop (a network volume may hang), the rest when
scraped. Never decides what is done about it: that is the alerts'. Run by `services`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stoker.store.cache import WatchCache
from stoker.store.clock import Clock

from .startable_jobs import StartableJobs

log = logging.getLogger(__name__)

_EVERY_S = 30.0
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
}


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
        """Keep asking how full the folders are, until cancelled."""
        while True:
            for name, folder in self._folders.items():
                try:
                    self._used[name] = await asyncio.to_thread(used_ratio, folder)
                except OSError as error:
                    self._used.pop(name, None)  # unknown is absent
                    log.warning("can't read how full %s is: %s", folder, error)
            await self._clock.sleep(_EVERY_S)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for name, (text, labels) in FAMILIES.items():
            yield GaugeMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = stale, used, startable, check = list(self.describe())
        for kind, cache in self._caches.items():
            stale.add_metric((kind,), cache.stale_s)
        for folder, ratio in self._used.items():
            used.add_metric((folder,), ratio)
        for queue, seconds in sorted(self._startable.seconds().items()):
            startable.add_metric((queue,), seconds)
        if self._startable.looked_at is not None:
            check.add_metric((), self._startable.took_s)
        return families


def used_ratio(folder: Path) -> float:
    """Of what the disk lets us use, as `df` shows it. Raises: OSError."""
    disk = os.statvfs(folder)
    used = disk.f_blocks - disk.f_bfree
    usable = used + disk.f_bavail
    return used / usable if usable else 0.0
