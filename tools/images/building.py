"""Runs buildah and mmdebstrap: the base, an image from a Dockerfile, its archive. Called by `ensuring` and `checking`.

chroot isolation: no network namespace, no cgroup and no Docker are needed to build. Layers are kept, so that only what
follows a change is built again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import machine
from .catalogue import BASE_PACKAGES, REGISTRY, ROOT, SUITE

STORAGE = Path("/var/lib/containers")
EPOCH = 315532800
"""Every file's and image's date, 1980-01-01: the same inputs give the same bytes, by any builder at any time."""
_NO_DOCS = (
    *(f"path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "info", "locale", "lintian")),
    "path-include=/usr/share/doc/*/copyright",  # what is given to others keeps its licences
)
# Debian's own bytecode is valid for a source's date only, and dates are EPOCH in an image.
_COMPILE = 'sh -c "python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3*"'
_BUILD_S = 1800
_QUICK_S = 120
_BUD = ("buildah", "bud", "--layers", "--timestamp", str(EPOCH))


class CommandFailed(Exception):
    """A builder ended with an error; holds the end of its output."""


def run(*argv: str, timeout_s: float = _QUICK_S, env: dict[str, str] | None = None) -> str:
    """What the command writes to its standard output. `env` is added. Raises: CommandFailed, also after `timeout_s`."""
    whole = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, env=whole)
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{argv[0]} {argv[1]}: not done after {timeout_s:.0f} s") from None
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise CommandFailed(f"{' '.join(argv[:4])} …: exit {done.returncode}\n{output}")
    return done.stdout


def present(reference: str) -> bool:
    """Whether buildah's storage has the image."""
    found = subprocess.run(
        ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", reference],
        check=False,
        capture_output=True,
        timeout=_QUICK_S,
    )
    return found.returncode == 0


def make_base(reference: str) -> None:
    """A Debian with Python as `reference`. Cost: 20 s, 114 MB."""
    machine.require("mmdebstrap")
    with tempfile.TemporaryDirectory(prefix="stoker-base-") as folder:
        archive = Path(folder) / "base.tar"
        mirror = (machine.apt_sources(SUITE) or "").split()
        run(
            "mmdebstrap",
            "--variant=apt",
            f"--include={','.join(BASE_PACKAGES)}",
            *(f"--dpkgopt={option}" for option in _NO_DOCS),
            '--aptopt=Acquire::Languages "none"',
            *(['--customize-hook=: >"$1/etc/apt/sources.list"'] if mirror else []),  # this machine's is no one else's
            f'--customize-hook=chroot "$1" {_COMPILE}',
            '--customize-hook=rm -rf "$1"/var/log/* "$1"/var/cache/debconf/*-old',
            SUITE,
            str(archive),
            *mirror[1:2],
            timeout_s=_BUILD_S,
            env={"SOURCE_DATE_EPOCH": str(EPOCH)},
        )
        container = run("buildah", "from", "scratch").strip()
        try:
            run("buildah", "add", "-q", container, str(archive), "/", timeout_s=_BUILD_S)
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            run("buildah", "config", "--env", path, "--cmd", "/bin/sh", container)
            run("buildah", "commit", "-q", "--timestamp", str(EPOCH), container, reference, timeout_s=_BUILD_S)
        finally:
            run("buildah", "rm", container)


def build(
    reference: str, dockerfile: Path, target: str, args: dict[str, str], context: Path, labels: dict[str, str]
) -> None:
    """The image `reference`. `labels` come last and cost nothing: another commit's builds none of the layers again.

    They are a build of their own, with their values written out. Buildah's cache takes `LABEL x="${ARG}"` for unchanged
    whatever ARG is, and so it does with `--label` where the target is not the Dockerfile's last stage.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-build-") as folder:
        pip = Path(folder) / "pip.conf"
        pip.write_text(machine.pip_config())
        options = ["--secret", f"id=pip,src={pip}"]
        if machine.CERTIFICATES.is_dir():  # a mirror's certificate may be known to this machine only
            options += ["--volume", f"{machine.CERTIFICATES}:{machine.CERTIFICATES}:ro"]
        sources = machine.apt_sources(SUITE)
        if sources:
            (Path(folder) / "sources.list").write_text(sources)
            options += ["--volume", f"{folder}/sources.list:/etc/apt/sources.list:ro"]
        for name, value in args.items():
            options += ["--build-arg", f"{name}={value}"]
        if target:
            options += ["--target", target]
        run(
            *_BUD,
            *("--isolation", "chroot", "--ulimit", "nofile=1024:1024"),
            "--pull" if args.get("BASE", REGISTRY).partition("/")[0] != REGISTRY else "--pull-never",
            *options,
            *("--tag", reference, "--file", str(dockerfile), str(context)),
            timeout_s=_BUILD_S,
        )
        if labels:
            lines = [f"FROM {reference}", *(f"LABEL {name}={json.dumps(value)}" for name, value in labels.items())]
            labelled = Path(folder) / "labels.Dockerfile"
            labelled.write_text("\n".join(lines) + "\n")
            run(*_BUD, "--pull-never", "--tag", reference, "--file", str(labelled), folder, timeout_s=_BUILD_S)


def export(reference: str, archive: Path) -> None:
    """Write the image as a docker-archive: what `ctr images import`, `docker load` and `podman load` take."""
    aside = archive.with_name(f".{archive.name}.tmp")
    aside.unlink(missing_ok=True)
    run("buildah", "push", "-q", reference, f"docker-archive:{aside}:{reference}", timeout_s=_BUILD_S)
    aside.rename(archive)


def export_layout(reference: str, folder: Path) -> None:
    """Write the image as an OCI layout (a folder), layers compressed by gzip."""
    run("buildah", "push", "-q", "--format", "oci", reference, f"oci:{folder}", timeout_s=_BUILD_S)


def tag(reference: str, other: str) -> None:
    run("buildah", "tag", reference, other)


def others(repository: str, keep: str) -> list[str]:
    """The images of `repository` under other tags than `keep`'s."""
    listed = json.loads(run("buildah", "images", "--json") or "null") or []
    names = [name for image in listed for name in image.get("names") or ()]
    return [name for name in names if name.startswith(repository + ":") and name != keep]


def forget(reference: str) -> None:
    """Remove the image unless something uses it; layers that a later build takes up again stay until `prune`."""
    with contextlib.suppress(CommandFailed):
        run("buildah", "rmi", reference)


def prune() -> None:
    """Remove every layer that no named image needs: the next build starts from its named images' layers."""
    run("buildah", "rmi", "--prune", "--force", timeout_s=_BUILD_S)


@contextmanager
def root_filesystem(reference: str, archive: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The image's files, mounted, and its config (Env, User, Cmd, Labels). Changes made there are thrown away."""
    if not present(reference):
        run("buildah", "pull", "-q", f"docker-archive:{archive}", timeout_s=_BUILD_S)
    config = json.loads(run("buildah", "inspect", "--type", "image", reference))["OCIv1"]["config"]
    container = run("buildah", "from", "--pull-never", reference).strip()
    try:
        yield Path(run("buildah", "mount", container).strip()), config
    finally:
        run("buildah", "umount", container)
        run("buildah", "rm", container)


def add_busybox(folder: Path) -> None:
    """Put this machine's static busybox into a build context. Raises: machine.Missing."""
    machine.require("busybox")
    shutil.copy(shutil.which("busybox") or "busybox", folder / "busybox")
