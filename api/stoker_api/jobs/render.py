"""Jobs and other objects → JSON bytes and ETags.

Keeps the newest rendering of each of a few thousand jobs: two hundred followers of a job, or a page that is asked for
again, cost one dump.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Resource
from stoker.spec.queue import Queue
from stoker.spec.usage import JobUsage
from stoker.spec.worker import Progress
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker_api.bodies import dump
from stoker_api.usage.board import UsageBoard

from .progress import ProgressBoard

_KEPT = 4096


def etag(obj: Resource) -> str:
    # A queue's status changes with its jobs; If-Match is about what administrators write.
    version = obj.metadata.generation if isinstance(obj, Queue) else obj.metadata.resource_version
    return f'"{obj.uid}.{version}"'


def joined(items: Iterable[bytes], tail: bytes = b"") -> bytes:
    """{"items":[…]} with `tail` (`,"nextCursor":…`) behind it."""
    return b'{"items":[' + b",".join(items) + b"]" + tail + b"}"


class JobRenderer:
    """Renders jobs with the newest progress and usage there are. `unsubscribe` ends its following of `jobs`."""

    def __init__(
        self,
        board: ProgressBoard,
        usage: UsageBoard,
        clock: Clock,
        jobs: WatchCache[TrainingJob],
        place: Callable[[TrainingJob], str | None],
    ) -> None:
        """`place`: where a job's output is, for people."""
        self._board, self._usage, self._clock, self._place = board, usage, clock, place
        self._kept: OrderedDict[str, tuple[str, float | None, JobUsage | None, bytes]] = OrderedDict()
        self.unsubscribe = jobs.subscribe(self._on_job)

    def job(self, job: TrainingJob) -> bytes:
        progress, usage = self._board.newest(job), self._usage.usage_of(job, self._clock.now())
        version, at = job.metadata.resource_version, None if progress is None else progress.at
        kept = self._kept.get(job.uid)
        if kept is not None and kept[0] == version and kept[1] == at and kept[2] is usage:
            self._kept.move_to_end(job.uid)
            return kept[3]
        data = dump(self._placed(live(job, progress, usage)))
        if job.uid:
            self._kept[job.uid] = (version, at, usage, data)
            self._kept.move_to_end(job.uid)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return data

    def _placed(self, job: TrainingJob) -> TrainingJob:
        place = self._place(job)
        return (
            job if place is None else job.model_copy(update={"status": job.status.model_copy(update={"output": place})})
        )

    def __len__(self) -> int:
        """How many renderings are kept."""
        return len(self._kept)

    def _on_job(self, change: Change[TrainingJob]) -> None:
        if change.old is not None and (change.new is None or change.new.uid != change.old.uid):
            self._kept.pop(change.old.uid, None)

    def is_stored(self, job: TrainingJob) -> bool:
        """The job's progress and usage are what status holds: nothing live goes beyond it."""
        usage = self._usage.usage_of(job, self._clock.now())
        return self._board.newest(job) == job.status.progress and usage == job.status.usage


def live(job: TrainingJob, progress: Progress | None, usage: JobUsage | None) -> TrainingJob:
    status = job.status
    newer = {
        name: value
        for name, value, stored in (("progress", progress, status.progress), ("usage", usage, status.usage))
        if value is not None and value is not stored
    }
    return job.model_copy(update={"status": status.model_copy(update=newer)}) if newer else job
