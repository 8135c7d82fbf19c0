"""Nodes and their GPUs: health, activity, what holds them back, whose they are. Pure data."""

from __future__ import annotations

from .cluster import CLUSTER, HELD_DOWN
from .gpu_holders import OWNERS, WHICH
from .gpu_queries import HERE, NAME, RECOVERY, UP, UP_STATES, WHERE, XID, XID_AGO, each, gauge
from .model import (
    BAD_ABOVE_ZERO,
    NOT_REPORTED,
    WARN_ABOVE_ZERO,
    Annotation,
    Column,
    Dashboard,
    Panel,
    Query,
    Row,
    Variable,
    series,
    stat,
    table,
    timeline,
)
from .queries import GPU, eq, extreme, increase, most, most_over, of, rate, total

_FABRIC = {1: ("NOT STARTED", "red"), 2: ("in progress", "orange"), 3: ("completed", "green")}
_UNCORRECTED = eq("type", "uncorrected"), eq("scope", "volatile")
_SEEN = most_over((*GPU, "xid"), XID, *HERE)
_LINE = 5


def _mode(title: str, kind: str, *, on: str, off: str) -> Column:
    mode = gauge("stoker_gpu_mode", eq("kind", kind), eq("when", "current"))
    return Column(title, mode, "none", states={1: ("on", on), 0: ("off", off)})


def _mean(metric: str, legend: str, *matchers: str) -> Query:
    return Query(f"avg({gauge(metric, *matchers)})", legend)


def _worst(expr: str) -> str:
    """As many tiles as can be read."""
    return f"topk(48, {expr})"


_BANNER: tuple[Panel, ...] = (
    stat(
        "GPU up",
        "Whether the GPU responds to the driver. A lost one needs a reset or a reboot.",
        "none",
        Query(f"bottomk(48, {UP})", NAME),
        states=UP_STATES,
        width=12,
        height=_LINE,
    ),
    stat(
        "Recovery action",
        "What the driver asks for: the best single indicator of a GPU's health (driver 570 and newer).",
        "none",
        Query(_worst(gauge("stoker_gpu_recovery_action")), NAME),
        states=RECOVERY,
        none=NOT_REPORTED,
        width=12,
        height=_LINE,
    ),
    stat(
        "XID errors",
        "Distinct XID errors in the time range; the table below has their numbers. 13, 31 and 43 are caused by a "
        "user's program, not by the GPU.",
        "none",
        Query(
            _worst(f"count by (cluster, node, gpu) ({_SEEN} > time() - $__range_s) or 0 * {UP}"),
            NAME,
        ),
        steps=BAD_ABOVE_ZERO,
        width=12,
        height=_LINE,
    ),
    stat(
        "Uncorrected memory errors",
        "Uncorrectable ECC errors in the time range.",
        "none",
        Query(
            _worst(total(GPU, increase("stoker_gpu_ecc_errors_total", *HERE, *_UNCORRECTED))),
            NAME,
        ),
        steps=((0.5, "red"),),
        decimals=0,
        none=NOT_REPORTED,
        width=12,
        height=_LINE,
    ),
)

_MODES = ("pending", "current")
_CHANGES = " - ".join(most((*GPU, "kind"), "stoker_gpu_mode", *HERE, eq("when", when)) for when in _MODES)
_WEAR = (
    table(
        "Memory and fabric",
        "What the vendor asks for before a replacement: banks whose spare rows are used up, rows remapped for "
        "uncorrectable errors, such errors of the chip's own memories (SRAM) in the time range. And ECC, MIG and "
        "persistence mode, whether a change of one waits for a reset, and the GPU in its NVSwitch fabric.",
        WHERE,
        Column(
            "Banks without spare rows",
            gauge("stoker_gpu_remap_banks", eq("left", "none")),
            "none",
            steps=BAD_ABOVE_ZERO,
        ),
        Column(
            "Rows remapped",
            gauge("stoker_gpu_remapped_rows", eq("type", "uncorrectable")),
            "none",
            steps=WARN_ABOVE_ZERO,
        ),
        Column(
            "SRAM errors",
            total(GPU, increase("stoker_gpu_sram_errors_total", *HERE, 'type=~"uncorrected_.+"')),
            "none",
            steps=((0.5, "orange"),),
            decimals=0,
        ),
        Column(
            "SRAM threshold",
            gauge("stoker_gpu_sram_threshold_exceeded"),
            "none",
            states={0: ("within", "green"), 1: ("EXCEEDED", "red")},
        ),
        _mode("ECC", "ecc", on="green", off="orange"),
        _mode("MIG", "mig", on="blue", off="green"),
        _mode("Persistence", "persistence", on="green", off="orange"),
        Column(
            "Mode change",
            f"max by ({', '.join(GPU)}) (abs({_CHANGES}))",
            "none",
            states={0: ("none", "green"), 1: ("after a reset", "orange")},
        ),
        Column("Fabric", gauge("stoker_gpu_fabric_state"), "none", states=_FABRIC),
        none=NOT_REPORTED,
        most=200,
        height=7,
    ),
)

_WORK = (
    series(
        "Utilization, mean of selected GPUs",
        "Busy is the duty cycle: any kernel at all. SM, tensor cores and memory bandwidth show how much of the GPU it "
        "used (Hopper and newer). Busy near 100 % with SMs near 0 % is a kernel that waits, often in a collective.",
        "percentunit",
        _mean("stoker_gpu_busy_ratio", "busy (duty cycle)"),
        _mean("stoker_gpu_sm_active_ratio", "SM active"),
        _mean("stoker_gpu_sm_occupancy_ratio", "SM occupancy"),
        _mean("stoker_gpu_tensor_active_ratio", "tensor cores"),
        _mean("stoker_gpu_dram_active_ratio", "memory bandwidth"),
        width=12,
        high=1,
    ),
    series(
        "SM activity by GPU",
        "Share of time and SMs with work (Hopper and newer). One below the others is a straggler.",
        "percentunit",
        each("stoker_gpu_sm_active_ratio", lowest=True),
        width=12,
        high=1,
        none=NOT_REPORTED,
    ),
    series(
        "Busy by GPU",
        "Duty cycle over the whole interval, from the counter: nothing between two scrapes is missed.",
        "percentunit",
        Query(
            extreme(
                total(GPU, rate("stoker_gpu_busy_seconds_total", *HERE)), "stoker_gpu_busy_ratio", *HERE, lowest=True
            ),
            NAME,
        ),
        high=1,
    ),
    series(
        "Memory",
        "In use, and total.",
        "bytes",
        each("stoker_gpu_memory_used_bytes"),
        Query(f"max({gauge('stoker_gpu_memory_total_bytes')})", "total", dashed=True),
    ),
    series(
        "Time by account",
        "All GPU time: attributed to a pod, unallocated, or unobserved. They add up to the whole.",
        "percentunit",
        Query(
            f"sum by (account) ({rate('stoker_gpu_account_seconds_total', *HERE)})"
            f" / on () group_left () sum({rate('stoker_gpu_account_seconds_total', *HERE)})",
            "{{account}}",
        ),
        stack=True,
        high=1,
    ),
)

_HEAT = (
    series(
        "Power",
        "Drawn, and the limit in force.",
        "watt",
        each("stoker_gpu_power_watts"),
        Query(f"max({gauge('stoker_gpu_power_limit_watts', eq('kind', 'enforced'))})", "limit", dashed=True),
    ),
    series(
        "Temperature",
        "Of the GPU itself.",
        "celsius",
        each("stoker_gpu_temperature_celsius", eq("sensor", "core")),
    ),
    series(
        "Memory temperature",
        "Of the device memory, where reported.",
        "celsius",
        each("stoker_gpu_temperature_celsius", eq("sensor", "memory")),
        none=NOT_REPORTED,
    ),
    series(
        "Thermal margin",
        "Degrees below the slowdown temperature. At 0 the GPU throttles.",
        "celsius",
        each("stoker_gpu_temperature_margin_celsius", lowest=True),
        low=None,
        base="red",
        steps=((5, "orange"), (15, "green")),
        none=NOT_REPORTED,
        width=12,
    ),
    series(
        "Throttled, by reason",
        "Share of time with throttled clocks, mean of the selected GPUs; reasons may hold at once. sw_power_cap: the "
        "power limit, as a busy GPU runs; hw_thermal: cooling; hw_power_brake: power supply.",
        "percentunit",
        Query(
            f"avg by (reason) ({total((*GPU, 'reason'), rate('stoker_gpu_throttle_seconds_total', *HERE))})",
            "{{reason}}",
        ),
        high=1,
        width=12,
    ),
    series(
        "SM clock",
        "The slowest.",
        "hertz",
        each("stoker_gpu_clock_hertz", eq("domain", "sm"), lowest=True),
        width=12,
    ),
    series(
        "Memory clock",
        "The slowest.",
        "hertz",
        each("stoker_gpu_clock_hertz", eq("domain", "memory"), lowest=True),
        width=12,
    ),
)

_STATES = (
    timeline(
        "GPU up, over time",
        "Of the GPUs that were lost at some time, and others up to 20.",
        Query(extreme(UP, "stoker_gpu_up", *HERE, lowest=True), NAME),
        UP_STATES,
        height=7,
    ),
    timeline(
        "Clocks held down, over time",
        "By heat or the power supply, of the GPUs where that happened.",
        Query(
            extreme(
                most(GPU, "stoker_gpu_throttle_active", *HERE, HELD_DOWN),
                "stoker_gpu_throttle_active",
                *HERE,
                HELD_DOWN,
            ),
            NAME,
        ),
        {0: ("no", "green"), 1: ("held down", "orange")},
        height=7,
        none=NOT_REPORTED,
    ),
)

_LINKS = (
    series(
        "PCIe",
        "Bytes per second, all GPUs chosen. Before Hopper: of 20 ms every five seconds.",
        "Bps",
        Query(
            f"sum by (direction) ({rate('stoker_gpu_pcie_bytes_total', *HERE)} "
            f"or {of('stoker_gpu_pcie_bytes_per_second', *HERE)})",
            "{{direction}}",
        ),
        none=NOT_REPORTED,
    ),
    series(
        "NVLink",
        "Bytes per second, all links of all GPUs chosen.",
        "Bps",
        Query(f"sum by (direction) ({rate('stoker_gpu_nvlink_bytes_total', *HERE)})", "{{direction}}"),
        none=NOT_REPORTED,
    ),
    series(
        "Link errors",
        "PCIe replays and NVLink errors by kind, per second.",
        "ops",
        Query(f"sum({rate('stoker_gpu_pcie_replays_total', *HERE)})", "PCIe replays"),
        Query(f"sum by (kind) ({rate('stoker_gpu_nvlink_errors_total', *HERE)})", "NVLink {{kind}}"),
    ),
)

_LOST = f"sum by (node, gpu) (1 - {UP}) > 0"
_XIDS = f"{XID_AGO} < 60"

DASHBOARD = Dashboard(
    "stoker-gpu",
    "Stoker / Node and GPU",
    "Health, utilization, throttling and holders of GPUs.",
    (
        CLUSTER,
        Variable("node", "Node", 'stoker_gpu_up{cluster=~"$cluster"}', "node"),
        Variable("gpu", "GPU", 'stoker_gpu_up{cluster=~"$cluster", node=~"$node"}', "gpu"),
    ),
    (
        Row("Health", (*_BANNER, *_WEAR)),
        Row("Which GPU", WHICH),
        Row("Work", _WORK),
        Row("Power, heat and clocks", _HEAT),
        Row("States", _STATES),
        Row("Links", _LINKS),
        Row("Owners", OWNERS),
    ),
    (
        Annotation("GPU lost", _LOST, NAME, "red"),
        Annotation("XID", _XIDS, f"{NAME}: XID {{{{xid}}}}", "orange"),
    ),
    since="now-3h",
)
