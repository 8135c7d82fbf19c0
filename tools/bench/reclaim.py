"""What reclaiming a whole cluster costs the scheduler. Run: python -m tools.bench.reclaim

KAI's shape (its PR 2204): 500 nodes x 8 GPUs, 4,000 running 1-GPU jobs of one queue, and 4,000 pending ones of a queue
to which all GPUs are guaranteed. CPU time of the decide calls alone:

  claims     the decides, each as long as the operator lets it be, that find victims for all of them; the longest
  starts     the decides while the victims end, `--batch` at a time (64), and each claimant starts in its room

Also with jobs of 8 GPUs that reclaim from jobs of 1. Owns nothing but the measurement; used by people.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from datetime import timedelta

from stoker.controller.decided_writes import AT_ONCE
from stoker.process import keep_loaded
from stoker.sched.decide import Decisions, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, Placed, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.queue import Queue, QueueResources, QueueSpec
from tools.bench.record import record
from tools.bench.sched import T0, Shape, job, nodes

PER_NODE = 8


class Reclaim:
    def __init__(self, node_count: int, gpus: int) -> None:
        """`gpus`: of each claimant."""
        self.state, self.now, rng = SchedulerState(), T0 + timedelta(hours=10), random.Random(1)
        self.decide_s, self.longest_s, count = 0.0, 0.0, node_count * PER_NODE
        self.gpus, self.wanted = gpus, count // gpus
        owned = QueueSpec(guarantee=QueueResources(gpus=count))
        self.state.observe_queue(Queue(metadata=ObjectMeta(name="owner"), spec=owned))
        self.state.observe_queue(Queue(metadata=ObjectMeta(name="borrower")))
        table = nodes(node_count)
        for node in table:
            self.state.observe_node(node)
        self.jobs: dict[Key, TrainingJob] = {}
        for i in range(count):
            on = (Placed(worker=0, node=table[i // PER_NODE].metadata.name),)
            began = T0 + timedelta(seconds=rng.randrange(30_000))
            running = {"phase": Phase.RUNNING, "attempt": 1, "placement": on, "started_at": began, "placed_at": began}
            self._put(job(i, Shape(1, cpu=1000, memory=1024), 1), "borrower", running)
        self.decide()
        for i in range(self.wanted):
            self._put(job(count + i, Shape(gpus, cpu=1000, memory=1024), 1), "owner", {})

    def _put(self, new: TrainingJob, queue: str, status: Mapping[str, object], version: int = 1) -> None:
        meta = new.metadata.model_copy(update={"resource_version": str(version)})
        spec = new.spec.model_copy(update={"queue": queue})
        new = TrainingJob(metadata=meta, spec=spec, status=new.status.model_copy(update=status))
        self.jobs[new.key] = new
        self.state.observe_job(new)

    def decide(self) -> Decisions:
        begun = time.process_time()
        decided = decide(self.state, self.now, most=AT_ONCE)
        took_s = time.process_time() - begun
        self.decide_s, self.longest_s = self.decide_s + took_s, max(self.longest_s, took_s)
        return decided

    def run(self, batch: int) -> dict[str, float]:
        keep_loaded()  # as the operator does
        self.decide_s = self.longest_s = 0.0
        decided = self.decide()
        changes = list(decided.claims)
        while decided.is_cut_short:
            decided = self.decide()
            changes += decided.claims
        claims_s, longest_s, victims = self.decide_s, self.longest_s, []
        for change in changes:
            if change.claim is not None:
                victims += [one.key for one in change.claim.victims]
                self._put(self.jobs[change.key], "owner", {"claim": change.claim}, 2)
        started, self.decide_s = 0, 0.0
        for at in range(0, len(victims), batch):
            for key in victims[at : at + batch]:
                gone = {"phase": Phase.QUEUED, "placement": (), "started_at": None, "placed_at": None}
                self._put(self.jobs[key], "borrower", gone, 3)
            for start in self.decide().starts:
                assert start.key in self.jobs and self.jobs[start.key].spec.queue == "owner"
                running = {
                    "phase": Phase.RUNNING,
                    "attempt": 1,
                    "placement": start.placement,
                    "gpu_type": start.gpu_type,
                    "claim": None,
                }
                self._put(self.jobs[start.key], "owner", running, 4)
                started += 1
        return {
            "claims": float(len(changes)),
            "victims": float(len(victims)),
            "least_victims": float(self.wanted * self.gpus),
            "started": float(started),
            "claims_ms": claims_s * 1e3,
            "longest_ms": longest_s * 1e3,
            "starts_ms": self.decide_s * 1e3,
            "us_each": (claims_s + self.decide_s) * 1e6 / max(len(changes), 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[125, 500])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8], help="of each claimant")
    parser.add_argument("--batch", type=int, default=64, help="victims that end between two decides")
    options = parser.parse_args()
    for gpus in options.gpus:
        first_us = 0.0
        for node_count in options.nodes:
            found = {"nodes": node_count, "gpus": gpus, **Reclaim(node_count, gpus).run(options.batch)}
            first_us = first_us or found["us_each"]
            found["each_against_first_ratio"] = found["us_each"] / first_us
            print("  ".join(f"{name} {value:,.4g}" for name, value in found.items()), flush=True)
            record(**found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
