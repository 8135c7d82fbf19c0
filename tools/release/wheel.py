"""The wheel and the sdist of a source, and what must be in them. Built by the uv of the `dev` extra, with hatchling."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import BytesHeaderParser
from pathlib import Path

from uv import find_uv_bin

from tools.release.errors import Refused
from tools.release.source import Source, extract_all

CONSTRAINTS = Path(__file__).with_name("build-constraints.txt")
ROOMS = ("stoker", "stoker_api", "stoker_job", "stoker_worker", "stoker_trainer")
_MUST = (*(f"{room}/py.typed" for room in ROOMS), "stoker_worker/start.sh", "stoker_worker/supervisor.py")
BUILD_S = 300


def build(source: Source, folder: Path) -> list[Path]:
    """The sdist, and the wheel that is built from that sdist, in `folder`. Cost: 3 s.

    Invariant: the same source gives the same bytes.
    Raises: Refused where it can't be built or lacks a file.
    """
    options = ["--quiet", "--python", sys.executable, "--build-constraints", str(CONSTRAINTS)]
    done = subprocess.run(
        [find_uv_bin(), "build", *options, "--out-dir", str(folder), str(source.root)],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)},
    )
    if done.returncode:
        raise Refused(f"uv build failed:\n{done.stderr.strip()[-2000:]}")
    (folder / ".gitignore").unlink(missing_ok=True)  # uv's
    made = [sdist_file(folder), wheel_file(folder)]
    problems = wheel_problems(made[1])
    if problems:
        raise Refused(f"{made[1].name}: {'; '.join(problems)}: see [tool.hatch.build] in pyproject.toml")
    return made


def wheel_file(folder: Path) -> Path:
    """Raises: Refused where there is not exactly one."""
    return _only(folder, "*.whl", "wheel")


def sdist_file(folder: Path) -> Path:
    return _only(folder, "*.tar.gz", "sdist")


def wheel_version(path: Path) -> str:
    """What the wheel's own metadata says."""
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return str(BytesHeaderParser().parsebytes(wheel.read(name))["Version"])


def wheel_problems(path: Path) -> list[str]:
    """What is missing, and what has no business there."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    found = [f"{name} is missing" for name in _MUST if name not in names]
    found += [f"{name} does not belong into it" for name in sorted(tops - set(ROOMS))]
    licences = [name for name in names if ".dist-info/licenses/" in name]
    return found + ([] if len(licences) == 2 else ["LICENSE and NOTICE are missing"])


def unpack(path: Path, into: Path) -> None:
    """The files of a wheel, an sdist or a chart's package."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(into)
    else:
        with tarfile.open(path) as packed:
            extract_all(packed, into)


def _only(folder: Path, pattern: str, what: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Refused(f"{len(found)} {what}s in {folder} instead of one: make the release again (`make release`)")
    return found[0]
