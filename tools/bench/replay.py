"""What waiting and idling the scheduler's rules cost: its decisions replayed on a trace, or on gangs among small jobs.

    python -m tools.bench.replay trace philly.csv           80 x 8 GPUs; columns timestamp, duration, num_gpus, cluster
    python -m tools.bench.replay gangs                      gangs under 1-GPU jobs that never run out, 10 x 8 GPUs, 50 h

Time is the trace's: decide runs at every submit, end and `wake_at`, as the operator runs it but without its delays.
Jobs run as long as the trace says, are never preempted and never fail; those without GPUs are left out. Owns nothing
but the measurement; used by people.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from stoker.sched.decide import decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.queue import Queue, QueueSpec
from tools.bench.sched import TRAINER, nodes

T0 = datetime(2026, 1, 1, tzinfo=UTC)
PER_NODE = 8
AFTER_S = 300.0


@dataclass(frozen=True)
class Work:
    """One job of a trace. Units: seconds."""

    at_s: float
    ran_s: float
    gpus: int
    queue: str = "small"


@dataclass
class Replay:
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By size, of the jobs that started."""
    busy_gpu_s: float = 0.0
    decides: int = 0
    cpu_s: float = 0.0


def replay(work: Iterable[Work], node_count: int, budget: float | None, until_s: float = float("inf")) -> Replay:
    """`budget`: every queue's reservationBudget; None: reservations are off. The work must be sorted by `at_s`."""
    state, found, number = SchedulerState(), Replay(), count()
    for node in nodes(node_count):
        state.observe_node(node)
    jobs: dict[Key, tuple[Work, TrainingJob]] = {}
    queues: set[str] = set()
    ends: list[tuple[float, Key]] = []
    arriving = iter(work)
    following = next(arriving, None)
    wake_s = float("inf")
    spec = QueueSpec() if budget is None else QueueSpec.model_validate({"reservationBudget": budget})
    while True:
        now_s = min(following.at_s if following else float("inf"), ends[0][0] if ends else float("inf"), wake_s)
        if now_s >= until_s or (following is None and not ends):
            return found
        while following is not None and following.at_s <= now_s:
            if following.queue not in queues:
                queues.add(following.queue)
                state.observe_queue(Queue(metadata=ObjectMeta(name=following.queue), spec=spec))
            new = job(next(number), following)
            jobs[new.key] = (following, new)
            state.observe_job(new)
            following = next(arriving, None)
        while ends and ends[0][0] <= now_s:
            key = heapq.heappop(ends)[1]
            del jobs[key]
            state.forget_job(key)
        begun, now = time.process_time(), T0 + timedelta(seconds=now_s)
        decisions = decide(state, now, reserve_after_s=AFTER_S if budget is not None else 1e9)
        found.cpu_s += time.process_time() - begun
        found.decides += 1
        for start in decisions.starts:
            one, old = jobs[start.key]
            found.waits_s[size(one.gpus)].append(now_s - one.at_s)
            found.busy_gpu_s += one.gpus * (min(now_s + one.ran_s, until_s) - now_s)
            running = {"phase": Phase.RUNNING, "placement": start.placement, "started_at": now}
            meta = old.metadata.model_copy(update={"resource_version": "2"})
            jobs[start.key] = (
                one,
                old.model_copy(update={"metadata": meta, "status": old.status.model_copy(update=running)}),
            )
            state.observe_job(jobs[start.key][1])
            heapq.heappush(ends, (now_s + one.ran_s, start.key))
        wake_s = float("inf") if decisions.wake_at is None else (decisions.wake_at - T0).total_seconds()


def job(number: int, work: Work) -> TrainingJob:
    workers = -(-work.gpus // PER_NODE)
    return TrainingJob(
        metadata=ObjectMeta(name=f"j{number}", namespace="p", uid=f"u{number}", resource_version="1"),
        spec=TrainingJobSpec.model_construct(
            queue=work.queue,
            workers=workers,
            gpus_per_worker=min(work.gpus, PER_NODE),
            trainer=TRAINER,
        ),
        status=TrainingJobStatus(queued_at=T0 + timedelta(seconds=work.at_s)),
    )


def size(gpus: int) -> str:
    return f"{gpus}" if gpus < PER_NODE else f"{PER_NODE * -(-gpus // PER_NODE)}"


def trace(path: Path) -> list[Work]:
    with path.open() as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["num_gpus"]) > 0]
    at = {row["timestamp"]: datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC) for row in rows}
    begin = min(at.values())
    found = [
        Work(
            (at[row["timestamp"]] - begin).total_seconds(), float(row["duration"]), int(row["num_gpus"]), row["cluster"]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    replayed = commands.add_parser("trace")
    replayed.add_argument("path", type=Path)
    replayed.add_argument("--nodes", type=int, default=80)
    replayed.add_argument("--first", type=int, help="only so many jobs")
    among = commands.add_parser("gangs")
    among.add_argument("--seeds", type=int, default=3)
    for command in (replayed, among):
        command.add_argument(
            "--budget", type=float, nargs="+", default=[0.25], help="reservationBudget; below 0: reservations are off"
        )
    options = parser.parse_args()
    for given in options.budget:
        budget = None if given < 0 else given
        print(f"reservationBudget {'(off)' if budget is None else f'{budget:g}'}")
        if options.command == "trace":
            show(replay(trace(options.path)[: options.first], options.nodes, budget))
        else:
            for heavy in (True, False):
                for gpus in (80, 32, 8):
                    among_small(gpus, heavy, budget, options.seeds)
    return 0


def show(found: Replay) -> None:
    every = [wait for waits in found.waits_s.values() for wait in waits]
    print(f"  {len(every)} jobs, mean wait {statistics.mean(every) / 3600:.2f} h; ", end="")
    print(f"{found.decides} decides, {found.cpu_s:.1f} s CPU, {found.cpu_s / found.decides * 1e3:.2f} ms each")
    for name, waits in sorted(found.waits_s.items(), key=lambda item: int(item[0])):
        waits.sort()
        mean, p99 = statistics.mean(waits), waits[int(len(waits) * 0.99)]
        print(f"  {name:>4} GPUs: {len(waits):6} jobs, mean {mean / 3600:7.2f} h, p99 {p99 / 3600:7.1f} h")


def among_small(gpus: int, heavy: bool, budget: float | None, seeds: int) -> None:
    until_s, shares, starts = 50 * 3600.0, [], []
    for seed in range(seeds):
        found = replay(gangs(gpus, heavy, seed), 10, budget, until_s)
        shares.append(found.busy_gpu_s / (80 * until_s))
        started = found.waits_s.get(size(gpus))
        starts.append("never" if not started else f"{started[0] / 3600:.1f} h")
    kind = "heavy-tailed" if heavy else "exponential"
    use = ", ".join(f"{share:.0%}" for share in shares)
    print(f"  {gpus:3} GPUs, {kind:12}: use {use}; the gang starts after {', '.join(starts)}")


if __name__ == "__main__":
    sys.exit(main())
