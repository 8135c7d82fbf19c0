"""The packaged chart, and what it renders. Needs helm 4 (`make testbed GROUP=helm`); builds it the first time.

`package` is what the end-to-end tests call for a chart of another version than the working tree's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.testbed import build as testbed_build
from tests.support.testbed.errors import Unavailable
from tools.release import source, versions
from tools.release.errors import Refused

NAME = "stoker"
_HELM_S = 60


def package(version: str, folder: Path, root: Path = source.ROOT, epoch: int | None = None) -> Path:
    """The chart of the working tree as it is now (or of `root`), packaged in `folder` as `version`. Cost: 0.5 s.

    `version` is PEP 440's. As an image tag it becomes the chart's appVersion, in SemVer's spelling its version. The
    tree itself is not touched, and may be dirty.
    Invariant: the same files at the same `epoch` give the same bytes (helm keeps the files' dates).
    """
    wanted = versions.parse(version)
    epoch = source.commit_time(root) if epoch is None else epoch
    with tempfile.TemporaryDirectory(prefix="stoker-chart-") as aside:
        copy = Path(aside) / NAME
        shutil.copytree(root / source.CHART, copy)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (epoch, epoch))
        folder.mkdir(parents=True, exist_ok=True)
        named = ("--version", versions.semver(wanted), "--app-version", versions.image_tag(wanted))
        helm("package", str(copy), "--destination", str(folder), *named)
    return folder / f"{NAME}-{versions.semver(wanted)}.tgz"


def metadata(packed: Path) -> dict[str, Any]:
    """Its Chart.yaml."""
    found: dict[str, Any] = yaml.safe_load(_member(packed, "Chart.yaml"))
    return found


def values(packed: Path) -> dict[str, Any]:
    """Its values.yaml."""
    found: dict[str, Any] = yaml.safe_load(_member(packed, "values.yaml"))
    return found


def images(packed: Path) -> set[str]:
    """Every image that the chart names with default values, wherever it stands: in a pod, an argument, an object.

    Raises: Refused where it does not render.
    """
    registry = values(packed)["image"]["registry"]
    rendered = helm("template", "stoker", str(packed), "--namespace", "stoker-system", "--include-crds")
    containers = {image for document in yaml.safe_load_all(rendered) for image in _containers(document)}
    return containers | set(re.findall(rf"{re.escape(registry)}/[a-z0-9/._-]+[:@][A-Za-z0-9._:-]+", rendered))


def helm(*args: str) -> str:
    """What helm printed. Raises: Refused where it failed."""
    try:
        program = testbed_build.build("helm")["helm"]
    except Unavailable as error:
        raise Refused(f"the chart needs helm: {error}") from None
    with tempfile.TemporaryDirectory(prefix="stoker-helm-") as home:  # no one's plugins or repositories
        folders = {f"HELM_{kind}_HOME": f"{home}/{kind}" for kind in ("CACHE", "CONFIG", "DATA")}
        env = {"PATH": os.environ["PATH"], "HOME": home, **folders}
        done = subprocess.run([program, *args], capture_output=True, text=True, timeout=_HELM_S, env=env)
    if done.returncode:
        raise Refused(f"helm {args[0]}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _member(packed: Path, name: str) -> bytes:
    with tarfile.open(packed) as files:
        file = files.extractfile(f"{NAME}/{name}")
        assert file is not None
        return file.read()


def _containers(node: object) -> Iterator[str]:
    """The values of every key `image` below a node that are images' names."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "image" and isinstance(value, str) and ":" in value:
                yield value
            else:
                yield from _containers(value)
    elif isinstance(node, list):
        for part in node:
            yield from _containers(part)
