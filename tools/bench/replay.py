"""What waiting and idling the scheduler's rules cost: its decisions replayed on a trace, or on gangs among small jobs.

    python -m tools.bench.replay trace philly.csv           80 x 8 GPUs; columns timestamp, duration, num_gpus, cluster
    python -m tools.bench.replay gangs                      gangs under 1-GPU jobs that never run out, 10 x 8 GPUs, 50 h
    python -m tools.bench.replay gangs --guaranteed         the same where jobs are stopped for the gang
    python -m tools.bench.replay kueue                      Kueue's own configurations (`kueue`), against their bounds

`--order`, each in turn: fifo; las (discipline `las`); skip (fifo without reservations: who does not fit is passed);
sjf (the same in order of run times, which are not known beforehand). `--queues one` puts the trace's queues into one.

Time is the trace's: decide runs at every submit, end and `wake_at`, as the operator runs it but without its delays.
Jobs run as long as the trace says and never fail; those without GPUs are left out. A job that is preempted stops at
once, and has 120 s more to run (`--lost`). Delay is end - submit - run time: what was lost counts as waiting. Owns
nothing but the measurement; used by people.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from pathlib import Path

from stoker.process import keep_loaded
from stoker.sched.decide import decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob, TrainingJobSpec
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import GPUNode
from stoker.spec.queue import Queue, QueueResources, QueueSpec
from stoker.spec.worker import Checkpoint, Progress
from tools.bench import kueue
from tools.bench.record import record
from tools.bench.sched import TRAINER, nodes

T0 = datetime(2026, 1, 1, tzinfo=UTC)
PER_NODE = 8
AFTER_S = 300.0
ALWAYS_SAVED = Progress(at=0, checkpoint=Checkpoint(step=1, at=4e9))
"""So that what a preemption loses is what starting again costs."""


@dataclass(frozen=True)
class Work:
    """One job of a trace. Units: seconds."""

    at_s: float
    ran_s: float
    gpus: int
    queue: str = "small"
    priority: int = 0
    spec: TrainingJobSpec | None = None
    """Instead of what follows from the above."""


@dataclass
class Order:
    """How a queue is run."""

    spec: QueueSpec
    reserve_after_s: float = AFTER_S
    queues: Mapping[str, QueueSpec] = field(default_factory=dict)
    """Those that are there from the beginning; any other is made as `spec` says."""


@dataclass
class Replay:
    delays_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By size, of the jobs that ended."""
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By size, of the jobs that started: until they did."""
    busy_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    preemptions: int = 0
    decides: int = 0
    decide_s: float = 0.0
    """By the wall's clock."""
    cpu_s: float = 0.0
    """Of the whole replay."""
    ended_s: float = 0.0
    """When the last job had."""


@dataclass
class Live:
    """A job of a replay."""

    work: Work
    job: TrainingJob
    left_s: float
    began_s: float = 0.0
    attempt: int = 0


def replay(
    work: Iterable[Work],
    table: Iterable[GPUNode],
    order: Order,
    until_s: float = float("inf"),
    lost_s: float = 120.0,
    topology: Sequence[str] | None = None,
) -> Replay:
    """The work must be sorted by `at_s`. `lost_s`: infinite, if nothing is ever saved."""
    state, found, number = SchedulerState(topology), Replay(), count()
    for node in table:
        state.observe_node(node)
    jobs: dict[Key, Live] = {}
    queues = set(order.queues)
    for name, spec in order.queues.items():
        state.observe_queue(Queue(metadata=ObjectMeta(name=name), spec=spec))
    ends: list[tuple[float, Key, int]] = []
    arriving = iter(work)
    following = next(arriving, None)
    wake_s, started_at = float("inf"), time.process_time()

    def put(live: Live, **status: object) -> None:
        meta = live.job.metadata.model_copy(
            update={"resource_version": str(int(live.job.metadata.resource_version) + 1)}
        )
        status_then = live.job.status.model_copy(update=status)
        live.job = live.job.model_copy(update={"metadata": meta, "status": status_then})
        state.observe_job(live.job)

    while True:
        now_s = min(following.at_s if following else float("inf"), ends[0][0] if ends else float("inf"), wake_s)
        if now_s >= until_s or (following is None and not jobs):
            found.cpu_s = time.process_time() - started_at
            return found
        while following is not None and following.at_s <= now_s:
            if following.queue not in queues:
                queues.add(following.queue)
                state.observe_queue(Queue(metadata=ObjectMeta(name=following.queue), spec=order.spec))
            new = job(next(number), following)
            jobs[new.key] = Live(following, new, following.ran_s)
            state.observe_job(new)
            following = next(arriving, None)
        while ends and ends[0][0] <= now_s:
            _, key, attempt = heapq.heappop(ends)
            if key in jobs and jobs[key].attempt == attempt:
                one = jobs.pop(key).work
                found.delays_s[size(one)].append(now_s - one.at_s - one.ran_s)
                found.ended_s = now_s
                state.forget_job(key)
        begun, now = time.perf_counter(), T0 + timedelta(seconds=now_s)
        decisions = decide(state, now, reserve_after_s=order.reserve_after_s)
        found.decide_s += time.perf_counter() - begun  # the process's own clock is a system call, dearer than a decide
        found.decides += 1
        for start in decisions.starts:
            live = jobs[start.key]
            if not live.attempt:
                found.waits_s[size(live.work)].append(now_s - live.work.at_s)
            live.attempt, live.began_s = live.attempt + 1, now_s
            found.busy_gpu_s += live.work.gpus * (min(now_s + live.left_s, until_s) - now_s)
            put(
                live,
                phase=Phase.RUNNING,
                placement=start.placement,
                gpu_type=start.gpu_type,
                attempt=live.attempt,
                placed_at=now - timedelta(seconds=min(lost_s, AFTER_S)),
                started_at=now,
                progress=ALWAYS_SAVED if lost_s < float("inf") else None,
                claim=None,
            )
            heapq.heappush(ends, (now_s + live.left_s, start.key, live.attempt))
        wake_s = float("inf") if decisions.wake_at is None else (decisions.wake_at - T0).total_seconds()
        for change in decisions.claims:
            put(jobs[change.key], claim=change.claim)
            for victim in () if change.claim is None else change.claim.victims:
                live = jobs[victim.key]
                ran_s, gpus = now_s - live.began_s, live.work.gpus
                found.busy_gpu_s -= gpus * (min(live.began_s + live.left_s, until_s) - now_s)
                found.lost_gpu_s += gpus * min(lost_s, ran_s)
                found.preemptions += 1
                live.left_s -= ran_s - min(lost_s, ran_s)
                live.attempt += 1
                attained = live.job.status.attained_gpu_seconds + ran_s * gpus
                gone = {"phase": Phase.QUEUED, "placement": (), "placed_at": None, "started_at": None}
                put(live, **gone, attained_gpu_seconds=attained)
                wake_s = now_s


def job(number: int, work: Work) -> TrainingJob:
    """A copy of one that was checked, which costs half."""
    blank = _blank()
    meta = blank.metadata.model_copy(update={"name": f"j{number}", "uid": f"u{number}"})
    status = blank.status.model_copy(update={"queued_at": T0 + timedelta(seconds=work.at_s)})
    spec = work.spec or spec_of(work.queue, work.gpus, work.priority)
    return blank.model_copy(update={"metadata": meta, "spec": spec, "status": status})


@cache
def _blank() -> TrainingJob:
    meta = ObjectMeta(name="blank", namespace="p", resource_version="1")
    return TrainingJob(metadata=meta, spec=spec_of("all", 1, 0))


@cache
def spec_of(queue: str, gpus: int, priority: int) -> TrainingJobSpec:
    return TrainingJobSpec.model_construct(
        queue=queue,
        workers=-(-gpus // PER_NODE),
        gpus_per_worker=min(gpus, PER_NODE),
        priority=priority,
        cpu="1",
        memory="1Gi",
        trainer=TRAINER,
    )


def size(work: Work) -> str:
    """By which jobs are counted together: GPUs; of a job without any its cores."""
    if work.spec is not None:
        return f"{work.spec.workers} x {work.spec.cpu}"
    return f"{work.gpus}" if work.gpus < PER_NODE else f"{PER_NODE * -(-work.gpus // PER_NODE)}"


def trace(path: Path, one_queue: bool) -> list[Work]:
    with path.open() as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["num_gpus"]) > 0]
    at = {row["timestamp"]: datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC) for row in rows}
    begin = min(at.values())
    found = [
        Work(
            (at[row["timestamp"]] - begin).total_seconds(),
            float(row["duration"]),
            int(row["num_gpus"]),
            "all" if one_queue else row["cluster"],
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: one.at_s)


def gangs(gpus: int, heavy: bool, seed: int) -> Iterator[Work]:
    """A full backlog of 1-GPU jobs, a gang behind the first 200 of them."""
    rng = random.Random(seed)
    for i in count():
        if i == 200:
            yield Work(i, 3600.0, gpus, "gang")
        # Median 19 minutes and 90 % under 3.1 h, as in the Philly trace; or as long on average, without the tail.
        ran_s = rng.lognormvariate(7.04, 1.78) if heavy else rng.expovariate(1 / 5500)
        yield Work(float(i) if i < 200 else 200 + (i - 200) * 30.0, ran_s, 1)


def ordered(name: str, budget: float | None) -> Order:
    spec = QueueSpec.model_validate({"reservationBudget": budget, "discipline": "las" if name == "las" else "fifo"})
    return Order(spec, 1e9 if name in ("skip", "sjf") else AFTER_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    replayed = commands.add_parser("trace")
    replayed.add_argument("path", type=Path)
    replayed.add_argument("--nodes", type=int, default=80)
    replayed.add_argument("--first", type=int, help="only so many jobs")
    replayed.add_argument("--queues", choices=["trace", "one"], default="one")
    replayed.add_argument("--lost", type=float, default=120.0, help="seconds that a preemption costs its victim")
    among = commands.add_parser("gangs")
    among.add_argument("--seeds", type=int, default=3)
    among.add_argument("--guaranteed", action="store_true", help="the gang's GPUs, so that others are stopped for it")
    others = commands.add_parser("kueue")
    others.add_argument("shapes", nargs="*", choices=[*kueue.SHAPES, "all"], default="all")
    for command in (replayed, among):
        command.add_argument(
            "--budget", type=float, nargs="+", default=[None], help="reservationBudget, of fifo and las [a queue's own]"
        )
        command.add_argument("--order", nargs="+", choices=["fifo", "las", "skip", "sjf"], default=["fifo"])
    options = parser.parse_args()
    keep_loaded()  # as the operator does
    if options.command == "kueue":
        for name in kueue.SHAPES if "all" in options.shapes else options.shapes:
            against_bound(name, kueue.SHAPES[name])
        return 0
    for name in options.order:
        for budget in options.budget if name in ("fifo", "las") else (0.0,):
            order = ordered(name, budget)
            budget = order.spec.budget
            print(f"{name}" + (f", reservationBudget {budget:g}" if name in ("fifo", "las") else ""), flush=True)
            if options.command == "trace":
                work = trace(options.path, options.queues == "one")[: options.first]
                if name == "sjf":
                    work = [replace(one, priority=-round(one.ran_s)) for one in work]
                figures = summed(replay(work, nodes(options.nodes), order, lost_s=options.lost))
                show(figures)
                record(order=name, budget=budget, queues=options.queues, **figures)
            else:
                for heavy in (True, False):
                    for gpus in (80, 32, 8):
                        gang = QueueSpec(guarantee=QueueResources(gpus=gpus)) if options.guaranteed else order.spec
                        queued = replace(order, queues={"gang": gang})
                        figures = among_small(gpus, heavy, queued, options.seeds)
                        record(order=name, budget=budget, guaranteed=options.guaranteed, **figures)
    return 0


def summed(found: Replay) -> dict[str, object]:
    """Units: hours; GPU-hours lost as a share of those used."""
    every = [delay for delays in found.delays_s.values() for delay in delays]
    sizes = {}
    for name, delays in sorted(found.delays_s.items(), key=lambda item: int(item[0])):
        delays.sort()
        p99, worst = delays[int(len(delays) * 0.99)], delays[-1]
        hours = (statistics.mean(delays), p99, worst)
        sizes[name] = {"jobs": len(delays)} | dict(
            zip(("mean", "p99", "worst"), (s / 3600 for s in hours), strict=True)
        )
    return {
        "jobs": len(every),
        "mean": statistics.mean(every) / 3600,
        "median": statistics.median(every) / 3600,
        "lost": found.lost_gpu_s / found.busy_gpu_s,
        "preemptions": found.preemptions,
        "decides": found.decides,
        "decide_s": found.decide_s,
        "jobs_per_cpu_s": len(every) / found.cpu_s,
        "sizes": sizes,
    }


def show(found: dict[str, object]) -> None:
    print("  {jobs} jobs, delay: mean {mean:.2f} h, median {median:.2f} h; ".format(**found), end="")
    print("{preemptions} preemptions lost {lost:.2%} of the GPU-hours".format(**found))
    print("  {decides} decides, {decide_s:.1f} s of them; {jobs_per_cpu_s:,.0f} jobs per CPU second".format(**found))
    sizes = found["sizes"]
    assert isinstance(sizes, dict)
    for name, one in sizes.items():
        print(f"  {name:>4} GPUs: {one['jobs']:6} jobs, mean {one['mean']:7.2f} h, ", end="")
        print(f"p99 {one['p99']:7.1f} h, worst {one['worst']:7.1f} h", flush=True)


def among_small(gpus: int, heavy: bool, order: Order, seeds: int) -> dict[str, object]:
    until_s, shares, lost, starts = 50 * 3600.0, [], [], []
    for seed in range(seeds):
        found = replay(gangs(gpus, heavy, seed), nodes(10), order, until_s)
        shares.append(found.busy_gpu_s / (80 * until_s))
        lost.append(found.lost_gpu_s / (80 * until_s))
        started = found.waits_s.get(str(gpus)) if gpus > 1 else None
        starts.append(started[0] / 3600 if started else None)
    kind = "heavy-tailed" if heavy else "exponential"
    use = ", ".join(f"{share:.1%} ({gone:.2%} lost)" for share, gone in zip(shares, lost, strict=True))
    after = ", ".join("never" if start is None else f"{start:.1f} h" for start in starts)
    print(f"  {gpus:3} GPUs, {kind:12}: use {use}; the gang starts after {after}", flush=True)
    return {"gpus": gpus, "run_times": kind, "use": shares, "lost": lost, "started_h": starts}


def against_bound(name: str, shape: kueue.Shape) -> None:
    work = [Work(at_s, kind.run_s, 0, queue, kind.priority, kind.spec(queue)) for at_s, queue, kind in shape.work()]
    order = Order(QueueSpec(), queues=shape.queues())
    found = replay(work, shape.nodes(), order, lost_s=float("inf"), topology=shape.levels)
    waits = {size: statistics.mean(times) for size, times in found.waits_s.items()}
    print(
        f"{name}: {len(work)} jobs end after {found.ended_s:.1f} s, {found.ended_s / shape.bound_s:.2f} x the bound; "
        f"{found.preemptions} preemptions, {found.decide_s * 1e3 / len(work):.2f} ms of decides a job; mean wait "
        + ", ".join(f"{size} {wait_s:.1f} s" for size, wait_s in waits.items()),
        flush=True,
    )
    record(
        shape=name,
        jobs=len(work),
        ended_s=found.ended_s,
        bound_s=shape.bound_s,
        bound_ratio=found.ended_s / shape.bound_s,
        preemptions=found.preemptions,
        decide_ms_per_job=found.decide_s * 1e3 / len(work),
        mean_wait_s=waits,
    )


if __name__ == "__main__":
    sys.exit(main())
