"""How far running jobs are, as series for Prometheus: last step, last checkpoint, stalled, idle.

Only jobs that hold a place have series, and only of what is known: a job that never told a step has no progress. That a
report came is no progress; that `step` changed is. Counted when scraped, from memory alone. Cost: see docs/metrics.md
(`tests/api/test_progress_metrics.py` holds a limit at 10,000 running jobs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.quantity import parse_duration
from stoker.spec.stall import stall_s
from stoker.spec.worker import Progress

LABELS = ("project", "job_name", "job_uid", "queue")
FAMILIES = {
    "stoker_job_progress_timestamp_seconds": "Unix time of the last change of the job's step.",
    "stoker_job_step": "Steps done, as the program tells.",
    "stoker_job_checkpoint_timestamp_seconds": "Unix time of the newest checkpoint.",
    "stoker_job_checkpoint_every_seconds": "checkpoint.every: a job that saves should do so this often.",
    "stoker_job_stalled": "1 if the step has not changed for longer than the job's limit (stall.after), else 0.",
    "stoker_job_idle_seconds": "How long all GPUs of the job have been idle without a break; 0: they are not.",
}


class JobProgress(Collector):
    """`newest`: a job's newest progress; `idle_since`: since when its GPUs are idle; `seen`: it has receipts."""

    def __init__(
        self,
        placed: Callable[[], Iterable[TrainingJob]],
        newest: Callable[[TrainingJob], Progress | None],
        idle_since: Callable[[str, datetime], datetime | None],
        seen: Callable[[str], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._placed, self._newest, self._now = placed, newest, now
        self._idle_since, self._seen = idle_since, seen

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for name, text in FAMILIES.items():
            yield GaugeMetricFamily(name, text, labels=LABELS)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = list(self.describe())
        progressed, steps, saved, every, stalled, idle = families
        now = self._now()
        for job in self._placed():
            if job.status.phase is not Phase.RUNNING:
                continue
            labels = (job.metadata.namespace, job.metadata.name, job.uid, job.spec.queue)
            progress = self._newest(job)
            if progress is not None and progress.step_at is not None:
                progressed.add_metric(labels, progress.step_at)
                steps.add_metric(labels, progress.step)
                stalled.add_metric(labels, is_stalled(job, progress, now))
            if progress is not None and progress.checkpoint is not None and progress.checkpoint.at is not None:
                saved.add_metric(labels, progress.checkpoint.at)
                every.add_metric(labels, parse_duration(job.spec.checkpoint.every))
            elif job.spec.trainer.recipe is not None:
                every.add_metric(labels, parse_duration(job.spec.checkpoint.every))
            if job.spec.total_gpus and self._seen(job.uid):
                since = self._idle_since(job.uid, now)
                idle.add_metric(labels, 0.0 if since is None else max(0.0, (now - since).total_seconds()))
        return iter(families)


def is_stalled(job: TrainingJob, progress: Progress, now: datetime) -> bool:
    """Its supervisor says so, or would if it could (a worker that does not report any more)."""
    if progress.stalled is not None and progress.stalled.attempt == job.status.attempt:
        return True
    limit_s = stall_s(job.spec)
    if limit_s is None or progress.step_at is None or progress.held is not None:
        return False
    began = job.status.started_at
    since = max(progress.step_at, 0.0 if began is None else began.timestamp())
    return now.timestamp() - since > limit_s
