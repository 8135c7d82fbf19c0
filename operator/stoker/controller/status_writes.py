"""Writes a job's status: the RFC 7396 merge patch between two, for the version it was worked out from."""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import Any

from stoker.spec.job import JOBS, TrainingJob, TrainingJobStatus
from stoker.store.port import Conflict, Forbidden, Invalid, NotFound, NotLeader, NotPermitted, Store, Unavailable

log = logging.getLogger(__name__)

MANAGER = "operator"


class Written(Enum):
    """What became of a status that the scheduling loop wrote."""

    DONE = auto()
    CHANGED = auto()
    """The job has changed; that change wakes the loop."""
    REFUSED = auto()
    """The store takes no such status, by its rules or a policy of the cluster's: nothing was written."""
    UNKNOWN = auto()
    """No answer, or one that does not say: it may have been written."""


async def write_status(store: Store, job: TrainingJob, status: TrainingJobStatus) -> str:
    """Replace the status of `job`, if it is still the version at hand. Returns: the new resourceVersion.

    Raises: Conflict, NotFound, Invalid.
    """
    return await store.patch_unread(
        JOBS,
        job.key,
        status_patch(job.status, status),
        manager=MANAGER,
        uid=job.uid,
        resource_version=job.metadata.resource_version,
    )


async def try_write_status(store: Store, job: TrainingJob, status: TrainingJobStatus) -> Written:
    """As `write_status`, for a loop that writes for many jobs: what is wrong with one must not stop it."""
    try:
        await write_status(store, job, status)
    except (Conflict, NotFound):
        return Written.CHANGED
    except (NotLeader, NotPermitted):
        raise  # of this process, or our own account
    except (Invalid, Forbidden) as error:
        log.error("status of job %s refused, to be tried again later: %s", job.key, error)
        return Written.REFUSED
    except Unavailable as error:
        log.warning("status of job %s perhaps not written, to be tried again: %s", job.key, error)
        return Written.UNKNOWN
    return Written.DONE


def status_patch(old: TrainingJobStatus, new: TrainingJobStatus) -> dict[str, Any]:
    """The merge patch that turns `old` into `new`; names and values as in the API.

    The phase is always in it: of a status that was never written the model reads its default, kubectl nothing.
    """
    return {"phase": new.phase.value} | _diff(old.dump(), new.dump())


def _diff(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        former = old.get(name)
        if value == former:
            continue
        patch[name] = _diff(former, value) if isinstance(value, dict) and isinstance(former, dict) else value
    return patch
