"""What the release's tests share: a committed checkout of the files as they are now, and images without a builder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly
from tools.release import making, source

_GIT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    **{f"GIT_{who}_DATE": "2026-01-02T03:04:06Z" for who in ("AUTHOR", "COMMITTER")},
}


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=folder, env=_GIT, check=True, capture_output=True, timeout=60)


def commit_all(folder: Path) -> None:
    """A repository of what lies in the folder."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout's files, committed. No one writes into it."""
    folder = tmp_path_factory.mktemp("checkout")
    source.copy_tree(source.ROOT, folder)
    commit_all(folder)
    return folder


@pytest.fixture(scope="session")
def taken(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> source.Source:
    return source.take(tmp_path_factory.mktemp("source"), root=checkout)


@pytest.fixture
def helm() -> None:
    try:
        build.program("helm")
    except Unavailable as error:
        skip_loudly(str(error))


@pytest.fixture
def syft() -> None:
    try:
        build.program("syft")
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of two small layers instead of built ones: all that follows the builder is the real thing."""
    about: dict[Path, dict[str, str]] = {}

    def build_tagged(name: str, reference: str, root: Path, version: str, revision: str, log: object) -> None:
        label = "org.opencontainers.image."
        about[Path(reference).name] = {
            label + "version": version,
            label + "revision": revision,
            label + "licenses": "Apache-2.0",
        }

    def export_layout(reference: str, folder: Path) -> None:
        write_layout(folder, about[Path(reference).name])

    monkeypatch.setattr(making.images, "build_tagged", build_tagged)
    monkeypatch.setattr(making.images.machine, "require_disk", lambda *args: None)
    monkeypatch.setattr(making.building, "export_layout", export_layout)


DPKG = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12
Description: one

Package: left-over
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
Description: its configuration only
"""
SITE = "opt/stoker/lib/python3.13/site-packages"
LOWER = {
    "etc/os-release": 'ID=debian\nVERSION_ID="13"\nNAME="Debian"\n',
    "var/lib/dpkg/status": DPKG,
    f"{SITE}/removed-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: removed\nVersion: 1.0\n",
    f"{SITE}/hidden/inner-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: inner\nVersion: 2.0\n",
}
UPPER = {
    f"{SITE}/.wh.removed-1.0.dist-info": "",
    f"{SITE}/hidden/.wh..wh..opq": "",
    f"{SITE}/Some_Thing-3.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: Some_Thing\nVersion: 3.1\n",
    f"{SITE}/Some_Thing-3.1.dist-info/RECORD": "",
}


def write_layout(folder: Path, labels: dict[str, str]) -> None:
    """An OCI layout of two layers, the upper of which removes some of the lower."""
    (folder / "blobs/sha256").mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    kind = "application/vnd.oci.image."

    def blob(content: bytes, media: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": kind + media, "digest": f"sha256:{digest}", "size": len(content)}

    plain = [_layer(LOWER), _layer(UPPER)]
    layers = [blob(gzip.compress(layer, mtime=0), "layer.v1.tar+gzip") for layer in plain]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in plain]},
        "history": [{}, {}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind + "manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": layers,
    }
    top = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))


def _layer(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
    return packed.getvalue()
