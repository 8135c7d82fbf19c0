"""The checks of a submit that need more than the job itself: its queue, its runtime, and whether it can ever fit.

Owns their order and words. Never stores. Called by `submit.py`, for dry runs too.
"""

from __future__ import annotations

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import DEFAULT_QUEUE
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.reasons import Blocker
from stoker.spec.runtime import RUNTIMES, TrainingRuntime
from stoker.store.cache import WatchCache
from stoker.store.port import NotFound, Store
from stoker_api.code.store import CodeStore
from stoker_api.identity import Identity, Principal, use_queue
from stoker_api.ports import SchedulerView
from stoker_api.problems import Code, Fault, Problem, invalid

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
        self._store, self._queues, self._runtimes = store, queues, runtimes
        self._scheduler, self._identity = scheduler, identity
        self._code = code

    async def check(self, principal: Principal, job: TrainingJob) -> None:
        """Raises: Problem if the job can't be taken here, from this caller, or could never run."""
        if self._runtimes is None:
            faults = needs_cluster(job.spec)
            if faults:
                raise Problem(Code.CLUSTER_ONLY, f"{faults[0].pointer} {faults[0].detail}.", errors=faults)
        await self._check_queue(principal, job)
        if self._runtimes is not None and job.spec.runtime is not None:
            await self._check_runtime(self._runtimes, job.spec.runtime, job.metadata.namespace)
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
        name, project = job.spec.queue, job.metadata.namespace
        queue = await self._queue(name)
        allowed = queue.spec.projects
        if allowed is not None and project not in allowed:
            raise Problem(
                Code.QUEUE_FORBIDDEN,
                f"Queue {name!r} does not take jobs of project {project!r}; choose another queue or ask its "
                "administrator.",
                errors=[Fault("/spec/queue", f"is closed to project {project!r}")],
            )
        if not await self._identity.may(principal, use_queue(name), project):
            raise Problem(
                Code.QUEUE_FORBIDDEN,
                f"{principal.name!r} may not spend queue {name!r} in project {project!r}; choose another queue or ask "
                "for the right to use it.",
                errors=[Fault("/spec/queue", f"needs the right to {use_queue(name)}")],
            )
        highest = queue.spec.highest_priority
        if highest is not None and job.spec.priority > highest:
            raise invalid(
                "/spec/priority",
                f"{job.spec.priority} is above the highest that queue {name!r} takes, {highest}",
                code=Code.PRIORITY_TOO_HIGH,
            )

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

    async def _check_runtime(self, runtimes: WatchCache[TrainingRuntime], name: str, project: str) -> None:
        found = runtimes.get(Key("", name))
        if found is None:
            try:
                found = await self._store.get(RUNTIMES, Key("", name))
            except NotFound:
                open_ = sorted(one.metadata.name for one in runtimes.values() if _takes(one, project))
                raise invalid(
                    "/spec/runtime",
                    f"there is no runtime {name!r}; there is: {', '.join(open_) or 'none yet'}",
                    code=Code.UNKNOWN_RUNTIME,
                ) from None
        if not _takes(found, project):
            raise Problem(
                Code.RUNTIME_FORBIDDEN,
                f"Runtime {name!r} is not for jobs of project {project!r}; choose another or ask an administrator.",
                errors=[Fault("/spec/runtime", f"is closed to project {project!r}")],
            )


def _takes(runtime: TrainingRuntime, project: str) -> bool:
    return runtime.spec.projects is None or project in runtime.spec.projects


def _numbers(blocker: Blocker) -> str:
    text = blocker.message.rstrip(".")
    if blocker.requested is not None and blocker.available is not None:
        text += f" (asked: {blocker.requested:g}, most there is: {blocker.available:g})"
    return text + "."
