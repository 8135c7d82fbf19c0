"""What workers get whose jobs don't say it: a table of who says it, of nodes, and of rounding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.eligible import needs_of
from stoker.sched.request import request_of
from stoker.sched.worker_size import Share, resources_of, smallest_share, with_fewer_gpus
from stoker.spec.job import TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.quantity import cpu_milli, memory_bytes
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime
from tests.support.examples import examples

GIB = 2**30
LARGE = Share(32_000, 250 * GIB)


def job(**spec: Any) -> TrainingJob:
    given: Any = {"trainer": {"command": ["x"]}} | spec
    return TrainingJob(metadata=ObjectMeta(name="j", namespace="p"), spec=given)


def setting(kind: type[Any], **given: Any) -> Any:
    return kind.model_validate({"metadata": {"name": "x"}, "spec": given})


def case(
    name: str,
    expect: str | None,
    *,
    queue: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    shm: str | None = None,
    share: Share | None = LARGE,
    **spec: Any,
) -> Any:
    """`expect`: cores and who says so, memory and who says so. `queue`, `runtime`: their defaults."""
    one = None if queue is None else setting(Queue, defaults=queue)
    other = None if runtime is None and shm is None else setting(TrainingRuntime, defaults=runtime or {})
    if shm is not None and other is not None:
        other = other.model_copy(update={"spec": other.spec.model_copy(update={"shared_memory": shm})})
    return pytest.param(job(**spec), one, other, share, expect, id=name)


PER_GPU = {"perGpu": {"cpu": "6", "memory": "40Gi"}, "withoutGpus": {"cpu": "500m", "memory": "2Gi"}}
LESS = {"perGpu": {"cpu": "2", "memory": "8Gi"}, "withoutGpus": {"memory": "3Gi"}}

CASES = [
    case("without GPUs: 1 core and 1Gi", "1 Default, 1Gi Default, 512Mi"),
    case("one GPU: nine tenths of its share", "28 GpuShare, 225Gi GpuShare, 115200Mi", gpusPerWorker=1),
    case("two: of two shares, rounded once", "57 GpuShare, 450Gi GpuShare, 225Gi", gpusPerWorker=2),
    case(
        "a small machine: tenths of a core, steps of 64Mi",
        "800m GpuShare, 3648Mi GpuShare, 1824Mi",
        gpusPerWorker=1,
        share=Share(999, 4 * GIB),
    ),
    case("never nothing", "100m GpuShare, 64Mi GpuShare, 32Mi", gpusPerWorker=1, share=Share(1, 1)),
    case("no node has such GPUs: not known", None, gpusPerWorker=1, share=None),
    case("what the job says stands as it says it", "0.5 Job, 225Gi GpuShare, 115200Mi", gpusPerWorker=1, cpu="0.5"),
    case("one that says both needs no node", "2 Job, 1Gi Job, 512Mi", gpusPerWorker=1, cpu=2, memory="1Gi", share=None),
    case("its shared memory", "1 Default, 1Gi Default, 2Gi", sharedMemory="2Gi", shm="3Gi"),
    case("the runtime's shared memory", "1 Default, 1Gi Default, 3Gi", shm="3Gi"),
    case("the queue's, for each GPU", "24 Queue, 160Gi Queue, 80Gi", queue=PER_GPU, gpusPerWorker=4, share=None),
    case("the queue's, without GPUs", "500m Queue, 2Gi Queue, 1Gi", queue=PER_GPU),
    case("the runtime's", "12 Runtime, 80Gi Runtime, 40Gi", queue={}, runtime=PER_GPU, gpusPerWorker=2),
    case("the queue's, not the runtime's", "2 Queue, 8Gi Queue, 4Gi", queue=LESS, runtime=PER_GPU, gpusPerWorker=1),
    case("cores and memory each", "500m Runtime, 3Gi Queue, 1536Mi", queue=LESS, runtime=PER_GPU),
    case("the job's before all", "1 Job, 8Gi Queue, 4Gi", queue=LESS, runtime=PER_GPU, gpusPerWorker=1, cpu="1"),
]


@pytest.mark.parametrize(("wanted", "queue", "runtime", "share", "expect"), CASES)
def test_who_says_what_a_worker_gets(
    wanted: TrainingJob, queue: Queue | None, runtime: TrainingRuntime | None, share: Share | None, expect: str | None
) -> None:
    found = resources_of(wanted, queue, runtime, lambda: share)
    said = found and f"{found.cpu} {found.cpu_from}, {found.memory} {found.memory_from}, {found.shared_memory}"
    assert said == expect


@examples(50)
@given(
    share=st.builds(Share, cpu=st.integers(100, 64_000), memory=st.integers(2**27, 2**39)),
    gpus=st.integers(2, 8),
    data=st.data(),
)
def test_fewer_gpus_never_bring_more_than_is_foreseen(share: Share, gpus: int, data: st.DataObject) -> None:
    fewer = data.draw(st.integers(1, gpus - 1))
    now, then = (resources_of(job(gpusPerWorker=count), None, None, lambda: share) for count in (gpus, fewer))
    assert now is not None and then is not None
    foreseen = with_fewer_gpus(now, gpus, fewer)
    assert cpu_milli(then.cpu) <= cpu_milli(foreseen.cpu) <= cpu_milli(now.cpu)
    assert memory_bytes(then.memory) <= memory_bytes(foreseen.memory) <= memory_bytes(now.memory)


def test_the_smallest_share_of_nodes_whose_gpus_would_do(sched: Any) -> None:
    nodes = [
        sched.node("many", gpus=8, cpu=64, memory=1024, model="NVIDIA A100"),
        sched.node("few", gpus=2, cpu=32, memory=128, model="NVIDIA A100"),
        sched.node("other", gpus=4, cpu=4, memory=4, model="Tesla T4"),
        sched.node("none", gpus=0, cpu=1, memory=1),
    ]

    def share(runtime: Any = None, **spec: Any) -> Share | None:
        return smallest_share(nodes, request_of(job(**spec), needs_of("default", runtime)))

    a100 = {"models": ["a100"]}
    assert share(gpusPerWorker=1, gpu=a100) == Share(8000, 64 * GIB), "cores of one node, memory of another"
    assert share(gpusPerWorker=4, gpu=a100) == Share(8000, 128 * GIB), "a worker of four does not fit on a node of two"
    assert share(gpusPerWorker=1) == Share(1000, GIB)
    assert share(gpusPerWorker=1, gpu={"models": ["h100"]}) is None
    assert share(gpusPerWorker=9) is None
    assert share(sched.runtime(selector={"zone": "a"}), gpusPerWorker=1) is None, "its runtime lets it on none of them"
    nodes[:] = [node.model_copy(update={"status": node.status.model_copy(update={"ready": False})}) for node in nodes]
    assert share(gpusPerWorker=1, gpu=a100) == Share(8000, 64 * GIB), "a node that is away for a while counts"
