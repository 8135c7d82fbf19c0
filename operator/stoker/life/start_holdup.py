"""Why a starting gang is not running yet, and the deadline after which it is withdrawn.

Pure. A pod is scheduled, gets its sandbox, pulls its images, runs. Time spent pulling does not count toward the start
time-out; a pod the cluster's scheduler refuses and an image that can't be pulled have limits of their own. Called by
`lifecycle` for jobs in phase Starting.

Source: kubelet `pkg/kubelet/images` (reasons of waiting containers), "Pod Lifecycle" (conditions).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.spec.job import Phase, TrainingJob
from stoker.spec.pod import DATA_CONTAINER, ContainerState, Pod, PodPhase, Waiting
from stoker.spec.project_secrets import CONFIG_ERROR, said_of
from stoker.spec.quantity import format_duration
from stoker.spec.reasons import Code

from .step import Facts, Settings

IMAGE_CONDITION = "ImageAvailable"
"""False in the status of a job from the first failed pull on."""

# From most to least likely to pass by itself: a status only moves forward along this line.
NOTICE_ORDER = (
    Code.PLACED,
    Code.NAME_TAKEN,
    Code.IMAGE_PULLING,
    Code.DATA_FETCHING,
    Code.IMAGE_UNAVAILABLE,
    Code.VOLUME_UNAVAILABLE,
    Code.SECRET_MISSING,
    Code.POD_UNSCHEDULABLE,
)

_IMAGE_TROUBLE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
        "InvalidImageName",
        "ErrImageNeverPull",
        CONFIG_ERROR,
    }
)
# Retrying can't help.
_HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
# Registries' errors, as the kubelet reports them, where a retry rarely helps: one more confirms it.
_FINAL = re.compile(
    r"not ?found|manifest unknown|name unknown|unauthorized|authorization failed|authentication required|forbidden"
    r"|denied|no match for platform|status code 40[134]|: 40[134] ",
    re.IGNORECASE,
)
# The image is there for other nodes, perhaps.
_THE_NODES = "ErrImageNeverPull"
_CREATING = frozenset({"ContainerCreating", "PodInitializing"})
_SUB_PATH = "subPath"
"""In the kubelet's message, where a container waits for a folder of a volume that is refused or can't be made."""


@dataclass(frozen=True)
class StartHoldup:
    """Why not every worker runs yet."""

    code: Code
    message: str
    withdraw_at: datetime
    blamed: tuple[str, ...] = ()
    """Nodes to avoid if the gang is withdrawn for it."""


def start_holdup(
    job: TrainingJob, pods: Mapping[int, Pod], now: datetime, settings: Settings, facts: Facts
) -> StartHoldup:
    """What holds up the gang most; by default Code.PLACED and the start time-out."""
    if facts.name_taken:
        return StartHoldup(Code.NAME_TAKEN, facts.name_taken[:1024], _after(job, settings.start_timeout_s))
    late = {worker: pod for worker, pod in sorted(pods.items()) if pod.status.phase is PodPhase.PENDING}
    return (
        _unschedulable(job, late, settings)
        or _secret(job, late, now)
        or _volume(job, late, settings, facts)
        or _image(job, late, now, settings)
        or _fetching(job, late, settings, facts)
        or _pulling(job, pods, late, settings)
        or StartHoldup(
            Code.PLACED,
            f"not all workers were running after {format_duration(settings.start_timeout_s)}",
            _fetched_at(job, pods) + timedelta(seconds=settings.start_timeout_s),
        )
    )


def _unschedulable(job: TrainingJob, late: Mapping[int, Pod], settings: Settings) -> StartHoldup | None:
    nodes = {placed.worker: placed.node for placed in job.status.placement}
    refused: dict[str, datetime] = {}
    message = ""
    for worker, pod in late.items():
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable":
                refused[nodes.get(worker, "")] = condition.last_transition_time or _after(job, 0)
                message = message or f"{_who(job, worker)}does not fit on {nodes.get(worker)}: {condition.message}"
    if not refused:
        return None
    since = max(min(refused.values()), _after(job, 0))
    at = since + timedelta(seconds=settings.unschedulable_s)
    return StartHoldup(Code.POD_UNSCHEDULABLE, message[:1024], at, tuple(sorted(node for node in refused if node)))


def _secret(job: TrainingJob, late: Mapping[int, Pod], now: datetime) -> StartHoldup | None:
    """A secret that is not there. No GPU is held for it: the job waits in its queue, and looks again now and then."""
    for worker, pod in late.items():
        waiting = _troubled(pod) if job.spec.secret_env else None
        if waiting is None or waiting.reason != CONFIG_ERROR:
            continue
        for ref in job.spec.secret_env.values():
            message = said_of(waiting.message, ref, job.metadata.namespace)
            if message is not None:
                return StartHoldup(Code.SECRET_MISSING, f"{_who(job, worker)}{message}", now)
    return None


def _volume(job: TrainingJob, late: Mapping[int, Pod], settings: Settings, facts: Facts) -> StartHoldup | None:
    """A volume that can't be mounted, or a folder of one that its kubelet refuses, within the start time-out."""
    nodes = {placed.worker: placed.node for placed in job.status.placement}
    messages: dict[int, str] = {}
    for worker, pod in late.items():
        if pod.uid in facts.failed_mounts:
            messages[worker] = facts.failed_mounts[pod.uid]
        waiting = _troubled(pod)
        if waiting is not None and waiting.reason == CONFIG_ERROR and _SUB_PATH in waiting.message:
            messages[worker] = waiting.message
    if not messages:
        return None
    worker = min(messages)
    return StartHoldup(
        Code.VOLUME_UNAVAILABLE,
        f"{_who(job, worker)}a volume can't be mounted on {nodes.get(worker)}: {messages[worker]}"[:1024],
        _fetched_at(job, late) + timedelta(seconds=settings.start_timeout_s),
        tuple(sorted({nodes[one] for one in messages if one in nodes})),
    )


def _image(job: TrainingJob, late: Mapping[int, Pod], now: datetime, settings: Settings) -> StartHoldup | None:
    nodes = {placed.worker: placed.node for placed in job.status.placement}
    troubled = {worker: waiting for worker, pod in late.items() if (waiting := _troubled(pod)) is not None}
    if not troubled:
        return None
    hopeless = [worker for worker, waiting in troubled.items() if waiting.reason in _HOPELESS]
    worker = hopeless[0] if hopeless else next(iter(troubled))
    waiting = troubled[worker]
    details = waiting.message or "the kubelet gives no details"
    since = next((c.last_transition_time for c in job.status.conditions if c.type == IMAGE_CONDITION), now)
    final = all(_FINAL.search(one.message or "") for one in troubled.values())
    patience_s = settings.image_final_s if final else settings.image_timeout_s
    return StartHoldup(
        Code.IMAGE_UNAVAILABLE,
        f"{_who(job, worker)}{waiting.reason} on {nodes.get(worker)}: {details}"[:1024],
        now if hopeless else since + timedelta(seconds=patience_s),
        tuple(sorted({nodes[w] for w in troubled if w in nodes and troubled[w].reason == _THE_NODES})),
    )


def _fetching(job: TrainingJob, late: Mapping[int, Pod], settings: Settings, facts: Facts) -> StartHoldup | None:
    where = sorted({pod.spec.node_name for pod in late.values() if _fetch_state(pod).running is not None})
    if not where:
        return None
    place = where[0] if len(where) == 1 else f"{len(where)} nodes"
    waited = format_duration(settings.fetch_timeout_s)
    for_each = "" if facts.keeps_data else ", by each worker for itself since its runtime has no cache"
    message = f"data is being fetched on {place}{for_each} (given up after {waited})"
    return StartHoldup(Code.DATA_FETCHING, message, _after(job, settings.fetch_timeout_s))


def _fetch_state(pod: Pod) -> ContainerState:
    found = (status.state for status in pod.status.init_container_statuses if status.name == DATA_CONTAINER)
    return next(found, ContainerState())


def _fetched_at(job: TrainingJob, pods: Mapping[int, Pod]) -> datetime:
    """When the last worker's data was there; without any, when the gang was placed."""
    ends = (state.terminated for state in map(_fetch_state, pods.values()) if state.terminated is not None)
    return max([_after(job, 0), *(end.finished_at for end in ends if end.finished_at is not None)])


def _pulling(
    job: TrainingJob, pods: Mapping[int, Pod], late: Mapping[int, Pod], settings: Settings
) -> StartHoldup | None:
    if not late or len(pods) < job.workers or not all(_is_pulling(pod) for pod in late.values()):
        return None
    waited = format_duration(settings.pull_timeout_s)
    where = sorted({pod.spec.node_name for pod in late.values()})
    place = where[0] if len(where) == 1 else f"{len(where)} nodes"
    return StartHoldup(
        Code.IMAGE_PULLING,
        f"images are being pulled on {place} (given up after {waited})",
        _fetched_at(job, pods) + timedelta(seconds=settings.pull_timeout_s),
    )


def _troubled(pod: Pod) -> Waiting | None:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.state.waiting is not None and status.state.waiting.reason in _IMAGE_TROUBLE:
            return status.state.waiting
    return None


def _is_pulling(pod: Pod) -> bool:
    """It has its sandbox and its volumes; what it still lacks is an image (or, for a moment, the runtime)."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    waits = any(s.state.waiting is not None and s.state.waiting.reason in _CREATING for s in statuses)
    return waits and _sandbox_ready(pod) == "True"


def without_volumes(job: TrainingJob, pods: Iterable[Pod]) -> list[Pod]:
    """Those of a starting gang whose kubelets have seen them, and may be waiting for volumes."""
    if job.status.phase is not Phase.STARTING:
        return []
    return [pod for pod in pods if pod.status.phase is PodPhase.PENDING and _sandbox_ready(pod) == "False"]


def _sandbox_ready(pod: Pod) -> str:
    """A condition's status; "": its kubelet has not said."""
    return next((c.status for c in pod.status.conditions if c.type == "PodReadyToStartContainers"), "")


def _after(job: TrainingJob, seconds: float) -> datetime:
    placed_at = job.status.placed_at or job.metadata.creation_timestamp
    assert placed_at is not None
    return placed_at + timedelta(seconds=seconds)


def _who(job: TrainingJob, worker: int) -> str:
    return f"worker {worker}: " if job.workers > 1 else ""
