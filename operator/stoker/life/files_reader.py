"""The pod that reads what a job has left, on a cluster, where no worker runs: when there is to be one. Pure.

Owns that rule. The api asks for it by an annotation on the job (`ANNOTATION_FILES_WANTED`), again while it is asked for
files; the pod ends by itself once nothing was asked for a while. It holds no GPU and counts in no queue. Called by
`controller.jobs`; rendered by `controller.render_reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.names import ANNOTATION_FILES_WANTED
from stoker.spec.pod import Pod, PodPhase

WANTED_S = 120.0
"""How long a request counts: shorter than the pod stays without being asked, so that no old one makes it anew."""
STARTS_WITHIN_S = 600.0
"""A pod that does not run by then is given up: its volume or image can't be had."""
FAILED_STAYS_S = 15.0
"""So that one which fails at once is not made anew all the time."""
NEVER = datetime.max.replace(tzinfo=UTC)
READABLE = ENDED | {Phase.SUSPENDED}
"""Otherwise a worker is asked, or would be kept from its volume."""


@dataclass(frozen=True)
class ReaderStep:
    create: bool = False
    remove: tuple[Pod, ...] = ()
    wake_at: datetime | None = None


def reader_step(job: TrainingJob, readers: Sequence[Pod], now: datetime) -> ReaderStep:
    """What to do about the pod now. `readers`: those of this very job."""
    readable = job.status.phase in READABLE and job.metadata.deletion_timestamp is None
    there = [pod for pod in readers if pod.metadata.deletion_timestamp is None]
    over = tuple(pod for pod in there if not readable or _ends_at(pod, now) <= now)
    if over:
        return ReaderStep(remove=over)
    if there:
        ends_at = min(_ends_at(pod, now) for pod in there)
        return ReaderStep(wake_at=ends_at if ends_at < NEVER else None)
    if readers or not readable:  # one that goes is waited for: its name is the next one's
        return ReaderStep()
    wanted_at = wanted_since(job)
    if wanted_at is None or not timedelta(seconds=-WANTED_S) <= now - wanted_at <= timedelta(seconds=WANTED_S):
        return ReaderStep()
    return ReaderStep(create=True, wake_at=wanted_at + timedelta(seconds=WANTED_S))


def wanted_since(job: TrainingJob) -> datetime | None:
    """When its files were last asked for. None: never, or the annotation is no time; people may write it."""
    try:
        at = datetime.fromisoformat(job.metadata.annotations[ANNOTATION_FILES_WANTED])
    except (KeyError, ValueError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _ends_at(pod: Pod, now: datetime) -> datetime:
    """From when on it is to be removed."""
    made_at = pod.metadata.creation_timestamp or now
    match pod.status.phase:
        case PodPhase.SUCCEEDED:
            return made_at
        case PodPhase.FAILED:
            return made_at + timedelta(seconds=FAILED_STAYS_S)
        case PodPhase.RUNNING:
            return NEVER
    return made_at + timedelta(seconds=STARTS_WITHIN_S)
