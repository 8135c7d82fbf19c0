"""What a v1 Node means to Stoker: GPU Feature Discovery's labels, allocatable, cordon, silence, vanished GPUs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from stoker.kube.nodes import NodeView, gpu_node
from stoker.spec.node import GPUNode, Taint

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/mig.strategy": "none",
}


def v1_node(
    *,
    gpus: int = 8,
    healthy: int | None = None,
    labels: dict[str, str] | None = None,
    ready: str | None = "True",
    cordoned: bool = False,
    taints: list[dict[str, Any]] | None = None,
    more: dict[str, str] | None = None,
    deleted: bool = False,
) -> dict[str, Any]:
    """As the API server of 1.36 prints one, with much that no one here reads."""
    amounts = {"cpu": "64", "memory": "528280944Ki", "ephemeral-storage": "98831908Ki", "pods": "110", **(more or {})}
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": "KubeletReady" if ready == "True" else "NodeStatusUnknown",
        "message": "kubelet is posting ready status" if ready == "True" else "Kubelet stopped posting node status.",
        "lastHeartbeatTime": "2026-11-21T10:00:40Z",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n0",
            "uid": "node-uid",
            "resourceVersion": "77",
            "creationTimestamp": "2026-11-21T09:00:00Z",
            "labels": {"zone": "a", **(A100 if labels is None else labels)},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            "managedFields": [{"manager": "kubelet"}],
            **({"deletionTimestamp": "2026-11-21T11:00:00Z"} if deleted else {}),
        },
        "spec": {"podCIDR": "10.0.0.0/24", "unschedulable": cordoned, "taints": taints or []},
        "status": {
            "capacity": {**amounts, "nvidia.com/gpu": str(gpus)},
            "allocatable": {**amounts, "cpu": "63920m", "nvidia.com/gpu": str(gpus if healthy is None else healthy)},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, *([condition] if ready else [])],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
            "images": [{"names": ["busybox"], "sizeBytes": 1}],
        },
    }


def seen(**what: Any) -> GPUNode:
    return gpu_node(NodeView.model_validate_json(json.dumps(v1_node(**what))))


def test_a_node_with_gpu_feature_discovery() -> None:
    node = seen(more={"rdma/hca": "4", "hugepages-2Mi": "1Gi", "nvidia.com/mig-1g.10gb": "7"})
    meta, status = node.metadata, node.status
    assert (meta.name, meta.uid, meta.resource_version, meta.annotations) == ("n0", "node-uid", "77", {})
    assert meta.labels["zone"] == "a" and node.kind == "GPUNode"
    assert (status.ready, status.message, status.lost_since) == (True, "", None)
    assert (status.cpu_milli, status.memory_bytes) == (63_920, 528_280_944 * 1024)
    assert status.extended == {"rdma/hca": 4, "hugepages-2Mi": 2**30}
    assert [gpu.index for gpu in status.gpus] == list(range(15))
    assert {(gpu.resource, gpu.part) for gpu in status.gpus[:8]} == {("nvidia.com/gpu", False)}
    gpu = status.gpus[0]
    assert (gpu.model, gpu.memory_bytes, gpu.compute_capability) == ("NVIDIA-A100-SXM4-80GB", 80 * 2**30, "8.0")
    assert (gpu.uuid, gpu.unavailable, gpu.simulated) == ("", "", False)


def test_the_object_inside_a_watch_event_is_the_same() -> None:
    assert gpu_node(NodeView.model_validate(v1_node())) == seen()


def test_nodes_of_one_kind_share_their_gpus() -> None:
    assert seen().status.gpus[3] is seen().status.gpus[3]


@pytest.mark.parametrize(
    ("what", "unavailable"),
    [
        ({"healthy": 7}, ["unhealthy (device plugin)"]),
        ({"healthy": 9}, []),
        ({"gpus": 6}, ["not offered by the device plugin"] * 2),
        ({"gpus": 0, "healthy": 0}, ["not offered by the device plugin"] * 8),
    ],
)
def test_unhealthy_and_vanished_gpus_are_there_but_unavailable(what: dict[str, Any], unavailable: list[str]) -> None:
    gpus = seen(**what).status.gpus
    assert len(gpus) == 8
    assert [gpu.unavailable for gpu in gpus if gpu.unavailable] == unavailable


@pytest.mark.parametrize(
    ("labels", "gpus", "more"),
    [
        ({}, 4, {}),
        ({"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.count": "8"}, 4, {}),
        ({"nvidia.com/gpu.count": "many", "nvidia.com/gpu.memory": "x"}, 4, {}),
    ],
)
def test_without_labels_the_capacity_counts(labels: dict[str, str], gpus: int, more: dict[str, str]) -> None:
    found = seen(labels=labels, gpus=gpus, more=more).status.gpus
    assert len(found) == gpus and all((gpu.model, gpu.memory_bytes) == ("unknown", 0) for gpu in found)


def test_a_shared_gpu_promises_its_part_of_the_memory() -> None:
    shared = {**A100, "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"}
    status = seen(labels=shared, gpus=32).status
    assert len(status.gpus) == 32 and status.gpus[0].memory_bytes == 20 * 2**30
    assert status.ready and status.message == "each GPU is shared by 4"


def test_slices_and_gpus_that_are_shared_by_another_name_are_parts() -> None:
    slices = {"nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    slices |= {"nvidia.com/mig-1g.10gb.memory": "9728", "nvidia.com/mig.strategy": "mixed"}
    offered = {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-1g.24gb-me": "1"}
    status = seen(labels={**A100, **slices}, gpus=6, more=offered).status
    kinds = [(gpu.resource, gpu.model, gpu.memory_bytes // 2**20) for gpu in status.gpus if gpu.part]
    assert kinds[:7] == [("nvidia.com/mig-1g.10gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 9728)] * 7
    assert kinds[7:] == [("nvidia.com/mig-1g.24gb-me", "MIG 1g.24gb-me", 0)]
    assert [gpu.resource for gpu in status.gpus if not gpu.part] == ["nvidia.com/gpu"] * 6

    slices |= {"nvidia.com/mig-1g.10gb.replicas": "2"}
    for name in ("nvidia.com/mig-1g.10gb.shared", "nvidia.com/mig-1g.10gb"):
        [share] = {*seen(labels=slices, gpus=0, more={name: "1"}).status.gpus}
        assert (share.model, share.memory_bytes) == ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 4864 * 2**20)

    shared = {**A100, "nvidia.com/gpu.replicas": "4"}
    status = seen(labels=shared, gpus=0, more={"nvidia.com/gpu.shared": "32"}).status
    assert len(status.gpus) == 32 and status.message == "each GPU is shared by 4"
    assert {(gpu.resource, gpu.part, gpu.memory_bytes) for gpu in status.gpus} == {
        ("nvidia.com/gpu.shared", True, 20 * 2**30)
    }

    single = {
        **A100,
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "nvidia.com/mig.strategy": "single",
    }
    assert all(gpu.part for gpu in seen(labels=single, gpus=56).status.gpus)


@pytest.mark.parametrize(
    ("what", "message", "lost"),
    [
        ({"cordoned": True}, "cordoned", False),
        ({"ready": "Unknown"}, "NodeStatusUnknown: Kubelet stopped posting node status.", True),
        (
            {"ready": "False", "cordoned": True},
            "cordoned; NodeStatusUnknown: Kubelet stopped posting node status.",
            True,
        ),
        ({"ready": None}, "its kubelet has not reported yet", False),
        ({"deleted": True}, "being removed from the cluster", False),
    ],
)
def test_a_node_that_takes_nothing_says_why(what: dict[str, Any], message: str, lost: bool) -> None:
    status = seen(**what).status
    assert (status.ready, status.message) == (False, message)
    assert status.lost_since == (datetime(2026, 11, 21, 10, 0, tzinfo=UTC) if lost else None)


def test_taints_and_odd_amounts() -> None:
    taint = {"key": "dedicated", "value": "infra", "effect": "NoSchedule", "timeAdded": "2026-11-21T09:00:00Z"}
    status = seen(taints=[taint], more={"example.com/a": "1e3", "example.com/b": "?", "example.com/c": "1e99"}).status
    assert status.taints == (Taint(key="dedicated", value="infra", effect="NoSchedule"),)
    assert status.extended == {"example.com/a": 1000, "example.com/b": 0, "example.com/c": 2**48}


def test_a_node_that_is_nearly_nothing() -> None:
    node = gpu_node(NodeView.model_validate({"metadata": {"name": "new"}}))
    assert (node.status.ready, node.status.gpus, node.status.cpu_milli) == (False, (), 0)
