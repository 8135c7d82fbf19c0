"""`make image-check`: starts the images the way a *restricted* pod would and prints what is wrong with them.

Looks at the content, then starts commands under runc (`running`). Called by `python -m tools.images check`.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from stoker.controller.render_kube import FETCH
from tools.verify.resume import default_config

from . import building, machine
from .catalogue import REGISTRY, SUITE, base_reference
from .ensuring import Image, ensure
from .running import run_in

CONTROL_PLANE_LIMIT_BYTES = 150 * 10**6
_TRAINING = default_config(epochs=1) | {"precision": "bf16", "stop": {"maxSteps": 20, "target": None, "patience": None}}


@dataclass(frozen=True)
class Start:
    """A command that must end with `code` and print `prints`."""

    what: str
    argv: tuple[str, ...]
    prints: str = ""
    code: int = 0
    env: tuple[str, ...] = ()


_IDENTITY = (
    "import os; assert os.getuid() == 65532; open('/tmp/x', 'w').close()\n"
    "try: open('/opt/stoker/x', 'w')\n"
    "except OSError as e: print('root:', e.strerror)"
)
_ROOTS = (
    "import os; print(*[path for path in ('/root', '/app', '/app/private') if not os.access(path, os.R_OK)]);"
    " assert os.environ['HOME'] == '/root' and not os.access('/app', os.W_OK)"
)
_STORES = (
    "import botocore.session, fsspec; botocore.session.get_session().create_client('s3', region_name='x');"
    " print(*[fsspec.get_filesystem_class(name).__name__ for name in ('https', 's3', 'gs', 'hf')])"
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
        Start("operator", ("python", "-m", "stoker.controller.main", "--help"), "--kubeconfig"),
        Start("api", ("python", "-m", "stoker_api.main", "--help"), "--kubeconfig"),
        Start("supervisor", ("python", "-m", "stoker_worker.bundle", "install", "/tmp/stoker")),
        Start("what fetches", FETCH, "STOKER_FETCH: KeyError", code=1),
        Start(
            "stores of data",
            (FETCH[0], "-c", _STORES),
            "HTTPFileSystem S3FileSystem ExtendedGcsFileSystem HfFileSystem",
        ),
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
    "foreign-pip": (Start("pip is there", ("python3", "-m", "pip", "--version"), "pip "),),
    "foreign-root": (
        Start("its program is read", ("python3", "train.py"), "the image has its own train.py"),
        Start("its folders are root's", ("python3", "-c", _ROOTS), "/root /app/private"),
    ),
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
        image = ensure(name, log=lambda line: print(line, flush=True), archive=name == "control-plane")
        print(f"{name} {image.name}", flush=True)
        with building.root_filesystem(image.name, image.archive) as (root, config):
            problems = _content(name, image, root, config)
            for problem in problems:
                print(f"  WRONG {problem}", flush=True)
            failures += len(problems) + sum(not _start(root, config, start) for start in STARTS[name])
    print("image-check:", "all passed" if not failures else f"{failures} failed")
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
    for pattern in _UNWANTED[name]:
        places = ("opt/stoker/lib/python3*/site-packages", "opt/stoker/app", "usr/lib/python3/dist-packages", "usr/bin")
        wrong += [f"{hit.relative_to(root)} is in it" for place in places for hit in root.glob(f"{place}/{pattern}")]
    wrong += [f"{path} is in it" for path in ("etc/pip.conf", "pip", "root/.cache", "build") if (root / path).exists()]
    if base_reference().startswith(f"{REGISTRY}/"):
        mirror = (machine.apt_sources(SUITE) or "").split()[1:2]
        if any(address in (root / "etc/apt/sources.list").read_text() for address in mirror):
            wrong.append("this machine's mirror is in it")
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
    ended = run_in(root, config, start.argv, start.env)
    good = ended.code == start.code and start.prints in ended.output
    lines = ended.output.strip().splitlines() or [""]
    took = f"{ended.wall_s:.1f} s (CPU {ended.cpu_s:.1f} s)"
    print(f"  {'ok   ' if good else 'WRONG'} {start.what}: {took}, {lines[-1][:160]}", flush=True)
    if not good:
        print("\n".join(f"        {line}" for line in [f"exit {ended.code}", *lines[-20:]]), flush=True)
    return good
