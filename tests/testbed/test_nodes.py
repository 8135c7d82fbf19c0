"""Two real nodes: pods where they are pinned, names and packets across nodes, GPUs handed out once, and what breaks."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.testbed.images import BUSYBOX
from tests.support.testbed.nodes import NodeBed
from tests.support.testbed.parts import marked, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def space(node_bed: NodeBed) -> Iterator[str]:
    """A namespace that enforces *restricted*, emptied at the end."""
    name = f"nodes-{time.monotonic_ns() % 10**9}"
    node_bed.kubectl("create", "namespace", name)
    node_bed.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    node_bed.kubectl("delete", "pods,jobs", "--all", f"--namespace={name}", "--grace-period=0", "--force")
    node_bed.kubectl("delete", "namespace", name, "--wait=false")


def pod_spec(command: str, *, node: str = "", gpus: int = 0, **more: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command], "securityContext": _RESTRICTED}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [{**container, **limits}], **more}
    if node:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return spec


def create(bed: NodeBed, namespace: str, *objects: dict[str, Any]) -> None:
    for document in objects:
        bed.kubectl("create", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(document))


def pod(name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def get(bed: NodeBed, namespace: str, what: str, path: str) -> str:
    return bed.kubectl("get", *what.split(), f"--namespace={namespace}", f"--output=jsonpath={path}", check=False)


def test_pods_meet_across_nodes_by_name(node_bed: NodeBed, space: str) -> None:
    ports = {"clusterIP": "None", "selector": {"app": "server"}, "publishNotReadyAddresses": True}
    create(
        node_bed,
        space,
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gang"}, "spec": ports},
        pod(
            "server",
            pod_spec("echo hello | nc -l -p 29400", node="n0", hostname="server", subdomain="gang"),
            app="server",
        ),
        pod(
            "client",
            pod_spec(
                f"until nc -w 2 server.gang.{space}.svc 29400 </dev/null | grep hello; do sleep 0.2; done", node="n1"
            ),
        ),
    )
    until(lambda: get(node_bed, space, "pod client", "{.status.phase}") == "Succeeded", "client has met server", 60)
    nodes = get(node_bed, space, "pods", "{range .items[*]}{.metadata.name}={.spec.nodeName} {end}")
    assert nodes.split() == ["client=n1", "server=n0"]
    said = node_bed.kubectl("logs", "client", f"--namespace={space}").splitlines()
    assert said[-1] == "hello"  # before, that the name is not known yet


def test_an_indexed_job_gets_distinct_gpus(node_bed: NodeBed, space: str) -> None:
    spec = pod_spec('echo "$HOSTNAME $NVIDIA_VISIBLE_DEVICES $STOKER_SIMULATED_GPUS"; sleep 3', gpus=2)
    job = {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "template": {"spec": spec}}
    create(node_bed, space, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gpus"}, "spec": job})
    until(lambda: get(node_bed, space, "job gpus", "{.status.succeeded}") == "4", "the job has succeeded", 90)
    logs = node_bed.kubectl("logs", "--selector=job-name=gpus", f"--namespace={space}").split("\n")
    devices = [device for line in logs if line for device in line.split()[1].split(",")]
    assert sorted(devices) == [f"GPU-{node}-{i}" for node in ("n0", "n1") for i in range(4)]
    assert all(line.endswith(" 1") for line in logs if line)


def test_a_gpu_fails_and_comes_back(node_bed: NodeBed) -> None:
    node_bed.nodes["n1"].toggle_last_gpu()
    until(lambda: node_bed.allocatable_gpus("n1") == 3, "three GPUs are left", 30)
    node_bed.nodes["n1"].toggle_last_gpu()
    until(lambda: node_bed.allocatable_gpus("n1") == 4, "four GPUs again", 30)


def test_a_kubelet_dies_and_its_gpus_return(node_bed: NodeBed, space: str) -> None:
    create(node_bed, space, pod("stays", pod_spec("sleep 1000", node="n1", gpus=1, terminationGracePeriodSeconds=1)))
    until(lambda: get(node_bed, space, "pod stays", "{.status.phase}") == "Running", "the pod runs", 60)
    kubelet = node_bed.nodes["n1"].parts["kubelet"]
    kubelet.kill()
    until(lambda: not node_bed.is_ready("n1"), "n1 is NotReady", 30)
    kubelet.start()
    node_bed.wait_ready("n1")


def test_power_off_and_on(node_bed: NodeBed, space: str) -> None:
    create(node_bed, space, pod("lost", pod_spec("sleep 1000", node="n1", gpus=1, terminationGracePeriodSeconds=1)))
    until(lambda: get(node_bed, space, "pod lost", "{.status.phase}") == "Running", "the pod runs", 60)
    node = node_bed.nodes["n1"]
    node.power_off()
    until(lambda: not node_bed.is_ready("n1"), "n1 is NotReady", 30)
    until(lambda: get(node_bed, space, "pod lost", "{.metadata.deletionTimestamp}"), "its pod is evicted", 30)
    node.power_on()
    node_bed.wait_ready("n1")
    until(lambda: not get(node_bed, space, "pod lost", "{.metadata.name}"), "the kubelet has let go of the pod", 60)
    create(node_bed, space, pod("again", pod_spec("echo up", node="n1", gpus=4)))
    until(lambda: get(node_bed, space, "pod again", "{.status.phase}") == "Succeeded", "n1 runs pods again", 60)


def test_a_pulled_cable_heals(node_bed: NodeBed) -> None:
    node = node_bed.nodes["n0"]
    node.pull_cable()
    until(lambda: not node_bed.is_ready("n0"), "n0 is NotReady", 30)
    assert node.parts["kubelet"].pid
    node.plug_cable()
    node_bed.wait_ready("n0")


def test_pods_and_machine_reach_each_other(node_bed: NodeBed, space: str) -> None:
    """A process of the machine answers a pod, and a pod answers the machine, both at their own addresses."""
    with socket.create_server((node_bed.machine_address, 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        script = f"nc -w 30 {node_bed.machine_address} {port} </dev/null; echo pod | nc -l -p 8000"
        create(node_bed, space, pod("talks", pod_spec(script, node="n0", terminationGracePeriodSeconds=1)))
        connection, (peer, _) = server.accept()
        with connection:
            connection.sendall(b"machine\n")
    assert peer == until(lambda: get(node_bed, space, "pod talks", "{.status.podIP}"), "the pod's address", 30)

    def answer() -> bytes:
        with contextlib.suppress(OSError), socket.create_connection((peer, 8000), timeout=5) as client:
            return client.recv(100)
        return b""

    assert until(answer, "the pod answers the machine", 30) == b"pod\n"
    until(lambda: get(node_bed, space, "pod talks", "{.status.phase}") == "Succeeded", "the pod ends", 30)
    assert node_bed.kubectl("logs", "talks", f"--namespace={space}") == "machine\n"


def test_a_claim_without_a_class_gets_the_volume_that_make_nodes_leaves(node_bed: NodeBed, space: str) -> None:
    node_bed.add_storage()
    try:
        room = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": room}
        create(node_bed, space, claim)
        until(lambda: get(node_bed, space, "pvc data", "{.status.phase}") == "Bound", "the claim is bound", 30)
        node_bed.kubectl("delete", "pvc", "data", f"--namespace={space}")
    finally:
        node_bed.kubectl("delete", "storageclass/local", "pv/local")


def test_everything_is_marked(node_bed: NodeBed) -> None:
    assert len(list(marked(node_bed.folder))) >= 5 + 2 * 5
