"""The job's life in a world that does what it likes: random ends, crashes between writes, users who change their minds.

The world is a small honest store: pods with finalizers, processes that end, an operator that may die after any single
call. What must hold at every moment and at the end is written in `World.check` and `World.settle`.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.life.lifecycle import step
from stoker.life.step import Facts, Settings
from stoker.spec.job import ENDED, PLACED, Claim, Phase, Placed, TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.outcome import Category, Intent
from stoker.spec.pod import (
    NEVER_STARTED,
    REJECTED,
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodCondition,
    PodPhase,
    PodSpec,
    PodStatus,
    Terminated,
    Waiting,
)
from stoker.spec.worker import ExitRecord
from tests.support.examples import examples

SETTINGS = Settings(start_timeout_s=60, blame_s=10)
ACTIONS = ("operate", "crash", "schedule", "begin", "succeed", "fail", "lose", "refuse", "obey", "wait", "resize")
CLUSTER = (
    "bind",
    "unschedulable",
    "admit",
    "pull",
    "no image",
    "evict",
    "drain",
    "refuse",
    "silence",
    "report",
    "vanish",
    "force",
    "finish deletion",
)
USER = ("suspend", "resume", "cancel", "again")


class World:
    """`real`: pods are bound by a scheduler and kept by kubelets that may fall silent; else the node agent's."""

    def __init__(self, workers: int, rng: random.Random, *, real: bool = False) -> None:
        self.real = real
        self.lost: dict[str, datetime] = {}
        self.zombies: set[str] = set()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.rng = rng
        self.job = TrainingJob(
            metadata=ObjectMeta(name="j", namespace="p", uid="u", creation_timestamp=self.now),
            spec={  # type: ignore[arg-type]
                "workers": workers,
                "elastic": {"min": 1, "max": 4},
                "trainer": {"command": ["x"]},
                "stop": {"maxDuration": "1h"},
            },
        )
        self.keeps: tuple[Placed, ...] = ()
        """Of the attempt that another job's claim shrinks."""
        self.shrinks = 0
        self.sizes: dict[int, int] = {}
        """Attempt → its workers."""
        self.pods: dict[str, Pod] = {}
        self.created: list[str] = []

    # -- the operator -------------------------------------------------------------------------------------------
    def operate(self, calls: int | None = None) -> None:
        """Reconcile until nothing is left to do, or die after `calls` calls."""
        for _ in range(12):
            shrinks = self.keeps and self.shrinks == self.job.status.attempt
            around = Facts(lost=self.lost, keeps=self.keeps, preempted_for="another" if shrinks else "")
            result = step(self.job, list(self.pods.values()), self.now, SETTINGS, around)
            todo = []
            if result.status is not None:
                status = result.status
                todo.append(lambda status=status: self._set_status(status))
            todo += [lambda w=w: self._create(w) for w in result.create]
            todo += [lambda p=p: self._delete(p) for p in (*result.stop, *result.discard)]
            todo += [lambda p=p: self._release(p) for p in result.release]
            if not todo:
                return
            for call in todo:
                if calls == 0:
                    return
                calls = None if calls is None else calls - 1
                call()
                self.check()
        raise AssertionError("the operator never settles")

    def _set_status(self, status: object) -> None:
        self.job = self.job.model_copy(update={"status": status})

    def _create(self, worker: int) -> None:
        name = f"j-{self.job.status.attempt}-{worker}"
        if name in self.pods:
            return
        assert name not in self.created, f"{name} would run twice"
        self.created.append(name)
        self.pods[name] = Pod(
            metadata=ObjectMeta(
                name=name,
                namespace="p",
                uid=f"uid-{name}",
                finalizers=(FINALIZER_OUTCOME,),
            ),
            spec=PodSpec(node_name="" if self.real else "n", containers=(Container(),)),
        )

    def _delete(self, pod: Pod) -> None:
        there = self.pods.get(pod.metadata.name)
        if there is None:
            return
        if not there.metadata.finalizers:
            del self.pods[pod.metadata.name]
        elif there.metadata.deletion_timestamp is None:
            grace = timedelta(seconds=30) if self.real and there.spec.node_name else timedelta()
            self._meta(there, deletion_timestamp=self.now + grace)

    def _release(self, pod: Pod) -> None:
        there = self.pods.get(pod.metadata.name)
        assert there is not None and (there.ended or self._given_up(there)), "only an ended pod is let go"
        if there.metadata.deletion_timestamp is not None and (there.ended or not there.spec.node_name):
            del self.pods[pod.metadata.name]
        else:
            self._meta(there, finalizers=())

    def _given_up(self, pod: Pod) -> bool:
        """No report of its end will come: it never came to a node, or its node is silent."""
        deleted = pod.metadata.deletion_timestamp
        if deleted is None:
            return False
        return not pod.spec.node_name or (pod.spec.node_name in self.lost and deleted <= self.now)

    def _meta(self, pod: Pod, **change: Any) -> None:
        self.pods[pod.metadata.name] = pod.model_copy(update={"metadata": pod.metadata.model_copy(update=change)})

    # -- all others ----------------------------------------------------------------------------------------------
    def schedule(self) -> None:
        status = self.job.status
        waits = status.not_before is not None and status.not_before > self.now
        if status.phase is not Phase.QUEUED or self.job.spec.suspend or self.job.spec.cancel or waits:
            return
        placement = tuple(Placed(worker=w, node=self._node(w)) for w in range(self.job.spec.workers))
        if status.claim is not None:
            placement = status.claim.placement
        self.sizes[status.attempt + 1] = len(placement)
        self._set_status(
            status.model_copy(
                update={
                    "phase": Phase.STARTING,
                    "attempt": status.attempt + 1,
                    "placement": placement,
                    "placed_at": self.now,
                    "claim": None,
                }
            )
        )

    def resize(self) -> None:
        """The scheduler has the job grow, or another job's claim has it shrink."""
        status, workers = self.job.status, self.rng.randint(1, 4)
        if status.phase not in (Phase.STARTING, Phase.RUNNING) or workers == len(status.placement):
            return
        placement = tuple(Placed(worker=w, node=self._node(w)) for w in range(workers))
        if workers < len(status.placement):
            self.keeps, self.shrinks = placement, status.attempt
        elif status.intent is Intent.NONE:
            claim = Claim(placement=placement, victims=(), since=self.now)
            self._set_status(status.model_copy(update={"claim": claim}))

    def node(self, action: str) -> None:
        live = [p for p in self.pods.values() if not p.ended and p.spec.node_name not in ("", *self.lost)]
        if not live:
            return
        pod = self.rng.choice(live)
        pending = pod.status.phase is PodPhase.PENDING
        asked = pod.metadata.deletion_timestamp is not None
        if action == "begin" and pending and not asked:
            self._status(pod, PodStatus(phase=PodPhase.RUNNING, start_time=self.now))
        elif action == "refuse" and pending:
            self._status(pod, PodStatus(phase=PodPhase.FAILED, reason=REJECTED))
        elif action == "obey" and asked and pending:
            self._status(pod, PodStatus(phase=PodPhase.FAILED, reason=NEVER_STARTED))
        elif action == "obey" and asked:
            self._end(pod, 75, asked=True)
        elif action == "succeed" and not pending:
            self._end(pod, 0, asked=asked)
        elif action == "fail" and not pending:
            self._end(pod, self.rng.choice((1, 2, 75)), asked=asked)
        elif action == "lose" and not pending:
            self._end(pod, 137, asked=asked, record=False)

    def _node(self, worker: int) -> str:
        return f"n{worker % 2}" if self.real else "n"

    def cluster(self, action: str) -> None:
        """What a scheduler, a kubelet, an administrator do with a pod, or with its node."""
        if action == "report":
            # Who was given up and is there after all is stopped by its own kubelet: it is under deletion.
            self.zombies |= {pod.uid for pod in self.pods.values() if self._given_up(pod)}
            self.lost.clear()
            return
        if action == "finish deletion":  # the API server lets go of what no one holds
            for name, pod in list(self.pods.items()):
                if pod.metadata.deletion_timestamp and not pod.metadata.finalizers and pod.ended:
                    del self.pods[name]
            return
        if not self.pods:
            return
        pod = self.rng.choice(list(self.pods.values()))
        bound, asked = pod.spec.node_name, pod.metadata.deletion_timestamp is not None
        if action == "vanish":
            # Someone took our finalizer off by hand. While a gang starts that looks as if the pod were not made yet.
            if self.job.status.phase is not Phase.STARTING:
                del self.pods[pod.metadata.name]
            return
        if pod.ended:
            return
        pending = pod.status.phase is PodPhase.PENDING
        if action == "silence" and bound:
            self.lost.setdefault(bound, self.now)
        elif action in ("drain", "force"):
            self._delete(pod)
        elif bound and bound in self.lost:
            return  # its kubelet says nothing any more
        elif action == "bind" and not bound and not asked:
            node = self._node(int(pod.metadata.name.rpartition("-")[2]))
            bound_pod = pod.model_copy(update={"spec": pod.spec.model_copy(update={"node_name": node})})
            self._status(bound_pod, PodStatus(conditions=(PodCondition(type="PodScheduled", status="True"),)))
        elif action == "unschedulable" and not bound:
            said = PodCondition(
                type="PodScheduled", status="False", reason="Unschedulable", last_transition_time=self.now
            )
            self._status(pod, PodStatus(conditions=(said,)))
        elif action in ("pull", "no image") and bound and pending:
            reason = "ContainerCreating" if action == "pull" else self.rng.choice(("ErrImagePull", "InvalidImageName"))
            stuck = ContainerStatus(state=ContainerState(waiting=Waiting(reason=reason)))
            ready = PodCondition(type="PodReadyToStartContainers", status="True")
            self._status(pod, PodStatus(conditions=(ready,), container_statuses=(stuck,)))
        elif action == "refuse" and bound and pending:
            self._status(pod, PodStatus(phase=PodPhase.FAILED, reason="UnexpectedAdmissionError"))
        elif action == "evict" and bound:
            self._status(pod, PodStatus(phase=PodPhase.FAILED, reason="Evicted", message="low on memory"))

    def _end(self, pod: Pod, code: int, *, asked: bool, record: bool = True) -> None:
        at = self.now.timestamp()
        text = ""
        if record:
            text = ExitRecord(
                pod_uid=pod.uid,
                started_at=at - 1,
                finished_at=at,
                stop_requested=asked,
                exit_code=code,
                failed_at=at if code else None,
            ).model_dump_json(by_alias=True)
        ended = ContainerStatus(state=ContainerState(terminated=Terminated(exit_code=code, message=text)))
        phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
        self._status(pod, PodStatus(phase=phase, start_time=self.now, container_statuses=(ended,)))

    def _status(self, pod: Pod, status: PodStatus) -> None:
        self.pods[pod.metadata.name] = pod.model_copy(update={"status": status})

    def user(self, wish: str) -> None:
        spec = self.job.spec
        change = {
            "suspend": {"suspend": True},
            "resume": {"suspend": False},
            "cancel": {"cancel": True},
            "again": {"cancel": False, "suspend": False, "retry_generation": spec.retry_generation + 1},
        }[wish]
        if wish != "again" or self.job.status.phase in (Phase.FAILED, Phase.CANCELLED):
            self.job = self.job.model_copy(update={"spec": spec.model_copy(update=change)})

    # -- what must hold -------------------------------------------------------------------------------------------
    def check(self) -> None:
        live = {
            pod.metadata.name.split("-")[1]
            for pod in self.pods.values()
            if not pod.ended and not self._given_up(pod) and pod.uid not in self.zombies and pod.metadata.finalizers
        }
        assert len(live) <= 1, f"attempts {live} run side by side"
        if live:
            assert live == {str(self.job.status.attempt)}
            assert self.job.status.phase in PLACED, "processes live although the job holds no place"
        for attempt in self.job.status.attempts:
            assert len(attempt.workers) == self.sizes[attempt.number]
        claim = self.job.status.claim
        assert claim is None or self.job.status.phase in {Phase.QUEUED, *PLACED}, "room kept for a job that needs none"
        theirs = {Category.REJECTED, Category.INTERRUPTED, Category.START_TIMEOUT}
        if self.job.status.phase is Phase.FAILED:
            assert self.job.status.attempts[-1].category not in theirs, "the cluster's doings failed the job"

    def settle(self) -> None:
        """When users rest and workers obey, a job comes to rest and nothing of it is left running."""
        for _ in range(400):
            self.operate()
            if self.real:
                for action in ("report", "bind", "bind", "bind", "finish deletion"):
                    self.cluster(action)
            for action in ("begin", "obey", "succeed"):
                self.node(action)
            self.schedule()
            self.now += timedelta(seconds=5)
            if self.job.status.phase in ENDED or self.job.status.phase is Phase.SUSPENDED:
                break
        for _ in range(100):  # what was given up and is there after all is still ended by its kubelet
            self.operate()
            self.node("obey")
        self.operate()
        phase = self.job.status.phase
        assert phase in ENDED or (phase is Phase.SUSPENDED and self.job.spec.suspend), f"stuck in {phase}"
        assert all(pod.ended for pod in self.pods.values())
        assert not any(pod.metadata.finalizers for pod in self.pods.values())
        assert not self.job.status.placement
        assert len(self.created) == len(set(self.created))


def live(world: World, script: list[str]) -> None:
    for action in script:
        if action == "operate":
            world.operate()
        elif action == "crash":
            world.operate(calls=world.rng.randint(0, 3))
        elif action == "schedule":
            world.schedule()
        elif action == "resize":
            world.resize()
        elif action == "wait":
            world.now += timedelta(seconds=world.rng.choice((1, 5, 20, 90, 130, 4000)))
        elif action in USER:
            world.user(action)
        elif action in CLUSTER and world.real:
            world.cluster(action)
        else:
            world.node(action)
        world.check()
    world.settle()


WORKERS, SEEDS = st.integers(1, 3), st.integers(0, 2**32 - 1)
OFTEN = st.sampled_from(("operate", "crash", "schedule", "bind", "begin", "wait"))
ANY, USERS, CLUSTERS = st.sampled_from(ACTIONS), st.sampled_from(USER), st.sampled_from(CLUSTER)


@examples(200)
@given(workers=WORKERS, seed=SEEDS, script=st.lists(st.one_of(ANY, ANY, USERS), max_size=80))
def test_whatever_happens_no_job_is_lost_doubled_or_stuck(workers: int, seed: int, script: list[str]) -> None:
    live(World(workers, random.Random(seed)), script)


@examples(150)
@given(
    workers=WORKERS,
    seed=SEEDS,
    script=st.lists(st.one_of(OFTEN, ANY, CLUSTERS, CLUSTERS, USERS), min_size=40, max_size=160),
)
def test_whatever_a_cluster_does_no_job_is_lost_doubled_or_stuck_and_no_retry_of_its_users_spent(
    workers: int, seed: int, script: list[str]
) -> None:
    live(World(workers, random.Random(seed), real=True), script)
