"""Container images without a container tool or a registry: a root file system written as a docker archive.

Owns the two images every node needs, made of Debian's static busybox: PAUSE (the sandbox) and BUSYBOX (tests). Loads
with `ctr images import`, `docker load`, `podman load`. Images of the product are built from its Dockerfiles, not here.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from pathlib import Path

from tests.support.testbed.build import cache
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.parts import SYSTEM_PATH
from tests.support.testbed.shell import run

PAUSE = "k8s.local/pause:1"
BUSYBOX = "k8s.local/busybox:1"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base_images() -> list[Path]:
    """The archives of PAUSE and BUSYBOX, made on first use. Cost: 0.3 s, 2 MB each."""
    # The kubelet kills the sandbox, so a sleeping shell tool does for it.
    return [_busybox_image(PAUSE, ["/bin/sleep", "2147483647"]), _busybox_image(BUSYBOX, ["/bin/sh"])]


def write_archive(path: Path, name: str, layer: bytes, *, command: list[str]) -> Path:
    """One layer (an uncompressed tar) as the image `name`, started with `command`. Same input, same bytes."""
    layer_digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Env": [_PATH], "WorkingDir": "/", "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "testbed"}],
    }
    config_bytes = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{layer_digest}/layer.tar"]}]
    part = path.with_name(f".{path.name}.part")
    with tarfile.open(part, "w") as archive:
        _add(archive, config_name, config_bytes)
        _add(archive, f"{layer_digest}/layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    return part.rename(path)


def _busybox_image(name: str, command: list[str]) -> Path:
    busybox = shutil.which("busybox", path=SYSTEM_PATH)
    if not busybox:
        raise Unavailable("no busybox: apt-get install busybox-static")
    folder = cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(Path(busybox).read_bytes() + name.encode() + " ".join(command).encode()).hexdigest()[:12]
    path = folder / f"{name.split('/')[-1].replace(':', '-')}-{digest}.tar"
    return path if path.exists() else write_archive(path, name, _busybox_layer(Path(busybox)), command=command)


def _busybox_layer(busybox: Path) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for folder, mode in [("bin", 0o755), ("etc", 0o755), ("dev", 0o755), ("proc", 0o755), ("tmp", 0o1777)]:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox.read_bytes(), mode=0o755)
        _add(archive, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
        _add(archive, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        for applet in run(str(busybox), "--list").split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
    return layer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
