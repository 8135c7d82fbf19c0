"""Runs a command in an image's root file system under runc, the way a *restricted* pod would. Called by `checking`,
`trainer_tests`.

User 65532, no capability, no new privileges, read-only root, only /tmp and /dev/shm writable, a network namespace with
nothing but loopback in it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a command in a container ended."""

    code: int
    output: str
    wall_s: float
    cpu_s: float


def run_in(
    root: Path,
    config: dict,
    argv: tuple[str, ...],
    env: tuple[str, ...] = (),
    binds: tuple[tuple[Path, str], ...] = (),
    timeout_s: float = 300,
) -> Ended:
    """`argv` in the image mounted at `root`. `binds` are read-only. After `timeout_s` it is killed, code -1."""
    name = f"stoker-check-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="stoker-check-") as bundle:
        (Path(bundle) / "config.json").write_text(json.dumps(_runc_config(root, config, argv, env, binds)))
        began, cpu = time.monotonic(), _cpu_of_children()
        try:
            done = subprocess.run(
                ["runc", "run", "--bundle", bundle, name],
                check=False,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
            )
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            subprocess.run(["runc", "delete", "--force", name], check=False, timeout=60)
            partial = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
            code, output = -1, f"{partial}\nnot done after {timeout_s:.0f} s"
        return Ended(code, output, time.monotonic() - began, _cpu_of_children() - cpu)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _runc_config(
    root: Path, config: dict, argv: tuple[str, ...], env: tuple[str, ...], binds: tuple[tuple[Path, str], ...]
) -> dict:
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    writable = ["nosuid", "nodev", "mode=1777"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 65532, "gid": 65532},
            "args": list(argv),
            "env": [*config.get("Env", ()), *env],
            "cwd": config.get("WorkingDir") or "/",
            "capabilities": {kind: list[str]() for kind in kinds},
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "check",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=1m"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": writable},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": writable},
            *(
                {"destination": inside, "type": "bind", "source": str(path), "options": ["rbind", "ro"]}
                for path, inside in binds
            ),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "cgroupsPath": f"/stoker-check-{os.getpid()}",
        },
    }
