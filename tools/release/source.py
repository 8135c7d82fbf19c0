"""What a release is made of: a copy of one commit's files (or, if asked, of the working tree's) under one version.

Reads git; writes only below the folder it is given. Called by `making` and `chart`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import yaml
from packaging.version import Version

from tools.release import versions
from tools.release.errors import Refused

ROOT = Path(__file__).resolve().parents[2]
VERSION_FILE = "operator/stoker/__init__.py"
CHART = "helm/stoker"
_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_GIT_S = 60


@dataclass(frozen=True)
class Source:
    """A tree of files that no one changes any more."""

    root: Path
    version: Version
    commit: str
    """40 hex digits, with "-dirty" where files differ from it."""
    epoch: int
    """When it was committed, in Unix seconds: the date of everything made of it."""


def take(into: Path, *, version: str = "", allow_dirty: bool = False, root: Path = ROOT) -> Source:
    """The files of HEAD below `into`; of the working tree where that differs and `allow_dirty`.

    `version` replaces the one that stands in the files, in the copy only.
    Raises: Refused for a dirty tree, a chart of another version, or a version that not all can spell.
    """
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed and not allow_dirty:
        names = ", ".join(line[3:] for line in changed[:3]) + (" …" if len(changed) > 3 else "")
        raise Refused(
            f"{len(changed)} files differ from the commit ({names}): commit them, or pass --dirty (make: DIRTY=1), "
            "and the version says so"
        )
    if changed:
        copy_tree(root, into)
    else:
        _copy_commit(root, into)
    own = own_version(into)
    check_chart(into, own)
    chosen = versions.parse(version) if version else own
    if changed:
        chosen = versions.dirty(chosen)
    _write_version(into, chosen)
    epoch = commit_time(root)
    for path in into.rglob("*"):
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    return Source(into, chosen, _git(root, "rev-parse", "HEAD").strip() + ("-dirty" if changed else ""), epoch)


def own_version(root: Path) -> Version:
    """The version that stands in the files. Raises: Refused where there is none."""
    file = root / VERSION_FILE
    found = _VERSION.search(file.read_text())
    if found:
        return versions.parse(found[1])
    raise Refused(f'{file} has no line __version__ = "…"')


def check_chart(root: Path, version: Version) -> None:
    """Raises: Refused where the chart is of another version than the code."""
    chart = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    has, wanted = (
        (chart.get("version"), chart.get("appVersion")),
        (versions.semver(version), versions.image_tag(version)),
    )
    if has != wanted:
        raise Refused(
            f"{CHART}/Chart.yaml has version {has[0]} and appVersion {has[1]}, {VERSION_FILE} wants {wanted[0]} and "
            f"{wanted[1]}: run `python -m tools.chart` and commit"
        )


def commit_time(root: Path = ROOT) -> int:
    """Unix seconds: $SOURCE_DATE_EPOCH, else when HEAD was committed."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git(root, "log", "-1", "--format=%ct"))


def copy_tree(root: Path, into: Path) -> None:
    """Every file of the working tree that git does not ignore, committed or not."""
    for name in _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        path = root / name
        if name and path.is_file():  # what is deleted but not committed is listed too
            copy = into / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
            copy.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _write_version(root: Path, version: Version) -> None:
    file = root / VERSION_FILE
    file.write_text(_VERSION.sub(f'__version__ = "{version}"', file.read_text()))
    chart = root / CHART / "Chart.yaml"
    text = re.sub(r"^version: .*$", f'version: "{versions.semver(version)}"', chart.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^appVersion: .*$", f'appVersion: "{versions.image_tag(version)}"', text, flags=re.MULTILINE)
    chart.write_text(text)
    check_chart(root, own_version(root))


def _copy_commit(root: Path, into: Path) -> None:
    packed = _git_bytes(root, "-c", "tar.umask=0022", "archive", "--format=tar", "HEAD")
    with tarfile.open(fileobj=BytesIO(packed)) as files:
        extract_all(files, into)


def _git(root: Path, *args: str) -> str:
    return _git_bytes(root, *args).decode()


def _git_bytes(root: Path, *args: str) -> bytes:
    done = subprocess.run(["git", *args], cwd=root, capture_output=True, timeout=_GIT_S)
    if done.returncode:
        raise Refused(f"git {args[0]} in {root}: {done.stderr.decode().strip()}; a release is made in a git checkout")
    return done.stdout


def extract_all(files: tarfile.TarFile, into: Path) -> None:
    """What lies in an archive. Debian 12's Python (3.11.2) has no filters yet, and takes no argument of that name."""
    if hasattr(tarfile, "data_filter"):
        files.extraction_filter = tarfile.data_filter
    files.extractall(into)
