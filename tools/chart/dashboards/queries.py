"""The PromQL that panels are made of. Pure strings; `tests/chart/test_dashboards.py` parses what comes of it.

Every selector has the variable `cluster`; its value for All is `.*`, which also takes series without such a label.
Gauges are brought to one series a thing by `max by` first: a pod that was restarted and its successor, or two replicas
of the operator, are then not counted twice, and joins find one partner. Rates of counters are summed: each of two such
series has its own part.
"""

from __future__ import annotations

CLUSTER = 'cluster=~"$cluster"'
GPU = ("cluster", "node", "gpu")
JOB = ("cluster", "job_uid")
NAMES = ("project", "job_name", "queue", "user")
RATE = "$__rate_interval"
RANGE = "$__range"


def of(metric: str, *matchers: str) -> str:
    """The selector."""
    return metric + "{" + ", ".join((CLUSTER, *matchers)) + "}"


def eq(label: str, value: str) -> str:
    """A matcher."""
    return f'{label}="{value}"'


def most(by: tuple[str, ...], metric: str, *matchers: str) -> str:
    """A gauge, one series per `by`."""
    return f"max by ({', '.join(by)}) ({of(metric, *matchers)})"


def most_over(by: tuple[str, ...], metric: str, *matchers: str) -> str:
    """The highest that it was in the time shown, one series per `by`. Of a job's counter: its total."""
    highest = f"(max_over_time({of(metric, *matchers)}[{RANGE}]))"
    return f"max by ({', '.join(by)}) {highest}" if by else f"max{highest}"


FEW = 20


def extreme(expr: str, metric: str, *matchers: str, lowest: bool = False) -> str:
    """A gauge of GPUs, of the few with the highest (lowest) value in the time shown: a fleet has thousands."""
    which, over = ("bottomk", "min_over_time") if lowest else ("topk", "max_over_time")
    each = f"max by ({', '.join(GPU)}) ({over}({of(metric, *matchers)}[{RANGE}] @ end()))"
    return f"{expr} and on ({', '.join(GPU)}) {which}({FEW}, {each})"


def total(by: tuple[str, ...], expr: str) -> str:
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def rate(metric: str, *matchers: str) -> str:
    return f"rate({of(metric, *matchers)}[{RATE}])"


def increase(metric: str, *matchers: str) -> str:
    """Over the time shown."""
    return f"increase({of(metric, *matchers)}[{RANGE}])"


def latest(metric: str, *matchers: str, own: tuple[str, ...] = ()) -> str:
    """A job's counter as it stood last, one series per GPU, attempt, worker and `own` label of the counter. Counters of
    jobs begin at 0 and go on over restarts of the exporter, so that this is all that the job had."""
    return most_over((*GPU, "uuid", "job_uid", "attempt", "worker", *own), metric, *matchers)


def sm_activity(by: tuple[str, ...], sm_s: str, held_s: str) -> str:
    """Of GPUs that report it, over the time for which jobs held these: a job may have others too."""
    return f"{total(by, sm_s)} / ({total(by, f'{held_s} and {sm_s}')} > 0)"


def memory_peak(by: tuple[str, ...], *matchers: str) -> str:
    """The most that jobs held of a device's memory in the time shown, as a share of that, one series per `by`. A MIG
    device's is its own, not its GPU's."""
    device = (*GPU, "uuid")
    whole = most_over(device, "stoker_gpu_memory_total_bytes")
    slices = f'label_join({most_over((*GPU, "mig_uuid"), "stoker_mig_memory_total_bytes")}, "uuid", "", "mig_uuid")'
    held = most_over((*device, "job_uid", "worker"), "stoker_job_gpu_memory_peak_bytes", *matchers)
    share = f"({held} / on ({', '.join(device)}) group_left () ({whole} or {slices}))"
    return f"max by ({', '.join(by)}) {share}" if by else f"max{share}"


def named(expr: str, *matchers: str) -> str:
    """Series by (cluster, job_uid), with the job's names beside: of every job that there was in the time shown."""
    return f"{expr} * on (cluster, job_uid) group_left ({', '.join(NAMES)}) {jobs(*matchers)}"


def jobs(*matchers: str) -> str:
    """1 for each job that there was in the time shown."""
    return most_over((*JOB, *NAMES), "stoker_job_info", *matchers)


def named_now(expr: str, *matchers: str) -> str:
    """The same of jobs that there are, for queries of many moments."""
    info = most((*JOB, *NAMES), "stoker_job_info", *matchers)
    return f"{expr} * on (cluster, job_uid) group_left ({', '.join(NAMES)}) {info}"


def priced(gpu_hours: str) -> str:
    """GPU-hours by (cluster, node, gpu, …) → their cost, where a price is set for the GPU's model. GPUs that were there
    in the time shown count, lost ones too."""
    price = most(("cluster", "model"), "stoker_gpu_hour_price")
    model = most_over((*GPU, "model"), "stoker_gpu_info")
    each = f"max by (cluster, node, gpu) ({model} * on (cluster, model) group_left () {price})"
    return f"{gpu_hours} * on (cluster, node, gpu) group_left () {each}"


def none_is_zero(expr: str, where: str) -> str:
    """0 instead of nothing, but only where `where` has a series."""
    return f"({expr}) or 0 * ({where})"


def happened(by: tuple[str, ...], metric: str, *matchers: str) -> str:
    """How often a rare thing happened in each step of a graph, each time counted once."""
    return _rise(by, of(metric, *matchers), RATE, "$__interval")


def counted(by: tuple[str, ...], metric: str, *matchers: str) -> str:
    """Above 0 in the minutes in which a counter of rare things rose."""
    return f"{_rise(by, of(metric, *matchers), '2m', '1m')} > 0"


def _rise(by: tuple[str, ...], one: str, window: str, step: str) -> str:
    """Of an operator's counter since `step` ago. Not `increase`: that misses the first time, which makes the series. A
    series begins at 0 where its process was seen before; where it was not (nothing was scraped, another operator came),
    what it counted earlier is none of this step's. A few scrapes that failed make no difference."""
    was_seen = f"last_over_time({of('stoker_operator_leader')}[{window}] offset {step})"
    before = f"last_over_time({one}[{window}] offset {step}) or 0 * {one} and on (cluster, instance) {was_seen}"
    return total(by, f"clamp_min({one} - ({before} or min_over_time({one}[{window}])), 0)")
