"""The command lines of the control plane's four parts, for one folder, address and set of ports.

Owns no process; `control_plane` starts them. Every flag that is there for a reason one can't guess says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ETCD, API, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
SERVICE_RANGE, SERVICE_IP = "10.96.0.0/16", "10.96.0.1"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Layout:
    """Where a control plane lives: its folder, the API server's address, and a port per listener."""

    folder: Path
    address: str
    api: int
    etcd: int
    etcd_peer: int
    controllers: int
    scheduler: int

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.api}"


def etcd(at: Layout, data: Path, *, synced: bool) -> list[str]:
    clients, peers = f"http://{LOOPBACK}:{at.etcd}", f"http://{LOOPBACK}:{at.etcd_peer}"
    listen = [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}"]
    member = ["--name=bed", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=bed={peers}"]
    return [*member, *listen, f"--data-dir={data}", "--log-level=warn", *([] if synced else ["--unsafe-no-fsync"])]


def api_server(at: Layout) -> list[str]:
    p = at.folder / "pki"
    return [
        *(f"--bind-address={at.address}", f"--advertise-address={at.address}", f"--secure-port={at.api}"),
        # A loopback address may not be an endpoint of the Service `kubernetes`.
        f"--endpoint-reconciler-type={'none' if at.address == LOOPBACK else 'lease'}",
        *(f"--etcd-servers=http://{LOOPBACK}:{at.etcd}", f"--service-cluster-ip-range={SERVICE_RANGE}"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"),
        *(f"--token-auth-file={p}/tokens.csv", f"--client-ca-file={p}/ca.crt"),
        *(f"--tls-cert-file={p}/apiserver.crt", f"--tls-private-key-file={p}/apiserver.key"),
        f"--kubelet-client-certificate={p}/kubelet-client.crt",
        *(f"--kubelet-client-key={p}/kubelet-client.key", "--kubelet-preferred-address-types=InternalIP"),
        # Without it a stop waits for the watches to end by themselves: more than 20 s instead of 1 s.
        "--shutdown-watch-termination-grace-period=2s",
        "--service-account-issuer=https://kubernetes.default.svc",
        *(f"--service-account-key-file={p}/sa.pub", f"--service-account-signing-key-file={p}/sa.key"),
        # Webhooks are called at their pods' addresses: no kube-proxy runs beside the API server.
        *("--enable-aggregator-routing=true", f"--proxy-client-cert-file={p}/front-proxy.crt"),
        *(f"--proxy-client-key-file={p}/front-proxy.key", f"--requestheader-client-ca-file={p}/ca.crt"),
        *("--requestheader-allowed-names=front-proxy", "--requestheader-extra-headers-prefix=X-Remote-Extra-"),
        *("--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User"),
    ]


def controller_manager(at: Layout, *, kubelets: bool) -> list[str]:
    p = at.folder / "pki"
    return [
        *_own_config(at, CONTROLLERS, at.controllers),
        *("--use-service-account-credentials=true", f"--service-account-private-key-file={p}/sa.key"),
        *(f"--root-ca-file={p}/ca.crt", f"--cluster-signing-cert-file={p}/ca.crt"),
        f"--cluster-signing-key-file={p}/ca.key",
        "--controllers=*,-node-ipam-controller",  # it sleeps 10 s at start, and the nodes' ranges are ours to give
        # Where no kubelet reports, nodes that a test writes by hand would turn Unknown after 50 s.
        *([] if kubelets else ["--node-monitor-grace-period=24h"]),
    ]


def scheduler(at: Layout) -> list[str]:
    return _own_config(at, SCHEDULER, at.scheduler)


def _own_config(at: Layout, name: str, port: int) -> list[str]:
    config = at.folder / f"{name}.kubeconfig"
    access = [f"--{kind}={config}" for kind in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")]
    return [*access, f"--bind-address={LOOPBACK}", f"--secure-port={port}", "--leader-elect=false"]
