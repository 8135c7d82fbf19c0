"""The job, user and queue behind a job_uid, and what queues hold: rows of `/metrics`, kept current with the caches.

Owns `stoker_job_info`, `stoker_job_pod_info`, what is known of a job's attempts, and what queues hold. By these rows
Prometheus joins series of exporters and api by job_uid with its name, queue and user. There are rows for jobs
that have a place and for those that have left it within the last 15 minutes (at most 5,000), not for those that wait:
their number has no bound, and no GPU counter speaks of them. Never asks a store. Called by `metrics.OperatorMetrics`.

Cost: about 4 µs per change of a job; a scrape costs what there are rows, whatever waits (tools/bench/metrics.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob
from stoker.spec.names import ANNOTATION_SUBMITTER
from stoker.spec.outcome import FREE
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue, QueueResources, own_gpus
from stoker.spec.queue_tree import Link, links
from stoker.spec.worker_pod import identity
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock

from .counters import label

KEPT = timedelta(minutes=15)
"""How long a job that left its place keeps its row: longer than exporters keep its counters (5 minutes)."""
MOST_LEFT = 5000

_JOB = ("project", "job_name", "job_uid")
_INFO = (*_JOB, "queue", "user", "phase")
_POD = ("pod_uid", *_JOB, "attempt", "worker", "queue", "user", "node")


class Row(NamedTuple):
    """A job as it is shown."""

    labels: tuple[str, ...]
    """As _INFO."""
    failures: int
    started_s: float | None
    """Unix time since when all workers of the attempt under way run."""


class _Worker(NamedTuple):
    """A pod as it is shown, without its job's labels: the job may be seen after the pod."""

    labels: tuple[str, ...]
    """As _POD to `worker`."""
    job_uid: str
    node: str


class _Left(NamedTuple):
    row: Row
    until: datetime


class _Part(NamedTuple):
    """What one job adds to its queue."""

    queue: str
    state: str
    gpus: int
    gpu_type: str = ""
    """That it holds; empty: none, or not known."""
    reason: str = ""


class JobRows:
    """Follows the caches from the moment it is made; `close` ends that."""

    def __init__(
        self, jobs: WatchCache[TrainingJob], pods: WatchCache[Pod], queues: WatchCache[Queue], clock: Clock
    ) -> None:
        self._jobs, self._queues, self._clock = jobs, queues, clock
        self._placed: dict[str, Row] = {}
        self._left: dict[str, _Left] = {}
        """By uid, those that left first in front."""
        self._pods: dict[str, _Worker] = {}
        self._gpus: Counter[tuple[str, str]] = Counter()
        """By queue and state."""
        self._typed: Counter[tuple[str, str]] = Counter()
        """Allocated, by queue and GPU type."""
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._unsubscribe = [jobs.subscribe(self._on_job), pods.subscribe(self._on_pod)]

    def close(self) -> None:
        for stop in self._unsubscribe:
            stop()

    def queue_names(self) -> list[str]:
        return sorted(queue.metadata.name for queue in tuple(self._queues.values()))

    def collect(self) -> Iterable[Metric]:
        """May be called from another thread: it walks copies that are made in one go."""
        now = self._clock.now()
        rows = [*tuple(self._placed.values()), *(left.row for left in tuple(self._left.values()) if left.until > now)]
        yield _family(
            "stoker_job_info",
            "1; a job that has a place, or had one up to 15 minutes ago.",
            _INFO,
            ((row.labels, 1.0) for row in rows),
        )
        yield _family(
            "stoker_job_failures",
            "Attempts of such a job that failed by themselves since it was submitted or last run again.",
            _JOB,
            ((row.labels[:3], float(row.failures)) for row in rows),
        )
        yield _family(
            "stoker_job_started_timestamp_seconds",
            "Unix time since when all workers of the job's attempt have run.",
            _JOB,
            ((row.labels[:3], row.started_s) for row in rows if row.started_s is not None),
        )
        yield _family(
            "stoker_job_pod_info",
            "1; a worker's pod that has not ended.",
            _POD,
            ((self._pod_labels(worker), 1.0) for worker in tuple(self._pods.values())),
        )
        yield from self._of_queues()

    def _of_queues(self) -> Iterable[Metric]:
        """Of queues that there are: a job may name any."""
        queues = tuple(self._queues.values())
        known = {queue.metadata.name: queue.spec.limit.gpus for queue in queues}
        placed = links({queue.metadata.name: queue.spec for queue in queues})
        gpus_of = _with_those_below(self._gpus.copy(), placed)
        typed = _with_those_below(self._typed.copy(), placed)
        guaranteed = {name: _guaranteed(link.guarantee) for name, link in placed.items()}
        lending = any(guaranteed.values())
        gpus = GaugeMetricFamily(
            "stoker_queue_gpus",
            "GPUs of a queue and of those below it: allocated to jobs that have a place, requested by those that wait, "
            "limit (absent: none), guarantee, borrowed: allocated beyond the guarantee (both absent: no queue has "
            'one). A sum is over the top level: parent="".',
            labels=("queue", "parent", "state"),
        )
        for name, limit in sorted(known.items()):
            labels = label(name), label(placed[name].parent or "")
            for state in ("allocated", "requested"):
                gpus.add_metric((*labels, state), float(gpus_of[name, state]))
            if limit is not None:
                gpus.add_metric((*labels, "limit"), float(limit))
            if lending:
                guarantee = placed[name].guarantee
                own = own_gpus(guarantee.gpus, ((typed[name, one], most) for one, most in guarantee.of_types.items()))
                gpus.add_metric((*labels, "guarantee"), float(guaranteed[name]))
                gpus.add_metric((*labels, "borrowed"), float(max(gpus_of[name, "allocated"] - own, 0)))
        yield gpus
        yield _family(
            "stoker_queue_limit_used_ratio",
            "Part of a queue's limit that its jobs and those of the queues below it hold, by resource: gpus, cpu, "
            "memory or a GPU type. At most 5 seconds old; absent: no limit of that kind, or of 0.",
            ("queue", "resource"),
            (
                ((label(queue.metadata.name), resource), queue.status.used.by_resource.get(resource, 0) / most)
                for queue in sorted(queues, key=lambda queue: queue.metadata.name)
                for resource, most in queue.spec.limit.by_resource.items()
                if most
            ),
        )
        waiting: Counter[tuple[str, str]] = Counter()
        for (name, why), count in self._waiting.copy().items():
            waiting[label(name) if name in known else "", why] += count
        yield _family(
            "stoker_queue_waiting_jobs",
            "Waiting jobs by the reason in their status; queue is empty where there is no such queue.",
            ("queue", "reason"),
            ((labels, float(count)) for labels, count in sorted(waiting.items()) if count),
        )

    def _on_job(self, change: Change[TrainingJob]) -> None:
        old, job = change.old, change.new or change.old
        if job is None:
            return
        if old is not None and old.uid != job.uid:  # another job of its name: the one went, the other came
            self._on_job(Change(old, None))
            old = None
        if old is not None:
            self._count(old, -1)
        if change.new is not None:
            self._count(change.new, 1)
        uid, now = job.uid, self._clock.now()
        if change.new is not None and job.status.phase in PLACED:
            self._left.pop(uid, None)
            self._placed[uid] = _row(job)
        elif uid in self._placed:
            del self._placed[uid]
            self._leave(uid, _Left(_row(job), now + KEPT), now)
        elif uid in self._left:
            self._left[uid] = _Left(_row(job), self._left[uid].until)
        elif job.status.phase in ENDED and job.status.finished_at is not None:
            until = job.status.finished_at + KEPT
            if until > now and job.status.attempt:  # it ended between two looks
                self._leave(uid, _Left(_row(job), until), now)

    def _leave(self, uid: str, left: _Left, now: datetime) -> None:
        self._left[uid] = left
        for first in tuple(self._left):
            if len(self._left) <= MOST_LEFT and self._left[first].until > now:
                break
            del self._left[first]

    def _on_pod(self, change: Change[Pod]) -> None:
        old, pod = change.old, change.new
        if old is not None:
            self._pods.pop(old.uid, None)
        if pod is None or pod.ended or not pod.spec.node_name:
            return
        worker = identity(pod.metadata)
        if worker is not None:
            texts = (pod.uid, *map(str, worker))
            self._pods[pod.uid] = _Worker(tuple(map(label, texts)), worker.job_uid, label(pod.spec.node_name))

    def _pod_labels(self, worker: _Worker) -> tuple[str, ...]:
        left = self._left.get(worker.job_uid)
        row = self._placed.get(worker.job_uid) or (left.row if left is not None else None)
        queue, user = ("", "") if row is None else row.labels[3:5]
        return (*worker.labels, queue, user, worker.node)

    def _count(self, job: TrainingJob, sign: int) -> None:
        part = _part(job)
        if part is None:
            return
        _add(self._gpus, (part.queue, part.state), sign * part.gpus)
        if part.gpu_type:
            _add(self._typed, (part.queue, part.gpu_type), sign * part.gpus)
        if part.reason:
            _add(self._waiting, (part.queue, part.reason), sign)


def _part(job: TrainingJob) -> _Part | None:
    status, queue = job.status, job.spec.queue
    if job.metadata.deletion_timestamp is not None:
        return None
    if status.phase in PLACED:
        return _Part(queue, "allocated", job.gpus, status.gpu_type)
    if status.phase is Phase.QUEUED:
        return _Part(queue, "requested", job.gpus, reason=status.reason.value)
    return None


def _add(counts: Counter[tuple[str, str]], key: tuple[str, str], count: int) -> None:
    """Nothing stays of what is 0: jobs may name queues without end."""
    counts[key] += count
    if not counts[key]:
        del counts[key]


def _with_those_below(counts: Counter[tuple[str, str]], placed: Mapping[str, Link]) -> Counter[tuple[str, str]]:
    """Of each queue there is, with what the queues below it have; by queue and what else."""
    found = Counter[tuple[str, str]]()
    for (name, what), count in counts.items():
        at = name if name in placed else None
        while at is not None:
            found[at, what] += count
            at = placed[at].parent
    return found


def _guaranteed(resources: QueueResources) -> int:
    """GPUs: types count in gpus too."""
    return own_gpus(resources.gpus, ((most, most) for most in resources.of_types.values()))


def _row(job: TrainingJob) -> Row:
    meta, status = job.metadata, job.status
    labels = (meta.namespace, meta.name, meta.uid, job.spec.queue, _user(job), status.phase.value)
    failures = sum(times for category, times in status.retries.items() if category not in FREE)
    started_at = status.started_at if status.phase in PLACED else None
    return Row(
        tuple(label(text) for text in labels),
        failures + (status.phase is Phase.FAILED),
        started_at.timestamp() if started_at is not None else None,
    )


def _user(job: TrainingJob) -> str:
    return job.metadata.annotations.get(ANNOTATION_SUBMITTER, "")


def _family(
    name: str, says: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, says, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
