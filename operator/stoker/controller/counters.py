"""What the operator has done since its process began, counted where it happens: starts, ends, waits, durations.

Owns the counters and histograms of `/metrics` that nothing else keeps. One per process: it outlives the terms of a
leader, so that no counter falls. Never decides, never asks a store. Called by the parts of the operator as they act and
by `metrics.OperatorMetrics` when it is scraped. Cost: 1 to 3 µs per count.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric

from stoker.spec.job import PLACED, AttemptEnd, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.outcome import Category, Intent
from stoker.spec.reasons import Code

_WAITS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 259200, 604800)
_PASSES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REQUESTS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)

LABEL_MAX = 256
"""Characters of a label's value that are shown; longer ones (a submitter may be called anything) are cut."""
DONE = "Done"
"""The category of an attempt whose every worker was done."""


class Counters:
    """Labels take what users wrote only through `label`, which makes any text one that Prometheus reads."""

    def __init__(self) -> None:
        self.pass_seconds = Histogram(
            "stoker_operator_pass_seconds",
            "Time of one pass of the scheduler: taking in what changed, and deciding.",
            buckets=_PASSES_S,
            registry=None,
        )
        self.reconcile_seconds = Histogram(
            "stoker_operator_reconcile_seconds",
            "Time to bring one job as far as it goes, writes included.",
            buckets=_PASSES_S,
            registry=None,
        )
        self.api_seconds = Histogram(
            "stoker_operator_api_request_seconds",
            "Time of one try of a request to the API server, without the wait for its turn.",
            ["verb", "kind"],
            buckets=_REQUESTS_S,
            registry=None,
        )
        self.api_retries = Counter(
            "stoker_operator_api_retries",
            "Requests to the API server sent again: throttled (429), lost (no answer, or a server's error), rejected "
            "(401).",
            ["verb", "kind", "why"],
            registry=None,
        )
        self.decisions = Counter(
            "stoker_operator_decisions",
            "Times that a job was given this reason (its status' reason code); Placed: an attempt was started.",
            ["code"],
            registry=None,
        )
        self.queue_wait = Histogram(
            "stoker_queue_wait_seconds",
            "From when a job came to its queue, or back to it, until all its workers ran.",
            ["queue"],
            buckets=_WAITS_S,
            registry=None,
        )
        self.attempts_ended = Counter(
            "stoker_attempts_ended",
            "Attempts by how they ended (category; Done: every worker was done) and what Stoker had asked of them.",
            ["queue", "category", "intent"],
            registry=None,
        )
        self.gangs_withdrawn = Counter(
            "stoker_gangs_withdrawn",
            "Attempts taken back because their gang did not run in time or could not; not where a secret is missing.",
            ["queue"],
            registry=None,
        )

        self.preempted_gpus = Counter(
            "stoker_preempted_gpus",
            "GPUs of attempts that were stopped for another job: Reclaimed for a queue that is guaranteed them, "
            "Preempted within their own queue; GpuSick: moved off a GPU that is sick.",
            ["queue", "reason"],
            registry=None,
        )
        self.preempted_lost = Counter(
            "stoker_preempted_gpu_seconds_lost",
            "GPU-seconds of work lost by that: from an attempt's last checkpoint to its end.",
            ["queue", "reason"],
            registry=None,
        )
        self.claims_voided = Counter(
            "stoker_claims_voided",
            "Times that pods outside Stoker took the room that jobs were preempted for.",
            ["queue"],
            registry=None,
        )

    def queue_seen(self, name: str) -> None:
        """Begin its counters at 0, so that the first event is an increase too."""
        for counter in (self.gangs_withdrawn, self.claims_voided):
            counter.labels(label(name))
        for counter in (self.preempted_gpus, self.preempted_lost):
            for reason in (Code.PREEMPTED, Code.RECLAIMED, Code.GPU_SICK):
                counter.labels(label(name), reason.value)
        self.queue_wait.labels(label(name))

    def placed(self) -> None:
        self.decisions.labels(Code.PLACED.value).inc()

    def claim_voided(self, job: TrainingJob) -> None:
        self.claims_voided.labels(label(job.spec.queue)).inc()

    def reason_given(self, code: Code) -> None:
        self.decisions.labels(code.value).inc()

    def written(self, job: TrainingJob, new: TrainingJobStatus, now: datetime) -> None:
        """The job's status was `job.status` and is `new` since this moment."""
        old = job.status
        if new.reason is not old.reason:
            self.reason_given(new.reason)
        if new.phase is Phase.RUNNING and old.phase is not Phase.RUNNING:
            since = waits_since(job)
            if since is not None:
                waited_s = ((new.started_at or now) - since).total_seconds()
                self.queue_wait.labels(label(job.spec.queue)).observe(max(0.0, waited_s))
        if old.phase in PLACED and new.phase not in PLACED and new.attempts:
            self._ended(job, new.attempts[-1], new.reason)

    def took(self, verb: str, kind: str, seconds: float) -> None:
        """A request to the API server was tried (`kube.client.Meter`)."""
        self.api_seconds.labels(verb, kind).observe(seconds)

    def again(self, verb: str, kind: str, why: str) -> None:
        """It is to be tried once more."""
        self.api_retries.labels(verb, kind, why).inc()

    def collect(self) -> Iterable[Metric]:
        metrics: tuple[Counter | Histogram, ...] = (
            self.pass_seconds,
            self.reconcile_seconds,
            self.api_seconds,
            self.api_retries,
            self.decisions,
            self.queue_wait,
            self.attempts_ended,
            self.gangs_withdrawn,
            self.preempted_gpus,
            self.preempted_lost,
            self.claims_voided,
        )
        for metric in metrics:
            yield from metric.collect()

    def _ended(self, job: TrainingJob, attempt: AttemptEnd, reason: Code) -> None:
        queue, category = label(job.spec.queue), attempt.category.value if attempt.category else DONE
        self.attempts_ended.labels(queue, category, attempt.intent.value).inc()
        if attempt.intent is Intent.WITHDRAW and attempt.category is not Category.SECRET_MISSING:
            self.gangs_withdrawn.labels(queue).inc()
        if attempt.intent is Intent.PREEMPT and attempt.category is not None:
            asked = job.status.reason if job.status.intent is Intent.PREEMPT else reason
            self.preempted_gpus.labels(queue, asked.value).inc(job.gpus)
            self.preempted_lost.labels(queue, asked.value).inc(_lost_s(job, attempt) * job.gpus)


def _lost_s(job: TrainingJob, attempt: AttemptEnd) -> float:
    """Seconds from its last checkpoint, or its start, to its end; of one that had failed before, none. `job`: as it was
    before that."""
    if attempt.started_at is None or attempt.held_s:
        return 0.0
    reports = (attempt.progress, job.status.progress)
    saved = [one.checkpoint.at for one in reports if one is not None and one.checkpoint is not None]
    since = max([attempt.started_at.timestamp(), *(at for at in saved if at is not None)])
    return max(attempt.ended_at.timestamp() - since, 0.0)


def waits_since(job: TrainingJob) -> datetime | None:
    """When it came to its queue, or back to it after its newest attempt."""
    status = job.status
    queued_at = status.queued_at or job.metadata.creation_timestamp
    back_at = status.attempts[-1].ended_at if status.attempts else None
    return max((at for at in (queued_at, back_at) if at is not None), default=None)


def label(text: str) -> str:
    """The text as a label's value: what is no UTF-8 is replaced, what is too long is cut, no line ends, no NUL.

    One value that a client can't render would cost the whole page.
    """
    return text[:LABEL_MAX].encode("utf-8", "replace").decode().replace("\n", " ").replace("\r", " ").replace("\0", "")
