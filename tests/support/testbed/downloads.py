"""Files of modules pinned under tools/modules that are read, not built: other projects' definitions, for tests.

Owns the copies in the cache folder, each named by the digest of its go.mod and go.sum (the checksum is Go's to hold).
Fetched by the command line before pytest runs; tests only ask for the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Files:
    module: str
    """The folder under tools/modules that pins it."""
    path: str
    """As Go calls it."""
    folder: str
    """Inside of it."""
    group: str
    """Of programs, with which it is fetched."""


FILES = {
    "prometheus-crds": Files(
        "prometheus-operator",
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd",
        "helm",
    )
}


def folder(name: str) -> Path:
    """The folder of files that are fetched already. Raises: Unavailable, saying how to fetch them."""
    wanted = FILES[name]
    there = _path(wanted)
    if not there.exists():
        raise Unavailable(f"{name} are not fetched yet: run `make testbed GROUP={wanted.group}`")
    return there


def fetch(group: str) -> None:
    """Whatever is missing of the group's files. Cost: seconds, once. Raises: Unavailable where it can't be had."""
    for wanted in FILES.values():
        there = _path(wanted)
        if wanted.group != group or there.exists():
            continue
        part = there.with_name(f".{there.name}.{os.getpid()}")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copytree(Path(_module(wanted)) / wanted.folder, part, copy_function=shutil.copyfile)
            part.rename(there)
        except OSError as error:
            if not there.exists():  # else another was faster
                raise Unavailable(f"can't keep {wanted.path}'s {wanted.folder}: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _module(wanted: Files) -> str:
    arguments = ["mod", "download", "-json", wanted.path]
    folder = build.MODULES / wanted.module
    found: str = json.loads(build.go(*arguments, folder=folder, deadline=time.monotonic() + TIMEOUT_S))["Dir"]
    return found


def _path(wanted: Files) -> Path:
    return build.cache() / "files" / f"{wanted.module}-{build.digest(wanted.module)}"
