"""What people do to a job that exists: cancel, suspend, resume, retry (each an idempotent change of spec), delete; and
patches of its spec.

Owns what each action means for a job in each phase; what then happens is the operator's. Called by
`routes/jobs.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

from stoker.spec.job import ENDED, JOBS, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import ANNOTATION_IDLE_SUSPENDED
from stoker.store.cache import WatchCache
from stoker.store.port import Conflict, NotFound, Store
from stoker_api.bodies import matches
from stoker_api.objects import kept_changing, refuse_stale
from stoker_api.problems import Problem, ProblemCode, not_found

from .render import etag
from .submit import READ_OWN_WRITE_S

_TRIES = 8


class Action(StrEnum):
    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"
    RETRY = "retry"


def ended(job: TrainingJob) -> bool:
    """It has ended, and no retry has been requested since."""
    return job.status.phase in ENDED and job.spec.retry_generation == job.status.observed_retry_generation


def change_of(action: Action, job: TrainingJob) -> dict[str, Any]:
    """What the action changes in the spec; {}: it holds already, or came too late to mean anything.

    Raises: Problem (NotEnded: a retry of a job that has not failed).
    """
    if action is Action.RETRY:
        return _retry(job)
    if ended(job):
        return {}
    if action is Action.CANCEL:
        return {} if job.spec.cancel else {"cancel": True}
    suspend = action is Action.SUSPEND
    return {} if job.spec.suspend == suspend else {"suspend": suspend}


def _any(changes_of: Callable[[TrainingJob], dict[str, Any]], job: TrainingJob) -> bool:
    with contextlib.suppress(Problem):
        return bool(changes_of(job))
    return False


class Changer:
    def __init__(self, store: Store, jobs: WatchCache[TrainingJob]) -> None:
        self._store, self._jobs = store, jobs

    async def apply(self, action: Action, key: Key, if_match: str | None) -> TrainingJob:
        """The job after the action. Raises: Problem (404, 409, 412)."""
        return await self.change(partial(change_of, action), key, if_match)

    async def change(
        self, changes_of: Callable[[TrainingJob], dict[str, Any]], key: Key, if_match: str | None
    ) -> TrainingJob:
        """The job with what is to change of its spec, worked out again where it has changed meanwhile.

        Raises: Problem (404, 409, 412), and what `changes_of` does.
        """
        job = self._jobs.get(key)
        if job is not None and not _any(changes_of, job):
            job = None  # the cache may be behind: only the store's newest shows that nothing is to be done
        for _ in range(_TRIES):
            try:
                if job is None:
                    job = await self._store.get(JOBS, key)
                if not matches(if_match, etag(job)):
                    job = await self._store.get(JOBS, key)  # the cache may be behind what the client has seen
                    refuse_stale(job, if_match, "job")
                changes = changes_of(job)
                if not changes:
                    return job
                spec = job.spec.model_copy(update=changes)
                metadata = job.metadata
                if changes.get("suspend") is False:
                    kept = {k: v for k, v in metadata.annotations.items() if k != ANNOTATION_IDLE_SUSPENDED}
                    metadata = metadata.model_copy(update={"annotations": kept})
                job = await self._store.update(JOBS, job.model_copy(update={"metadata": metadata, "spec": spec}))
            except Conflict:
                job = None
                continue
            except NotFound:
                raise not_found(f"job {key.name!r} in project {key.namespace!r}") from None
            with contextlib.suppress(TimeoutError):
                await self._jobs.at_least(job.metadata.resource_version, timeout_s=READ_OWN_WRITE_S)
            return job
        raise kept_changing("job")

    async def delete(self, key: Key, if_match: str | None) -> None:
        """Delete the job as it is now; returns once it is gone from what this api shows.

        Raises: Problem (404, 409, 412).
        """
        job = await self._delete(key, if_match)
        with contextlib.suppress(TimeoutError):
            await self._jobs.wait_for(
                lambda jobs: (
                    (there := jobs.get(key)) is None
                    or there.uid != job.uid
                    or there.metadata.deletion_timestamp is not None
                ),
                timeout_s=READ_OWN_WRITE_S,
            )

    async def _delete(self, key: Key, if_match: str | None) -> TrainingJob:
        """The job that was deleted."""
        gone = not_found(f"job {key.name!r} in project {key.namespace!r}")
        uid = None
        for _ in range(_TRIES):
            try:
                job = await self._store.get(JOBS, key)
                if uid not in (None, job.uid):  # another of the name: what the caller saw is gone
                    raise gone
                uid = job.uid
                refuse_stale(job, if_match, "job")
                await self._store.delete(JOBS, key, uid=uid)
            except NotFound:
                raise gone from None
            except Conflict:
                continue
            return job
        raise kept_changing("job")


def _retry(job: TrainingJob) -> dict[str, Any]:
    if job.spec.retry_generation > job.status.observed_retry_generation:
        return {}
    if job.status.phase not in (Phase.FAILED, Phase.CANCELLED):
        instead = {
            Phase.SUSPENDED: " Resume it instead.",
            Phase.SUCCEEDED: " Clone it instead: `stoker clone` submits it once more, with or without changes.",
        }
        raise Problem(
            ProblemCode.NOT_ENDED,
            f"Only a Failed or Cancelled job can be retried; this one is {job.status.phase}."
            + instead.get(job.status.phase, ""),
        )
    return {"retry_generation": job.spec.retry_generation + 1, "cancel": False, "suspend": False}
