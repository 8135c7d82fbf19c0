"""The configuration files of one node: the pods' network, containerd, kubelet; and the cluster's DNS.

Owns their content; `node` and `nodes` write them at start.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.testbed.images import PAUSE
from tests.support.testbed.shell import CNI_FOLDER

CLUSTER_DOMAIN = "cluster.local"
DNS_READY_PORT = 8181


def write_cni(folder: Path, pods: str) -> None:
    """A bridge for the node's pods, with addresses out of `pods`."""
    ranges = {"type": "host-local", "dataDir": str(folder / "cni-addresses"), "ranges": [[{"subnet": pods}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    plugins = [
        {**bridge, "ipam": {**ranges, "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    (folder / "cni").mkdir(exist_ok=True)
    network = {"cniVersion": "0.4.0", "name": "testbed", "plugins": plugins}
    (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(network, indent=1))


def write_containerd(folder: Path) -> None:
    (folder / "containerd.toml").write_text(
        f"""\
version = 3
root = "{folder}/containerd-root"
state = "{folder}/containerd-state"

[grpc]
  address = "{folder}/containerd.sock"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
  # In containers and small machines CAP_SYS_RESOURCE is missing, and pods want a lower OOM score than containerd.
  restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{CNI_FOLDER}"]
  conf_dir = "{folder}/cni"
"""
    )


def write_kubelet(folder: Path, authority: Path, address: str, dns: str, cgroup: str) -> None:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(folder / "pki" / "node.crt"),
        "tlsPrivateKeyFile": str(folder / "pki" / "node.key"),
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "volumePluginDir": str(folder / "volume-plugins"),
        # From 1.35 on the kubelet refuses cgroup v1 otherwise.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "resolvConf": "",
        "clusterDNS": [dns],
        "clusterDomain": CLUSTER_DOMAIN,
        "maxPods": 110,
        "serializeImagePulls": False,
        # The machine's disk is shared: a test bed must not evict pods because it is three quarters full.
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # Tests of lost nodes wait for these.
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 4,
    }
    (folder / "kubelet.json").write_text(json.dumps(config, indent=1))


def write_dns(bed: Path, address: str) -> Path:
    """CoreDNS' configuration: the cluster's names on port 53 of the control plane's address, nothing else."""
    path = bed / "Corefile"
    path.write_text(
        f"""\
.:53 {{
    bind {address}
    errors
    ready {address}:{DNS_READY_PORT}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {bed}/admin.kubeconfig
    }}
}}
"""
    )
    return path
