"""Takes a job in: checks it, gives it a name, stores it exactly once.

Owns the checks that need the cluster's state (queue, priority, whether it can ever fit) and idempotency. The key lives
on the job itself, so it holds across restarts; a nameless job's name is derived from the key, so twins that race meet
in the store under one name. Called by `routes/jobs.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import (
    ANNOTATION_IDEMPOTENCY_KEY,
    ANNOTATION_REQUEST_DIGEST,
    ANNOTATION_SUBMITTER,
    DEFAULT_QUEUE,
)
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.reasons import Blocker
from stoker.store.cache import WatchCache
from stoker.store.port import AlreadyExists, NotFound, Store
from stoker_api.ports import SchedulerView
from stoker_api.problems import Code, Fault, Problem, invalid
from stoker_api.tokens import Principal

from .index import IdempotencyId, JobIndex, idempotency_of
from .request import SUFFIX_LENGTH, Submission, base_name, parse_submission

READ_OWN_WRITE_S = 5.0
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own: no vowels, no look-alikes
_TRIES = 16
_POINTERS = {"gpus": "/spec/gpusPerWorker", "cpu": "/spec/cpu", "memory": "/spec/memory"}


@dataclass(frozen=True, slots=True)
class Submitted:
    job: TrainingJob
    replayed: bool = False


class Submitter:
    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        index: JobIndex,
        scheduler: SchedulerView,
    ) -> None:
        self._store, self._jobs, self._queues = store, jobs, queues
        self._index, self._scheduler = index, scheduler
        self._locks: WeakValueDictionary[IdempotencyId, asyncio.Lock] = WeakValueDictionary()

    async def dry_run(self, principal: Principal, project: str, body: bytes) -> TrainingJob:
        """The job as it would be stored. Raises: Problem."""
        submission, _ = parse_submission(body, project)
        job = self._draft(principal, project, submission, next(_names(submission, None)))
        await self._check(job)
        if submission.metadata.name is not None and self._jobs.get(job.key) is not None:
            raise _taken(job.key)
        return job

    async def submit(self, principal: Principal, project: str, body: bytes, key: str | None) -> Submitted:
        """The job as stored. Raises: Problem."""
        submission, data = parse_submission(body, project)
        if key is None:
            return await self._create(principal, project, submission, None, "")
        owned = IdempotencyId(project, principal.name, key)
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        lock = self._locks.setdefault(owned, asyncio.Lock())
        async with lock:
            known = self._index.by_idempotency(owned)
            if known is not None:
                return _replay(known, digest)
            return await self._create(principal, project, submission, owned, digest)

    async def _create(
        self,
        principal: Principal,
        project: str,
        submission: Submission,
        owned: IdempotencyId | None,
        digest: str,
    ) -> Submitted:
        checked = False
        for name in _names(submission, owned):
            job = self._draft(principal, project, submission, name, owned, digest)
            if not checked:
                await self._check(job)
                checked = True
            try:
                stored = await self._store.create(JOBS, job)
            except AlreadyExists:
                there = None
                if owned is not None:
                    with contextlib.suppress(NotFound):
                        there = await self._store.get(JOBS, job.key)
                if there is not None and idempotency_of(there) == owned:
                    return _replay(there, digest)
                if submission.metadata.name is not None:
                    raise _taken(job.key) from None
                continue
            with contextlib.suppress(TimeoutError):  # it is stored: a cache that lags must not turn that into an error
                await self._jobs.at_least(stored.metadata.resource_version, timeout_s=READ_OWN_WRITE_S)
            return Submitted(stored)
        raise Problem(Code.CONFLICT, "No free name was found; send the request again.", retry_after_s=1)

    def _draft(
        self,
        principal: Principal,
        project: str,
        submission: Submission,
        name: str,
        owned: IdempotencyId | None = None,
        digest: str = "",
    ) -> TrainingJob:
        annotations = {**submission.metadata.annotations, ANNOTATION_SUBMITTER: principal.name}
        if owned is not None:
            annotations[ANNOTATION_IDEMPOTENCY_KEY] = owned.key
            annotations[ANNOTATION_REQUEST_DIGEST] = digest
        metadata = ObjectMeta(name=name, namespace=project, labels=submission.metadata.labels, annotations=annotations)
        return TrainingJob(metadata=metadata, spec=submission.spec)

    async def _check(self, job: TrainingJob) -> None:
        """Raises: Problem if the queue does not take the job or nothing could ever run it."""
        queue = await self._queue(job.spec.queue)
        allowed = queue.spec.projects
        if allowed is not None and job.metadata.namespace not in allowed:
            raise Problem(
                Code.QUEUE_FORBIDDEN,
                f"Queue {job.spec.queue!r} does not take jobs of project {job.metadata.namespace!r}; choose another "
                "queue or ask its administrator.",
                errors=[Fault("/spec/queue", f"is closed to project {job.metadata.namespace!r}")],
            )
        highest = queue.spec.highest_priority
        if highest is not None and job.spec.priority > highest:
            raise invalid(
                "/spec/priority",
                f"{job.spec.priority} is above the highest that queue {job.spec.queue!r} takes, {highest}",
                code=Code.PRIORITY_TOO_HIGH,
            )
        blockers = self._scheduler.never_fits(job)
        if blockers:
            faults = [Fault(_POINTERS.get(found.resource or "", "/spec"), _numbers(found)) for found in blockers]
            raise Problem(Code.NEVER_FITS, f"{faults[0].detail} Ask for less, or for another queue.", errors=faults)

    async def _queue(self, name: str) -> Queue:
        queue = self._queues.get(Key("", name))
        if queue is not None:
            return queue
        try:
            return await self._store.get(QUEUES, Key("", name))
        except NotFound:
            pass
        if name == DEFAULT_QUEUE:
            raise Problem(
                Code.UNAVAILABLE, "The operator has not created queue 'default' yet; try again.", retry_after_s=1
            )
        names = ", ".join(sorted(queue.metadata.name for queue in self._queues.values())) or "none yet"
        raise invalid("/spec/queue", f"there is no queue {name!r}; there is: {names}", code=Code.UNKNOWN_QUEUE)


def _names(submission: Submission, owned: IdempotencyId | None) -> Iterator[str]:
    """The names to try, in order; the same for the same idempotency key."""
    meta = submission.metadata
    if meta.name is not None:
        yield meta.name
        return
    base = meta.generate_name or base_name(submission.spec.trainer) + "-"
    for attempt in range(_TRIES):
        if owned is None:
            yield base + "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX_LENGTH))
            continue
        number = int.from_bytes(hashlib.sha256(json.dumps([*owned, attempt]).encode()).digest()[:8])
        letters = []
        for _ in range(SUFFIX_LENGTH):
            number, at = divmod(number, len(_ALPHABET))
            letters.append(_ALPHABET[at])
        yield base + "".join(letters)


def _replay(job: TrainingJob, digest: str) -> Submitted:
    if job.metadata.annotations.get(ANNOTATION_REQUEST_DIGEST) != digest:
        raise Problem(
            Code.IDEMPOTENCY_KEY_REUSED,
            f"This Idempotency-Key made job {job.metadata.name!r} from another body; use a new key for a new job.",
            errors=[Fault("/idempotency-key", "was used with another body", "header")],
        )
    return Submitted(job, replayed=True)


def _taken(key: Key) -> Problem:
    return Problem(
        Code.ALREADY_EXISTS,
        f"Project {key.namespace!r} has a job {key.name!r} already; choose another name, or generateName.",
        errors=[Fault("/metadata/name", "is taken")],
    )


def _numbers(blocker: Blocker) -> str:
    text = blocker.message.rstrip(".")
    if blocker.requested is not None and blocker.available is not None:
        text += f" (asked: {blocker.requested:g}, most there is: {blocker.available:g})"
    return text + "."
