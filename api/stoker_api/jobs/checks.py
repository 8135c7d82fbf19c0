"""The checks of a submit that need more than the job itself: its queue, its runtime, and whether it can ever fit.

Owns their order, and what a caller without the right to a Queue or TrainingRuntime learns: whether one exists is shown
only to those who may list them. The admission policies (helm/stoker/templates/admission) say the same to kubectl.
Never stores. Called by `submit.py`, for dry runs too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from stoker.spec.job import ENDED, JOBS, TrainingJob, TrainingJobSpec
from stoker.spec.meta import Key, Kind
from stoker.spec.names import DEFAULT_QUEUE, SYSTEM_PROJECT
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.reasons import Reason
from stoker.spec.runtime import DEFAULT_RUNTIME, RUNTIMES, TrainingRuntime, effective_runtime
from stoker.store.cache import WatchCache
from stoker.store.port import NotFound, Store
from stoker_api.code.store import CodeStore
from stoker_api.identity import (
    LIST_QUEUES,
    LIST_RUNTIMES,
    Identity,
    Principal,
    Right,
    use_queue,
    use_runtime,
    use_secret,
)
from stoker_api.problems import FieldError, Problem, ProblemCode, invalid
from stoker_api.scheduler_view import SchedulerView

from .data_checks import check_local_data, check_offered_data, check_schemes

T = TypeVar("T", bound=Queue | TrainingRuntime)


@dataclass(frozen=True)
class NamedKind(Generic[T]):
    """What differs between the two."""

    kind: Kind[T]
    what: str
    verb: str
    use: Callable[[str], Right]
    lists: Right
    forbidden: ProblemCode
    unknown: ProblemCode
    open_to_all: str = ""
    """Needs no right."""
    promised: str = ""
    """Will be there soon."""


QUEUE = NamedKind(
    QUEUES,
    "queue",
    "spend",
    use_queue,
    LIST_QUEUES,
    ProblemCode.QUEUE_FORBIDDEN,
    ProblemCode.UNKNOWN_QUEUE,
    promised=DEFAULT_QUEUE,
)
RUNTIME = NamedKind(
    RUNTIMES,
    "runtime",
    "run workers in",
    use_runtime,
    LIST_RUNTIMES,
    ProblemCode.RUNTIME_FORBIDDEN,
    ProblemCode.UNKNOWN_RUNTIME,
    open_to_all=DEFAULT_RUNTIME,
)


class NamedAccess(Generic[T]):
    def __init__(self, kind: NamedKind[T], store: Store, cache: WatchCache[T], identity: Identity) -> None:
        self._kind, self._store, self._cache, self._identity = kind, store, cache, identity

    async def open(self, principal: Principal, name: str, project: str) -> T:
        """What the job names: it is there, the caller may use it, and it is open to the project. Raises: Problem."""
        kind = self._kind
        needs_right = name != kind.open_to_all
        if needs_right and not await self._identity.may(principal, kind.use(name), project):
            raise self._none(principal, name, project)
        found = self._cache.get(Key("", name))
        if found is None:
            with contextlib.suppress(NotFound):
                found = await self._store.get(kind.kind, Key("", name))
        if found is not None and takes(found, project):
            return found
        if found is None and name == kind.promised:
            detail = f"The operator has not created {kind.what} {name!r} yet; try again."
            raise Problem(ProblemCode.UNAVAILABLE, detail, retry_after_s=1)
        if needs_right and not await self._identity.may(principal, kind.lists):
            raise self._none(principal, name, project)
        raise self._absent(name, project) if found is None else self._closed(name, project)

    def _none(self, principal: Principal, name: str, project: str) -> Problem:
        """The same for what is not there and what is not the caller's."""
        what, right = self._kind.what, self._kind.use(name)
        return Problem(
            self._kind.forbidden,
            f"There is no {what} {name!r} that {principal.name!r} may {self._kind.verb} in project {project!r}; "
            f"choose another {what} or ask for the right to use it.",
            errors=[FieldError(f"/spec/{what}", f"needs the right to {right}")],
        )

    def _absent(self, name: str, project: str) -> Problem:
        what = self._kind.what
        names = sorted(one.metadata.name for one in self._cache.values() if takes(one, project))
        detail = f"there is no {what} {name!r}; there is: {', '.join(names) or 'none yet'}"
        return invalid(f"/spec/{what}", detail, code=self._kind.unknown)

    def _closed(self, name: str, project: str) -> Problem:
        what = self._kind.what
        return Problem(
            self._kind.forbidden,
            f"{what.capitalize()} {name!r} does not take jobs of project {project!r}; choose another {what} or ask its "
            "administrator.",
            errors=[FieldError(f"/spec/{what}", f"is closed to project {project!r}")],
        )


def takes(one: Queue | TrainingRuntime, project: str) -> bool:
    return one.spec.projects is None or project in one.spec.projects


_POINTERS = {"gpus": "/spec/gpusPerWorker", "cpu": "/spec/cpu", "memory": "/spec/memory"}


class Checks:
    """`runtimes`: None on one machine."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        runtimes: WatchCache[TrainingRuntime] | None,
        scheduler: SchedulerView,
        identity: Identity,
        code: CodeStore | None = None,
    ) -> None:
        self._store, self._jobs, self._identity = store, jobs, identity
        self._runtimes, self._scheduler = runtimes, scheduler
        self._queue = NamedAccess(QUEUE, store, queues, identity)
        self._runtime = None if runtimes is None else NamedAccess(RUNTIME, store, runtimes, identity)
        self._code = code

    async def check(self, principal: Principal, job: TrainingJob) -> None:
        """Raises: Problem if the job can't be taken here, from this caller, or could never run."""
        if self._runtimes is None:
            if job.metadata.namespace == SYSTEM_PROJECT:
                detail = f"Project {SYSTEM_PROJECT!r} is for Stoker's own jobs; choose another project."
                raise Problem(ProblemCode.FORBIDDEN, detail)
            faults = needs_cluster(job.spec)
            if faults:
                raise Problem(ProblemCode.CLUSTER_ONLY, f"{faults[0].pointer} {faults[0].detail}.", errors=faults)
        await self.check_queue(principal, job)
        runtime = await self._check_runtime(principal, job)
        if self._runtimes is None:
            check_schemes(job.spec)
            await check_local_data(job.spec)
        else:
            check_offered_data(job.spec, runtime)
        await self._check_secrets(principal, job)
        if job.spec.trainer.code is not None:
            await self._check_code(job.spec.trainer.code, job.metadata.namespace)
        if job.spec.source_job is not None:
            await self._check_source(job.spec, job.spec.source_job, job.metadata.namespace)
        blockers = self._scheduler.never_fits(job)
        if blockers:
            faults = [FieldError(_POINTERS.get(found.resource or "", "/spec"), _numbers(found)) for found in blockers]
            raise Problem(
                ProblemCode.NEVER_FITS, f"{faults[0].detail} Ask for less, or for another queue.", errors=faults
            )

    async def _check_secrets(self, principal: Principal, job: TrainingJob) -> None:
        """The caller may use them; whether they are there is only known where their values are read."""
        project, asked = job.metadata.namespace, dict[str, bool]()
        for variable, ref in job.spec.secret_env.items():
            if ref.secret not in asked:
                asked[ref.secret] = await self._identity.may(principal, use_secret(ref.secret), project)
            if not asked[ref.secret]:
                raise Problem(
                    ProblemCode.SECRET_FORBIDDEN,
                    f"There is no secret {ref.secret!r} that {principal.name!r} may use in project {project!r}; leave "
                    "it out or ask for the right to use it.",
                    errors=[
                        FieldError(f"/spec/secretEnv/{variable}/secret", f"needs the right to {use_secret(ref.secret)}")
                    ],
                )

    async def _check_code(self, digest: str, project: str) -> None:
        if self._code is None or await self._code.find(project, digest) is None:
            raise invalid(
                "/spec/trainer/code",
                f"there is no code bundle {digest} in project {project!r} (any more); send it first: `stoker run` "
                f"does, or PUT /v1/projects/{project}/code/{digest}",
                code=ProblemCode.UNKNOWN_CODE,
            )

    async def _check_source(self, spec: TrainingJobSpec, name: str, project: str) -> None:
        """What the job begins with is there, and whole: who may submit to a project may read what its jobs kept."""
        pointer = "/spec/checkpoint/from/job" if spec.checkpoint.source is not None else "/spec/trainer/initFrom/job"
        source = self._jobs.get(Key(project, name))
        if source is None:
            with contextlib.suppress(NotFound):
                source = await self._store.get(JOBS, Key(project, name))
        if source is None:
            raise invalid(pointer, f"there is no job {name!r} in project {project!r}")
        if source.status.phase not in ENDED:
            phase = source.status.phase.value
            raise invalid(pointer, f"job {name!r} has not ended ({phase}); wait for it, or cancel it")

    async def check_queue(self, principal: Principal, job: TrainingJob) -> None:
        name = job.spec.queue
        queue = await self._queue.open(principal, name, job.metadata.namespace)
        if queue.metadata.deletion_timestamp is not None:
            detail = f"Queue {name!r} is being deleted and takes no new jobs; choose another queue."
            raise Problem(ProblemCode.QUEUE_FORBIDDEN, detail, errors=[FieldError("/spec/queue", "is being deleted")])
        highest = queue.spec.highest_priority
        if highest is not None and job.spec.priority > highest:
            raise invalid(
                "/spec/priority",
                f"{job.spec.priority} is above the highest that queue {name!r} takes, {highest}",
                code=ProblemCode.PRIORITY_TOO_HIGH,
            )

    async def _check_runtime(self, principal: Principal, job: TrainingJob) -> TrainingRuntime | None:
        """The runtime that it will run in; None: the built-in one."""
        if self._runtimes is None or self._runtime is None:
            return None
        named, project = job.spec.runtime, job.metadata.namespace
        if named is not None:
            return await self._runtime.open(principal, named, project)
        name = effective_runtime(None, project, self._runtimes.values())
        found = self._runtimes.get(Key("", name))
        if found is not None and not takes(found, project):
            raise Problem(
                ProblemCode.RUNTIME_FORBIDDEN,
                f"Jobs that name no runtime get {name!r}, which is not for jobs of project {project!r}; name another "
                "or ask an administrator.",
                errors=[FieldError("/spec/runtime", f"is absent, and {name!r} is closed to project {project!r}")],
            )
        return found


def _numbers(blocker: Reason) -> str:
    text = blocker.message.rstrip(".")
    if blocker.short is not None and blocker.of is not None:
        text += f" (asked: {blocker.of:g}, most there is: {blocker.of - blocker.short:g})"
    return text + "."


def needs_cluster(spec: TrainingJobSpec) -> list[FieldError]:
    """What in the spec works on a cluster only, each with what to do here instead; []: nothing."""
    given = (
        (spec.runtime is not None, "/spec/runtime", "leave it out: workers run as you, in your own environment"),
        *(
            (volume.claim is not None, f"/spec/data/{number}/claim", "name a folder instead: path: /its/path")
            for number, volume in enumerate(spec.data)
        ),
        (
            spec.checkpoint.claim is not None,
            "/spec/checkpoint/claim",
            "leave it out: checkpoints are kept in the data folder of `stoker up`",
        ),
        (
            spec.trainer.image is not None,
            "/spec/trainer/image",
            "leave it out, and install here what the command needs: no containers are run",
        ),
    )
    return [
        FieldError(pointer, f"works on a Kubernetes cluster only; on one machine {advice}")
        for there, pointer, advice in given
        if there
    ]
