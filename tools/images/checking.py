"""`make image-check`: starts the images the way a *restricted* pod would and says what is wrong with them.

Each command runs under runc: user 65532, no capability, no new privileges, read-only root, only /tmp writable, a
network namespace with nothing in it. Called by `python -m images check`.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import building, machine
from .catalogue import base_reference
from .ensuring import Image, ensure

CONTROL_PLANE_LIMIT_BYTES = 150 * 10**6
_RUN_S = 300
_TRAINING = {
    "recipe": "image-classification",
    "config": {
        "data": "digits",
        "model": {"width": 8, "dropout": 0.25},
        "augment": {"shift": 1.0, "rotate": 10.0, "scale": 0.1},
        "optimizer": {
            "name": "adamw",
            "learningRate": 3e-3,
            "weightDecay": 0.02,
            "momentum": 0.9,
            "warmup": 0.1,
            "gradClip": 1.0,
        },
        "labelSmoothing": 0.05,
        "batchSize": 64,
        "epochs": 1,
        "evalEveryEpochs": 1,
        "seed": 1,
        "deterministic": True,
    },
    "precision": "bf16",
    "stop": {"maxSteps": 20, "target": None},
    "checkpoint": {"everySeconds": 5.0, "keep": 2},
}


@dataclass(frozen=True)
class Start:
    """A command that must end with `code` and say `says`."""

    what: str
    argv: tuple[str, ...]
    says: str = ""
    code: int = 0
    env: tuple[str, ...] = ()


_IDENTITY = (
    "import os; assert os.getuid() == 65532; open('/tmp/x', 'w').close()\n"
    "try: open('/opt/stoker/x', 'w')\n"
    "except OSError as e: print('root:', e.strerror)"
)
_BYTECODE = (
    "import os, sys; own = [getattr(m, '__cached__', None) for m in list(sys.modules.values())];"
    " missing = [p for p in own if isinstance(p, str) and not os.path.exists(p)];"
    " print('modules not compiled:', len(missing), *missing[:5]); sys.exit(bool(missing))"
)
_TRAINER_ENV = (
    f"STOKER_TRAINER_CONFIG={json.dumps(_TRAINING)}",
    "STOKER_CHECKPOINT_DIR=/tmp/checkpoints",
    "STOKER_OUTPUT_DIR=/tmp/output",
)
_TRAINER = (
    Start("user and root", ("python", "-c", _IDENTITY), "root: Read-only file system"),
    Start("torch imports", ("python", "-c", "import torch; print('torch', torch.__version__)"), "torch 2."),
    Start("gloo is there", ("python", "-c", "import torch.distributed as d; print(d.is_gloo_available())"), "True"),
    Start("no config", ("python", "-m", "stoker_trainer"), "STOKER_TRAINER_CONFIG is not set", code=64),
    Start("20 steps on digits", ("python", "-m", "stoker_trainer"), "", env=_TRAINER_ENV),
    Start("all is compiled", ("python", "-c", "import torch, stoker_trainer.main; " + _BYTECODE)),
)
STARTS: dict[str, tuple[Start, ...]] = {
    "control-plane": (
        Start("user and root", ("python", "-c", _IDENTITY), "root: Read-only file system"),
        Start("stoker --version", ("stoker", "--version"), "stoker "),
        Start("operator", ("python", "-m", "stoker.controller.main", "--help"), "usage"),
        Start("api", ("python", "-m", "stoker_api.main", "--help"), "usage"),
        Start("supervisor", ("python", "-m", "stoker_worker.bundle", "install", "/tmp/stoker")),
        Start(
            "all is compiled",
            ("python", "-c", "import stoker.controller.main, stoker_api.main, kubernetes.aio; " + _BYTECODE),
        ),
    ),
    "trainer-cpu": _TRAINER,
    "trainer-cuda": (
        *_TRAINER,
        Start("built for CUDA", ("python", "-c", "import torch; print('CUDA', torch.version.cuda)"), "CUDA 1"),
        Start("NCCL is there", ("python", "-c", "import torch.distributed as d; print(d.is_nccl_available())"), "True"),
    ),
    "foreign-python": (Start("Python alone", ("python3", "-c", "print('here')"), "here"),),
    "foreign-busybox": (Start("no Python", ("sh", "-c", "command -v python3 || echo none"), "none"),),
}
_UNWANTED = {
    "control-plane": ("pip", "torch", "hatchling", "pytest", "stoker_trainer", "gcc"),
    "trainer-cpu": ("pip", "fastapi", "sklearn", "hatchling", "gcc"),
    "trainer-cuda": ("pip", "fastapi", "sklearn", "hatchling", "gcc"),
}


def check_images(names: list[str]) -> int:
    """0 where every image holds what it should. Prints one line per check."""
    machine.require("runc", "buildah")
    failures = 0
    for name in names:
        image = ensure(name, say=lambda line: print(line, flush=True))
        figures = image.figures()
        print(f"{name} {image.name}: {figures}", flush=True)
        with building.root_filesystem(image.name, image.archive) as (root, config):
            problems = _content(name, image, root, config)
            for problem in problems:
                print(f"  WRONG {problem}", flush=True)
            failures += len(problems) + sum(not _start(root, config, start) for start in STARTS[name])
    print("image-check:", "all well" if not failures else f"{failures} failed")
    return 1 if failures else 0


def _content(name: str, image: Image, root: Path, config: dict) -> list[str]:
    wrong = []
    if name.startswith("foreign"):
        return wrong
    if config.get("User") != "65532:65532":
        wrong.append(f"user is {config.get('User')!r}")
    labels = config.get("Labels") or {}
    if labels.get("org.opencontainers.image.version") in (None, "0"):
        wrong.append("no version label")
    for word in _UNWANTED[name]:
        places = ("opt/stoker/lib/python3*/site-packages", "opt/stoker/app", "usr/lib/python3/dist-packages", "usr/bin")
        wrong += [f"{hit.relative_to(root)} is in it" for place in places for hit in root.glob(f"{place}/{word}")]
    wrong += [f"{path} is in it" for path in ("etc/pip.conf", "pip", "root/.cache", "build") if (root / path).exists()]
    sources = root / "etc/apt/sources.list"
    if base_reference().startswith("stoker.local/") and sources.read_text().split()[1] != building.PUBLIC_MIRROR:
        wrong.append("a mirror's address is in it")
    if name == "control-plane":
        size = compressed_bytes(image.archive)
        print(f"  compressed (gzip -6): {size / 1e6:.0f} MB of {CONTROL_PLANE_LIMIT_BYTES / 1e6:.0f}", flush=True)
        if size > CONTROL_PLANE_LIMIT_BYTES:
            wrong.append(f"compressed {size / 1e6:.0f} MB")
    return wrong


def compressed_bytes(archive: Path) -> int:
    """What a registry would store and a node would pull. Cost: 25 MB/s."""

    class Counter:
        size = 0

        def write(self, data: bytes) -> int:
            self.size += len(data)
            return len(data)

    counter = Counter()
    with archive.open("rb") as plain, gzip.GzipFile(fileobj=counter, mode="wb", compresslevel=6) as packed:  # type: ignore[call-overload]
        while block := plain.read(1 << 20):
            packed.write(block)
    return counter.size


def _start(root: Path, config: dict, start: Start) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-check-") as bundle:
        (Path(bundle) / "config.json").write_text(json.dumps(_runc_config(root, config, start)))
        name = f"stoker-check-{uuid.uuid4().hex[:8]}"
        argv = ["runc", "run", "--bundle", bundle, name]
        try:
            done = subprocess.run(
                argv, check=False, capture_output=True, text=True, timeout=_RUN_S, stdin=subprocess.DEVNULL
            )
            code, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            subprocess.run(["runc", "delete", "--force", name], check=False, timeout=60)
            code, said = -1, f"not done after {_RUN_S} s"
    good = code == start.code and start.says in said
    lines = said.strip().splitlines() or [""]
    print(
        f"  {'ok   ' if good else 'WRONG'} {start.what}: {time.monotonic() - began:.1f} s, {lines[-1][:160]}",
        flush=True,
    )
    if not good:
        print("\n".join(f"        {line}" for line in [f"exit {code}", *lines[-20:]]), flush=True)
    return good


def _runc_config(root: Path, config: dict, start: Start) -> dict:
    nothing: list[str] = []
    capabilities = dict.fromkeys(("bounding", "effective", "inheritable", "permitted", "ambient"), nothing)
    options = ["nosuid", "nodev", "mode=1777"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 65532, "gid": 65532},
            "args": list(start.argv),
            "env": [*config.get("Env", ()), *start.env],
            "cwd": config.get("WorkingDir") or "/",
            "capabilities": capabilities,
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "check",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=1m"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": options},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": options},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "cgroupsPath": f"/stoker-check-{os.getpid()}",
        },
    }
