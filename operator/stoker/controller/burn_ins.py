"""Tests sick GPUs once what was wrong with them is over: a job of Stoker's own for each, and what follows from its end.

Level-triggered on GPUNodeHealth objects and on the jobs, whose status says what they test (written by the operator
alone): what another has made under their names, or a user has sent back to its queue, is deleted and never believed.
Places its jobs itself, past the scheduler: on one machine with the very GPU; on a cluster, where the device plug-in
picks, with all GPUs of the node that are free, and only while the whole node is left out for it. Rules:
`stoker.life.burn_in`. Only the leader writes. Called by `main` and `cli.up`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from stoker.life.burn_in import AGAIN_S, BurnIn, due_at, failed, finding, job_name, job_spec, passed
from stoker.life.placement import placed_status
from stoker.life.step import Note
from stoker.node_health import NodeCaches, is_left_out
from stoker.sched.occupancy import node_usage
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.event import Subject
from stoker.spec.gpu_health import HEALTH, GpuCause, GpuHealth, GPUNodeHealth, GPUNodeHealthSpec
from stoker.spec.job import JOBS, GpuTest, Placed, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import GPUNode
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock, wait_for
from stoker.store.port import Conflict, Store, StoreError

from .jobs import SIGHT_S
from .recorder import Recorder
from .status_writes import write_status

log = logging.getLogger(__name__)

_REFUSED_S = 5.0
_NO_ROOM_S = 60.0


class BurnIns:
    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        known: NodeCaches,
        feed: SchedulerFeed,
        recorder: Recorder,
        clock: Clock,
        options: BurnIn,
        *,
        project: str,
        knows_uuids: bool = False,
    ) -> None:
        """`project`: of the jobs. `knows_uuids`: GPUs are leased by uuid, as on one machine."""
        self._store, self._jobs, self._known, self._feed = store, jobs, known, feed
        self._recorder, self._clock, self._options = recorder, clock, options
        self._project, self._knows_uuids = project, knows_uuids
        self._sick: set[Key] = set()
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = [self._known.health.subscribe(self._on_health), self._jobs.subscribe(self._on_job)]
        try:
            while True:
                self._woken.clear()
                look_at = await self._pass()
                seconds = None if look_at is None else max(0.0, (look_at - self._clock.now()).total_seconds())
                await wait_for(self._woken, self._clock, seconds)
        finally:
            for end in unsubscribe:
                end()

    def _on_health(self, change: Change[GPUNodeHealth]) -> None:
        self._sick.discard(change.key)
        if change.new is not None and any(change.new.sick()):
            self._sick.add(change.key)
            self._woken.set()

    def _on_job(self, change: Change[TrainingJob]) -> None:
        if self._sick and change.key.namespace == self._project:
            self._woken.set()

    async def _pass(self) -> datetime | None:
        """See to each sick GPU. Returns: when to look again though nothing changes."""
        times = []
        for key in sorted(self._sick):
            health, node = self._known.health.get(key), self._known.nodes.get(key)
            for gpu, causes in () if health is None or node is None else health.sick():
                assert health is not None and node is not None
                try:
                    times.append(await self._see_to(health, node, gpu, causes))
                except (StoreError, TimeoutError) as error:
                    if not isinstance(error, Conflict):
                        log.warning("burn-in of GPU %s of node %s: not yet: %s", gpu.uuid, key.name, error)
                    times.append(self._in(_REFUSED_S))
        return min((at for at in times if at is not None), default=None)

    async def _see_to(
        self, health: GPUNodeHealth, node: GPUNode, gpu: GpuHealth, causes: Iterable[GpuCause]
    ) -> datetime | None:
        """Returns: when to look again. Raises: StoreError."""
        job = self._jobs.get(Key(self._project, job_name(gpu.uuid)))
        test = job.status.burn_in if job is not None else None
        ours = test is not None and test.gpu == gpu.uuid
        due = due_at(health, gpu, tuple(causes), own=job.uid if job is not None and ours else "")
        if due is None or due > self._clock.now():
            return due
        if job is None:
            return await self._begin(health, node, gpu)
        if job.metadata.deletion_timestamp is not None:
            return None
        found = finding(job) if ours else None
        if ours and found is None:
            return None
        if found is not None and test is not None and test.at >= due:
            if found.passed:
                await self._say(health, passed(health.spec, gpu.uuid, test.at))
                self._record(job, health, gpu, Note("BurnInPassed", "passed its burn-in and takes jobs again"))
                return None
            again_at = found.at + timedelta(seconds=AGAIN_S)
            if found.passed is False and again_at > self._clock.now():  # an older one's cordon was taken away since
                await self._say(health, failed(health.spec, gpu.uuid, found.message))
                note = Note("BurnInFailed", f"failed its burn-in and stays closed: {found.message}", warning=True)
                self._record(job, health, gpu, note)
                return None
            if again_at > self._clock.now():
                return again_at
            self._record(job, health, gpu, Note("BurnInRepeated", f"is tested again; the last time: {found.message}"))
        await self._store.delete(JOBS, job.key, uid=job.uid)
        return self._in(_REFUSED_S)

    async def _begin(self, health: GPUNodeHealth, node: GPUNode, gpu: GpuHealth) -> datetime | None:
        """A job for the GPU, and its place."""
        count = await self._gpus(node)
        if count < 1:
            return self._in(_NO_ROOM_S)
        name, now = job_name(gpu.uuid), self._clock.now()
        draft = TrainingJob(
            metadata=ObjectMeta(name=name, namespace=self._project), spec=job_spec(gpu.uuid, count, self._options)
        )
        job = await self._store.create(JOBS, draft)
        placed = placed_status(job, (Placed(worker=0, node=node.metadata.name),), "", now)
        status = placed.model_copy(update={"burn_in": GpuTest(gpu=gpu.uuid, at=now)})
        version = await write_status(self._store, job, status)
        self._record(job, health, gpu, Note("BurnIn", f"is tested by job {self._project}/{name}"))
        await self._jobs.at_least(version, timeout_s=SIGHT_S)
        return None

    async def _gpus(self, node: GPUNode) -> int:
        """How many the job takes; 0: the GPU can't be among them now."""
        if self._knows_uuids:
            return 1
        plain = self._known.plain.get(node.key)
        if plain is None or not plain.status.ready or not node.status.ready or not is_left_out(node):
            return 0
        if any(one.part or one.resource != GPU_RESOURCE for one in plain.status.gpus):
            return 0
        offered = sum(not one.unavailable for one in plain.status.gpus)
        async with self._feed.current() as state:
            held = node_usage(state, node.metadata.name).gpus if node.metadata.name in state.nodes.slots else offered
        return max(offered - held, 0)

    async def _say(self, health: GPUNodeHealth, spec: GPUNodeHealthSpec) -> None:
        """Raises: StoreError; Conflict: it has changed meanwhile."""
        written = await self._store.update(HEALTH, health.model_copy(update={"spec": spec}))
        await self._known.health.at_least(written.metadata.resource_version, timeout_s=SIGHT_S)

    def _record(self, job: TrainingJob, health: GPUNodeHealth, gpu: GpuHealth, note: Note) -> None:
        """On the job and on the node's object."""
        located = Note(note.reason, f"GPU {gpu.index} of {health.key.name} ({gpu.uuid}) {note.message}", note.warning)
        log.warning("%s", located.message)
        self._recorder.record(job, located)
        self._recorder.record_about(
            Subject(kind=HEALTH.kind, api_version=HEALTH.api_version, key=health.key, uid=health.uid), located
        )

    def _in(self, seconds: float) -> datetime:
        return self._clock.now() + timedelta(seconds=seconds)
