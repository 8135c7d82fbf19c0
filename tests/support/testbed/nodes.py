"""A cluster with real nodes: a control plane and its DNS in a network namespace, N nodes beside it, pretend GPUs.

Owns the order: network, control plane, DNS, nodes, readiness, labels as GPU Feature Discovery sets them. Processes on
the machine reach the API server and every pod directly, and pods reach the machine at `machine_address`. Root. Several
such beds run side by side.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.testbed import build, images, node_files
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.network import Network
from tests.support.testbed.node import Node
from tests.support.testbed.parts import Part, make_bed, parts_in, until
from tests.support.testbed.shell import require_node_tools
from tests.support.testbed.teardown import tear_down

READY_TIMEOUT_S = 90.0
GPU = "nvidia.com/gpu"
# A killed kubelet is NotReady after 6 s and its pods are evicted 8 s later, instead of 50 s and 5 min. With less than 8
# an API server that was away for 5 s costs living nodes their pods: its watchers come back later than that.
_SOON = {
    "kube-apiserver": ["--default-not-ready-toleration-seconds=8", "--default-unreachable-toleration-seconds=8"],
    "kube-controller-manager": ["--node-monitor-grace-period=6s", "--node-monitor-period=1s"],
}


class NodeBed(Cluster):
    """`with NodeBed(folder) as bed:` has nodes n0 and n1 Ready with four pretend GPUs each.

    gpus: pretend GPUs per node, one number per node. archives: further images for every node.
    args: further arguments of the control plane's parts. guarded: taken down too when this process is killed.
    """

    network: Network  # claimed by `start`

    def __init__(
        self,
        folder: Path,
        *,
        gpus: Sequence[int] = (4, 4),
        archives: Sequence[Path] = (),
        args: Mapping[str, Sequence[str]] | None = None,
        guarded: bool = True,
    ) -> None:
        require_node_tools()
        self._programs = build.built("nodes")
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self._gpus, self._archives, self._guarded = list(gpus), list(archives), guarded
        self._args = {name: [*_SOON.get(name, []), *(args or {}).get(name, [])] for name in {*_SOON, *(args or {})}}
        self.plane: ControlPlane | None = None
        super().__init__(folder / "admin.kubeconfig", "")

    def __enter__(self) -> NodeBed:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> NodeBed:
        """Brings everything up. Cost: 20 s on 2 cores. Raises: BedError with a part's log; all is taken down then."""
        tear_down(self.folder)  # what a killed run left
        make_bed(self.folder)
        self.network = Network.claim()
        (self.folder / "network.json").write_text(json.dumps({"number": self.network.number}))
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def attach(cls, folder: Path) -> NodeBed | None:
        """The bed that `make nodes` left running in the folder; None where there is none."""
        plane = ControlPlane.attach(folder)
        if plane is None or not (folder / "network.json").exists():
            return None
        bed = cls(folder, guarded=False)
        bed.plane, bed.url = plane, plane.url
        bed.network = Network(json.loads((folder / "network.json").read_text())["number"])
        for path in sorted((folder / "nodes").iterdir()):
            node = Node(folder, int(path.name[1:]), bed.network, bed._programs, 0)
            node.parts = {part.name: part for part in parts_in(folder, path)}
            node.gpus = bed.allocatable_gpus(node.name)
            bed.nodes[node.name] = node
        return bed

    def close(self) -> None:
        """Takes everything down. May be called twice."""
        parts = [part for node in self.nodes.values() for part in node.parts.values()]
        tear_down(self.folder)
        for part in parts:
            part.reap()
        if self.plane is not None:
            self.plane.close()

    @property
    def machine_address(self) -> str:
        """Where pods reach processes of this machine."""
        return self.network.machine_address

    def part(self, name: str) -> Part:
        """A part of the control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, coredns."""
        assert self.plane is not None, "the bed is not started"
        return self.plane.parts[name]

    def import_image(self, archive: Path) -> None:
        """Loads an image archive into every node, one after the other."""
        for node in self.nodes.values():
            node.import_image(archive)

    def add_storage(self, size: str = "20Gi") -> None:
        """A default StorageClass with one volume, a folder of this machine's: nothing provisions here."""
        folder = self.folder / "volume"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # a hostPath volume knows no fsGroup
        is_default = {"storageclass.kubernetes.io/is-default-class": "true"}
        storage = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local", "annotations": is_default},
            "provisioner": "kubernetes.io/no-provisioner",
        }
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "local"},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local",
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        }
        both = {"apiVersion": "v1", "kind": "List", "items": [storage, volume]}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(both))

    def token(self, user: str) -> str:
        assert self.plane is not None, "the bed is not started"
        return self.plane.token(user)

    def kubeconfig_for(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def wait_ready(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until the node is Ready and offers all its GPUs. Raises: BedError with the end of the kubelet's log."""
        node = self.nodes[name]
        node.parts["kubelet"].until(lambda: self._is_ready(node), f"node {name} Ready with its GPUs", timeout_s)

    def is_ready(self, name: str) -> bool:
        """Whether the API server says that the node is Ready."""
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", name, f"--output=jsonpath={path}", check=False) == "True"

    def allocatable_gpus(self, name: str) -> int:
        """How many GPUs of the node the scheduler may hand out."""
        path = "{.status.allocatable.nvidia\\.com/gpu}"
        return int(self.kubectl("get", "node", name, f"--output=jsonpath={path}", check=False) or 0)

    def _start(self) -> None:
        self.network.up()
        address = self.network.plane_address
        plane = ControlPlane(
            self.folder, address=address, netns=self.network.namespace, args=self._args, guarded=self._guarded
        )
        self.plane = plane
        plane.start()
        self.url = plane.url
        dns = node_files.write_dns(self.folder, address)
        plane.add_part("coredns", str(self._programs["coredns"]), "-conf", str(dns))
        archives = [*images.base_images(), *self._archives]
        for index, gpus in enumerate(self._gpus):
            self.network.add_node(index, list(range(index)))
            node = Node(self.folder, index, self.network, self._programs, gpus)
            self.nodes[node.name] = node
            node.start(archives)
        for node in self.nodes.values():
            self.wait_ready(node.name)
            self.kubectl("label", "node", node.name, "--overwrite", *_labels(node.gpus))
        until(lambda: _http_ok(address, node_files.DNS_READY_PORT, "/ready"), "the cluster's DNS", 30)

    def _is_ready(self, node: Node) -> bool:
        return self.is_ready(node.name) and self.allocatable_gpus(node.name) == node.gpus


def _labels(gpus: int) -> list[str]:
    """What GPU Feature Discovery would say of these GPUs: 80 GiB (in MiB), compute capability 9.0."""
    if not gpus:
        return []
    found = {"product": "PRETEND-GPU", "memory": "81920", "count": gpus, "compute.major": 9, "compute.minor": 0}
    found |= {"present": "true"}
    return [f"{GPU}.{name}={value}" for name, value in found.items()]


def _http_ok(address: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=2)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False
