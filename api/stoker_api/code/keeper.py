"""Removes code that nobody needs, once an hour: the background task. What is garbage: `garbage.py`."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stoker.spec.job import TrainingJob
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock

from .store import CodeStore

log = logging.getLogger(__name__)
EVERY_S = 3600.0


async def keep_tidy(code: CodeStore, jobs: WatchCache[TrainingJob], clock: Clock) -> None:
    """Runs until cancelled. Before the first jobs are read, nothing is garbage."""
    await jobs.synced()
    while True:
        try:
            freed = await code.sweep(named_by(jobs.values()))
        except OSError as error:
            log.warning("old code can't be removed: %s", error)
        else:
            if freed:
                log.info("removed %d bytes of code that nobody used", freed)
        await clock.sleep(EVERY_S)


def named_by(jobs: Iterable[TrainingJob]) -> dict[str, set[str]]:
    """Project → the digests that its jobs name."""
    found: dict[str, set[str]] = {}
    for job in jobs:
        if job.spec.trainer.code is not None:
            found.setdefault(job.metadata.namespace, set()).add(job.spec.trainer.code)
    return found
