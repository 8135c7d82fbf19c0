"""Queues: how long jobs wait, what quota is used, how well GPU-hours were spent, by queue and user. Pure data."""

from __future__ import annotations

from .cluster import CLUSTER
from .ended import ENDED, ended
from .model import CURRENCY, NOTHING, Column, Dashboard, Query, Row, Variable, bars, series, stat, table
from .queries import (
    GPU,
    JOB,
    eq,
    happened,
    increase,
    memory_peak,
    most,
    named,
    named_now,
    none_is_zero,
    priced,
    rate,
    sm_activity,
    total,
)

HERE = 'queue=~"$queue"'
_HELD_S = increase("stoker_job_gpu_allocated_seconds_total")
_HELD = named(total(JOB, _HELD_S), HERE)
_IDLE = named(total(JOB, increase("stoker_job_gpu_idle_seconds_total")), HERE)
_BUSY = named(total(JOB, increase("stoker_job_gpu_busy_seconds_total")), HERE)
_SM_S = increase("stoker_job_gpu_sm_active_seconds_total")
_SM = named(total(JOB, _SM_S), HERE)
_HELD_OBSERVED = named(total(JOB, f"{_HELD_S} and {_SM_S}"), HERE)
_JOULES = named(total(JOB, increase("stoker_job_gpu_energy_joules_total")), HERE)
_COST = named(total(JOB, priced(f"{total((*GPU, 'job_uid'), _HELD_S)} / 3600")), HERE)
# The share of a GPU's time; where GPUs do not report SM activity there is none, and it is no reason.
_SM_SHARE = sm_activity(JOB, _SM_S, _HELD_S)
_MEMORY = memory_peak(JOB)
_TOO_LARGE = f"(({_MEMORY}) < 0.25 or ({_SM_SHARE}) < 0.3)"


def _right_size(expr: str) -> str:
    """Of jobs whose GPUs are too large for them, and that had an hour of one at least."""
    return f"({named(f'({expr})', HERE)}) and on (cluster, job_uid) {_TOO_LARGE} and on (cluster, job_uid) {_AN_HOUR}"


_QUEUED = most(("cluster", "queue"), "stoker_queue_jobs", HERE, eq("phase", "Queued"))
_AN_HOUR = f"{total(JOB, _HELD_S)} >= 3600"
_WAITS = f"sum by (le) ({increase('stoker_queue_wait_seconds_bucket', HERE)})"
_WAITING = rate("stoker_queue_wait_seconds_bucket", HERE)
_LEADS = f"sum({most(('cluster',), 'stoker_operator_leader')})"
_SM_STEPS = ((0.1, "orange"), (0.3, "green"))


def _over_clusters(state: str) -> str:
    return total(("queue",), most(("cluster", "queue"), "stoker_queue_gpus", HERE, eq("state", state)))


def _columns(by: tuple[str, ...]) -> tuple[Column, ...]:
    held = total(by, _HELD)
    return (
        Column("GPU-hours", f"{held} / 3600", decimals=2),
        Column("Busy", f"{total(by, _BUSY)} / 3600", decimals=2),
        Column(
            "Wasted",
            f"{total(by, _IDLE)} / 3600",
            decimals=2,
            steps=((1, "orange"), (24, "red")),
            look="color-background",
        ),
        Column(
            "SM activity",
            f"{total(by, _SM)} / {total(by, _HELD_OBSERVED)}",
            "percentunit",
            base="red",
            steps=_SM_STEPS,
            look="gauge",
        ),
        Column("Energy", f"{total(by, _JOULES)} / 3.6e6", "kwatth", decimals=2),
        Column("Cost", total(by, _COST), CURRENCY, decimals=2),
    )


_NOW = (
    stat(
        "Jobs queued",
        "Waiting now.",
        "short",
        Query(none_is_zero(f"sum({_QUEUED})", _LEADS)),
        base="blue",
    ),
    *(
        stat(
            title,
            f"{share} % of the jobs that started in the time range waited no longer, from queued to running.",
            "s",
            Query(f"histogram_quantile({share / 100}, {_WAITS})"),
            base="blue",
            none=NOTHING,
        )
        for title, share in (("Wait, median", 50), ("Wait, p90", 90), ("Wait, p99", 99))
    ),
    stat(
        "GPU-hours",
        "Held by jobs in the time range.",
        "short",
        Query(f"sum({_HELD}) / 3600"),
        base="blue",
        decimals=1,
    ),
    stat(
        "Wasted",
        "Held and not used.",
        "percentunit",
        Query(f"sum({_IDLE}) / sum({_HELD})"),
        decimals=1,
        steps=((0.1, "orange"), (0.3, "red")),
    ),
    stat(
        "Energy",
        "Of jobs' GPUs in the time range.",
        "kwatth",
        Query(f"sum({_JOULES}) / 3.6e6"),
        base="blue",
        decimals=2,
    ),
    stat(
        "Cost",
        "GPU-hours × the price of the model.",
        CURRENCY,
        Query(f"sum({_COST})"),
        base="blue",
        decimals=2,
        none="no price",
    ),
)

_QUEUES = (
    series(
        "Wait by queue, p90",
        "90 % of the jobs that started waited no longer.",
        "s",
        Query(
            f"histogram_quantile(0.9, sum by (queue, le) ({_WAITING}))",
            "{{queue}}",
        ),
        none=NOTHING,
    ),
    series(
        "GPUs allocated and requested, by queue",
        "Allocated; dashed: requested by waiting jobs. A queue's GPUs include those of the queues below it.",
        "short",
        Query(_over_clusters("allocated"), "{{queue}}"),
        Query(_over_clusters("requested"), "{{queue}} waits for", dashed=True),
    ),
    series(
        "GPUs guaranteed and borrowed, by queue",
        "Borrowed: held beyond the queue's guarantee. Dashed: the guarantee. Empty where no queue has one. Queues "
        "include those below them.",
        "short",
        Query(_over_clusters("borrowed"), "{{queue}} borrows"),
        Query(_over_clusters("guarantee"), "{{queue}}", dashed=True),
        none=NOTHING,
    ),
    series(
        "GPUs reclaimed and preempted, by queue",
        "GPUs of the queue's attempts that were stopped for another job, per graph step: reclaimed for a queue that is "
        "guaranteed them, preempted within the queue. GpuSick: moved off a sick GPU.",
        "short",
        Query(happened(("queue", "reason"), "stoker_preempted_gpus_total", HERE), "{{queue}} {{reason}}"),
        bars=True,
        stack=True,
        none=NOTHING,
    ),
    series(
        "GPU-hours lost to preemption, by queue",
        "Work since the last checkpoint of the queue's attempts that were stopped for another job, or moved off a sick "
        "GPU, per graph step.",
        "short",
        Query(
            f"{happened(('queue', 'reason'), 'stoker_preempted_gpu_seconds_lost_total', HERE)} / 3600",
            "{{queue}} {{reason}}",
        ),
        bars=True,
        stack=True,
        none=NOTHING,
        decimals=2,
    ),
    bars(
        "Quota in use",
        "Held part of each limit of a queue: GPUs, GPUs of a type, cpu, memory. Queues without a limit are not shown.",
        "percentunit",
        Query(most(("cluster", "queue", "resource"), "stoker_queue_limit_used_ratio", HERE), "{{queue}} {{resource}}"),
        high=1,
        base="blue",
        steps=((0.9, "orange"), (1, "red")),
        none=NOTHING,
    ),
    series(
        "Why jobs wait",
        "Jobs of the selected queues, by the reason in their status.",
        "short",
        Query(
            total(("reason",), most(("cluster", "queue", "reason"), "stoker_queue_waiting_jobs", HERE)), "{{reason}}"
        ),
        none=NOTHING,
        stack=True,
    ),
    series(
        "Attempts ended, by category",
        "Category and intent of ended attempts, per graph step.",
        "short",
        Query(happened(("category", "intent"), ENDED, HERE), "{{category}} {{intent}}"),
        bars=True,
        stack=True,
        none=NOTHING,
    ),
    series(
        "Wasted GPUs, by queue",
        "GPUs that jobs hold and do not use.",
        "short",
        Query(
            total(("queue",), named_now(total(JOB, rate("stoker_job_gpu_idle_seconds_total")), HERE)),
            "{{queue}}",
        ),
        stack=True,
    ),
)

_SPENT = (
    table(
        "GPU-hours by queue",
        "Held, busy (duty cycle), wasted; energy and cost. SM activity only of GPUs that report it.",
        {"queue": "Queue"},
        *_columns(("queue",)),
        sort="GPU-hours",
        width=12,
    ),
    table(
        "GPU-hours by user",
        "The same by submitter.",
        {"user": "User", "queue": "Queue"},
        *_columns(("user", "queue")),
        sort="GPU-hours",
        width=12,
    ),
    table(
        "Job efficiency",
        "Every job in the time range, the most wasteful first.",
        {"project": "Project", "job_name": "Job", "queue": "Queue", "user": "User"},
        *_columns(("project", "job_name", "queue", "user")),
        sort="Wasted",
        most=50,
        height=10,
    ),
    table(
        "Oversized GPU requests",
        "Memory peak under 25 %, or SM activity under 30 %, of jobs with at least one GPU-hour in the time range. "
        "Fewer or smaller GPUs, a MIG device, or a larger batch would do.",
        {"project": "Project", "job_name": "Job", "queue": "Queue", "user": "User"},
        Column(
            "Memory peak", _right_size(_MEMORY), "percentunit", look="gauge", base="orange", steps=((0.25, "green"),)
        ),
        Column(
            "SM activity", _right_size(_SM_SHARE), "percentunit", look="gauge", base="orange", steps=((0.3, "green"),)
        ),
        Column("GPU-hours", _right_size(f"{total(JOB, _HELD_S)} / 3600"), decimals=1),
        sort="GPU-hours",
        most=25,
    ),
)

DASHBOARD = Dashboard(
    "stoker-queue",
    "Stoker / Queues and efficiency",
    "Wait times, quota in use, and how well GPU-hours were spent.",
    (CLUSTER, Variable("queue", "Queue", 'stoker_queue_gpus{cluster=~"$cluster"}', "queue")),
    (Row("Now", _NOW), Row("Queues", _QUEUES), Row("GPU-hours by owner", _SPENT)),
    ended(HERE),
    since="now-24h",
)
