"""What a pod takes of its node: Kubernetes' arithmetic, a case per rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.pod_requests import other_claim, own_pod
from stoker.spec.other_pod import OtherPod

GI = 2**30


def asks(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": {name.replace("__", "/"): value for name, value in requests.items()}}}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> OtherPod:
    return OtherPod.model_validate(
        {
            "metadata": {"name": "p", "namespace": "x"},
            "spec": {"nodeName": "n", "containers": containers, "initContainers": init, **spec},
        }
    )


SIDECAR = {"restartPolicy": "Always"}
CASES: list[tuple[str, OtherPod, tuple[int, int, int]]] = [
    ("containers add up", pod(asks(cpu="500m", memory="1Gi"), asks(cpu="1")), (0, 1500, GI)),
    ("an init container larger than all the rest counts", pod(asks(cpu="1"), init=(asks(cpu="3"),)), (0, 3000, 0)),
    ("init containers run one after the other", pod(init=(asks(cpu="2"), asks(cpu="1"))), (0, 2000, 0)),
    ("a sidecar runs beside the others", pod(asks(cpu="1"), init=(asks(cpu="2") | SIDECAR,)), (0, 3000, 0)),
    ("and beside later init containers", pod(init=(asks(cpu="1") | SIDECAR, asks(cpu="2"))), (0, 3000, 0)),
    ("but not beside earlier ones", pod(init=(asks(cpu="2"), asks(cpu="1") | SIDECAR)), (0, 2000, 0)),
    ("each resource has its own largest", pod(asks(memory="2Gi"), init=(asks(cpu="1"),)), (0, 1000, 2 * GI)),
    ("overhead comes on top", pod(asks(cpu="1"), overhead={"cpu": "250m", "memory": "1Gi"}), (0, 1250, GI)),
    ("GPUs count", pod(asks(nvidia_com__gpu="1"), {"resources": {"limits": {"nvidia.com/gpu": "2"}}}), (2, 0, 0)),
    ("a limit alone is a request", pod({"resources": {"limits": {"cpu": "2"}, "requests": {}}}), (0, 2000, 0)),
    ("the pod's own requests count instead", pod(asks(cpu="4"), resources={"requests": {"cpu": "1"}}), (0, 1000, 0)),
    ("parts of a thousandth round up", pod(asks(cpu="100u")), (0, 1, 0)),
    ("exponents are read, nonsense is nothing", pod(asks(memory="1e3", cpu="lots")), (0, 0, 1000)),
]


@pytest.mark.parametrize(("wanted", "given"), [(c[2], c[1]) for c in CASES], ids=[c[0] for c in CASES])
def test_rule(given: OtherPod, wanted: tuple[int, int, int]) -> None:
    taken = other_claim(given)
    assert taken is not None and taken.claim.request.totals == wanted


def test_who_asks_for_nothing_takes_nothing() -> None:
    assert other_claim(pod({}, {})) is None


def test_other_resources_are_kept_by_name_and_disk_is_not() -> None:
    taken = other_claim(pod({"resources": {"requests": {"rdma/hca": "2", "ephemeral-storage": "1Gi", "cpu": "1"}}}))
    assert taken is not None and taken.claim.request.extended == (("rdma/hca", 2),)


def test_our_own_pods_show_whose_they_are(sched: SimpleNamespace) -> None:
    job = sched.job("x", 2, attempt=3)
    mine = own_pod(sched.pod(job, 1, on="a"))
    assert mine is not None
    assert (mine.worker, mine.node) == (("default", "x", "uid-x", 3, 1), "a")
    assert mine.taken.claim.request.totals == (2, 1000, GI) and not mine.taken.terminating
    assert own_pod(sched.pod(job, on="a", ended=True)) is None
    assert own_pod(sched.pod(job, on="")) is None
