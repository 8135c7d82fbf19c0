"""What people read of a reason or a suggested change: every sentence of `stoker why`, made from its parts.

Owns the texts and nothing else: who calls it has found the facts. Not here: what is written into a job's status without
a look at the cluster (`life.admission`, `life.preemption`, `life.failure_hold`, `life.stall`). Called by the
explaining modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from stoker.sched.elastic import WaitsFor
from stoker.sched.request import Request
from stoker.spec.quantity import format_bytes, format_cpu, format_duration
from stoker.spec.reasons import Change, Value

from .phrases import amount, are, clock, counted, listed, moment, part

_NAMED_NODES = 3

AT_RISK_WAYS = "have it report its checkpoints ($STOKER_PROGRESS_FILE), or submit it with preemptible: false"
AT_RISK = f"it may be preempted, and has reported no checkpoint: preempted, it would begin anew; {AT_RISK_WAYS}"
AT_RISK_LATER = f"it may be preempted, and begins anew if it has reported no checkpoint by then; {AT_RISK_WAYS}"


# -- the queue, time and reservations


def takes_no_jobs(queue: str, below: Sequence[str]) -> str:
    return f"queue '{queue}' takes no jobs itself, but only those of the queues below it: {listed(below, 5)}"


def above_limit(queue: str, leaf: str, resource: str, wanted: int, limit: int) -> str:
    may = f"{_titled(queue, leaf)} may never hold more than {amount(resource, limit)}"
    return f"asks for {amount(resource, wanted)} in all; {may}"


def at_limit(queue: str, leaf: str, resource: str, wanted: int, limit: int, used: int, ending: int) -> str:
    """`ending`: what of `used` pods of deleted jobs hold."""
    short = used + wanted - limit
    pods = f", {amount(resource, ending)} of that in pods of deleted jobs, which still end" if ending else ""
    return (
        f"{_titled(queue, leaf)} is short {part(resource, short, wanted)}: its limit is {amount(resource, limit)}, "
        f"its jobs hold {amount(resource, used)}{pods}"
    )


def guaranteed(
    queue: str,
    resource: str,
    used: int,
    guarantee: int,
    borrowed: Mapping[str, int],
    stoppable: int | None,
    first_at: datetime | None,
) -> str:
    """`borrowed`: the most first; `stoppable`: what jobs hold there that may be stopped now; None: there are none.
    `first_at`: when the first may be."""
    holds = f"queue '{queue}' holds {part(resource, used, guarantee)} guaranteed to it"
    if not borrowed:
        return f"{holds}; no other queue holds more than its own"
    lent = [f"{amount(resource, some)} more than theirs in '{name}'" for name, some in borrowed.items()]
    if stoppable is not None:
        may = f"jobs there that may be stopped hold {amount(resource, stoppable)}"
    else:
        may = "no job there may be stopped" + (f" before {moment(first_at)}" if first_at else "")
    return f"{holds}; others hold {listed(lent, 3)}; {may}"


def run_too_short(queue: str, jobs: Sequence[str], least_s: float, first_at: datetime | None) -> str:
    """`jobs`: the first to have run for long enough first."""
    once, first = ("it has", "") if len(jobs) == 1 else ("each has", "the first ")
    return (
        f"{listed(jobs, 3)}, of lower priority, may be stopped for it once {once} run for {format_duration(least_s)} "
        f"(minRuntime of queue '{queue}')" + (f": {first}at {moment(first_at)}" if first_at else "")
    )


def open_to_it(names: Sequence[str]) -> str:
    return f"; open to it: {listed(names, 5)}" if names else "; none is open to it yet"


def unsized(gpus: int) -> str:
    if not gpus:
        return "what its workers get of cpu and memory is being worked out"
    return (
        "cpu and memory are a share of a node, as its GPUs are: known once there is a node whose GPUs would do; a job "
        "that names both does not wait for that"
    )


def backing_off(until: datetime) -> str:
    return f"backing off until {clock(until)}"


def looked_for_again(missing: str, at: datetime) -> str:
    return f"{missing}; looked for again at {clock(at)}"


def grows(has: int, most: int, then: int, waits_for: WaitsFor | None, at: datetime | None) -> str:
    """`then`: with how many workers it would go on."""
    match waits_for:
        case WaitsFor.TIME:
            when = f"it grows at most once in 10 minutes: not before {clock(at)}" if at else "it was resized just now"
        case WaitsFor.LIMIT:
            when = "it grows once no other job waits for room within its queue's limit"
        case WaitsFor.ROOM:
            when = "it grows once there is idle room that no waiting job could use"
        case WaitsFor.GAIN:
            when = "more fit, but restarting now would cost more than they gain; it grows soon after a checkpoint"
            when += f", or at {moment(at)}" if at else ""
        case None:
            when = f"its turn to go on with {then} is next"
    return f"has {has} of the {most} workers that it may have; {when}"


def blamed(nodes: Sequence[str], has_room: bool, until: datetime) -> str:
    where = f"node {listed(nodes, 3)}, which is" if len(nodes) == 1 else f"nodes {listed(nodes, 3)}, which are"
    return (
        f"there {'is' if has_room else 'could be'} room only with {where} avoided until {clock(until)}: a worker of "
        "this job failed there, or a GPU there held its gang back"
    )


def kept_for(name: str, project: str, since: datetime) -> str:
    return (
        f"there is room, but it is kept for job {name} (project {project}), which is ahead and has waited "
        f"since {moment(since)}"
    )


def reservation_spent(queue: str, budget: float, idle_s: float, may_s: float, gpus: int, waited_s: float) -> str:
    """Units: GPU-seconds; seconds."""
    return (
        f"nodes are no longer kept for it: that left GPUs idle for {_hours(idle_s)}, and may for {_hours(may_s)} "
        f"(reservationBudget {budget:g} of queue '{queue}' x {counted(gpus, 'GPU')} x {format_duration(waited_s)} of "
        "waiting)"
    )


def reservation_too_dear(queue: str, budget: float, could_s: float, may_s: float, waited_s: float, gpus: int) -> str:
    """Units: GPU-seconds; seconds."""
    return (
        f"no nodes are kept for it: until it starts that could leave GPUs idle for {_hours(could_s)}, half as much "
        f"again as is expected, and may for {_hours(may_s)} (reservationBudget {budget:g} of queue '{queue}' x "
        f"{counted(gpus, 'GPU')} x {format_duration(waited_s)} of waiting by then)"
    )


def kept_again(at: datetime) -> str:
    return f"; they are kept again from {moment(at)}"


# -- nodes


def within(level: str, likeliest: str | None, levels: Sequence[str] | None = None) -> str:
    """As a sentence about nodes begins. `levels`: those of the cluster, if `level` is none of them."""
    if levels is not None:
        known = listed(levels, 5) if levels else "none (topology.levels of the chart)"
        return f"topology.required is {level}, the cluster's topology levels are {known}"
    return f"all workers within one {level}" + (f", likeliest {likeliest}" if likeliest else "")


def no_such_gpu(request: Request, there: Sequence[str], has_parts: bool) -> str:
    have = f"there is: {listed(there, 5)}" if there else "no node has any GPU"
    if request.filter.apart and has_parts:
        have += "; a job has one shared or sliced GPU at most, as its processes could get parts of the same"
        return f"no node has whole GPUs{_kind(request)}; {have}"
    return f"no node has a GPU{_kind(request)}; {have}"


def above_largest(request: Request, resource: str, need: int, node: str, most: int) -> str:
    what = f"{amount(resource, need)}{_kind(request) if resource == 'gpus' else ''}"
    return f"asks for {what} per worker; the largest node, {node}, has {amount(resource, most)}"


def above_all(request: Request, level: str, holds: int) -> str:
    """`level`: of the topology, within which all workers must be; "": anywhere."""
    together = f"the largest {level}, empty of jobs, holds" if level else "all nodes together, empty of jobs, hold"
    one_type = "; a gang runs on GPUs of one type" if request.filter.type and request.workers > 1 else ""
    return f"asks for {counted(request.workers, 'worker')} of {worker(request)}; {together} {holds}{one_type}"


def too_few_usable(request: Request, holds: int, obstacles: Sequence[str]) -> str:
    workers = f"{holds} of {counted(request.workers, 'worker')} of {worker(request)}"
    why = f": {'; '.join(obstacles)}" if obstacles else ""
    return f"the nodes that are usable now would hold {workers} even without other jobs{why}"


def short_of_gpus(
    request: Request,
    short: int,
    there: Mapping[str, int],
    held: Sequence[tuple[str, int]],
    claimed: Sequence[tuple[str, int]],
    outside: Sequence[str],
    elsewhere: int,
    others: int,
    would_do: Sequence[str],
) -> str:
    """`there`: node → free; `held`: job → its GPUs; `claimed`: the same of jobs that wait there for others to end;
    `elsewhere`: free where no worker fits; `others`: free ones of other kinds; `would_do`: kinds of GPU."""
    wanted, total = request.totals.gpus, sum(there.values())
    parts = [f"short {part('gpus', min(short, wanted), wanted)}{_kind(request)}: {_free(there, total, elsewhere)}"]
    if total >= wanted:
        parts[0] += f", and each worker needs {request.gpus} on one node"
    if held:
        parts.append(f"{_jobs(held)} {'holds' if len(held) == 1 else 'hold'} {sum(gpus for _, gpus in held)}")
    if claimed:
        kept = sum(gpus for _, gpus in claimed)
        parts.append(f"{kept} {are(kept)} kept for {_jobs(claimed)}")
    parts += outside
    if others > 0:
        parts.append(f"{others} free {'GPU is' if others == 1 else 'GPUs are'} of another kind or can't be counted on")
    if would_do:
        parts.append(f"these would do: {listed(would_do, 5)}")
    return "; ".join(parts)


def short_of(
    request: Request, resource: str, need: int, short: int, node: str, most: int, outside: Sequence[str]
) -> str:
    """`most`: free on `node`, where there is most."""
    where = " on the nodes that have the GPUs" if request.gpus else ""
    wanted = request.workers * need
    text = f"short {part(resource, min(short, wanted), wanted)}{where}: the most free on one node is "
    text += f"{amount(resource, most)}, on {node}"
    if request.workers > 1:
        text += f"; each worker needs {amount(resource, need)}"
    return "; ".join((text, *outside))


def scattered(request: Request) -> str:
    return f"free GPUs, cores and memory are on different nodes: each worker needs {worker(request)} on one node"


def worker(request: Request) -> str:
    """What a worker asks for."""
    parts = [f"{amount('gpus', request.gpus)}{_kind(request)}"] if request.gpus else []
    parts += [amount("cpu", request.cpu)] if request.cpu else []
    parts += [amount("memory", request.memory)] if request.memory else []
    parts += [amount(name, count) for name, count in request.extended]
    return listed(parts, 5) or "nothing"


def _jobs(holding: Sequence[tuple[str, int]]) -> str:
    return f"{'job' if len(holding) == 1 else 'jobs'} {listed([name for name, _ in holding], 3)}"


def _free(there: Mapping[str, int], total: int, elsewhere: int) -> str:
    if not there:
        return f"{elsewhere} {are(elsewhere)} free, where no worker fits" if elsewhere else "none is free"
    if len(there) == 1:
        return f"{total} {are(total)} free on node {next(iter(there))}"
    most = sorted(there.items(), key=lambda item: (-item[1], item[0]))
    spots = listed([f"{count} on {name}" for name, count in most], 3)
    return f"{total} {are(total)} free but on different nodes ({spots})"


# -- nodes of no use


def lack_labels(nodes: int, of: int, labels: Sequence[tuple[str, str]]) -> str:
    texts = ", ".join(f"{label}={value}" for label, value in labels)
    noun = f"the runtime's {'label' if len(labels) == 1 else 'labels'} {texts}"
    return f"no node has {noun}" if nodes == of else f"{counted(nodes, 'node')} without {noun}"


def cordoned(nodes: Sequence[str]) -> str:
    return f"{counted(len(nodes), 'node')} {are(len(nodes))} cordoned ({listed(nodes, 3)})"


def not_ready(nodes: Sequence[str], message: str) -> str:
    return f"{listed(nodes, 3)} {are(len(nodes))} not ready" + (f" ({message})" if message and len(nodes) == 1 else "")


def lost(nodes: Sequence[str], since: datetime | None, message: str) -> str:
    if len(nodes) > 1:
        return f"{counted(len(nodes), 'node')} are lost ({listed(nodes, 3)})"
    lost = f"has been lost since {moment(since)}" if since is not None else "is lost"
    return f"{nodes[0]} {lost}" + (f" ({message})" if message else "")


def repel(nodes: int, taint: str, runtime: str) -> str:
    have = "has" if nodes == 1 else "have"
    return f"{counted(nodes, 'node')} {have} taint {taint} that runtime {runtime} does not tolerate"


def outside(pods: Sequence[str], ours: bool, resource: str, some: int, whole: int, nodes: Sequence[str]) -> str:
    """`pods` hold `some` of `whole`."""
    text = part(resource, some, whole)
    where = f"{nodes[0]}: {text}" if len(nodes) == 1 else f"{text} on {len(nodes)} nodes"
    who = "pods of former attempts or deleted jobs" if ours else "pods outside Stoker"
    return f"{where} {are(1 if resource == 'memory' else some)} held by {who} ({listed(pods, 3)})"


def gpus_unusable(gone: Mapping[tuple[str, str], int]) -> str:
    """`gone`: (why, node) → how many."""
    text = f"{amount('gpus', sum(gone.values()))} can't be leased"
    most = sorted(gone.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} of {node}: {why}" for (why, node), count in most[:_NAMED_NODES]]
    return f"{text} ({'; '.join(parts)}{f' and {len(most) - _NAMED_NODES} more' if len(most) > _NAMED_NODES else ''})"


def gpus_of_unknown_model(count: int) -> str:
    return f"{amount('gpus', count)} of unknown model: without labels of GPU Feature Discovery"


def gpus_of_unknown_capability(count: int) -> str:
    return f"{amount('gpus', count)} of unknown compute capability"


def gpus_of_unknown_power(count: int) -> str:
    return f"{amount('gpus', count)} whose power limit no exporter has reported"


def offered_nowhere(resource: str) -> str:
    return f"no node that it may use offers {resource}"


def all_on_one() -> str:
    return "each needs all of that on one node"


def avoided(nodes: Sequence[str]) -> str:
    return f"{listed(nodes, 3)} avoided for now"


# -- suggested changes


def would_start(change: Change, value: Value, request: Request, *, queue: str | None = None) -> str:
    """With a change of the job's spec or of a limit."""
    match change:
        case Change.QUEUE:
            return f"in queue '{value}' it would start now"
        case Change.GPUS_PER_WORKER:
            what = f"gpusPerWorker: {value} instead of {request.gpus}"
        case Change.WORKERS:
            what = f"workers: {value} instead of {request.workers}"
        case Change.ELASTIC_MIN:
            what = f"elastic.min: {value} instead of {request.workers}"
        case Change.CPU:
            what = f"cpu: {value} instead of {format_cpu(request.cpu)}"
        case Change.MEMORY:
            what = f"memory: {value} instead of {format_bytes(request.memory)}"
        case Change.TOPOLOGY:
            what = "topology.preferred instead of topology.required"
        case Change.GPU:
            what = "any GPU (nothing in gpu)"
        case Change.SPEC if isinstance(value, dict):
            what = " and ".join(f"{field}: {some}" for field, some in value.items())
        case Change.LIMIT_GPUS | Change.LIMIT_CPU | Change.LIMIT_MEMORY:
            what = f"{change.removeprefix('queue.')}: {value} in queue '{queue}'"
        case Change.LIMIT_GPU_TYPES if isinstance(value, dict):
            [(gpu_type, count)] = value.items()
            what = f"limit.gpuTypes.{gpu_type}: {count} in queue '{queue}'"
        case _:
            raise ValueError(change)
    return f"with {what} it would start now"


def would_start_once(change: Change, names: Sequence[str], nodes: Sequence[str]) -> str:
    """After a change of the cluster. `names`: what is changed; `nodes`: where."""
    some, is_ = listed(names, 3), are(len(names))
    if change is Change.DELETE_PODS:
        what = f"{'pod' if len(names) == 1 else 'pods'} {some} on {listed(nodes, 3)} {is_} gone"
    else:
        what = f"{some} {is_} {'uncordoned' if change is Change.UNCORDON else 'ready again'}"
    return f"once {what} it would start now"


def would_start_at(nodes: Sequence[str], at: datetime, now: datetime) -> str:
    """`nodes`: those that are avoided until then; none: it is the back-off that ends."""
    what = f"{listed(nodes, 3)} {are(len(nodes))} no longer avoided" if nodes else "the back-off ends"
    in_s = format_duration((at - now).total_seconds())
    return f"once {what} at {clock(at)} (in {in_s}) it would start, if nothing else changes"


def _titled(queue: str, leaf: str) -> str:
    return f"queue '{queue}'" + (f", above '{leaf}'," if queue != leaf else "")


def _kind(request: Request) -> str:
    kind = str(request.filter)
    return f" {kind}" if kind else ""


def _hours(gpu_s: float) -> str:
    return f"{gpu_s / 3600:.3g} GPU-hours"
