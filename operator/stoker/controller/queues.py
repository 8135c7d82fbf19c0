"""What queues say of themselves: their status, and the finalizer of those in use.

Owns the sums over each queue's jobs, their averages of late (`decayed_usage`), and two writes: a status that changed,
at most once in STATUS_EVERY_S per queue; the finalizer, put on with the first job that has not ended, taken off when
none is left (as seldom as a status where the queue is not deleted), so that it outlives an uninstalled operator only
where jobs run on.
Never decides about a job: those made after their queue was deleted are barred by `life.admission` and keep nothing.
Run by `operator.Operator`. Cost: O(depth of the queue) per change of a job; a status O(queues below).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stoker.spec.gpu_types import SHIPPED, UNKNOWN_TYPE, GpuTypes
from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob
from stoker.spec.meta import Condition, Key
from stoker.spec.names import FINALIZER_IN_USE
from stoker.spec.quantity import exact_bytes, exact_cpu
from stoker.spec.queue import (
    NO_RESOURCES,
    QUEUES,
    VALID_CONDITION,
    DecayedUsage,
    Queue,
    QueueAmount,
    QueueStatus,
    deletion_message,
    protected,
    released,
)
from stoker.spec.queue_tree import Link, links, unknown_types
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import Conflict, NotFound, NotLeader, Store, StoreError
from stoker.store.workqueue import WorkQueue

from .decayed_usage import WRITE_EVERY_S, Amounts, MovingAverage, amounts
from .status_writes import MANAGER

log = logging.getLogger(__name__)

STATUS_EVERY_S = 5.0
ACTIVE_CONDITION = "Active"


@dataclass
class _Sum:
    """Units: jobs, GPUs, thousandths of a core, bytes."""

    jobs: int = 0
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_types: Counter[str] = field(default_factory=Counter)

    def add(self, job: TrainingJob, sign: int) -> None:
        """A job, or one less."""
        self.jobs += sign
        self.gpus += sign * job.gpus
        self.cpu_milli += sign * job.workers * job.cpu_milli
        self.memory_bytes += sign * job.workers * job.memory_bytes
        if job.status.gpu_type not in ("", UNKNOWN_TYPE) and job.status.phase in PLACED:
            self.gpu_types[job.status.gpu_type] += sign * job.gpus

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(
            self.jobs + other.jobs,
            self.gpus + other.gpus,
            self.cpu_milli + other.cpu_milli,
            self.memory_bytes + other.memory_bytes,
            self.gpu_types + other.gpu_types,
        )

    @property
    def amounts(self) -> Amounts:
        return amounts(self.gpus, self.cpu_milli, self.memory_bytes, self.gpu_types)

    def shown(self) -> QueueAmount:
        cpu, memory = exact_cpu(self.cpu_milli), exact_bytes(self.memory_bytes)
        types = {name: count for name, count in sorted(self.gpu_types.items()) if count}
        return QueueAmount(jobs=self.jobs, gpus=self.gpus, cpu=cpu, memory=memory, gpu_types=types)


@dataclass
class _Use:
    """One queue's jobs."""

    used: _Sum = field(default_factory=_Sum)
    running: _Sum = field(default_factory=_Sum)
    pending: _Sum = field(default_factory=_Sum)
    unended: dict[Key, datetime | None] = field(default_factory=dict)
    """Job → when it was made."""
    write_at: float = 0.0
    """No status before (monotonic)."""

    def count(self, job: TrainingJob, sign: int) -> None:
        phase = job.status.phase
        if phase in PLACED:
            self.used.add(job, sign)
        if phase is Phase.RUNNING:
            self.running.add(job, sign)
        if phase is Phase.QUEUED:
            self.pending.add(job, sign)
        if sign < 0:
            self.unended.pop(job.key, None)
        elif phase not in ENDED:
            self.unended[job.key] = job.metadata.creation_timestamp


class QueueKeeper:
    """One per operator; `run` once."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        queues: WatchCache[Queue],
        clock: Clock,
        half_life_s: float | None = None,
        gpu_types: GpuTypes = SHIPPED,
    ) -> None:
        """`half_life_s`: of what queues held; None: the past does not count."""
        self._gpu_types = gpu_types
        self._store, self._jobs, self._queues, self._clock = store, jobs, queues, clock
        self._half_life_s = half_life_s
        self._averages: dict[str, MovingAverage] = {}
        self._uses: dict[str, _Use] = {}
        self._due: WorkQueue[str] = WorkQueue(clock)
        self._links: dict[str, Link] = {}
        self._below: dict[str, list[str]] = {}
        """Queue -> its children."""
        self._moved = False
        """A queue came, went or changed since the links were made."""

    async def run(self) -> None:
        """Keep the queues until cancelled."""
        stops = [self._jobs.subscribe(self._on_job), self._queues.subscribe(self._on_queue)]
        try:
            while True:
                await self._next()
        finally:
            for stop in stops:
                stop()
            self._due.shutdown()

    def _on_job(self, change: Change[TrainingJob]) -> None:
        for job, sign in ((change.old, -1), (change.new, 1)):
            if job is not None and job.metadata.deletion_timestamp is None:
                name = job.spec.queue
                self._uses.setdefault(name, _Use()).count(job, sign)
                self._touch(name)

    def _on_queue(self, change: Change[Queue]) -> None:
        old, new = change.old, change.new
        self._moved = self._moved or old is None or new is None or old.spec != new.spec
        self._due.add(change.key.name)

    def _touch(self, name: str) -> None:
        """What the queue's jobs hold has changed."""
        at: str | None = name
        while at is not None:
            self._due.add(at)
            at = self._links[at].parent if at in self._links else None

    def _link(self) -> None:
        """Find every queue's place again."""
        self._moved, former = False, self._links
        self._links = links({queue.metadata.name: queue.spec for queue in self._queues.values()})
        if self._links == former:
            return
        self._below = {}
        for name, link in self._links.items():
            if link.parent is not None:
                self._below.setdefault(link.parent, []).append(name)
            self._due.add(name)

    async def _next(self) -> None:
        name = await self._due.get()
        if self._moved:
            self._link()
        try:
            again_s = await self._keep(name)
        except (Conflict, NotFound, NotLeader):  # read again
            self._due.add_backoff(name)
        except StoreError as error:
            log.warning("can't write queue %s, it will be tried again: %s", name, error)
            self._due.add_backoff(name)
        else:
            self._due.forget(name)
            if again_s:
                self._due.add_after(name, again_s)
        finally:
            self._due.done(name)

    async def _keep(self, name: str) -> float:
        """Write what is due for one queue. Returns: in how many seconds to come again; 0: with its next change."""
        queue, use = self._queues.get(Key("", name)), self._uses.get(name) or _Use()
        if queue is None:
            self._averages.pop(name, None)
            if not use.unended and not use.used.jobs:
                self._uses.pop(name, None)
            return 0.0
        deleted, held = queue.metadata.deletion_timestamp is not None, FINALIZER_IN_USE in queue.metadata.finalizers
        # Looked through only once it is deleted: before, each change of a job would cost as much as there are jobs.
        users = sum(not queue.closed_to(at) for at in use.unended.values()) if deleted else len(use.unended)
        if users and not deleted and not held:
            await self._store.update(QUEUES, protected(queue))
            return 0.0
        if deleted and held and not users:
            await self._store.update(QUEUES, released(queue))
            return 0.0
        below = list(self._all_below(name))
        used = sum((one.used for one in below), use.used)
        average = self._average(queue, used)
        wait_s = use.write_at - self._clock.monotonic()
        if wait_s > 0:
            return wait_s
        status, idle = self._status(queue, use, below, used, average, users), held and not users
        if status == queue.status and not idle:
            return self._average_moves_s(name)
        if idle:
            await self._store.update(QUEUES, released(queue))
            return 0.0
        self._uses.setdefault(name, use).write_at = self._clock.monotonic() + STATUS_EVERY_S
        await self._store.patch_unread(
            QUEUES,
            queue.key,
            status.model_dump(mode="json", by_alias=True),
            manager=MANAGER,
            uid=queue.uid,
            resource_version=queue.metadata.resource_version,
        )
        return self._average_moves_s(name)

    def _status(
        self, queue: Queue, use: _Use, below: list[_Use], used: _Sum, average: MovingAverage | None, users: int
    ) -> QueueStatus:
        value, reason, message = "True", "Open", ""
        if queue.metadata.deletion_timestamp is not None:
            value, reason, message = "False", "BeingDeleted", deletion_message(users)
        conditions = [self._condition(queue, ACTIVE_CONDITION, value, reason, message)]
        spec = queue.spec
        problem = self._links[queue.metadata.name].problem or unknown_types(spec, self._gpu_types)
        if problem:
            conditions.append(self._condition(queue, VALID_CONDITION, "False", "Invalid", problem))
        elif spec.parent is not None or spec.guarantee != NO_RESOURCES or spec.limit.gpu_types:
            conditions.append(self._condition(queue, VALID_CONDITION, "True", "Valid", ""))
        return QueueStatus(
            used=used.shown(),
            running=sum((one.running for one in below), use.running).shown(),
            pending=sum((one.pending for one in below), use.pending).shown(),
            decayed_usage=DecayedUsage() if average is None else average.written(queue.status.decayed_usage),
            conditions=tuple(conditions),
        )

    def _average(self, queue: Queue, used: _Sum) -> MovingAverage | None:
        """Of what it held until now. None: the past does not count."""
        if self._half_life_s is None:
            return None
        name, now, held = queue.metadata.name, self._clock.now(), used.amounts
        average = self._averages.get(name)
        if average is None:
            average = self._averages[name] = MovingAverage(queue.status.decayed_usage, held, now)
        average.advance(now, held, self._half_life_s)
        return average

    def _average_moves_s(self, name: str) -> float:
        """In how many seconds to look at it again; 0: it stays."""
        average = self._averages.get(name)
        return 0.0 if average is None or average.is_settled else WRITE_EVERY_S

    def _condition(self, queue: Queue, kind: str, value: str, reason: str, message: str) -> Condition:
        former = next((c for c in queue.status.conditions if c.type == kind), None)
        return Condition(
            type=kind,
            status=value,
            reason=reason,
            message=message,
            last_transition_time=former.last_transition_time
            if former and former.status == value
            else self._clock.now().astimezone(UTC).replace(microsecond=0),
            observed_generation=queue.metadata.generation,
        )

    def _all_below(self, name: str) -> Iterator[_Use]:
        for child in self._below.get(name, ()):
            if child in self._uses:
                yield self._uses[child]
            yield from self._all_below(child)
