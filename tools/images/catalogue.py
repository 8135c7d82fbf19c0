"""Which images there are, what each is built of, and its digest. Reads files, runs nothing. Called by `ensuring`."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "stoker.local"

SUITE = "trixie"
BASE_PACKAGES = ("ca-certificates", "python3")
"""Beside Debian's essential packages and apt. The trixie of Docker's library with Python: 114 MB."""

BASE_FROM_REGISTRY = "STOKER_BASE_IMAGE"
"""Environment: a base image to take instead of the local one, such as docker.io/library/debian:trixie-slim."""


@dataclass(frozen=True)
class Recipe:
    """How one image comes about."""

    name: str
    repository: str
    dockerfile: str | None
    """Relative to the repository's root; None: the base itself under another name."""
    inputs: tuple[str, ...]
    """Files and folders of the repository that reach the image."""
    disk_bytes: int
    """Free disk wanted before it is built: layers, the archive, and what the builder holds twice meanwhile."""
    target: str = ""
    on_base: bool = True

    def files(self, root: Path = ROOT) -> list[Path]:
        """Every file that reaches the image or says how."""
        return files(root, (*self.inputs, *((self.dockerfile,) if self.dockerfile else ())))

    def snapshot(self, into: Path, root: Path = ROOT) -> None:
        """Copy these files: a build context that does not change while people go on working."""
        for path in self.files(root):
            copy = into / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)

    def digest(self, root: Path = ROOT) -> str:
        """Twelve hex digits over everything that decides the content: inputs, Dockerfile, target, base."""
        seen = hashlib.sha256()
        for path in self.files(root):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            executable = "x" if path.stat().st_mode & 0o100 else "-"
            seen.update(f"{path.relative_to(root)} {executable} {content}\n".encode())
        seen.update(f"{self.name} {self.target} {base_identity() if self.on_base else ''}".encode())
        return seen.hexdigest()[:12]

    def reference(self, root: Path = ROOT) -> str:
        """The image's full name."""
        return f"{REGISTRY}/{self.repository}:{self.digest(root)}"


_TRAINER = (
    ".dockerignore",
    "constraints.txt",
    "pyproject.toml",
    "tools/images/requirements.py",
    "trainer-image/stoker_job",
    "trainer-image/stoker_trainer",
    "trainer-image/stoker_worker",
)
_GB = 10**9

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="control-plane",
            repository="stoker",
            dockerfile="Dockerfile",
            inputs=(
                *_TRAINER,
                "constraints-stores.txt",
                "LICENSE",
                "NOTICE",
                "README.md",
                "api/stoker_api",
                "operator/stoker",
            ),
            disk_bytes=3 * _GB,
        ),
        Recipe(
            name="trainer-cpu",
            repository="trainer-cpu",
            dockerfile="trainer-image/Dockerfile",
            target="cpu",
            inputs=_TRAINER,
            disk_bytes=6 * _GB,
        ),
        Recipe(
            name="trainer-cuda",
            repository="trainer-cuda",
            dockerfile="trainer-image/Dockerfile",
            target="cuda",
            inputs=_TRAINER,
            disk_bytes=30 * _GB,
        ),
        # Other people's images, for the end-to-end tests: Python without torch or anything of ours; the same with pip;
        # with all that is root's in the way; no Python at all.
        Recipe(name="foreign-python", repository="foreign-python", dockerfile=None, inputs=(), disk_bytes=_GB),
        Recipe(
            name="foreign-pip",
            repository="foreign-pip",
            dockerfile="tools/images/foreign-pip.Dockerfile",
            inputs=(),
            disk_bytes=_GB,
        ),
        Recipe(
            name="foreign-root",
            repository="foreign-root",
            dockerfile="tools/images/foreign-root.Dockerfile",
            inputs=(),
            disk_bytes=_GB,
        ),
        Recipe(
            name="foreign-busybox",
            repository="foreign-busybox",
            dockerfile="tools/images/busybox.Dockerfile",
            inputs=(),
            disk_bytes=_GB // 10,
            on_base=False,
        ),
    )
}


def base_reference() -> str:
    """The base all but busybox stand on: the local one, or what STOKER_BASE_IMAGE names."""
    return os.environ.get(BASE_FROM_REGISTRY) or f"{REGISTRY}/base:{base_identity()}"


def base_identity() -> str:
    given = os.environ.get(BASE_FROM_REGISTRY)
    return given or hashlib.sha256(f"{SUITE} {' '.join(BASE_PACKAGES)} 2".encode()).hexdigest()[:12]


def files(root: Path, inputs: tuple[str, ...]) -> list[Path]:
    """Every file below `inputs`, bytecode left out, in one order.

    Raises: FileNotFoundError where an input is missing.
    """
    found: set[Path] = set()
    for name in inputs:
        path = root / name
        if path.is_dir():
            found.update(
                file
                for file in path.rglob("*")
                if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc"
            )
        elif path.is_file():
            found.add(path)
        else:
            raise FileNotFoundError(f"{path}, an input of an image, is not there")
    return sorted(found)
