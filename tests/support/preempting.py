"""Jobs that run, have saved and are stopped for others: builders beside those of `sched_objects`."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

from stoker.sched.decide import Decisions
from stoker.sched.entries import Entry
from stoker.sched.running import loss_of
from stoker.spec.job import TrainingJob
from stoker.spec.queue import Preemption, Queue, WithinQueue
from stoker.spec.worker import Checkpoint, Progress


def preempting(queue: Queue, least: str | None = None, **more: Any) -> Queue:
    how = Preemption(within_queue=WithinQueue.LOWER_PRIORITY, min_runtime=least)
    return queue.model_copy(update={"spec": queue.spec.model_copy(update={"preemption": how, **more})})


def cost_of(entry: Entry, now: datetime) -> float:
    """Of stopping a job. Units: GPU-seconds; a core counts as a hundredth of a GPU."""
    (since, restart_s), (gpus, cpu, _) = loss_of(entry), entry.request.totals
    return (max(now.timestamp() - since, 0.0) + restart_s) * (gpus + 0.01 * cpu / 1000)


def run(
    sched: SimpleNamespace,
    name: str,
    *on: str,
    gpus: int = 1,
    since: float = 0,
    saved: float | None = None,
    **more: Any,
) -> TrainingJob:
    """A job that runs since then, and saved at that time."""
    job: TrainingJob = sched.job(name, gpus, workers=len(on), on=on, attempt=1, **more)
    saved_at = None if saved is None else Checkpoint(step=1, at=sched.at(saved).timestamp())
    status = job.status.model_copy(
        update={
            "started_at": sched.at(since),
            "placed_at": sched.at(since),
            "progress": Progress(at=0, checkpoint=saved_at),
        }
    )
    return job.model_copy(update={"status": status})


def wrote(job: TrainingJob, version: int = 2, **status: Any) -> TrainingJob:
    meta = job.metadata.model_copy(update={"resource_version": str(version)})
    return job.model_copy(update={"metadata": meta, "status": job.status.model_copy(update=status)})


def claims(decisions: Decisions) -> dict[str, list[str] | None]:
    """Job → its victims; None: its claim has ended."""
    return {
        one.key.name: None if one.claim is None else [victim.name for victim in one.claim.victims]
        for one in decisions.claims
    }
