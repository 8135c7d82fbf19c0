"""Random histories of a small cluster for the scheduler's tests: what is observed and decided, in whatever order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from stoker.sched.decide import Start, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime
from stoker.spec.worker_pod import identity, worker_name

TOPOLOGY = ("zone",)
NODES, QUEUES, JOBS = ["a", "b", "c"], ["q", "r"], [f"j{i}" for i in range(9)]
TREE = [*QUEUES, "top"]
RUNTIMES, OTHERS = ["default", "fast"], ["x/o0", "x/o1", "y/o2", "y/o3"]


def pick(names: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


MIG = "nvidia.com/mig-1g.10gb"
LEASTS = st.sampled_from([0, 0, 0, 1, 2])
"""Workers that will do; 0: as many as are asked for."""
gpu_kinds = st.lists(st.sampled_from([("A100", 80, ""), ("T4", 16, ""), ("T4", 16, "lost")]), max_size=5)
requests = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 3),
        "workers": st.integers(1, 3),
        "queue": pick(QUEUES),
        "priority": st.integers(0, 2),
        "cpu": st.sampled_from(["0", "1", "2"]),
        "models": st.sampled_from([(), (), ("a100",), ("T4",)]),
        "min_memory": st.sampled_from([None, None, None, "40Gi"]),
        "max_power": st.sampled_from([None, None, None, 400]),
        "not_before": st.sampled_from([None, None, None, 20, 350]),
        "blamed": st.sampled_from([None, None, {"a": 15}, {"a": 400, "b": 25}]),
        "suspend": st.sampled_from([False, False, False, True]),
        "runtime": st.sampled_from([None, None, None, "fast"]),
        "required": st.sampled_from([None, None, None, "zone"]),
        "elastic": LEASTS,
        "resource": st.sampled_from([*[GPU_RESOURCE] * 3, MIG]),
    }
)
TAINTS = ["nvidia.com/gpu=yes:NoSchedule", "team=x:NoExecute", "soft:PreferNoSchedule"]
UNREADY: list[dict[str, Any]] = [{"ready": False}, {"cordoned": True}, {"lost": 5}]
places = st.builds(
    lambda zone, taints, hcas, unready, slices, watts: {
        "labels": zone,
        "taints": taints,
        "extended": hcas,
        "parts": {MIG: slices},
        "watts": watts,
        **unready,
    },
    st.sampled_from([{}, {"zone": "1"}, {"zone": "1"}, {"zone": "2"}]),
    st.lists(st.sampled_from(TAINTS), max_size=1),
    st.sampled_from([{}, {"rdma/hca": 2}, {"rdma/hca": 4}]),
    st.sampled_from([{}, {}, {}, {}, *UNREADY]),
    st.sampled_from([0, 0, 2, 3]),
    st.sampled_from([0, 300, 700]),
)
node_action = st.tuples(st.just("node"), pick(NODES), gpu_kinds, st.integers(0, 6), places)
KINDS: list[dict[str, Any]] = [
    {},
    {"selector": {"zone": "1"}},
    {"tolerates": [{"key": "team", "value": "x"}]},
    {"tolerates": [{"operator": "Exists"}], "extended": {"rdma/hca": 1}},
    {"extended": {"rdma/hca": 2}},
    {"projects": ("others",)},
    {"default_for": ("default",), "tolerates": [{"key": "team", "value": "x"}], "extended": {"rdma/hca": 1}},
]
runtime_action = st.tuples(st.just("runtime"), pick(RUNTIMES), st.sampled_from(KINDS))
other_action = st.tuples(
    st.just("other"),
    pick(OTHERS),
    pick(NODES),
    st.integers(0, 3),
    st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(["", "500m"]),
            "going": st.booleans(),
            "rdma__hca": st.sampled_from(["", "1"]),
            MIG: st.sampled_from(["", "", "1"]),
        }
    ),
)
queue_action = st.tuples(
    st.just("queue"),
    pick(TREE),
    st.sampled_from([None, None, 1, 4]),
    st.sampled_from([None, None, "3"]),
    st.sampled_from([None, None, None, 1]),
    st.sampled_from([None, None, "top", "top", "r", "gone"]),
    st.sampled_from([{}, {}, {}, {"a100": 2}, {"t4": 1, "a100": 3}]),
)
job_action = st.tuples(st.just("job"), pick(JOBS), requests)
decide_action = st.tuples(st.just("decide"), st.integers(0, 200))


def named(verb: str, names: list[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.just(verb), pick(names))


some = st.one_of(
    *[job_action] * 4,
    *[decide_action] * 3,
    *[named(verb, JOBS) for verb in ("end", "end", "written", "written", "not written", "again", "no job")],
    *[named(verb, JOBS) for verb in ("withdrawn", "pods", "pods", "pods going", "no pods")],
    node_action,
    queue_action,
    runtime_action,
    other_action,
    other_action,
    named("no runtime", RUNTIMES),
    named("no other", OTHERS),
    named("no node", NODES),
    named("no queue", TREE),
)
# Histories begin with a cluster and work to do, or little would ever happen in them.
PRELUDE = [
    *[("queue", name, None, None, None, None, {}) for name in QUEUES],
    ("node", "a", [("A100", 80, "")] * 4, 6, {"labels": {"zone": "1"}, "extended": {"rdma/hca": 2}}),
    ("node", "b", [("T4", 16, "")] * 2, 4, {"taints": [TAINTS[0]], "parts": {MIG: 2}}),
    ("node", "c", [("A100", 80, ""), ("T4", 16, ""), ("T4", 16, "")], 6, {"labels": {"zone": "1"}, "parts": {MIG: 3}}),
]
sparse = st.builds(
    lambda start, *parts: [*start, *(action for part in parts for action in part)],
    st.sampled_from([PRELUDE, PRELUDE[:4], []]),
    st.lists(st.one_of(node_action, queue_action, runtime_action, other_action), max_size=3),
    st.lists(job_action, max_size=9, unique_by=lambda action: action[1]),
    st.lists(some, max_size=40),
)


def dense(seed: int) -> list[tuple[Any, ...]]:
    """Most jobs fit, much starts and ends, time passes: what drawing at random rarely comes to."""
    rng = random.Random(seed)
    played: list[tuple[Any, ...]] = list(PRELUDE)
    for name in rng.sample(TREE, rng.randint(0, 3)):
        types = rng.choice([{}, {}, {"t4": rng.randint(0, 2)}, {"a100": 3, "t4": 2}])
        played.append(("queue", name, rng.choice([3, 5, None]), None, None, None if name == "top" else "top", types))
    for _ in range(rng.randint(10, 70)):
        verb = rng.choices(["job", "decide", "end", "written", "not written", "no job"], [8, 6, 4, 6, 1, 1])[0]
        if verb == "decide":
            played.append((verb, rng.choice([0, 0, 5, 60, 200])))
        elif verb == "job":
            played.append((verb, rng.choice(JOBS), some_request(rng, len(played), [None])))
        else:
            played.append((verb, rng.choice(JOBS)))
    return played


def some_request(rng: random.Random, queued: int, runtimes: list[str | None]) -> dict[str, Any]:
    gpus, kind = rng.choice([0, 1, 1, 2, 4]), rng.choice([(), (), (), ("a100",), ("T4",)])
    return {
        "gpus": gpus,
        "workers": rng.choice([1, 1, 1, 2, 3] if gpus < 4 else [1]),
        "queue": rng.choice(QUEUES),
        "priority": rng.choice([0, 0, 0, 1]),
        "queued": queued,
        "cpu": rng.choice(["0", "1"]),
        "models": kind if gpus else (),
        "blamed": rng.choice([None, None, None, {"a": 100}]),
        "runtime": rng.choice(runtimes),
        "required": rng.choice([None, None, "zone"]),
        "elastic": rng.choice([0, 0, 1, 2]),
        "resource": rng.choice([GPU_RESOURCE, GPU_RESOURCE, MIG]) if gpus == 1 else GPU_RESOURCE,
    }


def crowded(seed: int) -> list[tuple[Any, ...]]:
    """A cluster that others use too: attempts come and go, their pods linger, nodes and runtimes change."""
    rng = random.Random(seed)
    played: list[tuple[Any, ...]] = [*PRELUDE, ("runtime", "fast", rng.choice(KINDS[1:5]))]
    played += [("queue", name, rng.choice([None, 4]), None, None, None, {}) for name in QUEUES]
    for _ in range(rng.randint(10, 60)):
        job = rng.choice(JOBS[:6])
        step: list[tuple[Any, ...]] = rng.choices(
            [
                [("job", job, some_request(rng, len(played), [None, None, "fast"]))],
                [("written", job), ("pods", job)],
                [("withdrawn", job), *rng.choice([[], [("pods going", job)]])],
                [*rng.choice([[("end", job)], []]), ("no job", job)],
                [("unrecorded", job), *rng.choice([[], [("withdrawn", job)]])],
                [("no pods", job)],
                [("other", rng.choice(OTHERS), rng.choice(NODES), rng.randint(0, 3), rng.choice(ASKS))],
                [("no other", rng.choice(OTHERS))],
                [("node", *rng.choice(PRELUDE[2:])[1:4], rng.choice(PLACES))],
                [("runtime", rng.choice(RUNTIMES), rng.choice(KINDS))],
                [("no runtime", rng.choice(RUNTIMES))],
            ],
            [8, 8, 3, 2, 1, 3, 4, 3, 2, 2, 1],
        )[0]
        played += [*step, *rng.choice([[], [("decide", rng.choice([0, 0, 5, 200]))]])]
    return played


ASKS: list[dict[str, Any]] = [{}, {"cpu": "500m"}, {"going": True}, {"rdma__hca": "1"}, {MIG: "1"}]
PLACES: list[dict[str, Any]] = [
    {},
    {"labels": {"zone": "1"}, "extended": {"rdma/hca": 3}},
    {"labels": {"zone": "2"}, "parts": {MIG: 2}},
    {"labels": {"zone": "1"}, "taints": [TAINTS[1]]},
    {"labels": {"zone": "1"}, "cordoned": True},
]
actions = st.one_of(sparse, st.integers(0, 2**32).map(dense), st.integers(0, 2**32).map(crowded))


class History:
    """Plays actions on a state, and keeps the objects a store would hold beside it."""

    def __init__(self, sched: SimpleNamespace) -> None:
        self.sched, self.state = sched, SchedulerState(TOPOLOGY)
        self.now, self.version = 0.0, 0
        self.nodes: dict[str, Any] = {}
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, TrainingJob] = {}
        self.runtimes: dict[str, TrainingRuntime] = {}
        self.others: dict[str, OtherPod] = {}
        self.pods: dict[Key, Pod] = {}
        self.starting: dict[str, Start] = {}
        self.unrecorded: set[tuple[str, int]] = set()
        """Attempts that hold what their pods do, by their jobs' uids."""
        self.left: dict[Key, TrainingJob] = {}
        """Pod that was a worker of a job as this was deleted, or its end could not be written, and has not gone since,
        nor its node → the job."""

    def play(self, action: tuple[Any, ...]) -> tuple[Start, ...]:
        verb, *rest = action
        if verb == "decide":
            self.now += rest[0]
            starts = decide(self.state, self.sched.at(self.now)).starts
            for start in starts:
                assert start.key.name not in self.starting, "started twice"
                assert start.resource_version == self.jobs[start.key.name].metadata.resource_version
                self.starting[start.key.name] = start
            return starts
        name = rest[0]
        if verb == "node":
            self.nodes[name] = self.sched.node(name, rest[1], cpu=rest[2], **rest[3])
            self._forget_left()
            self.state.observe_node(self.nodes[name])
        elif verb == "no node":
            self.nodes.pop(name, None)
            self._forget_left()
            self.state.forget_node(name)
        elif verb == "queue":
            _, gpus, cpu, highest, parent, types = rest
            self.queues[name] = self.sched.queue(name, gpus=gpus, cpu=cpu, highest=highest, parent=parent, types=types)
            self.state.observe_queue(self.queues[name])
        elif verb == "no queue":
            self.queues.pop(name, None)
            self.state.forget_queue(name)
        elif verb == "runtime":
            self.runtimes[name] = self.sched.runtime(name, **rest[1])
            self.state.observe_runtime(self.runtimes[name])
        elif verb == "no runtime":
            self.runtimes.pop(name, None)
            self.state.forget_runtime(name)
        elif verb == "other":
            self.others[name] = self.sched.other(name, rest[1], rest[2], **rest[3])
            self.state.observe_other(self.others[name])
        elif verb == "no other":
            self.others.pop(name, None)
            self.state.forget_other(Key(*name.split("/")))
        elif verb in ("pods", "pods going", "no pods"):
            self._pods(name, verb)
        elif verb == "job" and name not in self.jobs:
            self._observe(name, self.sched.job(name, **_valid(rest[1]), version=self._next(), uid=f"u{self.version}"))
        elif verb == "no job":
            self._leave(self.jobs.pop(name, None))
            self.starting.pop(name, None)
            self.state.forget_job(self.sched.key(name))
        elif verb == "not written" and name in self.starting:
            del self.starting[name]
            self.state.drop_assumption(self.sched.key(name))
        elif verb == "written" and name in self.starting:
            start, attempt = self.starting.pop(name), self.jobs[name].status.attempt + 1
            placed = {"placement": start.placement, "gpu_type": start.gpu_type}
            self._change(name, phase=Phase.STARTING, attempt=attempt, **placed)
        elif verb == "end" and name in self.jobs and self.jobs[name].status.placement:
            self._change(name, phase=Phase.SUCCEEDED, placement=())
        elif verb == "withdrawn" and name in self.jobs and self.jobs[name].status.placement:
            self._change(name, phase=Phase.QUEUED, placement=())
        elif verb == "unrecorded" and name in self.jobs and self.jobs[name].status.placement:
            job = self.jobs[name]
            self._leave(job)
            self.unrecorded.add((job.uid, job.status.attempt))
            self.state.count_by_pods(job)
        elif verb == "again" and name in self.jobs:
            self.state.observe_job(self.jobs[name])
        return ()

    def _pods(self, name: str, verb: str) -> None:
        """The job's pods come where it is placed, are deleted, or go at last; all three whatever became of the job."""
        mine = [key for key, pod in self.pods.items() if worker_name(pod.metadata.name).job == name]  # type: ignore[union-attr]
        if verb == "no pods":
            for key in mine:
                del self.pods[key]
                self.state.forget_pod(key)
            self._forget_left()
            return
        job = self.jobs.get(name)
        changed = [self.pods[key] for key in mine]
        if verb == "pods going":
            gone = {"deletion_timestamp": self.sched.T0}
            changed = [p.model_copy(update={"metadata": p.metadata.model_copy(update=gone)}) for p in changed]
        elif job is not None:
            changed = [self.sched.pod(job, placed.worker, on=placed.node) for placed in job.status.placement]
        for pod in changed:
            self.pods[pod.key] = pod
            self._forget_left()
            self.state.observe_pod(pod)

    def _leave(self, job: TrainingJob | None) -> None:
        if job is not None and (job.uid, job.status.attempt) not in self.unrecorded:
            self.left |= {key: job for key, pod in self.pods.items() if _is_worker(job, pod)}
        self._forget_left()

    def _forget_left(self) -> None:
        for key, job in list(self.left.items()):
            pod = self.pods.get(key)
            node = None if pod is None or not _is_worker(job, pod) else self.nodes.get(pod.spec.node_name)
            if node is None or node.status.lost_since is not None:
                del self.left[key]

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _change(self, name: str, **status: Any) -> None:
        job = self.jobs[name]
        meta = job.metadata.model_copy(update={"resource_version": str(self._next())})
        new = job.model_copy(update={"metadata": meta, "status": job.status.model_copy(update=status)})
        self._observe(name, new)

    def _observe(self, name: str, job: TrainingJob) -> None:
        self.jobs[name] = job
        self.state.observe_job(job)

    def rebuilt(self) -> SchedulerState:
        """A state that was fed with the objects as they are, once jobs had gone whose pods have not."""
        state = SchedulerState(TOPOLOGY)
        world = self.sched.World(state).feed(*self.pods.values(), *self.nodes.values())
        for job in {(job.uid, job.status.attempt): job for job in self.left.values()}.values():
            state.observe_job(job)
            state.forget_job(job.key)
        world.feed(*self.store())
        for job in self.jobs.values():
            if (job.uid, job.status.attempt) in self.unrecorded:
                state.count_by_pods(job)
        for key in state.deleted_jobs.charges.keys() - self.left:
            state.deleted_jobs.release(key)
        return state

    def placed_jobs(self) -> list[TrainingJob]:
        """Those whose placement counts, were every decided start written."""
        jobs = [one for one in self.store() if isinstance(one, TrainingJob) and one.status.placement]
        return [job for job in jobs if (job.uid, job.status.attempt) not in self.unrecorded]

    def store(self) -> list[Any]:
        """The objects as they would be were every decided start written."""
        jobs = [
            job
            if name not in self.starting
            else job.model_copy(
                update={
                    "metadata": job.metadata.model_copy(update={"resource_version": "999"}),
                    "status": job.status.model_copy(
                        update={
                            "phase": Phase.STARTING,
                            "placement": self.starting[name].placement,
                            "gpu_type": self.starting[name].gpu_type,
                            "attempt": job.status.attempt + 1,
                        }
                    ),
                }
            )
            for name, job in self.jobs.items()
        ]
        pods = (*self.pods.values(), *self.others.values())
        return [*pods, *jobs, *self.queues.values(), *self.nodes.values(), *self.runtimes.values()]


def _is_worker(job: TrainingJob, pod: Pod) -> bool:
    said, placed = identity(pod.metadata), {one.worker: one.node for one in job.status.placement}
    return said is not None and (said.job_uid, said.attempt, pod.spec.node_name) == (
        *(job.uid, job.status.attempt),
        placed.get(said.worker),
    )


def _valid(request: dict[str, Any]) -> dict[str, Any]:
    least = min(request["elastic"], request["workers"])
    request = {**request, "elastic": (least, 4) if least else None}
    if request["resource"] != GPU_RESOURCE:
        alone = {"gpus": 1, "workers": 1, "elastic": None}
        return {**request, **alone, "models": (), "min_memory": None, "max_power": None}
    return request if request["gpus"] else {**request, "models": (), "min_memory": None, "max_power": None}
