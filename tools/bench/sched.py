"""What deciding costs, and whether that stays flat as the queue grows. Run: python -m tools.bench.sched

Owns nothing but the measurement; used by people. Medians of CPU time. Three mixes of requests on nodes with 8 GPUs:

  classes     ten classes of jobs over two queues
  openb       the request tuples of Alibaba's trace openb_pod_list_default.csv (--openb FILE) over 12 queues, half of
              them with a limit
  own         nearly every job a class of its own, over 30 queues with limits and three priorities

First `drain`: all GPUs free, the whole backlog pending, one decide fills the cluster. Then, with every GPU taken and
the backlog filled up again:

  idle        decide with nothing changed
  one freed   a job of 1 GPU ends; decide starts the next in order (the decide alone)
  turnover    the same with what the operator feeds: end observed, decide, start observed
  submit      one more job observed, decide finds no room for it; of a known class, and of a new one
  node        one node observed with another size, decide
  aged        one freed, when every waiting head has waited long enough to reserve nodes
  why         `stoker why` of a job that waits, hints tried
  fork        a copy of the whole state
  bytes       memory of a waiting job in the state, beside the cached object
"""

from __future__ import annotations

import argparse
import csv
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from stoker.sched.decide import Start, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import Gpu, GPUNode, GPUNodeStatus
from stoker.spec.queue import Queue, QueueResources, QueueSpec
from stoker.why.explain import explain
from tools.bench.record import record

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
# (gpus per worker, workers): mostly small, as in the Philly trace (reference/schedulers.md section 3).
CLASSES = [(1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 16), (4, 2)]
TRAINER = Trainer(command=("true",))


@dataclass(frozen=True)
class Shape:
    """What one job asks for. Units: cores' thousandths, MiB."""

    gpus: int
    workers: int = 1
    cpu: int = 8000
    memory: int = 32 * 1024
    priority: int = 0


@dataclass(frozen=True)
class Mix:
    queues: int
    limited: Callable[[int], bool]
    """Whether the queue of that number has a limit: a fifth of the cluster."""
    shape: Callable[[int], Shape]
    """Of the i-th job."""

    @classmethod
    def named(cls, name: str, openb: Path | None) -> Mix:
        rng = random.Random(7)
        if name == "classes":
            return cls(2, lambda i: False, lambda i: Shape(*CLASSES[i % len(CLASSES)]))
        if name == "own":
            return cls(30, lambda i: True, lambda i: own_shape(rng))
        assert openb is not None
        with openb.open() as lines:
            rows = list(csv.DictReader(lines))
        # A pod is one worker; its cores may be more than a node's, its share of a GPU counts as one.
        tuples = [Shape(int(r["num_gpu"]), 1, min(int(r["cpu_milli"]), 96_000), int(r["memory_mib"])) for r in rows]
        return cls(12, lambda i: i % 2 == 0, lambda i: rng.choice(tuples))


def own_shape(rng: random.Random) -> Shape:
    gpus, workers = rng.choice(CLASSES)
    return Shape(gpus, workers, rng.randrange(100, 8000), rng.randrange(1024, 32 * 1024), rng.choice([0, 0, 1, 2]))


def nodes(count: int) -> list[GPUNode]:
    return [
        GPUNode(
            metadata=ObjectMeta(name=f"node-{i:05}"),
            status=GPUNodeStatus(
                ready=True,
                cpu_milli=128_000,
                memory_bytes=2**40,
                gpus=tuple(
                    Gpu(uuid=f"{i}-{g}", index=g, model="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30)
                    for g in range(8)
                ),
            ),
        )
        for i in range(count)
    ]


def job(i: int, shape: Shape, queues: int) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name=f"job-{i}", namespace="p", uid=f"u{i}", resource_version="1"),
        spec=TrainingJobSpec(
            queue=f"q{i % queues}",
            gpus_per_worker=shape.gpus,
            workers=shape.workers,
            cpu=f"{shape.cpu}m",
            memory=f"{shape.memory}Mi",
            priority=shape.priority,
            trainer=TRAINER,
        ),
        status=TrainingJobStatus(queued_at=T0 + timedelta(milliseconds=i)),
    )


def timed(what: Callable[[], object]) -> float:
    """Units: microseconds of CPU."""
    begun = time.process_time()
    what()
    return (time.process_time() - begun) * 1e6


class Bench:
    def __init__(self, mix: Mix, pending: int, node_count: int, rounds: int) -> None:
        self.mix, self.pending, self.rounds, self.now = mix, pending, rounds, T0 + timedelta(seconds=200)
        self.state = SchedulerState()
        for i in range(mix.queues):
            limit = QueueResources(gpus=node_count * 8 // 5) if mix.limited(i) else QueueResources()
            self.state.observe_queue(Queue(metadata=ObjectMeta(name=f"q{i}"), spec=QueueSpec(limit=limit)))
        self.jobs: dict[Key, TrainingJob] = {}
        self.next = 0
        self.nodes = nodes(node_count)
        for node in self.nodes:
            self.state.observe_node(node)
        begun = time.process_time()
        for _ in range(pending):
            self.submit()
        self.observe_us = (time.process_time() - begun) / pending * 1e6

    def submit(self, shape: Shape | None = None) -> None:
        new = job(self.next, shape or self.mix.shape(self.next), self.mix.queues)
        self.next += 1
        self.jobs[new.key] = new
        self.state.observe_job(new)

    def decide(self) -> tuple[Start, ...]:
        return decide(self.state, self.now).starts

    def started(self, start: Start) -> None:
        self._become(start.key, "2", phase=Phase.RUNNING, placement=start.placement, gpu_type=start.gpu_type)

    def end(self, key: Key) -> None:
        self._become(key, "3", phase=Phase.SUCCEEDED, placement=())

    def _become(self, key: Key, version: str, **status: object) -> None:
        old = self.jobs[key]
        meta = old.metadata.model_copy(update={"resource_version": version})
        new = old.model_copy(update={"metadata": meta, "status": old.status.model_copy(update=status)})
        self.jobs[key] = new
        self.state.observe_job(new)

    def run(self) -> dict[str, float]:
        starts: tuple[Start, ...] = ()

        def drain() -> None:
            nonlocal starts
            starts = self.decide()

        drain_us = timed(drain)
        for start in starts:
            self.started(start)
        self._fill()
        while self._waiting() < self.pending:
            self.submit()
        self.decide()
        singles = [
            key for key, entry in self.state.entries.items() if entry.workers_on and entry.request.totals.gpus == 1
        ]
        random.Random(1).shuffle(singles)
        figures = {
            "bytes_per_job": bytes_per_job(self.mix),
            "pending": float(self._waiting()),
            "lanes": float(sum(len(queue.lanes) for queue in self.state.queues.values())),
            "running": float(sum(len(queue.holding) for queue in self.state.queues.values())),
            "observe_us": self.observe_us,
            "drain_us_per_start": drain_us / max(len(starts), 1),
            "idle_us": statistics.median(timed(self.decide) for _ in range(self.rounds)),
        }
        figures |= self._turnover("one_freed", singles)
        known = [self.mix.shape(self.next) for _ in range(self.rounds)]
        figures["submit_us"] = self._submits(known)
        figures["submit_new_us"] = self._submits([Shape(8, 2, 3000 + i, 999) for i in range(min(self.rounds, 50))])
        figures["node_us"] = statistics.median(timed(partial(self._resize, i)) for i in range(min(self.rounds, 50)))
        figures["why_ms"] = self._why()
        figures["fork_ms"] = timed(self.state.fork) / 1e3
        self.now += timedelta(hours=1)
        self.decide()
        figures |= self._turnover("aged", singles)
        figures["aged_why_ms"] = self._why()
        return figures

    def _waiting(self) -> int:
        return sum(len(queue.pending) for queue in self.state.queues.values())

    def _fill(self) -> None:
        """Small jobs fill what the backlog left, so that what ends is 1 GPU each."""
        while True:
            for _ in range(max(int(self.state.nodes.free_gpu.sum()), self.mix.queues)):
                self.submit(Shape(1, cpu=100, memory=256))
            starts = self.decide()
            for start in starts:
                self.started(start)
            if not starts:
                return

    def _why(self) -> float:
        waiting = [key for queue in self.state.queues.values() for key in list(queue.pending)[-1:]][:5]
        return statistics.median(timed(partial(explain, self.state, key, self.now)) for key in waiting) / 1e3

    def _turnover(self, name: str, singles: list[Key]) -> dict[str, float]:
        decides, whole, count = [], [], 0
        for _ in range(min(self.rounds, len(singles))):
            key = singles.pop()
            starts: tuple[Start, ...] = ()
            begun = time.process_time()
            self.end(key)
            at = time.process_time()
            starts = self.decide()
            decides.append((time.process_time() - at) * 1e6)
            for start in starts:
                self.started(start)
                count += 1
            whole.append((time.process_time() - begun) * 1e6)
            for start in starts:
                if self.state.entries[start.key].request.totals.gpus == 1:
                    singles.insert(0, start.key)
                self.submit()  # the backlog stays as long as it was
            self.decide()
        decides.sort()
        return {
            f"{name}_us": statistics.median(decides),
            f"{name}_p99_us": decides[int(len(decides) * 0.99)],
            f"{name}_turnover_us": statistics.median(whole),
            f"{name}_starts": float(count),
        }

    def _submits(self, shapes: list[Shape]) -> float:
        def submit(shape: Shape) -> None:
            self.submit(shape)
            self.decide()

        return statistics.median(timed(partial(submit, shape)) for shape in shapes)

    def _resize(self, i: int) -> None:
        old = self.nodes[i % len(self.nodes)]
        status = old.status.model_copy(update={"memory_bytes": old.status.memory_bytes - i - 1})
        self.state.observe_node(old.model_copy(update={"status": status}))
        self.decide()


def bytes_per_job(mix: Mix, count: int = 10_000) -> float:
    """Memory of a waiting job in the state, beside the cached object."""
    state, jobs = SchedulerState(), [job(i, mix.shape(i), mix.queues) for i in range(count)]
    for i in range(mix.queues):
        state.observe_queue(Queue(metadata=ObjectMeta(name=f"q{i}")))
    tracemalloc.start()
    for one in jobs:
        state.observe_job(one)
    decide(state, T0)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000])
    parser.add_argument("--mix", nargs="+", choices=["classes", "openb", "own"], default=["classes", "openb", "own"])
    parser.add_argument("--openb", type=Path, help="openb_pod_list_default.csv of alibaba/clusterdata")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    for mix in options.mix:
        if mix == "openb" and options.openb is None:
            print("mix openb left out: it needs --openb FILE")
            continue
        for node_count in options.nodes:
            found: list[dict[str, float]] = []
            for pending in options.pending:
                gc.collect()
                found.append(Bench(Mix.named(mix, options.openb), pending, node_count, options.rounds).run())
                record(mix=mix, nodes=node_count, submitted=pending, **found[-1])
            print(f"\nmix {mix}, {node_count} nodes x 8 GPUs, median of {options.rounds}")
            for name in found[-1]:
                print(f"{name:24}" + "".join(f"{one.get(name, float('nan')):>14,.1f}" for one in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
