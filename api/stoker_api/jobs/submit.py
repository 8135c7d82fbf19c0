"""Takes a job in: checks it, gives it a name, stores it exactly once.

Owns idempotency. The key lives on the job itself, so it holds across restarts; a nameless job's name is derived from
the key, so twins that race meet in the store under one name, whichever api process took them. Called by
`routes/jobs.py`.
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
from stoker.spec.names import ANNOTATION_IDEMPOTENCY_KEY, ANNOTATION_REQUEST_DIGEST, ANNOTATION_SUBMITTER
from stoker.store.cache import WatchCache
from stoker.store.port import AlreadyExists, Conflict, NotFound, Store
from stoker_api.identity import Principal
from stoker_api.problems import FieldError, Problem, ProblemCode, not_found

from .checks import Checks
from .index import IdempotencyId, JobIndex, idempotency_of
from .request import SUFFIX_LENGTH, Submission, base_name, parse_submission

READ_OWN_WRITE_S = 5.0
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own: no vowels, no look-alikes
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Submitted:
    job: TrainingJob
    replayed: bool = False


class Submitter:
    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        index: JobIndex,
        checks: Checks,
    ) -> None:
        self._store, self._jobs = store, jobs
        self._index, self._checks = index, checks
        self._locks: WeakValueDictionary[IdempotencyId, asyncio.Lock] = WeakValueDictionary()

    async def dry_run(self, principal: Principal, project: str, body: bytes) -> TrainingJob:
        """The job as it would be stored. Raises: Problem."""
        submission, _ = parse_submission(body, project)
        job = self._draft(principal, project, submission, next(_names(submission, None)))
        await self._checks.check(principal, job)
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
                await self._checks.check(principal, job)
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
            except NotFound:  # on a cluster a project is a namespace, and that is not made by submitting to it
                raise not_found(f"project {project!r}") from None
            with contextlib.suppress(TimeoutError):  # it is stored: a cache that lags must not turn that into an error
                await self._jobs.at_least(stored.metadata.resource_version, timeout_s=READ_OWN_WRITE_S)
            return Submitted(stored) if owned is None else await self._first(stored, owned, digest)
        raise Problem(ProblemCode.CONFLICT, "No free name was found; send the request again.", retry_after_s=1)

    async def _first(self, stored: TrainingJob, owned: IdempotencyId, digest: str) -> Submitted:
        """`stored`, unless another api process had made a job for the same key before: then that one, alone.

        Twins of one body meet under one name. For two bodies with two names the watch decides: once it has brought our
        own job, it has brought every job that was created before. One that finds an earlier one is taken back.
        """
        first = self._index.before(stored, owned)
        if first is None:
            return Submitted(stored)
        with contextlib.suppress(NotFound, Conflict):
            await self._store.delete(JOBS, stored.key, uid=stored.uid)
        return _replay(first, digest)

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
            ProblemCode.IDEMPOTENCY_KEY_REUSED,
            f"This Idempotency-Key made job {job.metadata.name!r} from another body; use a new key for a new job.",
            errors=[FieldError("/idempotency-key", "was used with another body", "header")],
        )
    return Submitted(job, replayed=True)


def _taken(key: Key) -> Problem:
    return Problem(
        ProblemCode.ALREADY_EXISTS,
        f"Project {key.namespace!r} has a job {key.name!r} already; choose another name, or generateName.",
        errors=[FieldError("/metadata/name", "is taken")],
    )
