"""Values of the exporter, a DaemonSet in a namespace of its own. Owns no rendering. Put together in `values`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Duration, MaybeName, Name, Object, Pod, Port, Resources, Strings, Values

Collector = Annotated[str, Field(pattern=r"^[a-z]+$")]


class ExporterTls(Values):
    secret_name: MaybeName = ""
    """A Secret of type kubernetes.io/tls in the exporter's namespace: its metrics are served by https."""


class ExporterAuth(Values):
    enabled: bool = True
    """Whether a token is needed to read its metrics, which name projects, jobs and pods."""
    secret_name: MaybeName = ""
    """A Secret of yours in the exporter's namespace with that token; empty: the chart makes one and keeps its token."""
    key: str = "token"
    """Its key with the token."""


class ExporterCa(Values):
    """How the exporter trusts an api that serves https; `caBundle.pem` holds for it too."""

    config_map: MaybeName = ""
    """A ConfigMap in the exporter's namespace with key ca.crt."""
    secret: MaybeName = ""
    """A Secret in the exporter's namespace with key ca.crt."""


class Exporter(Pod):
    enabled: bool = True
    """Run it on GPU nodes: without it there are no GPU metrics and no usage."""
    namespace: MaybeName = ""
    """Its own, because it runs as uid 0 with a host folder (docs/allocation.md); empty: `<Stoker's>-exporter`."""
    create_namespace: bool = True
    """Whether the chart makes it, labelled for Pod Security's *privileged* profile."""
    node_selector: Strings = {"nvidia.com/gpu.present": "true"}
    """Labels its nodes must have; this one is GPU Feature Discovery's. Helm merges maps: null takes it away."""
    tolerations: list[Object] = [{"operator": "Exists"}]
    """Taints it tolerates: all, because tainted nodes have GPUs too."""
    resources: Resources = Resources(requests={"cpu": "20m", "memory": "64Mi"}, limits={"memory": "128Mi"})
    """Of the container (docs/benchmarks.md)."""
    port: Port = 8475
    """Of its metrics, in the pod."""
    interval: Duration = "1s"
    """How often NVML is read."""
    max_unavailable: Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^[1-9][0-9]*%?$")] = "10%"
    """How many nodes may be without it during an upgrade."""
    state_dir: Annotated[str, Field(pattern=r"^(/\S+)?$")] = "/var/lib/stoker-exporter"
    """A folder on nodes for its ledger and unsent receipts, made where there is none: upgrades and reboots then lose no
    usage and forget no GPU. Empty: they go with the pod."""
    expected_gpus: dict[str, Annotated[int, Field(ge=0, le=1024)]] = {}
    """How many GPUs a node has, by patterns of nodes' names, `{"dgx-*": 8}`; the longest that matches counts. Of other
    nodes: as many as were there in the last 30 days."""
    retired_gpus: list[Annotated[str, Field(pattern=r"^GPU-[0-9a-fA-F-]+$")]] = []
    """Uuids of GPUs that were taken out for good: they are not missed any more."""
    kubelet_root: Annotated[str, Field(pattern=r"^/\S+$")] = "/var/lib/kubelet"
    """The kubelet's folder on nodes; its `pod-resources` is mounted, for reading."""
    runtime_class_name: MaybeName = ""
    """For example `nvidia`: it brings the driver's library into containers, if it is not the nodes' default."""
    driver_root: Annotated[str, Field(pattern=r"^(/\S+)?$")] = ""
    """A folder on nodes with libnvidia-ml.so.1, instead of a runtime class; empty: the container runtime brings it."""
    privileged: bool = False
    """For nodes whose runtime gives GPU devices to privileged containers only."""
    host_pid: bool = False
    """Let it see the nodes' processes: energy, idleness and memory of shared GPUs are then each pod's own
    (docs/allocation.md)."""
    without_collectors: list[Collector] = []
    """What is not read: clocks, temperatures, limits, throttling, pcie, nvlink, ecc, processes, gpm, xid, mig."""
    pull_secrets: list[Name] = []
    """Secrets for the image in the exporter's namespace; those of `image.pullSecrets` are in Stoker's."""
    tls: ExporterTls = ExporterTls()
    auth: ExporterAuth = ExporterAuth()
    ca: ExporterCa = ExporterCa()
