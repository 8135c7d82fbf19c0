"""The checks of a submit that need more than the job itself: its queue, its runtime, and whether it can ever fit.

Owns their order and words (`doors.py`: those of rights). Never stores. Called by `submit.py`, for dry runs too.
"""

from __future__ import annotations

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.queue import Queue
from stoker.spec.reasons import Blocker
from stoker.spec.runtime import TrainingRuntime, effective_runtime
from stoker.store.cache import WatchCache
from stoker.store.port import Store
from stoker_api.code.store import CodeStore
from stoker_api.identity import Identity, Principal
from stoker_api.ports import SchedulerView
from stoker_api.problems import Code, Fault, Problem, invalid

from .doors import QUEUE, RUNTIME, Door, takes
from .one_machine import needs_cluster

_POINTERS = {"gpus": "/spec/gpusPerWorker", "cpu": "/spec/cpu", "memory": "/spec/memory"}


class Checks:
    """`runtimes`: None on one machine."""

    def __init__(
        self,
        store: Store,
        queues: WatchCache[Queue],
        runtimes: WatchCache[TrainingRuntime] | None,
        scheduler: SchedulerView,
        identity: Identity,
        code: CodeStore | None = None,
    ) -> None:
        self._runtimes, self._scheduler = runtimes, scheduler
        self._queue = Door(QUEUE, store, queues, identity)
        self._runtime = None if runtimes is None else Door(RUNTIME, store, runtimes, identity)
        self._code = code

    async def check(self, principal: Principal, job: TrainingJob) -> None:
        """Raises: Problem if the job can't be taken here, from this caller, or could never run."""
        if self._runtimes is None:
            faults = needs_cluster(job.spec)
            if faults:
                raise Problem(Code.CLUSTER_ONLY, f"{faults[0].pointer} {faults[0].detail}.", errors=faults)
        await self._check_queue(principal, job)
        await self._check_runtime(principal, job)
        if job.spec.trainer.code is not None:
            await self._check_code(job.spec.trainer.code, job.metadata.namespace)
        blockers = self._scheduler.never_fits(job)
        if blockers:
            faults = [Fault(_POINTERS.get(found.resource or "", "/spec"), _numbers(found)) for found in blockers]
            raise Problem(Code.NEVER_FITS, f"{faults[0].detail} Ask for less, or for another queue.", errors=faults)

    async def _check_code(self, digest: str, project: str) -> None:
        if self._code is None or await self._code.find(project, digest) is None:
            raise invalid(
                "/spec/trainer/code",
                f"there is no code bundle {digest} in project {project!r} (any more); send it first: `stoker run` "
                f"does, or PUT /v1/projects/{project}/code/{digest}",
                code=Code.UNKNOWN_CODE,
            )

    async def _check_queue(self, principal: Principal, job: TrainingJob) -> None:
        name = job.spec.queue
        queue = await self._queue.open(principal, name, job.metadata.namespace)
        if queue.metadata.deletion_timestamp is not None:
            said = f"Queue {name!r} is being deleted and takes no new jobs; choose another queue."
            raise Problem(Code.QUEUE_FORBIDDEN, said, errors=[Fault("/spec/queue", "is being deleted")])
        highest = queue.spec.highest_priority
        if highest is not None and job.spec.priority > highest:
            raise invalid(
                "/spec/priority",
                f"{job.spec.priority} is above the highest that queue {name!r} takes, {highest}",
                code=Code.PRIORITY_TOO_HIGH,
            )

    async def _check_runtime(self, principal: Principal, job: TrainingJob) -> None:
        if self._runtimes is None or self._runtime is None:
            return
        named, project = job.spec.runtime, job.metadata.namespace
        if named is not None:
            await self._runtime.open(principal, named, project)
            return
        name = effective_runtime(None, project, self._runtimes.values())
        found = self._runtimes.get(Key("", name))
        if found is not None and not takes(found, project):
            raise Problem(
                Code.RUNTIME_FORBIDDEN,
                f"Jobs that name no runtime get {name!r}, which is not for jobs of project {project!r}; name another "
                "or ask an administrator.",
                errors=[Fault("/spec/runtime", f"is absent, and {name!r} is closed to project {project!r}")],
            )


def _numbers(blocker: Blocker) -> str:
    text = blocker.message.rstrip(".")
    if blocker.requested is not None and blocker.available is not None:
        text += f" (asked: {blocker.requested:g}, most there is: {blocker.available:g})"
    return text + "."
