"""What a GPU's readings mean: from an exporter's report, or a kubelet's word, to why the GPU takes no new work.

Pure. Owns which XIDs mean the board (those of a program's own mistakes never do), which causes end by themselves and
which stay until they are cleared (by `burn_in`, or an administrator). Called by the api, which keeps the result.
Source: NVIDIA "XID errors" (catalogue) and NVML's `nvmlDeviceGpuRecoveryAction_t`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta

from stoker.spec.gpu_health import (
    MAX_TEXT,
    MOST_GPUS,
    GpuBlame,
    GpuCause,
    GpuHealth,
    GpuHolder,
    GPUNodeHealth,
    SickCause,
)
from stoker.spec.node import capability_number, capability_text
from stoker.spec.pod import Pod
from stoker.spec.reports import GpusReport, ReportedGpu
from stoker.spec.worker_pod import identity

from .stragglers import is_straggler, kept

XIDS = {
    48: SickCause.UNCONTAINED_ERROR,
    62: SickCause.HARDWARE_FAULT,
    64: SickCause.REMAP_FAILED,
    74: SickCause.HARDWARE_FAULT,
    79: SickCause.OFF_THE_BUS,
    94: SickCause.CONTAINED_ERROR,
    95: SickCause.UNCONTAINED_ERROR,
    119: SickCause.HARDWARE_FAULT,
    120: SickCause.HARDWARE_FAULT,
    140: SickCause.UNCONTAINED_ERROR,
    143: SickCause.HARDWARE_FAULT,
    145: SickCause.HARDWARE_FAULT,
}
"""Any other XID says nothing about the board: most are a program's."""
PASSING = frozenset(
    {
        SickCause.LOST,
        SickCause.RECOVERY_ACTION,
        SickCause.REMAP_PENDING,
        SickCause.THROTTLED,
        SickCause.STRAGGLER,
    }
)
"""They are over when the readings say so (a GPU is lost while it is reset, too)."""
REST_S = 3600.0
"""How long a GPU that was throttled rests once it no longer is: it would only be heated again."""
_ACTIONS = {1: "a reset", 2: "a reboot of the node", 3: "its jobs to end", 4: "its jobs to end, and a reset"}
_SHARE = "::"
"""How NVIDIA's device plug-in names a part of a GPU that is shared in time: its uuid, this, a number."""
_ERRORS = "uncorrected memory errors"
_MEMORY = (SickCause.UNCONTAINED_ERROR, SickCause.CONTAINED_ERROR)


def assessed(
    known: GPUNodeHealth, report: GpusReport, now: datetime, *, burn_in: bool = False
) -> tuple[GpuHealth, ...]:
    """The node's GPUs after the report, by number. One that the exporter no longer expects stays with what an
    administrator is to clear. `burn_in`: what is over stays until a test has cleared it."""
    before = {gpu.uuid: gpu for gpu in known.status.gpus}
    after = {
        reading.uuid: _assessed(reading, before.get(reading.uuid), known.cleared_at(reading.uuid), now, burn_in)
        for reading in report.gpus
    }
    left = [
        gpu.model_copy(update={"causes": lasting, "holders": ()})
        for gpu, causes in known.sick()
        if gpu.uuid not in after and (lasting := tuple(one for one in causes if one.code not in PASSING))
    ]
    room = MOST_GPUS - len(after)
    return tuple(sorted((*after.values(), *left[:room]), key=lambda gpu: (gpu.index, gpu.uuid)))


def with_unhealthy(known: GPUNodeHealth, pod: Pod, now: datetime) -> tuple[GpuHealth, ...]:
    """The node's GPUs with what the kubelet says of those that the worker has. Only of GPUs that the node's exporter
    reports; of one that was cleared since the pod began it says nothing new."""
    messages = {device.resource_id.partition(_SHARE)[0]: device.message for device in pod.unhealthy_devices}
    worker, began = identity(pod.metadata), pod.status.start_time
    holders = (GpuHolder(job_uid=worker.job_uid, attempt=worker.attempt),) if worker is not None else ()

    def after(gpu: GpuHealth) -> GpuHealth:
        cleared_at = known.cleared_at(gpu.uuid)
        is_old = cleared_at is not None and (began is None or began <= cleared_at)
        if gpu.uuid not in messages or is_old or any(one.code == SickCause.DEVICE_UNHEALTHY for one in gpu.causes):
            return gpu
        what = f"its device plug-in calls it unhealthy: {one_line(messages[gpu.uuid])[:MAX_TEXT]}".removesuffix(": ")
        _, cause = _cause(SickCause.DEVICE_UNHEALTHY, now, what)
        causes = tuple(sorted((*gpu.causes, cause), key=lambda one: one.code))
        return gpu.model_copy(update={"causes": causes, "holders": gpu.holders or holders})

    return tuple(map(after, known.status.gpus))


def with_blame(known: GPUNodeHealth, uuid: str, new: GpuBlame) -> tuple[GpuHealth, ...]:
    """The node's GPUs after a gang's blame. A job blames a GPU once: it is not moved off it again and again."""
    cleared_at = known.cleared_at(uuid)

    def after(gpu: GpuHealth) -> GpuHealth:
        blames = kept(gpu.blames, new.at, cleared_at)
        if gpu.uuid != uuid or any(one.job_uid == new.job_uid for one in blames):
            return gpu
        blames = kept((*blames, new), new.at, cleared_at)
        causes = {one.code: one for one in gpu.causes if cleared_at is None or one.since > cleared_at}
        causes = _straggler(gpu, blames, cleared_at, new.at) | causes
        holders = gpu.holders or (GpuHolder(job_uid=new.job_uid, attempt=new.attempt),) if causes else ()
        update = {"causes": tuple(causes[code] for code in sorted(causes)), "holders": holders, "blames": blames}
        return gpu.model_copy(update=update)

    return tuple(map(after, known.status.gpus))


def _assessed(
    reading: ReportedGpu, before: GpuHealth | None, cleared_at: datetime | None, now: datetime, burn_in: bool
) -> GpuHealth:
    blames = kept(before.blames if before else (), now, cleared_at)
    states = dict(_states(reading, now, is_cleared=cleared_at is not None))
    if before is not None:
        states |= _straggler(before, blames, cleared_at, now)
    counted = before.uncorrected_errors if before else None
    happened = dict(_happened(reading, counted, cleared_at, now))
    causes = {cause.code: cause for cause in (before.causes if before else ())}
    for code, old in list(causes.items()):
        is_cleared = cleared_at is not None and old.since <= cleared_at
        if is_cleared and code in happened:
            del causes[code]  # it happened again
        elif code in states and code in PASSING:
            causes[code] = old.model_copy(update={"message": states[code].message, "ends": None})
        elif code not in states and is_cleared:
            del causes[code]
        elif code not in states and code in PASSING:
            ends = old.ends or now + timedelta(seconds=REST_S if code == SickCause.THROTTLED else 0.0)
            causes[code] = old.model_copy(update={"ends": ends})
            if ends <= now and not burn_in:
                del causes[code]
    causes = states | happened | causes
    capability = capability_number(reading.compute_capability)
    return GpuHealth(
        uuid=reading.uuid,
        index=reading.index,
        # A GPU that is lost is still what it was.
        model=one_line(reading.model) or (before.model if before else ""),
        memory_bytes=reading.memory_bytes or (before.memory_bytes if before else 0),
        compute_capability=capability_text(capability) if capability else before and before.compute_capability,
        power_limit_watts=reading.power_limit_watts,
        uncorrected_errors=counted if reading.uncorrected_errors is None else reading.uncorrected_errors,
        causes=tuple(causes[code] for code in sorted(causes)),
        holders=reading.holders if causes else (),
        blames=blames,
    )


def _straggler(
    before: GpuHealth, blames: Collection[GpuBlame], cleared_at: datetime | None, now: datetime
) -> dict[str, GpuCause]:
    lasting = (one for one in before.causes if one.ends is None and (cleared_at is None or one.since > cleared_at))
    was = any(one.code == SickCause.STRAGGLER for one in lasting)
    if not is_straggler(blames, now, was=was):
        return {}
    return dict([_cause(SickCause.STRAGGLER, now, f"too hot: it held back the gangs of {len(blames)} jobs")])


def _states(reading: ReportedGpu, now: datetime, *, is_cleared: bool) -> Iterator[tuple[str, GpuCause]]:
    """What holds now."""
    if reading.lost:
        yield _cause(SickCause.LOST, now, "it can't be read any more")
    if reading.row_remap_failed:
        yield _cause(SickCause.REMAP_FAILED, now, "a row of its memory could not be remapped")
    if reading.row_remap_pending:
        yield _cause(SickCause.REMAP_PENDING, now, "rows of its memory wait for a reset to be remapped")
    if reading.recovery_action:
        action = _ACTIONS.get(reading.recovery_action, f"recovery action {reading.recovery_action}")
        yield _cause(SickCause.RECOVERY_ACTION, now, f"the driver asks for {action}")
    if reading.throttled:
        yield _cause(SickCause.THROTTLED, now, "its hardware slows it down for heat")
    known = {XIDS.get(xid.code) for xid in reading.xids}
    if reading.uncorrected_errors and not is_cleared and known.isdisjoint(_MEMORY):
        yield _cause(SickCause.CONTAINED_ERROR, now, _ERRORS)


def _happened(
    reading: ReportedGpu, counted: int | None, cleared_at: datetime | None, now: datetime
) -> Iterator[tuple[str, GpuCause]]:
    """What happened, the newest of each cause, unless it was cleared since. `counted`: memory errors so far."""
    if cleared_at is not None and counted is not None and (reading.uncorrected_errors or 0) > counted:
        yield _cause(SickCause.CONTAINED_ERROR, now, _ERRORS)  # more than those that were cleared
    for xid in sorted(reading.xids, key=lambda xid: xid.at):
        at = datetime.fromtimestamp(min(xid.at, now.timestamp()), UTC)  # a clock that is ahead is wrong
        if xid.code in XIDS and (cleared_at is None or at > cleared_at):
            yield _cause(XIDS[xid.code], at, f"XID {xid.code}")


def _cause(code: SickCause, since: datetime, message: str) -> tuple[str, GpuCause]:
    return code.value, GpuCause(code=code.value, since=since, message=message)


def one_line(text: str) -> str:
    """One line that any terminal may show."""
    return "".join(c if c.isprintable() else " " for c in text).strip()
