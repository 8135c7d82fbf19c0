"""A bed's own certificate authority, its certificates and kubeconfig files, made with the openssl command.

Elliptic curves, ten years: they live as long as the bed's folder. Called by `control_plane` and `nodes` at start.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

from tests.support.testbed.errors import BedError, Unavailable

_DAYS = "3650"


def make_authority(folder: Path) -> None:
    """ca.key and ca.crt, and sa.key and sa.pub that sign service accounts' tokens."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _new_key(folder / "ca.key")
    _openssl(folder, "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=testbed", "-days", _DAYS, "-out", "ca.crt")
    _openssl(folder, "genrsa", "-out", "sa.key", "2048")
    _openssl(folder, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def issue(folder: Path, name: str, subject: str, alternative_names: str, *, into: Path | None = None) -> None:
    """`<name>.key` and `<name>.crt`, signed by the authority in `folder`, for clients and servers alike."""
    target = into or folder
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    _new_key(target / f"{name}.key")
    extensions = target / f"{name}.ext"
    extensions.write_text(f"subjectAltName={alternative_names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl(target, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    authority = ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial"]
    signing = ["-days", _DAYS, "-extfile", str(extensions), "-out", f"{name}.crt"]
    _openssl(target, "x509", "-req", "-in", f"{name}.csr", *authority, *signing)


def write_kubeconfig(path: Path, url: str, ca: Path, *, cert: Path | None = None, token: str = "") -> Path:
    """A self-contained kubeconfig with one cluster, one user and one context. `cert` stands for its .key too."""
    user: dict[str, str] = {"token": token} if token else {}
    if cert is not None:
        user = {"client-certificate-data": _data(cert), "client-key-data": _data(cert.with_suffix(".key"))}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [{"name": "testbed", "cluster": {"server": url, "certificate-authority-data": _data(ca)}}],
        "users": [{"name": path.stem, "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": path.stem}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def server_of(kubeconfig: Path) -> str:
    """The API server's URL in a kubeconfig that `write_kubeconfig` wrote."""
    url: str = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return url


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _new_key(path: Path) -> None:
    _openssl(path.parent, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", path.name)


def _openssl(folder: Path, *args: str) -> None:
    if not shutil.which("openssl"):
        raise Unavailable("no `openssl` on PATH: apt-get install openssl")
    done = subprocess.run(["openssl", *args], cwd=folder, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise BedError(f"openssl {args[0]} failed in {folder}: {done.stderr.strip()}")
