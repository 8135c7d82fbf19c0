"""Whatever pods a tenant writes: no reconcile raises, no GPU is hidden, another's job starts where there is room.

From the bytes of the API server's watch through the lifecycle and the scheduler, without a server: what it would have
refused is let through too.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.controller.jobs import job_of
from stoker.controller.status_writes import status_patch
from stoker.kube.codec import Codec
from stoker.kube.views import CLUSTER_PODS
from stoker.kube.wire import wire
from stoker.life import lifecycle
from stoker.life.step import Facts, Settings
from stoker.sched.decide import decide
from stoker.sched.occupancy import node_room
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, Placed, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.node import Gpu, GPUNode, GPUNodeStatus
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.worker_pod import identity
from stoker.store.port import WatchType
from tests.support.examples import examples

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
GPUS = "nvidia.com/gpu"

_text = st.sampled_from(["", "0", "1", "-1", "abc", "vic", "u-vic", "1e99", "٣", "9" * 30, "x" * 63])
_names = st.sampled_from(
    ["vic-1-0", "vic-1-1", "vic-1-00", "vic-2-0", "vic-0-0", "vic-1-x", "-1-0", "own", "vic", "good-1-0"]
)
_times = st.sampled_from(
    [None, "2026-11-22T11:59:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "12026-11-22T00:00:00Z"]
)
_numbers = st.one_of(st.integers(-(2**63), 2**63), st.floats(allow_nan=False), _text, st.none())
_FIELDS = [
    *("version", "podUid", "startedAt", "finishedAt", "stopRequested", "exitCode", "signal", "failedAt", "heldS"),
    *("message", "progress", "ranks"),
]
_values = st.one_of(_numbers, st.booleans(), st.just([]), st.just({}))
_records = st.one_of(
    _text,
    st.dictionaries(st.sampled_from(_FIELDS), _values).map(json.dumps),
    st.fixed_dictionaries(
        {name: st.floats() for name in ("startedAt", "finishedAt", "failedAt", "heldS")}
        | {"podUid": _text, "stopRequested": st.booleans(), "exitCode": st.integers(-(2**31), 2**31)}
    ).map(json.dumps),
)


@st.composite
def _pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod of project evil as JSON."""
    owner = {
        "apiVersion": draw(st.sampled_from(["stoker.dev/v1alpha1", "batch/v1", "stoker.dev.evil/v1"])),
        "kind": draw(st.sampled_from(["TrainingJob", "Job"])),
        "name": draw(st.sampled_from(["vic", "good", "", "other"])),
        "uid": draw(st.sampled_from(["u-vic", "u-good", ""])),
        "controller": draw(st.booleans()),
    }
    if worker := draw(st.booleans()):  # the job's own pod, whose status its script writes in part
        owner = {
            "apiVersion": "stoker.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "vic",
            "uid": "u-vic",
            "controller": True,
        }
    labels = draw(
        st.dictionaries(st.sampled_from([f"stoker.dev/{n}" for n in ("job", "job-uid", "attempt", "worker")]), _text)
    )
    meta = {
        "name": "vic-1-0" if worker else draw(_names),
        "namespace": "evil",
        "uid": str(draw(st.uuids())),
        "resourceVersion": "7",
        "labels": labels,
        "annotations": draw(st.dictionaries(st.just("stoker.dev/submitter"), _text)),
        "finalizers": draw(st.sampled_from([[], [FINALIZER_OUTCOME], ["x/y", FINALIZER_OUTCOME]])),
        "ownerReferences": [owner] if worker or draw(st.booleans()) else [],
        "deletionTimestamp": draw(_times),
    }
    state = {
        "terminated": {
            "exitCode": draw(st.integers(0, 255)),
            "reason": draw(st.sampled_from(["Completed", "Error", "OOMKilled", "StartError", ""])),
            "message": draw(_records),
            "startedAt": draw(_times),
        }
    }
    condition = {
        "type": draw(st.sampled_from(["PodScheduled", "DisruptionTarget", "PodReadyToStartContainers"])),
        "status": draw(st.sampled_from(["True", "False"])),
        "reason": draw(st.sampled_from(["Unschedulable", "EvictionByEvictionAPI", ""])),
        "message": "m",
        "lastTransitionTime": draw(_times),
    }
    amount = draw(st.sampled_from(["0", "1", "3"]))
    return {
        "metadata": {key: value for key, value in meta.items() if value is not None},
        "spec": {
            "nodeName": draw(st.sampled_from(["", "a", "b", "gone"])),
            "containers": [
                {"name": "worker", "resources": {"limits": {GPUS: amount}, "requests": {"cpu": draw(_text)}}}
            ],
            "terminationGracePeriodSeconds": draw(st.sampled_from([0, 30, 2**62])),
        },
        "status": {
            "phase": draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "Nonsense"])),
            "reason": draw(st.sampled_from(["", "Evicted", "Rejected", "Cancelled"])),
            "conditions": [condition],
            "containerStatuses": [{"name": "worker", "state": state if draw(st.booleans()) else {}}],
        },
    }


def _job(name: str, project: str, phase: Phase = Phase.QUEUED, cancel: bool = False) -> TrainingJob:
    placed = phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
    return TrainingJob(
        metadata=ObjectMeta(
            name=name,
            namespace=project,
            uid=f"u-{name}",
            resource_version="1",
            creation_timestamp=NOW - timedelta(hours=1),
        ),
        spec=TrainingJobSpec(
            gpus_per_worker=1,
            cpu="1",
            memory="1Gi",
            cancel=cancel,
            trainer={"command": ["x"]},  # type: ignore[arg-type]
        ),
        status=TrainingJobStatus(
            phase=phase,
            attempt=0 if phase is Phase.QUEUED else 1,
            placement=(Placed(worker=0, node="b"),) if placed else (),
            placed_at=NOW - timedelta(minutes=1) if placed else None,
            started_at=NOW - timedelta(minutes=1) if phase is Phase.RUNNING else None,
            queued_at=NOW - timedelta(hours=1),
        ),
    )


def _node(name: str) -> GPUNode:
    gpus = tuple(Gpu(uuid=f"{name}-{i}", index=i, model="H100", memory_bytes=2**36) for i in range(8))
    status = GPUNodeStatus(ready=True, cpu_milli=10**15, memory_bytes=2**40, gpus=gpus)
    return GPUNode(metadata=ObjectMeta(name=name, uid=name), status=status)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(
    pods=st.lists(_pods(), max_size=4, unique_by=lambda pod: pod["metadata"]["name"]),
    phase=st.sampled_from(list(Phase)),
    cancel=st.booleans(),
)
def test_no_pod_harms_another_project_or_its_own_jobs_reconcile(
    pods: list[dict[str, Any]], phase: Phase, cancel: bool
) -> None:
    codec, state, evil = Codec(wire(CLUSTER_PODS)), SchedulerState(), _job("vic", "evil", phase, cancel)
    for name in ("a", "b"):
        state.observe_node(_node(name))
    state.observe_queue(Queue(metadata=ObjectMeta(name="default", uid="q")))
    for job in (evil, _job("good", "good")):
        state.observe_job(job)
    ours: list[Pod] = []
    for raw in pods:
        event = codec.line(b'{"type":"ADDED","object":' + json.dumps(raw).encode() + b"}")
        if event.type is WatchType.DELETED:  # type: ignore[union-attr]
            continue
        seen = event.object  # type: ignore[union-attr]
        if isinstance(seen, Pod):
            ours.append(seen)
            state.observe_pod(seen)
        else:
            state.observe_other(seen)  # type: ignore[arg-type]

    for name in ("a", "b"):
        real = sum(
            int(pod["spec"]["containers"][0]["resources"]["limits"][GPUS])
            for pod in pods
            if pod["spec"]["nodeName"] == name and pod["status"]["phase"] not in ("Succeeded", "Failed")
        )
        assert node_room(state, name).free_gpus <= 8 - real, "the kubelets count it"
    starts = {start.key.name: start.placement[0].node for start in decide(state, NOW).starts}
    room = max(node_room(state, name).free_gpus + (starts.get("good") == name) for name in ("a", "b"))
    assert room == 0 or "good" in starts

    mine = [pod for pod in ours if (who := identity(pod.metadata)) and who.job_uid == evil.uid]
    around = Facts(lost={"gone": datetime.min.replace(tzinfo=UTC)})
    for pod in ours:
        assert job_of(pod), "some reconcile sees to it"
        lifecycle.orphans([pod], NOW, Settings(), around)
    job = evil
    for _ in range(8):
        step = lifecycle.step(job, mine, NOW, Settings(), around)
        if step.status is None:
            break
        json.dumps(status_patch(job.status, step.status), allow_nan=False)
        job = job.model_copy(update={"status": TrainingJobStatus.model_validate_json(step.status.model_dump_json())})
    else:
        raise AssertionError("the operator never settles")
