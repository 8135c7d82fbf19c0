"""One real node: containerd, kubelet, kube-proxy and the pretend GPUs in a network and a mount namespace of its own.

Owns the node's configuration files and its parts, and what tests do to it: kill a part, pull its cable, cut its power.
Never decides about the network (`network`) or when nodes join (`nodes`). Root.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.support.testbed import cgroups, node_files, pki
from tests.support.testbed.network import Network
from tests.support.testbed.parts import SYSTEM_PATH, Part, kill_all
from tests.support.testbed.shell import run

CONTAINERD, KUBELET, PROXY, GPUS, HOLDER = "containerd", "kubelet", "kube-proxy", "pretend-gpus", "holder"
# Kubelets of one machine delete each other's pods' logs and sockets here: each node has its own.
_PRIVATE = {
    "kubelet": "/var/lib/kubelet",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
    "netns": "/run/netns",
    "run-containerd": "/run/containerd",
    "driver": "/run/nvidia/driver",
    "exporter": "/var/lib/stoker-exporter",
}
DRIVER_ROOT = _PRIVATE["driver"]
"""Where pods of a node find what a test put into its `driver` folder, as if a GPU's driver were installed there."""


class Node:
    """Node `n<index>` of the bed in `bed`, offering `gpus` pretend GPUs."""

    def __init__(self, bed: Path, index: int, network: Network, programs: dict[str, Path], gpus: int) -> None:
        self.index, self.network, self.gpus = index, network, gpus
        self.name = f"n{index}"
        self.address = network.node_address(index)
        self.folder = bed / "nodes" / self.name
        self.namespace = network.node_namespace(index)
        self.parts: dict[str, Part] = {}
        self._bed, self._programs = bed, programs

    @property
    def driver(self) -> Path:
        """The folder that pods mount by the host path DRIVER_ROOT, of this node alone; empty unless a test fills it."""
        return self.folder / "driver"

    # --- life

    def start(self, images: list[Path]) -> None:
        """Boots the node in its network namespace, which is there already. Raises: BedError with a part's log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.namespace)
        self._write_files()
        self._hold_namespaces()
        self._part(CONTAINERD, "-c", str(self.folder / "containerd.toml")).start()
        version = self._ctr("version")
        self.parts[CONTAINERD].until(lambda: "Server:" in run(*version, check=False), "containerd's answer", 40)
        for image in images:
            self.import_image(image)
        kubelet, node = f"--config={self.folder}/kubelet.json", f"--hostname-override={self.name}"
        config = f"--kubeconfig={self.folder}/node.kubeconfig"
        own = [f"--node-ip={self.address}", "--root-dir=/var/lib/kubelet", f"--cert-dir={self.folder}/pki"]
        self._part(KUBELET, kubelet, config, node, *own).start()
        limits = ["--conntrack-max-per-core=0", "--conntrack-min=0", f"--cluster-cidr={self.network.pod_range}"]
        listen = ["--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249"]
        admin = f"--kubeconfig={self._bed}/admin.kubeconfig"
        self._part(PROXY, admin, "--proxy-mode=iptables", node, *listen, *limits).start()
        if self.gpus:
            self._part(GPUS, f"-count={self.gpus}", f"-node={self.name}").start()

    def import_image(self, archive: Path, *, timeout_s: float = 600.0) -> None:
        """Loads an image archive into the node. Cost: 0.1 s for busybox, about 1 s per 100 MB."""
        run(*self._ctr("images", "import", str(archive)), timeout_s=timeout_s)

    def images(self) -> list[str]:
        """The names of the images the node holds."""
        return run(*self._ctr("images", "list", "-q")).split()

    def run(self, *command: str, timeout_s: float = 30.0) -> str:
        """What a command prints that runs in the node's namespaces."""
        return run(*self._inside(), *command, timeout_s=timeout_s)

    # --- failures

    def toggle_last_gpu(self) -> None:
        """Turns the last GPU unhealthy, or healthy again."""
        self.parts[GPUS].send(signal.SIGUSR1)

    def offer(self, count: int, name: str, resource: str) -> None:
        """Its device plugin offers these from now on: GPU-<name>-0, …; pods keep what they have."""
        self.parts[GPUS].kill()
        self._part(GPUS, f"-count={count}", f"-node={name}", f"-resource={resource}").start()

    def pull_cable(self) -> None:
        """The node and its pods run on, but no one reaches them."""
        self.network.plug(self.index, connected=False)

    def plug_cable(self) -> None:
        self.network.plug(self.index, connected=True)

    def power_off(self) -> None:
        """Every process of the node and its pods ends at once, and it reports nothing."""
        self.pull_cable()
        for name in (KUBELET, PROXY, GPUS, CONTAINERD):
            if name in self.parts:
                self.parts[name].kill()
        cgroups.kill(self.namespace)
        kill_all(self._bed, argument=f"{self.folder}/containerd.sock")  # the shims
        self.parts[HOLDER].kill()  # the node's mounts go with it

    def power_on(self) -> None:
        """Boots it again: disk and images are as they were, everything that lives in memory is gone."""
        for name in ("containerd-state", "netns", "run-containerd"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.plug_cable()
        self.start([])

    # --- parts

    def _write_files(self) -> None:
        folder, authority = self.folder, self._bed / "pki"
        pki.issue(
            authority,
            "node",
            f"/O=system:nodes/CN=system:node:{self.name}",
            f"DNS:{self.name},IP:{self.address}",
            into=folder / "pki",
        )
        admin = self._bed / "admin.kubeconfig"
        url = pki.server_of(admin)
        pki.write_kubeconfig(folder / "node.kubeconfig", url, authority / "ca.crt", cert=folder / "pki" / "node.crt")
        node_files.write_cni(folder, self.network.node_pods(self.index))
        node_files.write_containerd(folder)
        node_files.write_kubelet(folder, authority, self.address, self.network.plane_address, self.namespace)

    def _hold_namespaces(self) -> None:
        binds = []
        for name, path in _PRIVATE.items():
            (self.folder / name).mkdir(exist_ok=True)
            Path(path).mkdir(parents=True, exist_ok=True)
            binds.append(f"mount --bind {self.folder / name} {path}")
        # Mounts must spread from containerd to kubelet and pods, and none of them to the machine.
        script = "; ".join(["set -e", "mount --make-rslave /", *binds, "mount --make-rshared /", "exec sleep infinity"])
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount"]
        holder = Part(self._bed, HOLDER, [*enter, "sh", "-c", script], folder=self.folder)
        self.parts[HOLDER] = holder
        holder.start()
        holder.until(lambda: _command_of(holder.pid) == "sleep", "the node's namespaces", 10)

    def _part(self, name: str, *args: str) -> Part:
        path = f"{self._programs[CONTAINERD].parent}:{SYSTEM_PATH}"  # containerd looks for its shim on PATH
        argv = [str(self._programs[name]), *args]
        self.parts[name] = Part(self._bed, name, argv, prefix=self._inside(), folder=self.folder, path=path)
        return self.parts[name]

    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self.parts[HOLDER].pid}", "--net", "--mount"]

    def _ctr(self, *args: str) -> list[str]:
        address = f"--address={self.folder}/containerd.sock"
        return [*self._inside(), str(self._programs["ctr"]), address, "--namespace=k8s.io", *args]


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip() if pid else ""
