"""Lists of jobs: which of them a query asks for, in which order, page by page.

Owns the conditions that the index has no buckets for, the orders but newest first, and all cursors. What looks at
every job does so in slices, between which the event loop serves others. Called by the route of lists.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from stoker.spec.job import PLACED, TrainingJob
from stoker.spec.names import ANNOTATION_SUBMITTER

from .index import Filter, JobIndex, SortKey, place_of

_SLICE = 250
_SLICE_S = 0.002
NEWEST_FIRST = "-created"
_REQUIREMENT = re.compile(
    r"(?P<no>!?)(?P<key>([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)"
    r"((?P<is>=|==|!=)(?P<value>[A-Za-z0-9_.-]{0,63}))?"
)
MOST_REQUIREMENTS = 16


class SortBy(StrEnum):
    """What a list may be sorted by; with a '-' before it the largest, newest or last comes first."""

    CREATED = "created"
    STARTED = "started"
    FINISHED = "finished"
    DURATION = "duration"
    PRIORITY = "priority"
    GPUS = "gpus"
    NAME = "name"


SORTS = tuple(sign + one for one in SortBy for sign in ("", "-"))


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """`key=value`, `key!=value`, `key` (there), `!key` (not there), as kubectl's selectors have them."""

    key: str
    value: str | None
    holds: bool

    def met_by(self, labels: Mapping[str, str]) -> bool:
        found = self.key in labels if self.value is None else labels.get(self.key) == self.value
        return found is self.holds


def parse_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Requirements between commas. Raises: ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_REQUIREMENTS:
        raise ValueError(f"has {len(parts)} conditions; {MOST_REQUIREMENTS} are the most")
    found = []
    for part in parts:
        match = _REQUIREMENT.fullmatch(part)
        if match is None or (match["no"] and match["is"]):
            raise ValueError(f"{part!r} is no condition on a label; write team=nlp, team!=nlp, team or !team")
        found.append(LabelRequirement(match["key"], match["value"], match["is"] != "!=" and not match["no"]))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What else a job must be. None, or empty: anything will do. `created_since`: not before."""

    user: str | None = None
    gpu_type: str | None = None
    created_since: datetime | None = None
    labels: tuple[LabelRequirement, ...] = ()
    text: str | None = None

    @property
    def any(self) -> bool:
        """Every job meets them."""
        return self == Conditions()

    def met_by(self, job: TrainingJob) -> bool:
        meta = job.metadata
        return (
            (self.user is None or meta.annotations.get(ANNOTATION_SUBMITTER) == self.user)
            and (
                self.created_since is None
                or (meta.creation_timestamp is not None and meta.creation_timestamp >= self.created_since)
            )
            and (self.gpu_type is None or _has_type(job, self.gpu_type.lower()))
            and all(one.met_by(meta.labels) for one in self.labels)
            and (self.text is None or _contains(job, self.text.lower()))
        )


def _has_type(job: TrainingJob, gpu_type: str) -> bool:
    """Of the GPUs that it has or last had; before its first, of those that it names."""
    if job.status.gpu_type:
        return job.status.gpu_type == gpu_type
    return job.status.attempt == 0 and any(gpu_type in model.lower() for model in job.spec.gpu.models)


def _contains(job: TrainingJob, lower: str) -> bool:
    """In its name, its labels, what it runs, or where it stands."""
    trainer = job.spec.trainer
    parts = (
        job.metadata.name,
        trainer.recipe or " ".join(trainer.command or ()),
        job.status.message,
        job.status.reason,
        *(f"{key}={value}" for key, value in job.metadata.labels.items()),
    )
    return any(lower in part.lower() for part in parts)


def ran_s(job: TrainingJob, now: datetime) -> float | None:
    """Seconds run in all attempts, holds after failures included. None: it never ran."""
    status = job.status
    ended_s = status.ran_s + status.held_s
    if status.phase in PLACED and status.started_at is not None:
        return ended_s + max(0.0, (now - status.started_at).total_seconds())
    return ended_s or None


def _started_at(job: TrainingJob) -> datetime | None:
    """When all workers of its newest attempt ran that ever did."""
    ended = (end.started_at for end in reversed(job.status.attempts) if end.started_at is not None)
    return job.status.started_at or next(ended, None)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


_VALUES: Mapping[SortBy, Callable[[TrainingJob, datetime], float | None]] = {
    SortBy.CREATED: lambda job, now: _seconds(job.metadata.creation_timestamp),
    SortBy.STARTED: lambda job, now: _seconds(_started_at(job)),
    SortBy.FINISHED: lambda job, now: _seconds(job.status.finished_at),
    SortBy.DURATION: ran_s,
    SortBy.PRIORITY: lambda job, now: job.spec.priority,
    SortBy.GPUS: lambda job, now: job.gpus,
    SortBy.NAME: lambda job, now: 0,
}


async def jobs_page(
    index: JobIndex,
    wanted: Filter,
    conditions: Conditions,
    *,
    sort: str = NEWEST_FIRST,
    cursor: str | None,
    limit: int,
    now: datetime,
) -> tuple[list[TrainingJob], str | None]:
    """At most `limit` jobs behind `cursor`, and the cursor of the next page (None: that was all). `sort`: of SORTS.

    Cost: of newest first without conditions what it returns; with conditions a look at each job until the page is full,
    in other orders at all of them; 2 ms at a time.
    Raises: ValueError for a cursor that is none, or of another order.
    """
    if sort == NEWEST_FIRST:
        after = None if cursor is None else decode_cursor(cursor)
        found, rest = await _newest(index, wanted, conditions, after, limit)
        return found, None if rest is None else encode_cursor(rest)
    order = _Order(sort)
    behind = None if cursor is None else order.decode(cursor)
    best: list[tuple[_Place, TrainingJob]] = []
    async for jobs in _slices(index, wanted):
        met = [(order.place(job, now), job) for job in jobs if conditions.met_by(job)]
        best += met if behind is None else [one for one in met if one[0] > behind]
        best = heapq.nsmallest(limit + 1, best, key=lambda one: one[0])
    page = [job for _, job in best[:limit]]
    return page, order.encode(page[-1], now) if len(best) > limit else None


async def _newest(
    index: JobIndex, wanted: Filter, conditions: Conditions, after: SortKey | None, limit: int
) -> tuple[list[TrainingJob], SortKey | None]:
    if conditions.any:
        return index.page(wanted, after=after, limit=limit)
    found: list[TrainingJob] = []
    last = after
    async for jobs in _slices(index, wanted, after):
        for job in jobs:
            if conditions.met_by(job):
                if len(found) == limit:
                    return found, last
                found.append(job)
                last = place_of(job)
    return found, None


async def _slices(index: JobIndex, wanted: Filter, after: SortKey | None = None) -> AsyncIterator[list[TrainingJob]]:
    """All jobs of `wanted` behind `after`, newest first, some at a time."""
    begun = time.perf_counter()
    while True:
        jobs, after = index.page(wanted, after=after, limit=_SLICE)
        yield jobs
        if after is None:
            return
        if time.perf_counter() - begun > _SLICE_S:
            await asyncio.sleep(0)
            begun = time.perf_counter()


_Place = tuple[bool, float | tuple[int, ...], str, str]
"""Where a job stands in an order: those without a value last, then by value, name and project."""


_MOST = 1e18
"""Beyond any value: a cursor is untrusted text."""


class _Order:
    """An order but newest first, and its cursors."""

    def __init__(self, sort: str) -> None:
        self._sort = sort
        self._last_first = sort.startswith("-")
        self._by = SortBy(sort.removeprefix("-"))

    def place(self, job: TrainingJob, now: datetime) -> _Place:
        return self._placed(_VALUES[self._by](job, now), job.metadata.name, job.metadata.namespace)

    def _placed(self, value: float | None, name: str, project: str) -> _Place:
        if self._by is SortBy.NAME:  # backwards a longer name goes before one that it begins with
            return False, (*(-ord(letter) for letter in name), 1) if self._last_first else 0, name, project
        return value is None, (-value if self._last_first else value) if value is not None else 0, name, project

    def encode(self, job: TrainingJob, now: datetime) -> str:
        value = _VALUES[self._by](job, now)
        return _packed([self._sort, value, job.metadata.name, job.metadata.namespace])

    def decode(self, text: str) -> _Place:
        """Raises: ValueError."""
        match _unpacked(text):
            case [self._sort, (None | int() | float()) as value, str(name), str(project)] if abs(value or 0) < _MOST:
                return self._placed(value, name, project)
        raise ValueError("not a cursor of this server and order; start again without one")


def encode_cursor(place: SortKey) -> str:
    return _packed(list(place))


def decode_cursor(text: str) -> SortKey:
    """Raises: ValueError if it is none of ours."""
    match _unpacked(text):
        case [int(created), str(name), str(project)] if not isinstance(created, bool):
            return SortKey(created, name, project)
    raise ValueError("not a cursor of this server and order; start again without one")


def _packed(parts: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def _unpacked(text: str) -> object:
    try:
        return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        return None
