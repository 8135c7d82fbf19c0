"""When a sick GPU is tested, by which job, and what the job's end says of the GPU.

Pure. Owns which causes a test may clear and which only an administrator. Called by `controller.burn_ins`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.spec.gpu_health import MAX_TEXT, MOST_GPUS, Cleared, Cordon, GpuCause, GpuHealth, GPUNodeHealth, SickCause
from stoker.spec.gpu_health import GPUNodeHealthSpec as HealthSpec
from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob, TrainingJobSpec
from stoker.spec.job_parts import IdleAction, IdlePolicy, Stop, Trainer
from stoker.spec.names import BURN_IN, JOB_NAME_MAX

from .gpu_health import PASSING, one_line

SETTLE_S = 15.0
"""From an error to a test: what the driver makes of it (a reset that it asks for, a GPU that is lost) is read by
then."""
AGAIN_S = 1800.0
"""From a test that said nothing to the next: at most 48 a day."""
TRUST_S = 7 * 86400.0
"""An error so soon after a burn-in that was passed is an administrator's: seconds of test do not find it."""
FAILED = 3
"""Exit code of `stoker_trainer.burn_in`: the GPU failed. Any other but 0 says nothing of it: 4 is that it was not among
those that the job got, 1 that the test itself broke."""
_ERRORS = frozenset(
    {
        SickCause.OFF_THE_BUS,
        SickCause.UNCONTAINED_ERROR,
        SickCause.CONTAINED_ERROR,
        SickCause.HARDWARE_FAULT,
        SickCause.DEVICE_UNHEALTHY,
    }
)
"""What has happened. It is over once nothing else is read of the GPU."""


@dataclass(frozen=True)
class BurnIn:
    """The operator's options."""

    seconds: float = 10.0
    """Of products; memory and copies take theirs besides."""
    image: str | None = None
    """On a cluster."""


@dataclass(frozen=True)
class Finding:
    """What a test has come to."""

    passed: bool | None
    """None: it says nothing of the GPU."""
    at: datetime
    """When it ended."""
    message: str


def due_at(health: GPUNodeHealth, gpu: GpuHealth, causes: Collection[GpuCause], own: str = "") -> datetime | None:
    """From when on a test of the GPU counts; None: something lasts, or an administrator is to say more.

    `causes`: those that count. `own`: uid of the job that tests it.
    """
    if any(one.gpu in ("", gpu.uuid) for one in health.spec.cordons) or any(one.job_uid != own for one in gpu.holders):
        return None
    passed = max((one.at for one in health.spec.cleared if (one.gpu, one.by) == (gpu.uuid, BURN_IN)), default=None)
    moments = []
    for cause in causes:
        if cause.code in PASSING and cause.ends is not None:
            moments.append(cause.ends)
        elif cause.code in _ERRORS and (passed is None or (cause.since - passed).total_seconds() > TRUST_S):
            moments.append(cause.since + timedelta(seconds=SETTLE_S))
        else:
            return None
    return max(moments, default=None)


def job_name(uuid: str) -> str:
    """The same for the same GPU."""
    named = "".join(c if c.isascii() and c.isalnum() else "-" for c in uuid.lower())
    return f"{BURN_IN}-{named}"[:JOB_NAME_MAX].rstrip("-")


def job_spec(uuid: str, gpus: int, options: BurnIn) -> TrainingJobSpec:
    """The job, which nothing stops but its end. `gpus`: how many it takes so that the one is among them."""
    command = ("python", "-m", "stoker_trainer.burn_in", f"--gpu={uuid}", "--seconds", f"{options.seconds:g}")
    return TrainingJobSpec(
        queue=BURN_IN,
        gpus_per_worker=gpus,
        cpu="1",
        memory="4Gi",
        trainer=Trainer(command=command, image=options.image),
        stop=Stop(max_duration=f"{600 + round(options.seconds)}s"),
        idle=IdlePolicy(action=IdleAction.NONE),
        preemptible=False,
    )


def finding(job: TrainingJob) -> Finding | None:
    """None: the test is under way. One that was sent back to wait, or cancelled, has said nothing."""
    status = job.status
    if status.phase in PLACED:
        return None
    last = status.attempts[-1] if status.attempts else None
    at = last.ended_at if last is not None else status.finished_at or job.metadata.creation_timestamp
    assert at is not None
    if last is None or status.phase not in ENDED:
        return Finding(None, at, status.message)
    if status.phase is Phase.SUCCEEDED:
        return Finding(True, at, last.message)
    is_failed = status.phase is Phase.FAILED and [one.exit_code for one in last.workers] == [FAILED]
    return Finding(False if is_failed else None, at, last.message)


def passed(spec: HealthSpec, uuid: str, at: datetime) -> HealthSpec:
    """What began until `at` counts no more."""
    others = (one for one in spec.cleared if one.gpu != uuid)
    return spec.model_copy(update={"cleared": (*others, Cleared(gpu=uuid, at=at, by=BURN_IN))[-MOST_GPUS:]})


def failed(spec: HealthSpec, uuid: str, found: str) -> HealthSpec:
    """The GPU is closed until an administrator opens it."""
    entry = Cordon(gpu=uuid, reason=one_line(f"burn-in failed: {found}")[:MAX_TEXT], by=BURN_IN)
    return spec.model_copy(update={"cordons": (*spec.cordons, entry)[-MOST_GPUS - 1 :]})
