"""How one worker ended: its exit record (`spec.worker.exit_record`), else what the kubelet and the cluster say.

Pure. Only this module knows the reasons and conditions of Kubernetes; the node agent's pods are read by
the same rules. Called by `ending` once a worker is over, and by `lifecycle` to know whether it is.

Source: kubelet `pkg/kubelet/{lifecycle,eviction,nodeshutdown,preemption}`, "Pod Lifecycle" and "Disruptions" of the
Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stoker.spec.outcome import Category, ExitZero, worker_category
from stoker.spec.pod import DATA_CONTAINER, NEVER_STARTED, REJECTED, ContainerStatus, Pod, PodPhase, Terminated
from stoker.spec.worker import ExitRecord

EARLIEST = datetime.min.replace(tzinfo=UTC)

# Pod status reasons of workers that the cluster stopped for reasons of its own.
_DISRUPTED = frozenset({"Evicted", "Preempting", "Shutdown", "Terminated", "NodeLost", "DeletedByPodGC"})
# Of condition DisruptionTarget: what was done, and to what.
_DISRUPTIONS = {
    "EvictionByEvictionAPI": "evicted from {node}, by a drain or on request",
    "DeletionByTaintManager": "{node} was tainted NoExecute, or is not reachable",
    "DeletionByPodGC": "{node} was deleted, or never came back",
    "PreemptionByScheduler": "a pod of higher priority took its place on {node}",
    "TerminationByKubelet": "stopped by the kubelet of {node}",
}
# Container reasons that say it never ran; the container runtime's message follows.
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError"})
# In that message: the node's driver or runtime failed, not the user's image.
_NODES_RUNTIME = ("hook", "nvidia", "cdi", "device")
_OOM_KILLED = "OOMKilled"
_VANISHED = "ContainerStatusUnknown"
_KILLED = 137


@dataclass(frozen=True)
class WorkerOutcome:
    record: ExitRecord | None
    category: Category | None
    """None: done."""
    message: str
    exit_code: int | None = None
    disrupted: bool = False
    """The cluster ended it."""
    zero_after_stop: bool = False
    """Exit code 0, but only after a stop was requested."""
    memory_killed: bool = False
    """The kernel ended it, or one of its processes, for lack of memory."""


def over_at(pod: Pod, lost: Mapping[str, datetime], margin_s: float) -> datetime | None:
    """When a pod counts as over: EARLIEST if it does already, None if only its node can say.

    A pod under deletion that was never bound will never run. One on a node that no longer reports has used up its
    grace, whether or not the node says so.
    """
    if pod.ended:
        return EARLIEST
    deleted_at = pod.metadata.deletion_timestamp
    if deleted_at is None:
        return None
    if not pod.spec.node_name:
        return EARLIEST if pod.status.phase is PodPhase.PENDING else None
    since = lost.get(pod.spec.node_name)
    return None if since is None else max(deleted_at, since) + timedelta(seconds=margin_s)


def read_worker(
    pod: Pod,
    record: ExitRecord | None,
    lost: Mapping[str, datetime],
    *,
    own_trainer: bool,
    gang_stopped: bool,
    exit_zero: ExitZero = ExitZero.SUCCEEDED,
) -> WorkerOutcome:
    """What became of a worker whose pod is over; `record` is its `exit_record`."""
    terminated = pod.terminated
    if record is not None:
        if terminated is not None and terminated.reason == _OOM_KILLED:
            record = record.model_copy(update={"memory_killed": True})
        category = worker_category(
            record, rejected=False, own_trainer=own_trainer, gang_stopped=gang_stopped, exit_zero=exit_zero
        )
        disruption = _disruption(pod) if category is Category.INTERRUPTED else None
        message = disruption or record.message or pod.status.message
        zero = category is None and record.stop_requested
        killed = record.memory_killed and category is Category.KILLED
        return WorkerOutcome(record, category, message, record.exit_code, disruption is not None, zero, killed)
    if not pod.ended:
        return _unseen(pod, lost)
    disrupted = _disruption(pod)
    if terminated is not None and terminated.reason == "Completed" and terminated.exit_code == 0:
        # Without a supervisor nothing says when the stop was requested; a done pod is seldom deleted before it is read.
        stopped = disrupted is not None or pod.metadata.deletion_timestamp is not None
        if not stopped or exit_zero is ExitZero.SUCCEEDED:
            return WorkerOutcome(None, None, _last_line(terminated.message), 0, zero_after_stop=stopped)
    if disrupted is not None:
        return WorkerOutcome(None, Category.INTERRUPTED, disrupted, terminated.exit_code if terminated else None, True)
    if terminated is not None:
        return _container(pod, terminated)
    if pod.status.reason == NEVER_STARTED:
        return WorkerOutcome(None, Category.INTERRUPTED, pod.status.message)
    failed = _failed_init(pod)
    if failed is not None:
        ended = failed.state.terminated
        message = "" if ended is None else ended.message.strip() or ended.reason
        if failed.name == DATA_CONTAINER:
            return WorkerOutcome(None, Category.DATA, message[:1024])
        return WorkerOutcome(None, Category.REJECTED, f"the supervisor could not be installed: {message}")
    if pod.metadata.deletion_timestamp is not None and not pod.status.reason:
        return WorkerOutcome(None, Category.INTERRUPTED, "deleted before any process was started")
    if pod.status.reason:
        message = pod.status.message or pod.status.reason
        if pod.status.reason not in (REJECTED, message):
            message = f"{pod.status.reason}: {message}"
        return WorkerOutcome(None, Category.REJECTED, message)
    return WorkerOutcome(None, Category.NODE_LOST, pod.status.message)


def _unseen(pod: Pod, lost: Mapping[str, datetime]) -> WorkerOutcome:
    """Over, but nothing says how it ended."""
    node = pod.spec.node_name
    if not node:
        return WorkerOutcome(None, Category.INTERRUPTED, "deleted before it was bound to a node")
    since = lost.get(node, EARLIEST)
    message = (
        f"node {node} is gone" if since == EARLIEST else f"node {node} has not reported since {since:%H:%M:%S} UTC"
    )
    return WorkerOutcome(None, Category.NODE_LOST, message)


def _container(pod: Pod, terminated: Terminated) -> WorkerOutcome:
    """The container ended without our record."""
    code, reason = terminated.exit_code, terminated.reason
    deleted = pod.metadata.deletion_timestamp is not None
    message = _last_line(terminated.message) or pod.status.message
    if reason == _OOM_KILLED:
        return WorkerOutcome(None, Category.KILLED, message, code, memory_killed=True)
    if reason in _NOT_STARTED:
        nodes_fault = any(word in terminated.message.lower() for word in _NODES_RUNTIME)
        category = Category.REJECTED if nodes_fault else Category.USER_ERROR
        return WorkerOutcome(None, category, f"the container could not be started: {message}", code)
    if deleted and reason in ("Completed", "Error", _VANISHED):
        return WorkerOutcome(None, Category.INTERRUPTED, message, code)
    if reason == "Error":
        return WorkerOutcome(None, Category.KILLED if code == _KILLED else Category.USER_ERROR, message, code)
    return WorkerOutcome(None, Category.NODE_LOST, message, code)


def _disruption(pod: Pod) -> str | None:
    """Why the cluster ended the pod, as it says; None: it did not."""
    if pod.status.reason in _DISRUPTED:
        return f"{pod.status.reason}: {pod.status.message}".rstrip(": ")
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            message = f"{condition.reason}: {condition.message}".rstrip(": ")
            why = _DISRUPTIONS.get(condition.reason)
            return message if why is None else f"{why.format(node=pod.spec.node_name or 'its node')} ({message})"
    return None


def _failed_init(pod: Pod) -> ContainerStatus | None:
    for status in pod.status.init_container_statuses:
        ended = status.state.terminated
        if ended is not None and ended.exit_code != 0:
            return status
    return None


def _last_line(text: str) -> str:
    """With terminationMessagePolicy FallbackToLogsOnError the message is the end of the container's output."""
    lines = text.strip().splitlines()
    return lines[-1][:512] if lines else ""
