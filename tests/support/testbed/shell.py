"""Runs the system's own commands (ip, nsenter, ctr) with a time-out, and knows which Debian package brings each."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

from tests.support.testbed.errors import BedError, Unavailable
from tests.support.testbed.parts import SYSTEM_PATH

CNI_FOLDER = Path("/usr/lib/cni")
_PACKAGES = {
    "conntrack": "conntrack",
    "ip": "iproute2",
    "ipset": "ipset",
    "iptables": "iptables",
    "mount": "mount",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
    "socat": "socat",
    "unshare": "util-linux",
}


def require_node_tools() -> None:
    """Raises: Unavailable, with the command that installs what is missing, or where this is not Linux and root."""
    if not Path("/proc/self/ns/net").exists():
        raise Unavailable("nodes need Linux")
    if os.geteuid() != 0:
        raise Unavailable("nodes need root (network namespaces, mounts, cgroups)")
    missing = {package for command, package in _PACKAGES.items() if not shutil.which(command, path=SYSTEM_PATH)}
    if not (CNI_FOLDER / "bridge").exists():
        missing.add("containernetworking-plugins")
    if not (busybox := shutil.which("busybox", path=SYSTEM_PATH)) or not _is_static(Path(busybox)):
        missing.add("busybox-static")
    if missing:
        raise Unavailable(f"nodes need Debian packages: apt-get install {' '.join(sorted(missing))}")


def _is_static(program: Path) -> bool:
    """Whether a 64-bit ELF file names no interpreter (PT_INTERP is segment type 3). Source: elf(5)."""
    data = program.read_bytes()
    table, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    return all(struct.unpack_from("<I", data, table + i * size)[0] != 3 for i in range(count))


def run(*command: str, timeout_s: float = 30.0, check: bool = True, stdin: str = "", path: str = SYSTEM_PATH) -> str:
    """What the command printed on stdout. Raises: BedError where it fails (with `check`) or does not end in time."""
    env = {"PATH": path, "LANG": "C.UTF-8", "HOME": "/root"}
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=env)
    except subprocess.TimeoutExpired:
        raise BedError(f"`{' '.join(command)}` did not end within {timeout_s:.0f} s") from None
    if check and done.returncode:
        raise BedError(f"`{' '.join(command)}`: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
