"""Preemption over time: no GPU twice, no room stolen, and the same from the objects alone."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.reservations import RESERVE_AFTER_S
from stoker.sched.running import _FLOATS, _INTS, _PRODUCTS, RunningJobs
from stoker.spec.job import ENDED, AttemptEnd, Claim, Phase, Placed, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.outcome import Intent
from stoker.spec.queue import Discipline
from stoker.spec.worker import Checkpoint, Progress
from tests.support.examples import examples
from tests.support.preempting import preempting, wrote


class Life:
    """A cluster of preempting queues: starts and claims are observed as written, victims take their time to end."""

    def __init__(self, sched: SimpleNamespace, seed: int) -> None:
        self.sched, self.rng, self.now, self.made = sched, random.Random(seed), 0.0, 0
        self.las = self.rng.random() < 0.5
        """Queue q stops jobs by its discipline too. All have always just saved."""
        self.owns = self.rng.random() < 0.5
        """It reclaims what is guaranteed to it of a limit that it shares with r."""
        tree = {"parent": "top"} if self.owns else {}
        self.world = sched.World().feed(
            *([sched.queue("top", gpus=6, guarantee=6)] if self.owns else []),
            preempting(
                sched.queue("q", guarantee=3 if self.owns else None, **tree),
                discipline=Discipline.LAS if self.las else Discipline.FIFO,
            ),
            preempting(sched.queue("r", gpus=5, **tree)),
            *(sched.node(name, 4) for name in "ab"),
        )
        self.jobs: dict[str, TrainingJob] = {}
        self.others: list[str] = []

    def put(self, job: TrainingJob, **status: Any) -> None:
        self.made += 1
        self.jobs[job.metadata.name] = wrote(job, self.made, **status)
        self.world.feed(self.jobs[job.metadata.name])

    def holding(self) -> list[TrainingJob]:
        return [job for job in self.jobs.values() if job.status.placement]

    def stopping(self) -> list[TrainingJob]:
        """Those that are stopped for another, or to be resized."""
        return [job for job in self.holding() if job.key in self.world.state.victims or job.status.claim is not None]

    def keeps(self, job: TrainingJob) -> tuple[Placed, ...]:
        """Where one that stops goes on."""
        if job.status.phase in ENDED:
            return ()
        victim = self.world.state.claims.keeps.get(job.key)
        claim = job.status.claim
        return victim.keeps if victim is not None else claim.placement if claim is not None else ()

    def end(self, job: TrainingJob) -> None:
        """As `life.ending` has it."""
        at, keeps = self.sched.at(self.now), self.keeps(job)
        ended = AttemptEnd(number=job.status.attempt, ended_at=at, intent=Intent.RESIZE if keeps else Intent.PREEMPT)
        ran_s = (at - job.status.started_at).total_seconds() if job.status.started_at else 0.0
        self.put(
            job,
            phase=Phase.QUEUED,
            placement=(),
            started_at=None,
            attempts=(ended,),
            attained_gpu_seconds=job.status.attained_gpu_seconds + ran_s * job.gpus,
            claim=Claim(placement=keeps, victims=(), since=at) if keeps else None,
        )

    def free(self) -> dict[str, int]:
        """What jobs and others leave of each node; claims are not counted."""
        free = dict.fromkeys("ab", 4)
        for job in self.holding():
            for placed in job.status.placement:
                free[placed.node] -= job.spec.gpus_per_worker
        for name in self.others:
            free[name[-1]] -= 1
        return free

    def step(self) -> None:
        rng, sched = self.rng, self.sched
        self.now += rng.choice([0, 1, 30, *[3000] * self.las])
        what = rng.choice(["submit", "submit", "end", "stop", "stop", "other"])
        running = sorted(self.holding(), key=lambda job: job.metadata.name)
        if what == "submit":
            asked = {"workers": rng.choice([1, 1, 2]), "queue": rng.choice("qr"), "priority": rng.choice([0, 0, 1, 2])}
            if rng.random() < 0.4:
                least, wish, most = sorted(rng.choices([1, 2, 3, 4], k=3))
                asked |= {"workers": wish, "elastic": (least, most)}
            name = f"j{self.made}"
            self.put(sched.job(name, rng.choice([1, 2, 4]), queued=self.now, **asked))
        elif what == "end" and running:
            self.put(rng.choice(running), phase=Phase.SUCCEEDED, placement=(), claim=None)
        elif what == "stop":
            for job in self.stopping()[: rng.choice([1, 2])]:
                self.end(job)
        elif what == "other":
            if self.others and rng.random() < 0.5:
                self.world.state.forget_other(Key("x", self.others.pop()))
            elif rng.random() < 0.2 and (node := rng.choice("ab")) and self.free()[node] > 0:
                self.others.append(f"o{len(self.others)}{node}")
                self.world.feed(sched.other(f"x/{self.others[-1]}", node, 1))

    def settle(self) -> None:
        while self.decide():
            pass

    def decide(self) -> bool:
        """False: there was nothing to do."""
        decided = self.world.decide(self.now)
        for change in decided.claims:
            self.put(self.jobs[change.key.name], claim=change.claim)
        for start in decided.starts:
            job = self.jobs[start.key.name]
            self.put(
                job,
                phase=Phase.RUNNING,
                placement=start.placement,
                gpu_type=start.gpu_type,
                attempt=job.status.attempt + 1,
                started_at=self.sched.at(self.now),
                progress=Progress(at=0, checkpoint=Checkpoint(step=1, at=4e9)),
                placed_at=self.sched.at(self.now),
                claim=None,
            )
        return bool(decided.claims or decided.starts)

    def check(self) -> None:
        free = self.free()
        assert min(free.values()) >= 0, "a GPU twice"
        used = sum(job.gpus for job in self.holding() if job.spec.queue == "r")
        assert used <= 5, "beyond the limit"
        assert not self.owns or sum(job.gpus for job in self.holding()) <= 6, "beyond the limit of both"
        for job in self.jobs.values():
            sizes = [len(one) for one in (job.status.placement, self.keeps(job)) if one]
            assert all(job.spec.least_workers <= size <= job.spec.most_workers for size in sizes)
        for job in self.jobs.values():
            claim = job.status.claim
            if claim is None or not claim.victims or job.key not in self.world.state.claims.jobs:
                continue
            stopped = [self.jobs[one.name] for one in claim.victims]
            if self.owns and job.spec.queue == "q":
                stopped = [one for one in stopped if one.spec.queue == "q"]
            assert all(one.spec.queue == job.spec.queue for one in stopped)
            by_class = self.las and job.spec.queue == "q"
            assert all(one.spec.priority < job.spec.priority + by_class for one in stopped)
        for one in self.holding():  # once all have made room, each claim has its own
            if one.key in self.world.state.victims:
                for placed in one.status.placement:
                    free[placed.node] += one.spec.gpus_per_worker
        for job in self.jobs.values():
            kept = self.keeps(job)
            grown = Counter(placed.node for placed in kept)
            if job.key not in self.world.state.victims:
                grown.subtract(Counter(placed.node for placed in job.status.placement if kept))
            for node, workers in grown.items():
                if not (job.status.placement and job.status.claim and self.others):  # that may come to nothing
                    free[node] -= workers * job.spec.gpus_per_worker
        assert min(free.values()) >= 0, "its room was given away"


def rows(jobs: RunningJobs) -> dict[Key, list[float]]:
    jobs.refresh()
    columns = [getattr(jobs, name) for name in (*_FLOATS, *_INTS, *_PRODUCTS) if name != "queue"]
    return {
        one.key: [float(column[row]) for column in columns] for row in jobs.rows if (one := jobs.jobs[row]) is not None
    }


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_no_gpu_twice_no_room_stolen_and_every_claim_becomes_a_start(seed: int, sched: SimpleNamespace) -> None:
    life = Life(sched, seed)
    for _ in range(60):
        life.step()
        before = sched.fingerprint(life.world.state)
        with life.world.state.what_if():
            life.world.decide(life.now)
        assert sched.fingerprint(life.world.state) == before
        life.settle()
        life.check()
        queues = [known.queue for known in life.world.state.queues.values()]
        again = sched.World().feed(*queues)
        again.feed(*(sched.node(name, 4) for name in "ab"), *life.jobs.values())
        again.feed(*(sched.other(f"x/{name}", name[-1], 1) for name in life.others))
        assert again.state.claims.jobs.keys() == life.world.state.claims.jobs.keys(), "from the objects alone"
        assert again.state.claims.on == life.world.state.claims.on
        with life.world.state.what_if():
            for name in "ab":
                life.world.state.changes.free_node(name)
            for name in life.world.state.queues:
                life.world.state.changes.free_queue(name)
            assert life.now > RESERVE_AFTER_S or life.world.starts(life.now) == {}, "though all is looked at again"
        assert rows(life.world.state.running) == rows(again.state.running)
        assert again.state.nodes.free_gpu.sum() == life.world.state.nodes.free_gpu.sum()
    for name in life.others:
        life.world.state.forget_other(Key("x", name))
    life.others.clear()
    waiting = {name for name, job in life.jobs.items() if job.status.claim is not None and not job.status.placement}
    for _ in range(20):
        for job in life.stopping():
            life.end(job)
        life.decide()
        waiting -= {job.metadata.name for job in life.holding()}
    assert not waiting
