"""Jobs newest first, by project, queue and phase, for lists; and by idempotency key.

Follows the job cache. Never holds objects, only their sort keys. Every bucket (project, queue, phase) is a sorted list;
a list merges the buckets its filter names, so that it costs what it returns and not what there is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import ANNOTATION_IDEMPOTENCY_KEY, ANNOTATION_SUBMITTER
from stoker.store.cache import Change, WatchCache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class SortKey(NamedTuple):
    """Where a job stands in lists: creationTimestamp descending, then name, then project."""

    minus_created_us: int
    name: str
    project: str


class Bucket(NamedTuple):
    project: str
    queue: str
    phase: Phase


class IdempotencyId(NamedTuple):
    """Whose key it is: keys of different submitters or projects are different keys."""

    project: str
    submitter: str
    key: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a list shows. None: any."""

    sees: Callable[[str], bool]
    project: str | None = None
    queue: str | None = None
    phases: frozenset[Phase] | None = None

    def takes(self, bucket: Bucket) -> bool:
        return (
            (self.project is None or bucket.project == self.project)
            and (self.queue is None or bucket.queue == self.queue)
            and (self.phases is None or bucket.phase in self.phases)
            and self.sees(bucket.project)
        )


class JobIndex:
    """Cost: 11 to 19 µs per change and 51 µs per page of 50 at 10,000 jobs (CPython 3.11 on a shared core)."""

    def __init__(self, jobs: WatchCache[TrainingJob]) -> None:
        self._jobs = jobs
        self._buckets: dict[Bucket, list[SortKey]] = {}
        self._by_idempotency: dict[IdempotencyId, dict[Key, str]] = {}
        """Key → uid, in the order in which the watch brought them."""
        self.unsubscribe = jobs.subscribe(self._on_change)

    def page(self, wanted: Filter, *, after: SortKey | None, limit: int) -> tuple[list[TrainingJob], SortKey | None]:
        """At most `limit` jobs behind `after`, and where the next page begins (None: that was all)."""
        walks = [
            _walk(places, 0 if after is None else bisect_right(places, after))
            for bucket, places in self._buckets.items()
            if wanted.takes(bucket)
        ]
        found: list[TrainingJob] = []
        last: SortKey | None = None
        for place in walks[0] if len(walks) == 1 else heapq.merge(*walks):
            if len(found) == limit:
                return found, last
            job = self._jobs.get(Key(place.project, place.name))
            if job is not None:
                found.append(job)
                last = place
        return found, None

    def by_idempotency(self, wanted: IdempotencyId) -> TrainingJob | None:
        """The first job with this key."""
        for key in self._by_idempotency.get(wanted, ()):
            job = self._jobs.get(key)
            if job is not None:
                return job
        return None

    def before(self, job: TrainingJob, owned: IdempotencyId) -> TrainingJob | None:
        """The first other job with `job`'s key that was created before it; None: it is the first.

        The watch brings jobs in the order of their creation. A list, after a cut, does not: there the versions decide,
        since what has a smaller one than `job` had when it was created is older.
        """
        created = int(job.metadata.resource_version)
        known = self._by_idempotency.get(owned, {})
        arrived_first = True
        for key, uid in known.items():
            if uid == job.uid:
                arrived_first = False
                continue
            other = self._jobs.get(key)
            if other is not None and (arrived_first or int(other.metadata.resource_version) < created):
                return other
        return None

    def projects(self) -> set[str]:
        """Those that hold jobs."""
        return {bucket.project for bucket in self._buckets}

    def counts(self) -> Counter[tuple[str, str]]:
        """Jobs per (queue, phase)."""
        found: Counter[tuple[str, str]] = Counter()
        for bucket, places in self._buckets.items():
            found[bucket.queue, bucket.phase.value] += len(places)
        return found

    def held_gpus(self) -> Counter[str]:
        """GPUs kept after a failure (onFailure.hold), by queue. Cost: a look at each job that has a place."""
        found: Counter[str] = Counter()
        for job in self.placed():
            if job.status.held is not None:
                found[job.spec.queue] += job.gpus
        return found

    def placed(self) -> Iterator[TrainingJob]:
        """The jobs that hold a place. Cost: a look at each."""
        for bucket, places in self._buckets.items():
            if bucket.phase in PLACED:
                for place in places:
                    job = self._jobs.get(Key(place.project, place.name))
                    if job is not None:
                        yield job

    def unended(self, queue: str) -> int:
        """How many jobs of a queue have not ended."""
        return sum(
            len(places)
            for bucket, places in self._buckets.items()
            if bucket.queue == queue and bucket.phase not in ENDED
        )

    def _on_change(self, change: Change[TrainingJob]) -> None:
        old, new = change.old, change.new
        before = None if old is None else (_bucket(old), place_of(old))
        after = None if new is None else (_bucket(new), place_of(new))
        if before == after:
            return
        if old is not None and before is not None:
            self._remove(*before)
            if (old_id := idempotency_of(old)) is not None and new is None:
                self._forget_idempotency(old_id, old.key)
        if new is not None and after is not None:
            insort(self._buckets.setdefault(after[0], []), after[1])
            if (new_id := idempotency_of(new)) is not None:
                self._by_idempotency.setdefault(new_id, {})[new.key] = new.uid

    def _forget_idempotency(self, owned: IdempotencyId, key: Key) -> None:
        known = self._by_idempotency.get(owned, {})
        known.pop(key, None)
        if not known:
            self._by_idempotency.pop(owned, None)

    def _remove(self, bucket: Bucket, place: SortKey) -> None:
        places = self._buckets.get(bucket, [])
        at = bisect_left(places, place)
        if at < len(places) and places[at] == place:
            del places[at]
        if not places:
            self._buckets.pop(bucket, None)


def place_of(job: TrainingJob) -> SortKey:
    created = job.metadata.creation_timestamp or _EPOCH
    return SortKey(-((created - _EPOCH) // _MICROSECOND), job.metadata.name, job.metadata.namespace)


def _bucket(job: TrainingJob) -> Bucket:
    return Bucket(job.metadata.namespace, job.spec.queue, job.status.phase)


def idempotency_of(job: TrainingJob) -> IdempotencyId | None:
    """The key the job was submitted with."""
    annotations = job.metadata.annotations
    key = annotations.get(ANNOTATION_IDEMPOTENCY_KEY)
    if key is None:
        return None
    return IdempotencyId(job.metadata.namespace, annotations.get(ANNOTATION_SUBMITTER, ""), key)


def _walk(places: list[SortKey], begin: int) -> Iterator[SortKey]:
    for at in range(begin, len(places)):
        yield places[at]
