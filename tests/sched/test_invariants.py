"""What holds whatever happens, in whatever order: random histories of a small cluster, checked by brute force."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.sched.decide import Start, decide
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.quantity import cpu_milli, memory_bytes
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec, effective_runtime
from stoker.spec.worker_pod import identity, worker_name
from stoker.why.explain import explain
from stoker.why.reasons import Reasons
from tests.support.examples import examples

CHECKED = examples(75, suppress_health_check=[HealthCheck.too_slow])

NODES, QUEUES, JOBS = ["a", "b", "c"], ["q", "r"], [f"j{i}" for i in range(9)]
TREE = [*QUEUES, "top"]
RUNTIMES, OTHERS = ["default", "fast"], ["x/o0", "x/o1", "y/o2", "y/o3"]


def pick(names: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


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
        "not_before": st.sampled_from([None, None, None, 20, 350]),
        "blamed": st.sampled_from([None, None, {"a": 15}, {"a": 400, "b": 25}]),
        "suspend": st.sampled_from([False, False, False, True]),
        "runtime": st.sampled_from([None, None, None, "fast"]),
    }
)
TAINTS = ["nvidia.com/gpu=yes:NoSchedule", "team=x:NoExecute", "soft:PreferNoSchedule"]
UNREADY: list[dict[str, Any]] = [{"ready": False}, {"cordoned": True}, {"lost": 5}]
places = st.builds(
    lambda zone, taints, hcas, unready: {"labels": zone, "taints": taints, "extended": hcas, **unready},
    st.sampled_from([{}, {"zone": "1"}, {"zone": "1"}, {"zone": "2"}]),
    st.lists(st.sampled_from(TAINTS), max_size=1),
    st.sampled_from([{}, {"rdma/hca": 2}, {"rdma/hca": 4}]),
    st.sampled_from([{}, {}, {}, {}, *UNREADY]),
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
        {"cpu": st.sampled_from(["", "500m"]), "going": st.booleans(), "rdma__hca": st.sampled_from(["", "1"])}
    ),
)
queue_action = st.tuples(
    st.just("queue"),
    pick(TREE),
    st.sampled_from([None, None, 1, 4]),
    st.sampled_from([None, None, "3"]),
    st.sampled_from([None, None, None, 1]),
    st.sampled_from([None, None, "top", "top", "r", "gone"]),
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
    *[("queue", name, None, None, None, None) for name in QUEUES],
    ("node", "a", [("A100", 80, "")] * 4, 6, {"labels": {"zone": "1"}, "extended": {"rdma/hca": 2}}),
    ("node", "b", [("T4", 16, "")] * 2, 4, {"taints": [TAINTS[0]]}),
    ("node", "c", [("A100", 80, ""), ("T4", 16, ""), ("T4", 16, "")], 6, {"labels": {"zone": "1"}}),
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
        played.append(("queue", name, rng.choice([3, 5, None]), None, None, None if name == "top" else "top"))
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
    }


def crowded(seed: int) -> list[tuple[Any, ...]]:
    """A cluster that others use too: attempts come and go, their pods linger, nodes and runtimes change."""
    rng = random.Random(seed)
    played: list[tuple[Any, ...]] = [*PRELUDE, ("runtime", "fast", rng.choice(KINDS[1:5]))]
    for _ in range(rng.randint(10, 60)):
        job = rng.choice(JOBS[:6])
        step: list[tuple[Any, ...]] = rng.choices(
            [
                [("job", job, some_request(rng, len(played), [None, None, "fast"]))],
                [("written", job), ("pods", job)],
                [("withdrawn", job), *rng.choice([[], [("pods going", job)]])],
                [("end", job), ("no job", job)],
                [("no pods", job)],
                [("other", rng.choice(OTHERS), rng.choice(NODES), rng.randint(0, 3), rng.choice(ASKS))],
                [("no other", rng.choice(OTHERS))],
                [("node", *rng.choice(PRELUDE[2:])[1:4], rng.choice(PLACES))],
                [("runtime", rng.choice(RUNTIMES), rng.choice(KINDS))],
                [("no runtime", rng.choice(RUNTIMES))],
            ],
            [8, 8, 3, 2, 3, 4, 3, 2, 2, 1],
        )[0]
        played += [*step, *rng.choice([[], [("decide", rng.choice([0, 0, 5, 200]))]])]
    return played


ASKS: list[dict[str, Any]] = [{}, {"cpu": "500m"}, {"going": True}, {"rdma__hca": "1"}]
PLACES: list[dict[str, Any]] = [
    {},
    {"labels": {"zone": "1"}, "extended": {"rdma/hca": 3}},
    {"labels": {"zone": "2"}},
    {"labels": {"zone": "1"}, "taints": [TAINTS[1]]},
    {"labels": {"zone": "1"}, "cordoned": True},
]
actions = st.one_of(sparse, st.integers(0, 2**32).map(dense), st.integers(0, 2**32).map(crowded))


class History:
    """Plays actions on a state, and keeps the objects a store would hold beside it."""

    def __init__(self, sched: SimpleNamespace) -> None:
        self.sched, self.state = sched, SchedulerState()
        self.now, self.version = 0.0, 0
        self.nodes: dict[str, Any] = {}
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, TrainingJob] = {}
        self.runtimes: dict[str, TrainingRuntime] = {}
        self.others: dict[str, OtherPod] = {}
        self.pods: dict[Key, Pod] = {}
        self.starting: dict[str, Start] = {}

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
            self.state.observe_node(self.nodes[name])
        elif verb == "no node":
            self.nodes.pop(name, None)
            self.state.forget_node(name)
        elif verb == "queue":
            self.queues[name] = self.sched.queue(name, gpus=rest[1], cpu=rest[2], highest=rest[3], parent=rest[4])
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
            self._observe(
                name, self.sched.job(name, **_gpu_only(rest[1]), version=self._next(), uid=f"u{self.version}")
            )
        elif verb == "no job":
            self.jobs.pop(name, None)
            self.starting.pop(name, None)
            self.state.forget_job(self.sched.key(name))
        elif verb == "not written" and name in self.starting:
            del self.starting[name]
            self.state.drop_assumption(self.sched.key(name))
        elif verb == "written" and name in self.starting:
            placement = self.starting.pop(name).placement
            attempt = self.jobs[name].status.attempt + 1
            self._change(name, phase=Phase.STARTING, placement=placement, attempt=attempt)
        elif verb == "end" and name in self.jobs and self.jobs[name].status.placement:
            self._change(name, phase=Phase.SUCCEEDED, placement=())
        elif verb == "withdrawn" and name in self.jobs and self.jobs[name].status.placement:
            self._change(name, phase=Phase.QUEUED, placement=())
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
            self.state.observe_pod(pod)

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
                            "attempt": job.status.attempt + 1,
                        }
                    ),
                }
            )
            for name, job in self.jobs.items()
        ]
        pods = (*self.pods.values(), *self.others.values())
        return [*pods, *jobs, *self.queues.values(), *self.nodes.values(), *self.runtimes.values()]


def _gpu_only(request: dict[str, Any]) -> dict[str, Any]:
    return request if request["gpus"] else {**request, "models": (), "min_memory": None}


def runtime_of(history: History, job: TrainingJob) -> TrainingRuntimeSpec | None:
    """None: it has none that takes it."""
    found = history.runtimes.get(effective_runtime(job.spec.runtime, "default", history.runtimes.values()))
    if found is None:
        return None if job.spec.runtime else TrainingRuntimeSpec()
    open_to = found.spec.projects
    return found.spec if open_to is None or job.metadata.namespace in open_to else None


def may_use(node: GPUNode, job: TrainingJob, runtime: TrainingRuntimeSpec) -> bool:
    def tolerated(key: str, value: str) -> bool:
        return (key == "nvidia.com/gpu" and job.spec.gpus_per_worker > 0) or any(
            (one.operator == "Exists" and not one.key) or (one.key == key and one.value == value)
            for one in runtime.tolerations
        )

    return (
        node.status.ready
        and dict(node.metadata.labels) | runtime.node_selector == dict(node.metadata.labels)
        and all(tolerated(t.key, t.value) for t in node.status.taints if t.effect != "PreferNoSchedule")
    )


def used(history: History, name: str) -> Counter[str]:
    """What jobs placed there, pods outside Stoker and strays of ours hold of a node. Units: cores' thousandths."""
    held = Counter[str]()
    counted = set()
    for job in history.store():
        if isinstance(job, TrainingJob):
            for placed in job.status.placement:
                counted.add((job.uid, str(job.status.attempt), str(placed.worker), placed.node))
                if placed.node == name:
                    held["gpu"] += job.spec.gpus_per_worker
                    held["cpu"] += job.spec.cpu_milli
                    held["memory"] += job.spec.memory_bytes
                    named = effective_runtime(job.spec.runtime, "default", history.runtimes.values())
                    runtime = history.runtimes.get(named)
                    held.update(runtime.spec.extended_resources if runtime else {})
    for pod in (*history.pods.values(), *history.others.values()):
        said, requests = identity(pod.metadata), pod.spec.containers[0].resources
        one = (said.job_uid, str(said.attempt), str(said.worker), pod.spec.node_name) if said else None
        if pod.spec.node_name != name or one in counted:
            continue
        amounts = {**requests.limits, **requests.requests}
        held["gpu"] += int(amounts.get("nvidia.com/gpu", 0))
        held["cpu"] += cpu_milli(amounts.get("cpu", "0"))
        held["memory"] += memory_bytes(amounts.get("memory", "0"))
        held["rdma/hca"] += int(amounts.get("rdma/hca", 0))
    return held


def room(history: History, job: TrainingJob, avoid: frozenset[str]) -> int:
    """Workers that fit now, counted naively. Only for nodes whose GPUs are all alike; -1 where some are not."""
    total, spec, runtime = 0, job.spec, runtime_of(history, job)
    for name, node in history.nodes.items():
        if runtime is None or not may_use(node, job, runtime) or name in avoid:
            continue
        if len({(gpu.model, gpu.memory_bytes) for gpu in node.status.gpus}) > 1:
            return -1
        held, gpus = used(history, name), [gpu for gpu in node.status.gpus if not gpu.unavailable]
        fits = spec.workers
        if spec.gpus_per_worker:
            wanted = all(
                (not spec.gpu.models or any(model.lower() in gpu.model.lower() for model in spec.gpu.models))
                and (spec.gpu.min_memory is None or gpu.memory_bytes >= 40 * 2**30)
                for gpu in gpus
            )
            fits = min(fits, (len(gpus) - held["gpu"]) // spec.gpus_per_worker if wanted else 0)
        if spec.cpu_milli:
            fits = min(fits, (node.status.cpu_milli - held["cpu"]) // spec.cpu_milli)
        for resource, count in runtime.extended_resources.items():
            fits = min(fits, (node.status.extended.get(resource, 0) - held[resource]) // count)
        total += max(0, min(fits, (node.status.memory_bytes - held["memory"]) // spec.memory_bytes))
    return total


@CHECKED
@given(history=actions)
def test_any_history(history: list[tuple[Any, ...]], sched: SimpleNamespace) -> None:
    world = History(sched)
    for action in history:
        starts = world.play(action)
        _check_starts(world, starts, sched)
        if action[0] == "decide":
            _check_rebuilt(world, sched)
    world.play(("decide", 0))
    again = decide(world.state, sched.at(world.now))
    assert again.starts == (), "not drained"
    _check_reasons(world, Reasons(world.state, sched.at(world.now)), sched)
    _check_rebuilt(world, sched)
    before = sched.fingerprint(world.state)
    for job in list(world.state.entries):
        explain(world.state, job, sched.at(world.now))
        explain(world.state, job, sched.at(world.now - 500))  # clocks step back
    assert sched.fingerprint(world.state) == before
    for item in world.store():
        if not isinstance(item, TrainingJob) or item.key.name not in world.starting:
            sched.World(world.state).feed(item)
    assert sched.fingerprint(world.state) == before, "observing again what is known changed something"


def _check_rebuilt(world: History, sched: SimpleNamespace) -> None:
    rebuilt = sched.World().feed(*world.store())
    rebuilt.state.costs.update(world.state.costs)  # as the jobs' status would have them
    assert rebuilt.starts(world.now) == {}, "a state built from scratch would start more"
    assert _nonzero(sched.accounting(rebuilt.state)) == _nonzero(sched.accounting(world.state))


def _nonzero(accounting: dict[str, Any]) -> dict[str, Any]:
    return {**accounting, "queues": {n: u for n, u in accounting["queues"].items() if any(u)}}


def _check_starts(world: History, starts: tuple[Start, ...], sched: SimpleNamespace) -> None:
    touched, queues = set(), set()
    for start in starts:
        job = world.jobs[start.key.name]
        assert [placed.worker for placed in start.placement] == list(range(job.spec.workers)), "all of a gang or none"
        touched |= {(placed.node, job.spec.gpus_per_worker > 0, job.spec.cpu_milli > 0) for placed in start.placement}
        queues.add(job.spec.queue)
        avoid = world.state.entries[job.key].avoided(sched.at(world.now))
        assert not avoid & {placed.node for placed in start.placement}
        runtime = runtime_of(world, job)
        assert runtime is not None
        assert all(may_use(world.nodes[placed.node], job, runtime) for placed in start.placement)
        for placed in start.placement:
            node = world.nodes[placed.node]
            for resource in runtime.extended_resources:
                assert used(world, placed.node)[resource] <= node.status.extended.get(resource, 0)
        later = [
            other.key.name
            for other in world.jobs.values()
            if other.key in world.state.entries
            and world.state.entries[other.key].lane is not None
            and world.state.entries[other.key].request == world.state.entries[job.key].request
            and other.spec.queue == job.spec.queue
            and world.state.entries[other.key].avoided(sched.at(world.now)) == avoid
            and world.state.entries[other.key].order < world.state.entries[job.key].order
        ]
        assert not later, f"{later} are the same and come first"
    for name, gpus, cpu in touched:
        usage = world.state.node_room(name)
        assert usage.ready and usage.free_memory_bytes >= 0
        held, status = used(world, name), world.nodes[name].status
        assert not gpus or held["gpu"] <= sum(not gpu.unavailable for gpu in status.gpus)
        assert not cpu or held["cpu"] <= status.cpu_milli
        assert not gpus or usage.free_gpus >= 0
        assert not cpu or usage.free_cpu_milli >= 0
    for name in queues:
        started = [world.jobs[start.key.name].spec for start in starts if world.jobs[start.key.name].spec.queue == name]
        assert not any(path(world, other)[1:2] == [name] for other in world.queues), "jobs run in leaves"
        for one in path(world, name):
            limit, (gpus, cpu) = world.queues[one].spec.limit, held_below(world, one)
            if limit.gpus is not None and any(s.gpus_per_worker for s in started):
                assert gpus <= limit.gpus
            if limit.cpu is not None and any(s.cpu_milli for s in started):
                assert cpu <= int(limit.cpu) * 1000


def path(world: History, name: str) -> list[str]:
    """The queue and those whose limits hold for it too."""

    def parent(one: str) -> str | None:
        named = world.queues[one].spec.parent
        return named if named in world.queues else None

    found: list[str] = []
    at: str | None = name
    while at is not None:
        found.append(at)
        around, seen = parent(at), set[str]()
        while around is not None and around != at and around not in seen:
            seen.add(around)
            around = parent(around)
        at = None if around == at else parent(at)
    return found


def held_below(world: History, name: str) -> tuple[int, int]:
    """GPUs and thousandths of cores."""
    jobs = [job for job in world.store() if isinstance(job, TrainingJob)]
    below = [job for job in jobs if job.spec.queue in world.queues and name in path(world, job.spec.queue)]
    return (
        sum(len(job.status.placement) * job.spec.gpus_per_worker for job in below),
        sum(len(job.status.placement) * job.spec.cpu_milli for job in below),
    )


def _check_reasons(world: History, reasons: Any, sched: SimpleNamespace) -> None:
    waiting = {k for k, e in world.state.entries.items() if e.pending}
    assert set(reasons) == waiting and len(reasons) == len(waiting)
    for key in waiting:
        codes = {str(blocker.code) for blocker in reasons[key]}
        assert codes, f"{key} waits for no reason"
        job = world.jobs[key.name]
        queue = world.queues.get(job.spec.queue)
        assert ("QueueMissing" in codes) == (queue is None)
        assert ("BackingOff" in codes) == bool(job.status.not_before and job.status.not_before > sched.at(world.now))
        assert ("RuntimeMissing" in codes) == (runtime_of(world, job) is None)
        if "NeverFits" in codes:
            continue
        limits = {one: world.queues[one].spec.limit for one in path(world, job.spec.queue)} if queue is not None else {}
        if all(limit.cpu is None for limit in limits.values()):
            over = any(
                limit.gpus is not None and held_below(world, one)[0] + job.spec.total_gpus > limit.gpus
                for one, limit in limits.items()
            )
            assert ("QueueLimit" in codes) == bool(over and job.spec.gpus_per_worker)
        avoid = world.state.entries[key].avoided(sched.at(world.now))
        fits = room(world, job, avoid)
        if fits >= 0 and "RuntimeMissing" not in codes:
            assert bool(codes & {"NoCapacity", "NodesBlamed"}) == (fits < job.spec.workers)
        for blocker in reasons[key]:
            if blocker.short is not None:
                assert blocker.short > 0 and blocker.requested - blocker.available == blocker.short


@CHECKED
@given(history=actions, imagined=actions)
def test_rollback_restores_the_state_exactly(
    history: list[tuple[Any, ...]], imagined: list[tuple[Any, ...]], sched: SimpleNamespace
) -> None:
    world = History(sched)
    for action in history:
        world.play(action)
    before = sched.fingerprint(world.state)
    mark = world.state.checkpoint()
    for action in imagined[: len(imagined) // 2]:
        world.play(action)
    inner = sched.fingerprint(world.state)
    with world.state.what_if():
        for action in imagined[len(imagined) // 2 :]:
            world.play(action)
    assert sched.fingerprint(world.state) == inner
    world.state.rollback(mark)
    assert sched.fingerprint(world.state) == before
