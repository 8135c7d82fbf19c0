"""Who may talk to a control plane: its certificates, its users' tokens, and a kubeconfig for each of them.

Made anew at every start into the bed's folder, readable by its owner only. Called by `control_plane`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from tests.support.testbed import pki
from tests.support.testbed.arguments import CONTROLLERS, SCHEDULER, SERVICE_IP, Layout

USERS: dict[str, tuple[str, ...]] = {"admin": ("system:masters",), "alice": ("team-a",), "bob": ("team-b",)}
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write(at: Layout, users: Mapping[str, tuple[str, ...]]) -> None:
    """Everything under `pki/`, `tokens.json` and one `<name>.kubeconfig` per user and per part."""
    folder = at.folder / "pki"
    pki.make_authority(folder)
    addresses = sorted({"127.0.0.1", SERVICE_IP, at.address})
    names = [*(f"DNS:{name}" for name in _SERVER_NAMES), *(f"IP:{address}" for address in addresses)]
    pki.issue(folder, "apiserver", "/CN=kube-apiserver", ",".join(names))
    pki.issue(folder, "front-proxy", "/CN=front-proxy", "DNS:front-proxy")
    pki.issue(folder, "kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client", "DNS:apiserver")
    subjects = {"admin": "/O=system:masters/CN=admin"}
    subjects |= {name: f"/CN=system:{name}" for name in (CONTROLLERS, SCHEDULER)}
    for name, subject in subjects.items():
        pki.issue(folder, name, subject, f"DNS:{name}")
        write_kubeconfig(at, name, cert=folder / f"{name}.crt")
    tokens = {user: secrets.token_hex(16) for user in users}
    secret = at.folder / "tokens.json"
    secret.touch(mode=0o600)
    secret.write_text(json.dumps(tokens))
    lines = [f'{tokens[user]},{user},{user},"{",".join(groups)}"\n' for user, groups in users.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    for user in users.keys() - {"admin"}:
        write_kubeconfig(at, user, token=tokens[user])


def write_kubeconfig(at: Layout, name: str, *, cert: Path | None = None, token: str = "") -> Path:
    """`<name>.kubeconfig` for this API server."""
    path = at.folder / f"{name}.kubeconfig"
    return pki.write_kubeconfig(path, at.url, at.folder / "pki" / "ca.crt", cert=cert, token=token)
