"""Every metric of the exporter: name, type, help text, labels. The renderer, docs/metrics.md, the dashboards' and the
rules' tests read the same tables. Pure.

Families of `HARDWARE` are prefixed `stoker_gpu_` and have the labels node, gpu (index), uuid; those of `MIG`
`stoker_mig_` and beside these mig_uuid and profile; those of `JOB` `stoker_job_gpu_` and JOB_LABELS; those of
`EXPORTER` `stoker_exporter_` and node. Their own labels come behind. Base units; what is not known is absent, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    """Without its table's prefix; a counter's ends in `_total`."""
    type: str
    help: str
    labels: tuple[str, ...] = ()
    """Of its own, in the order in which readings name their values."""
    collector: str = "core"
    """The switch that leaves it out: core can't be."""


HARDWARE_LABELS = ("node", "gpu", "uuid")
MIG_LABELS = (*HARDWARE_LABELS, "mig_uuid", "profile")
JOB_LABELS = ("node", "gpu", "uuid", "project", "job_uid", "attempt", "worker")


def _c(name: str, text: str, *labels: str, of: str = "core") -> Family:
    return Family(name, COUNTER, text, labels, of)


def _g(name: str, text: str, *labels: str, of: str = "core") -> Family:
    return Family(name, GAUGE, text, labels, of)


HARDWARE = (
    _g(
        *(
            "info",
            "1; what the GPU is.",
            "model",
            "driver",
            "cuda",
            "pci_bus_id",
            "compute_capability",
            "mig",
            "simulated",
        ),
        *("serial", "vbios"),
    ),
    _g("up", "1 if the GPU answers, 0 if it is lost."),
    _g("busy_ratio", "Share of the last sample period in which a kernel ran."),
    _g("memory_controller_busy_ratio", "Share of the last sample period in which device memory was read or written."),
    _g("encoder_busy_ratio", "Share of the last sample period in which the video encoder ran."),
    _g("decoder_busy_ratio", "Share of the last sample period in which the video decoder ran."),
    _c("busy_seconds_total", "Integral of busy_ratio over the time observed."),
    _c("memory_controller_busy_seconds_total", "Integral of memory_controller_busy_ratio over the time observed."),
    _g("memory_total_bytes", "Device memory."),
    _g("memory_used_bytes", "Device memory in use, without the driver's reserve where it is reported separately."),
    _g("memory_free_bytes", "Device memory that is free."),
    _g("memory_reserved_bytes", "Device memory that the driver keeps for itself."),
    _g("power_watts", "Power drawn, averaged over about a second."),
    _c("energy_joules_total", "Energy used, by NVML's counter, else the integral of power_watts (energy_source_info)."),
    _g("energy_source_info", "1; where energy_joules_total comes from: counter or power_integral.", "source"),
    _g("power_limit_watts", "Power limits: enforced, default, min, max.", "kind", of="limits"),
    _g("temperature_celsius", "Temperature: core, memory.", "sensor", of="temperatures"),
    _g("temperature_margin_celsius", "Degrees left to the slowdown.", of="temperatures"),
    _g("temperature_limit_celsius", "Thresholds: shutdown, slowdown, memory_max, gpu_max.", "kind", of="temperatures"),
    _g(
        "temperature_margin_limit_celsius",
        "Margins at which: shutdown, slowdown, memory_max, gpu_max (Ada and newer report these, not temperatures).",
        "kind",
        of="temperatures",
    ),
    _g("fan_ratio", "Fan speed of its maximum.", of="temperatures"),
    _g("clock_hertz", "Clock: sm, memory, graphics, video.", "domain", of="clocks"),
    _g("clock_max_hertz", "Highest clock: sm, memory, graphics, video.", "domain", of="clocks"),
    _g("pstate", "Performance state; 0 is the fastest.", of="clocks"),
    _c(
        "throttle_seconds_total",
        "Time the clocks were held down: sw_power_cap, hw_power_brake, sw_thermal, hw_thermal, sync_boost; by NVML's "
        "counters, else the integral of throttle_active.",
        "reason",
        of="throttling",
    ),
    _g("throttle_active", "1 while the clocks are held down for this reason.", "reason", of="throttling"),
    _g(
        "pcie_bytes_per_second",
        "PCIe traffic as the GPU sees it: tx, rx. By GPM the mean since the poll before (Hopper+), else of 20 ms.",
        "direction",
        of="pcie",
    ),
    _c(
        "pcie_bytes_total",
        "Bytes over PCIe: tx, rx; by GPM (Hopper and newer). NVML's own counters of 32 bits wrap unseen.",
        "direction",
        of="pcie",
    ),
    _c("pcie_replays_total", "PCIe packets sent again.", of="pcie"),
    _g("pcie_link_generation", "PCIe generation: current, max.", "kind", of="pcie"),
    _g("pcie_link_width", "PCIe lanes: current, max.", "kind", of="pcie"),
    _c("nvlink_bytes_total", "Bytes over all NVLinks: tx, rx.", "direction", of="nvlink"),
    _c("nvlink_errors_total", "Errors of all NVLinks: replay, recovery, crc_flit, crc_data, …", "kind", of="nvlink"),
    _g("nvlink_links_active", "NVLinks that are up.", of="nvlink"),
    _g("fabric_state", "Of an NVSwitch fabric: 1 not started, 2 in progress, 3 completed.", of="nvlink"),
    _g("fabric_failed", "1 if joining the fabric ended with an error.", of="nvlink"),
    _c("ecc_errors_total", "Memory errors: corrected, uncorrected; volatile, aggregate.", "type", "scope", of="ecc"),
    _g("remapped_rows", "Rows remapped: correctable, uncorrectable.", "type", of="ecc"),
    _g("row_remap_pending", "1 if rows wait for a reset to be remapped.", of="ecc"),
    _g("row_remap_failed", "1 if a row could not be remapped.", of="ecc"),
    _g("retired_pages_pending", "1 if pages wait for a reset to be retired.", of="ecc"),
    _g("remap_banks", "Memory banks by spare rows left: max, high, partial, low, none.", "left", of="ecc"),
    _c(
        "sram_errors_total",
        "Errors of the chip's own memories in its life: corrected, uncorrected_parity, uncorrected_secded.",
        "type",
        of="ecc",
    ),
    _c("sram_uncorrected_total", "Uncorrected ones of these by unit: l2, sm, pcie, mcu, other.", "unit", of="ecc"),
    _g("sram_threshold_exceeded", "1 if these are more than NVIDIA lets a GPU have.", of="ecc"),
    _g("mode", "1 if it is on: ecc, mig (current; pending: after a reset), persistence.", "kind", "when", of="ecc"),
    _g(
        "recovery_action",
        "What the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.",
        of="ecc",
    ),
    _c("xid_errors_total", "XID errors since the exporter began.", "xid", of="xid"),
    _g("xid_last_timestamp_seconds", "Unix time of the newest XID of this number.", "xid", of="xid"),
    _g("processes", "Compute processes, where they can be seen.", of="processes"),
    _g("unowned_processes", "Compute processes that belong to no allocation.", of="processes"),
    _g("sm_active_ratio", "Share of time in which SMs had a warp, averaged over SMs (Hopper and newer).", of="gpm"),
    _g("sm_occupancy_ratio", "Warps resident of the most possible (Hopper and newer).", of="gpm"),
    _g("tensor_active_ratio", "Share of time in which tensor cores worked (Hopper and newer).", of="gpm"),
    _g("dram_active_ratio", "Share of device memory's bandwidth used (Hopper and newer).", of="gpm"),
    _g("graphics_active_ratio", "Share of time in which a graphics or compute engine worked (Hopper+).", of="gpm"),
    _g("pipe_active_ratio", "Share of time in which the pipe worked: fp16, fp32, fp64.", "pipe", of="gpm"),
    _c("sm_active_seconds_total", "Integral of sm_active_ratio over the time observed.", of="gpm"),
    _c("tensor_active_seconds_total", "Integral of tensor_active_ratio over the time observed.", of="gpm"),
    _c("dram_active_seconds_total", "Integral of dram_active_ratio over the time observed.", of="gpm"),
    _g(
        "allocation_share_ratio",
        "The pod's share of the GPU or MIG device (in the label uuid). Join by pod_uid with stoker_job_pod_info.",
        *("pod_namespace", "pod_name", "pod_uid", "job_uid", "attempt", "worker", "method"),
    ),
    _g("unallocated_use", "1 if memory or load is seen on an unallocated GPU."),
    _g("idle_seconds", "How long an allocated GPU has been idle without a break; 0: it is not idle."),
    _c(
        "account_seconds_total",
        "All time since the ledger began: attributed to a pod, unallocated, unobserved.",
        "account",
    ),
    _c("account_joules_total", "All energy since the ledger began, likewise.", "account"),
)

MIG = (
    _g("info", "1; the MIG device.", "slices", of="mig"),
    _g("memory_total_bytes", "Memory of the MIG device.", of="mig"),
    _g("memory_used_bytes", "Memory in use.", of="mig"),
    _g("memory_free_bytes", "Memory that is free.", of="mig"),
    _g("sm_active_ratio", "As stoker_gpu_sm_active_ratio, of the MIG device.", of="mig"),
    _g("tensor_active_ratio", "As stoker_gpu_tensor_active_ratio, of the MIG device.", of="mig"),
    _g("dram_active_ratio", "As stoker_gpu_dram_active_ratio, of the MIG device.", of="mig"),
    _c("sm_active_seconds_total", "Integral of sm_active_ratio over the time observed.", of="mig"),
    _c("tensor_active_seconds_total", "Integral of tensor_active_ratio over the time observed.", of="mig"),
)

JOB = (
    _c("allocated_seconds_total", "GPU-seconds that the GPU was this worker's; its share of a shared one."),
    _c("unobserved_seconds_total", "Part of allocated_seconds about which nothing is known; never idle."),
    _c("busy_seconds_total", "Part of allocated_seconds in which a kernel ran."),
    _c("sm_active_seconds_total", "Integral of SM activity (Hopper and newer)."),
    _c("tensor_active_seconds_total", "Integral of tensor cores' activity (Hopper and newer)."),
    _c("dram_active_seconds_total", "Integral of memory bandwidth used (Hopper and newer)."),
    _c("idle_seconds_total", "Part of allocated_seconds: no_process, no_activity, low_activity.", "class"),
    _c("throttled_seconds_total", "Time the clocks were held down while it was this worker's.", "reason"),
    _c(
        "energy_joules_total",
        "Energy; method: exclusive, even, sm_share, mig_slices; exclusive_unobserved: between polls too far apart.",
        "method",
    ),
    _c("unobserved_energy_joules_total", "Energy used between polls too far apart; of sole holders also in the above."),
    _g("memory_peak_bytes", "The most device memory seen in use."),
)

EXPORTER = (
    _g("build_info", "1; the exporter's version.", "version"),
    _g("collect_success", "1 if the newest poll read every GPU that is expected."),
    _g("last_success_timestamp_seconds", "Unix time of the newest poll that did."),
    _g("collect_seconds", "How long the newest poll took."),
    _c("polls_total", "Polls taken."),
    _c(
        "collect_errors_total", "Calls that failed for other reasons than a GPU that has no such thing.", "call", "code"
    ),
    _g("gpus_visible", "GPUs that answer."),
    _g("gpus_expected", "GPUs expected: --expected-gpus, and at least those that were here in the last 30 days."),
    _g("gpu_missing", "1; a GPU that was here in the last 30 days and has not been since the node's boot.", "uuid"),
    _c("child_restarts_total", "Starts of the NVML child after its first: exited, crashed, stuck.", "reason"),
    _g("child_stuck", "1 while a child hangs in the driver and can't be killed."),
    _g("allocation_known", "1 if it is known who holds which GPU."),
    _g("allocation_age_seconds", "How old that knowledge is."),
    _g("unattributed_devices", "Devices whose holder is unknown, by reason.", "reason"),
    _c("receipts_total", "Receipts by what became of them: sent, refused, failed, dropped.", "outcome"),
    _g("receipts_spooled", "Receipts that wait to be sent."),
    _c("events_total", "GPU events by what became of them: sent, refused, failed, dropped.", "outcome"),
    _c("push_samples_total", "Samples by what became of them: sent, refused, dropped.", "outcome"),
    _c("push_retries_total", "Remote-write requests sent again.", "code"),
    _g("push_buffered_samples", "Samples that wait to be pushed."),
)
TABLES = {
    "stoker_gpu_": (HARDWARE, HARDWARE_LABELS),
    "stoker_mig_": (MIG, MIG_LABELS),
    "stoker_job_gpu_": (JOB, JOB_LABELS),
    "stoker_exporter_": (EXPORTER, ("node",)),
}
"""Prefix → families, and the labels they share."""


def by_name() -> dict[str, Family]:
    """Whole name → family, of every family."""
    return {prefix + family.name: family for prefix, (families, _) in TABLES.items() for family in families}
