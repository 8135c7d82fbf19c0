"""The first dashboard to open: what the GPUs of a cluster do, what is wasted, what is wrong. Pure data."""

from __future__ import annotations

from stoker.spec import usage

from .ended import ended
from .health import ALERTS, HEALTH
from .model import (
    BAD_ABOVE_ZERO,
    CURRENCY,
    NOT_REPORTED,
    NOTHING,
    WARN_ABOVE_ZERO,
    Column,
    Dashboard,
    Query,
    Row,
    Variable,
    bars,
    series,
    stat,
    table,
)
from .queries import GPU, JOB, eq, increase, most, named, none_is_zero, priced, rate, sm_activity, total

UP = most(GPU, "stoker_gpu_up")
HELD = total(GPU, most((*GPU, "uuid", "pod_uid"), "stoker_gpu_allocation_share_ratio"))
IDLE = most(GPU, "stoker_gpu_idle_seconds")
SM = f"sum by (cluster, node, gpu) ({rate('stoker_gpu_sm_active_seconds_total')})"
_REPORTS_SM = f"on (cluster, node, gpu) {increase('stoker_gpu_sm_active_seconds_total')}"
GOODPUT = (
    f"sum({increase('stoker_gpu_sm_active_seconds_total')})"
    f" / sum({increase('stoker_gpu_account_seconds_total')} and {_REPORTS_SM})"
)
WASTED_H = f"{increase('stoker_job_gpu_idle_seconds_total')} / 3600"
GPU_HOURS = f"{increase('stoker_job_gpu_allocated_seconds_total')} / 3600"

HELD_DOWN = f'reason=~"{"|".join((*usage.HELD_DOWN, "hw_slowdown"))}"'
"""hw_slowdown: either of the hardware's, where the driver does not say which."""

CLUSTER = Variable("cluster", "Cluster", "stoker_exporter_build_info", "cluster")
_NUMBERS = (
    stat(
        "GPUs",
        "All GPUs of the nodes, responding or missing.",
        "short",
        Query(f"sum({most(('cluster', 'node'), 'stoker_exporter_gpus_expected')})"),
        base="text",
    ),
    stat(
        "Allocated",
        "GPUs that a pod holds, whole or in part.",
        "short",
        Query(none_is_zero(f"count({HELD} > 0)", f"count({UP})")),
        base="blue",
    ),
    stat(
        "Busy",
        "GPU-equivalents in which kernels ran. A GPU may be busy without doing much: see goodput.",
        "short",
        Query(f"sum({rate('stoker_gpu_busy_seconds_total')})"),
        decimals=1,
        base="blue",
    ),
    stat(
        "Idle but allocated",
        "GPUs allocated to a pod and idle for at least a minute. The table below names the jobs.",
        "short",
        Query(none_is_zero(f"count({IDLE} >= 60)", f"count({UP})")),
        steps=WARN_ABOVE_ZERO,
    ),
    stat(
        "Lost",
        "GPUs that stopped responding.",
        "short",
        Query(f"sum(1 - {UP})"),
        steps=BAD_ABOVE_ZERO,
    ),
    stat(
        "Goodput",
        "SM activity over the time range, of all GPUs that report it (Hopper and newer), allocated or not. 10 to 30 % "
        "is usual.",
        "percentunit",
        Query(GOODPUT),
        decimals=1,
        base="red",
        steps=((0.1, "orange"), (0.3, "green")),
        none=NOT_REPORTED,
    ),
    stat(
        "Wasted GPU-hours",
        "Time range × GPUs that jobs held and did not use.",
        "short",
        Query(f"sum({WASTED_H})"),
        decimals=1,
        steps=((1, "orange"),),
    ),
    stat(
        "Alerts firing",
        "Alerts of Stoker's rules in this Prometheus. Also 0 if the rules are not loaded.",
        "short",
        Query(f"count({ALERTS}) or vector(0)"),
        steps=BAD_ABOVE_ZERO,
    ),
)

_COSTS = (
    stat("Power", "Drawn by all GPUs now.", "watt", Query(f"sum({most(GPU, 'stoker_gpu_power_watts')})"), base="blue"),
    stat(
        "Energy",
        "Used by all GPUs in the time range.",
        "kwatth",
        Query(f"sum({increase('stoker_gpu_energy_joules_total')}) / 3.6e6"),
        decimals=2,
        base="blue",
    ),
    stat(
        "Cost",
        "GPU-hours of jobs in the time range × the price of the model.",
        CURRENCY,
        Query(f"sum({priced(f'sum by (cluster, node, gpu) ({GPU_HOURS})')})"),
        decimals=2,
        base="blue",
        none="no price",
    ),
    stat(
        "Jobs running",
        "Jobs whose workers run.",
        "short",
        Query(
            none_is_zero(
                f"sum({most(('cluster', 'queue'), 'stoker_queue_jobs', eq('phase', 'Running'))})",
                f"sum({most(('cluster',), 'stoker_operator_leader')})",
            )
        ),
        base="blue",
    ),
    stat(
        "Jobs queued",
        "Jobs that wait for GPUs.",
        "short",
        Query(
            none_is_zero(
                f"sum({most(('cluster', 'queue'), 'stoker_queue_jobs', eq('phase', 'Queued'))})",
                f"sum({most(('cluster',), 'stoker_operator_leader')})",
            )
        ),
        base="blue",
    ),
    stat(
        "Wait p50",
        "From queued to all workers running, of jobs that started in the time range.",
        "s",
        Query(f"histogram_quantile(0.5, sum by (le) ({increase('stoker_queue_wait_seconds_bucket')}))"),
        none=NOTHING,
        base="blue",
    ),
    stat(
        "Wait p95",
        "95 % of the jobs that started in the time range waited no longer.",
        "s",
        Query(f"histogram_quantile(0.95, sum by (le) ({increase('stoker_queue_wait_seconds_bucket')}))"),
        none=NOTHING,
        base="blue",
    ),
    stat(
        "Blind exporters",
        "Nodes whose exporter could not read every GPU in its latest poll.",
        "short",
        Query(f"sum(1 - {most(('cluster', 'node'), 'stoker_exporter_collect_success')})"),
        steps=BAD_ABOVE_ZERO,
    ),
)

_COURSE = (
    series(
        "GPUs in use",
        "Total, allocated, busy (duty cycle), and active SMs (Hopper and newer).",
        "short",
        Query(f"sum({most(('cluster', 'node'), 'stoker_exporter_gpus_expected')})", "total", dashed=True),
        Query(none_is_zero(f"count({HELD} > 0)", f"count({UP})"), "allocated"),
        Query(f"sum({rate('stoker_gpu_busy_seconds_total')})", "busy"),
        Query(f"sum({rate('stoker_gpu_sm_active_seconds_total')})", "SMs active"),
    ),
    series(
        "Allocated GPUs by activity",
        "Used, or idle: no process, a process but no kernel, or SM activity under a tenth. Not observed is never idle.",
        "short",
        Query(
            f"clamp_min(sum({rate('stoker_job_gpu_allocated_seconds_total')})"
            f" - sum({rate('stoker_job_gpu_unobserved_seconds_total')})"
            f" - sum({rate('stoker_job_gpu_idle_seconds_total')}), 0)",
            "used",
        ),
        Query(f"sum by (class) ({rate('stoker_job_gpu_idle_seconds_total')})", "{{class}}"),
        Query(f"sum({rate('stoker_job_gpu_unobserved_seconds_total')})", "not observed"),
        stack=True,
    ),
    series(
        "Power and limit",
        "Of all GPUs, and what their limits allow.",
        "watt",
        Query(f"sum({most(GPU, 'stoker_gpu_power_watts')})", "drawn"),
        Query(f"sum({most(GPU, 'stoker_gpu_power_limit_watts', eq('kind', 'enforced'))})", "limit", dashed=True),
    ),
    bars(
        "Hottest GPUs",
        "Core temperature. What matters is the thermal margin, on the GPU's dashboard.",
        "celsius",
        Query(f"topk(10, {most(GPU, 'stoker_gpu_temperature_celsius', eq('sensor', 'core'))})", "{{node}}/{{gpu}}"),
        steps=((75, "orange"), (85, "red")),
        high=100,
    ),
    bars(
        "Most throttled GPUs",
        "Share of time with clocks held down by heat or the power supply, of its strongest reason. A GPU at its power "
        "limit works as it should.",
        "percentunit",
        Query(
            f"topk(10, max by (cluster, node, gpu) ({rate('stoker_gpu_throttle_seconds_total', HELD_DOWN)}))",
            "{{node}}/{{gpu}}",
        ),
        steps=((0.05, "orange"), (0.25, "red")),
        high=1,
    ),
    bars(
        "Least free memory",
        "Device memory in use.",
        "percentunit",
        Query(
            f"topk(10, {most(GPU, 'stoker_gpu_memory_used_bytes')} / {most(GPU, 'stoker_gpu_memory_total_bytes')})",
            "{{node}}/{{gpu}}",
        ),
        steps=((0.95, "orange"),),
        high=1,
        base="blue",
    ),
)

_JOB_LABELS = {"project": "Project", "job_name": "Job", "queue": "Queue", "user": "User"}
_JOBS = (
    table(
        "Most wasteful jobs",
        "GPU-hours that jobs held and did not use in the time range. Click a job to see why.",
        _JOB_LABELS,
        Column("Wasted GPU-hours", named(total(JOB, WASTED_H)), decimals=2),
        Column(
            "Wasted",
            named(f"{total(JOB, WASTED_H)} / ({total(JOB, GPU_HOURS)} > 0)"),
            "percentunit",
            steps=((0.2, "orange"), (0.5, "red")),
            decimals=0,
            look="color-background",
        ),
        Column("GPU-hours", named(total(JOB, GPU_HOURS)), decimals=2),
        Column(
            "SM activity",
            named(
                sm_activity(
                    JOB,
                    increase("stoker_job_gpu_sm_active_seconds_total"),
                    increase("stoker_job_gpu_allocated_seconds_total"),
                )
            ),
            "percentunit",
            base="red",
            steps=((0.1, "orange"), (0.3, "green")),
            look="gauge",
        ),
        sort="Wasted GPU-hours",
        most=15,
        width=16,
    ),
    series(
        "Waiting jobs by queue",
        "Queue depth.",
        "short",
        Query(most(("cluster", "queue"), "stoker_queue_jobs", eq("phase", "Queued")), "{{queue}}"),
        stack=True,
    ),
)

DASHBOARD = Dashboard(
    "stoker-cluster",
    "Stoker / Cluster",
    "GPU use, waste and faults; Stoker's own health.",
    (CLUSTER,),
    (
        Row("Now", (*_NUMBERS, *_COSTS)),
        Row("GPUs", _COURSE),
        Row("Jobs", _JOBS),
        *HEALTH,
    ),
    ended(),
)
