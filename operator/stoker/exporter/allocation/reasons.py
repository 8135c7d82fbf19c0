"""Why a device's holder is unknown: the texts of `stoker_exporter_unattributed_devices{reason}`. Pure.

The table of docs/allocation.md is made of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    KUBELET_SOCKET_MISSING = "kubelet_socket_missing"
    KUBELET_STARTING = "kubelet_starting"
    KUBELET_DENIED = "kubelet_denied"
    KUBELET_TIMEOUT = "kubelet_timeout"
    KUBELET_UNSUPPORTED = "kubelet_unsupported"
    KUBELET_FAILED = "kubelet_failed"
    KUBELET_ANSWER_UNREADABLE = "kubelet_answer_unreadable"
    GRPCIO_MISSING = "grpcio_missing"
    WORKERS_MISSING = "workers_missing"
    WORKERS_DENIED = "workers_denied"
    LAUNCH_UNREADABLE = "launch_unreadable"
    DEVICE_ID_UNKNOWN = "device_id_unknown"
    DRA_DEVICE_UNKNOWN = "dra_device_unknown"
    HOLDER_AMBIGUOUS = "holder_ambiguous"
    DEVICE_UNSEEN = "device_unseen"
    OWNER_UNKNOWN = "owner_unknown"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class ReasonEntry:
    means: str
    then: str
    """What becomes of the GPUs' time."""
    do: str


_ALL = "all GPUs: unobserved"
_LATER = "the last answer counts for a minute, then all GPUs: unobserved"
_DOUBT = "GPUs without a known holder: unobserved"

REASONS: dict[Reason, ReasonEntry] = {
    Reason.KUBELET_SOCKET_MISSING: ReasonEntry(
        "No socket, or none that answers.",
        _LATER,
        "Mount the kubelet's `pod-resources` folder (not the socket), and check `--kubelet-socket`: a kubelet with "
        "another `--root-dir` has it there. Gone by itself if the kubelet was only restarted.",
    ),
    Reason.KUBELET_STARTING: ReasonEntry(
        "The kubelet has started less than 10 s ago and may not know its pods yet.", _LATER, "Nothing: it passes."
    ),
    Reason.KUBELET_DENIED: ReasonEntry(
        "The socket may not be opened.",
        _LATER,
        "Run as uid 0: the socket is root's. On SELinux nodes give the pod a type that may connect to it.",
    ),
    Reason.KUBELET_TIMEOUT: ReasonEntry(
        "The kubelet did not answer in 5 s.",
        _LATER,
        "Look at the node's kubelet: it answers from memory, so it is stuck or starved.",
    ),
    Reason.KUBELET_UNSUPPORTED: ReasonEntry(
        "The kubelet knows no PodResources v1.",
        _LATER,
        "Use a newer Kubernetes: PodResources v1 is stable since 1.28.",
    ),
    Reason.KUBELET_FAILED: ReasonEntry(
        "The kubelet answered with an error.", _LATER, "The exporter's log has its message."
    ),
    Reason.KUBELET_ANSWER_UNREADABLE: ReasonEntry(
        "What came back is no PodResources answer.",
        _LATER,
        "Check that `--kubelet-socket` is the kubelet's; else report it.",
    ),
    Reason.GRPCIO_MISSING: ReasonEntry(
        "The exporter was installed without grpcio.",
        _ALL,
        "`pip install '.[exporter]'` in Stoker's folder, or its wheel with [exporter].",
    ),
    Reason.WORKERS_MISSING: ReasonEntry(
        "There is no such folder.", _ALL, "`--workers` is `workers/` in the data folder of `stoker up`."
    ),
    Reason.WORKERS_DENIED: ReasonEntry(
        "The folder may not be read.", _ALL, "Run the exporter as the user who runs `stoker up`."
    ),
    Reason.LAUNCH_UNREADABLE: ReasonEntry(
        "A worker lives, but its `launch.json` can't be read: which GPUs it holds is not known.",
        _DOUBT,
        "Exporter and `stoker up` must be of the same release and user.",
    ),
    Reason.DEVICE_ID_UNKNOWN: ReasonEntry(
        "A pod holds a device whose id matches no single GPU.",
        _DOUBT,
        "See the names above; use a device plugin whose device ids are uuids.",
    ),
    Reason.DRA_DEVICE_UNKNOWN: ReasonEntry(
        "Likewise, a device of Dynamic Resource Allocation (MIG devices made on demand, say).",
        _DOUBT,
        "None here: the kubelet reports only the device's name in its pool.",
    ),
    Reason.HOLDER_AMBIGUOUS: ReasonEntry(
        "One device is listed for two pods: one of them has ended, and it is unknown which.",
        "this GPU: unobserved",
        "Upgrade to Kubernetes 1.34, whose kubelets list living pods only, or give the exporter an api to ask.",
    ),
    Reason.DEVICE_UNSEEN: ReasonEntry(
        "A pod holds a GPU that NVML does not show here.",
        "no readings to count",
        "The exporter must see every GPU: `NVIDIA_VISIBLE_DEVICES=all`, RuntimeClass `nvidia`.",
    ),
    Reason.OWNER_UNKNOWN: ReasonEntry(
        "The api has not answered which job the pod belongs to.",
        "attributed to the pod, without a job",
        "Check `--api-url`, the token and the api; it is asked again every few seconds.",
    ),
    Reason.INTERNAL_ERROR: ReasonEntry("A defect of the exporter.", _ALL, "Report it with the traceback in its log."),
}


def table() -> str:
    """REASONS as Markdown, for the docs."""
    rows = ["| reason | means | that time | what to do |", "|---|---|---|---|"]
    rows += [f"| `{reason}` | {entry.means} | {entry.then} | {entry.do} |" for reason, entry in REASONS.items()]
    return "\n".join(rows) + "\n"
