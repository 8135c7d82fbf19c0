"""Which GPUs there are and whose they are: their holders, processes, MIG devices, serial numbers. A part of `gpu`."""

from __future__ import annotations

from .cluster import HELD_DOWN
from .gpu_queries import HERE, RECOVERY, UP, UP_STATES, WHERE, XID_AGO, each, gauge
from .model import Column, series, table
from .queries import GPU, eq, most, total

_SHARE = ("pod_namespace", "pod_name", "pod_uid", "method")
_OWNER = ("project", "job_name", "attempt", "worker", "queue", "user")
_HELD = most((*GPU, *_SHARE), "stoker_gpu_allocation_share_ratio", *HERE)
_PODS = most(("cluster", "pod_uid", *_OWNER), "stoker_job_pod_info")
_NAMED = f"{_HELD} * on (cluster, pod_uid) group_left ({', '.join(_OWNER)}) {_PODS}"
_MIG = ("mig_uuid", "profile")
_KIND = ("model", "driver", "mig", "simulated", "serial", "vbios")
_INFO = most((*GPU, *_KIND), "stoker_gpu_info", *HERE)
WHICH = (
    table(
        "GPUs",
        "Which GPU: state, holder, work, memory, heat, power, clock. Sort by a heading.",
        {**WHERE, "project": "Project", "job_name": "Job"},
        Column("State", UP, "none", states=UP_STATES, look="color-background"),
        Column("Held", f"sum by (cluster, node, gpu, project, job_name) ({_NAMED})", "percentunit", decimals=0),
        Column("Busy", gauge("stoker_gpu_busy_ratio"), "percentunit", look="gauge", base="blue"),
        Column("SM activity", gauge("stoker_gpu_sm_active_ratio"), "percentunit", look="gauge", base="blue"),
        Column(
            "Memory",
            f"{gauge('stoker_gpu_memory_used_bytes')} / {gauge('stoker_gpu_memory_total_bytes')}",
            "percentunit",
            steps=((0.97, "orange"),),
            look="gauge",
            base="blue",
        ),
        Column("Temperature", gauge("stoker_gpu_temperature_celsius", eq("sensor", "core")), "celsius"),
        Column("Power", gauge("stoker_gpu_power_watts"), "watt", decimals=0),
        Column("SM clock", gauge("stoker_gpu_clock_hertz", eq("domain", "sm")), "hertz"),
        Column(
            "Held down",
            most(GPU, "stoker_gpu_throttle_active", *HERE, HELD_DOWN),
            "none",
            states={0: ("no", "green"), 1: ("yes", "orange")},
        ),
        Column("Action", gauge("stoker_gpu_recovery_action"), "none", states=RECOVERY),
        most=200,
    ),
)

OWNERS = (
    table(
        "Holders",
        "Each pod's share. Pods that are not Stoker's workers have no job.",
        {
            **WHERE,
            "project": "Project",
            "job_name": "Job",
            "attempt": "Attempt",
            "worker": "Worker",
            "queue": "Queue",
            "user": "User",
            "pod_name": "Pod",
            "method": "Method",
        },
        Column(
            "Share",
            f"sum by (cluster, node, gpu, pod_name, method, {', '.join(_OWNER)})"
            f" (({_NAMED}) or on (cluster, node, gpu, pod_uid) {_HELD})",
            "percentunit",
            look="gauge",
            base="blue",
        ),
    ),
    series(
        "Allocated but idle",
        "How long an allocated GPU has been idle without a break.",
        "s",
        each("stoker_gpu_idle_seconds"),
        width=12,
    ),
    table(
        "Processes",
        "Compute processes where visible, those outside any allocation, and use of unallocated GPUs.",
        WHERE,
        Column("Processes", gauge("stoker_gpu_processes"), "none"),
        Column("Without owner", gauge("stoker_gpu_unowned_processes"), "none", steps=((1, "orange"),)),
        Column(
            "Used, not held",
            gauge("stoker_gpu_unallocated_use"),
            "none",
            states={0: ("no", "green"), 1: ("yes", "orange")},
        ),
        width=12,
    ),
    table(
        "XIDs",
        "XID numbers and the time since the latest of each.",
        {**WHERE, "xid": "XID"},
        Column("Ago", XID_AGO, "s", decimals=0),
        width=12,
    ),
    table(
        "MIG devices",
        "Memory and SM activity of each. NVML has no power per MIG device.",
        {**WHERE, "profile": "Profile"},
        Column(
            "Devices",
            f"count by (cluster, node, gpu, profile) ({gauge('stoker_mig_info', of_its=_MIG)})",
            "none",
        ),
        Column(
            "Memory used",
            total((*GPU, "profile"), gauge("stoker_mig_memory_used_bytes", of_its=_MIG)),
            "bytes",
        ),
        Column(
            "SM activity, mean",
            f"avg by (cluster, node, gpu, profile) ({gauge('stoker_mig_sm_active_ratio', of_its=_MIG)})",
            "percentunit",
            look="gauge",
            base="blue",
        ),
        width=12,
    ),
    table(
        "Hardware",
        "Model, driver, serial number (of the board that is sent back), and pending resets.",
        {
            **WHERE,
            "model": "Model",
            "driver": "Driver",
            "serial": "Serial number",
            "vbios": "VBIOS",
            "mig": "MIG",
            "simulated": "Simulated",
        },
        Column(
            "Memory",
            f"{_INFO} * on (cluster, node, gpu) group_left () {gauge('stoker_gpu_memory_total_bytes')}",
            "bytes",
        ),
        Column(
            "Rows to remap",
            f"{gauge('stoker_gpu_row_remap_pending')}"
            f" * on (cluster, node, gpu) group_left ({', '.join(_KIND)}) {_INFO}",
            "none",
            states={0: ("none", "green"), 1: ("reset needed", "orange")},
        ),
        width=24,
        height=7,
    ),
)
