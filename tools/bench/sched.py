"""What deciding costs, and whether that stays flat as the queue grows. Run: python -m tools.bench.sched [--json FILE]

Owns nothing but the measurement; used by people. A cluster of 1,250 nodes with 8 GPUs (10,000 GPUs), ten classes of
jobs over two queues. First `drain`: all GPUs free, the whole backlog pending, one decide fills the cluster. Then, with
every GPU taken and the backlog filled up again:

  idle        decide with nothing changed
  one freed   a job of 1 GPU ends; decide starts the next in order (the decide alone)
  turnover    the same with what the operator feeds: end observed, decide, start observed
  submit      one more job observed, decide finds no room for it
  aged        one freed, when every waiting head has waited long enough to reserve nodes
  explain     `stoker why` of a job that waits, hints tried
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from stoker.sched.decide import Start, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import Gpu, GPUNode, GPUNodeStatus
from stoker.spec.queue import Queue
from stoker.why.explain import explain

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
# (gpus per worker, workers): mostly small, as in the Philly trace (reference/schedulers.md section 3).
CLASSES = [(1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 16), (4, 2)]
TRAINER = Trainer(command=("true",))


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


def job(i: int, shape: tuple[int, int] | None = None) -> TrainingJob:
    gpus, workers = shape or CLASSES[i % len(CLASSES)]
    return TrainingJob(
        metadata=ObjectMeta(name=f"job-{i}", namespace="p", uid=f"u{i}", resource_version="1"),
        spec=TrainingJobSpec(
            queue=f"q{i % 2}", gpus_per_worker=gpus, workers=workers, cpu="8", memory="32Gi", trainer=TRAINER
        ),
        status=TrainingJobStatus(queued_at=T0 + timedelta(milliseconds=i)),
    )


def timed(what: Callable[[], object]) -> float:
    """Units: microseconds."""
    begun = time.perf_counter()
    what()
    return (time.perf_counter() - begun) * 1e6


class Bench:
    def __init__(self, pending: int, node_count: int, rounds: int) -> None:
        self.pending, self.rounds, self.now = pending, rounds, T0 + timedelta(seconds=200)
        self.state = SchedulerState()
        for name in ("q0", "q1"):
            self.state.observe_queue(Queue(metadata=ObjectMeta(name=name)))
        self.jobs: dict[Key, TrainingJob] = {}
        self.next = 0
        for node in nodes(node_count):
            self.state.observe_node(node)
        begun = time.perf_counter()
        for _ in range(pending):
            self.submit(job(self.next))
        self.observe_us = (time.perf_counter() - begun) / pending * 1e6

    def submit(self, new: TrainingJob) -> None:
        self.next += 1
        self.jobs[new.key] = new
        self.state.observe_job(new)

    def decide(self) -> tuple[Start, ...]:
        return decide(self.state, self.now).starts

    def started(self, start: Start) -> None:
        self._become(start.key, "2", phase=Phase.RUNNING, placement=start.placement)

    def end(self, key: Key) -> None:
        self._become(key, "3", phase=Phase.SUCCEEDED, placement=())

    def _become(self, key: Key, version: str, **status: object) -> None:
        old = self.jobs[key]
        meta = old.metadata.model_copy(update={"resource_version": version})
        new = old.model_copy(update={"metadata": meta, "status": old.status.model_copy(update=status)})
        self.jobs[key] = new
        self.state.observe_job(new)

    def run(self) -> dict[str, float]:
        begun = time.perf_counter()
        starts = self.decide()
        drain = time.perf_counter() - begun
        for start in starts:
            self.started(start)
        # Small jobs fill what the backlog left, so that what ends below is 1 GPU each.
        while (free := int(self.state.nodes.free_gpu.sum())) > 0:
            for _ in range(free):
                self.submit(job(self.next, (1, 1)))
            for start in self.decide():
                self.started(start)
        while sum(len(queue.pending) for queue in self.state.queues.values()) < self.pending:
            self.submit(job(self.next))
        self.decide()
        singles = [
            key for key, entry in self.state.entries.items() if entry.workers_on and entry.request.totals.gpus == 1
        ]
        figures = {
            "pending": float(sum(len(queue.pending) for queue in self.state.queues.values())),
            "running": float(sum(queue.running for queue in self.state.queues.values())),
            "observe_us": self.observe_us,
            "drain_starts": float(len(starts)),
            "drain_ms": drain * 1e3,
            "drain_us_per_start": drain / max(len(starts), 1) * 1e6,
            "idle_us": statistics.median(timed(self.decide) for _ in range(self.rounds)),
        }
        figures |= self._turnover("one_freed", singles)
        figures |= self._submits()
        waiting = next(iter(self.state.queues["q0"].pending), None)
        if waiting is not None:
            figures["explain_ms"] = (
                statistics.median(timed(lambda: explain(self.state, waiting, self.now)) for _ in range(5)) / 1e3
            )
        self.now += timedelta(hours=1)
        self.decide()
        figures |= self._turnover("aged", singles)
        return figures

    def _turnover(self, name: str, singles: list[Key]) -> dict[str, float]:
        decides, whole, count = [], [], 0
        for _ in range(self.rounds):
            if not singles:
                break  # what was freed is kept for the gangs ahead
            key = singles.pop()
            begun = time.perf_counter()
            self.end(key)
            at = time.perf_counter()
            starts = self.decide()
            decides.append((time.perf_counter() - at) * 1e6)
            for start in starts:
                self.started(start)
                count += 1
            whole.append((time.perf_counter() - begun) * 1e6)
            for start in starts:
                if self.state.entries[start.key].request.totals.gpus == 1:
                    singles.insert(0, start.key)
                self.submit(job(self.next, (1, 1)))  # the backlog stays as long as it was
        decides.sort()
        return {
            f"{name}_us": statistics.median(decides),
            f"{name}_p99_us": decides[int(len(decides) * 0.99)],
            f"{name}_turnover_us": statistics.median(whole),
            f"{name}_starts": float(count),
        }

    def _submits(self) -> dict[str, float]:
        costs = []
        for _ in range(self.rounds):
            new = job(self.next)
            costs.append(timed(lambda new=new: (self.submit(new), self.decide())))  # type: ignore[misc]
        return {"submit_us": statistics.median(costs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--nodes", type=int, default=1_250)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    results = []
    for pending in options.pending:
        gc.collect()
        results.append({"submitted": pending, **Bench(pending, options.nodes, options.rounds).run()})
    names = list(results[-1])
    print(f"{options.nodes} nodes x 8 GPUs, {len(CLASSES)} classes, 2 queues, median of {options.rounds}")
    for name in names:
        print(f"{name:24}" + "".join(f"{result.get(name, float('nan')):>14,.1f}" for result in results))
    if options.json:
        report = {
            "machine": {"cpu": cpu_name(), "system": platform.platform()},
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
            "command": ["python", *sys.argv],
            "nodes": options.nodes,
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    sys.exit(main())
