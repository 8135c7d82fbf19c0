"""What this machine offers a build: tools, free disk, certificates, package mirrors. Called by `ensuring`, `building`.

Mirrors reach a build as secrets and mounts that end with it. Paths and hosts of this machine never enter a layer.
"""

from __future__ import annotations

import configparser
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs")
_PIP_FILES = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_PIP_PASSED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")


class Missing(Exception):
    """A tool that building needs is not here."""


class NotEnoughDisk(Exception):
    """A build would fill the disk."""


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Where archives lie: $STOKER_CACHE/images or ~/.cache/stoker/images."""
    return Path(env.get("STOKER_CACHE") or Path.home() / ".cache" / "stoker").absolute() / "images"


def require(*tools: str) -> None:
    """Raises: Missing, naming the tools and how to get them."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise Missing(f"{', '.join(missing)} not found: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Missing("images are built as root here (buildah with chroot isolation): use sudo")


def require_disk(what: str, wanted_bytes: int, *folders: Path) -> None:
    """Raises: NotEnoughDisk where any of `folders` has less than `wanted_bytes` free."""
    for folder in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < wanted_bytes:
            raise NotEnoughDisk(
                f"{what} needs {wanted_bytes / 1e9:.1f} GB of free disk in {folder} while it is built; there are "
                f"{free / 1e9:.1f} GB. `python -m tools.images prune` removes what older builds left"
            )


def pip_config(env: Mapping[str, str] = os.environ, files: tuple[str, ...] = _PIP_FILES) -> str:
    """A pip.conf for a build: this machine's index and proxy, without paths that mean nothing in there."""
    read = configparser.ConfigParser(interpolation=None, strict=False)
    own = env.get("PIP_CONFIG_FILE")
    read.read([str(Path(name).expanduser()) for name in (*files, *((own,) if own else ()))])
    settings = {}
    for section in ("global", "install"):
        if read.has_section(section):
            settings.update({key: value for key, value in read.items(section) if key in _PIP_PASSED})
    for key in _PIP_PASSED:
        value = env.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            settings[key] = value
    lines = [f"{key} = {' '.join(value.split())}" for key, value in sorted(settings.items())]
    return "\n".join(["[global]", "disable-pip-version-check = true", "progress-bar = off", *lines]) + "\n"


def apt_sources(suite: str, env: Mapping[str, str] = os.environ) -> str | None:
    """A sources.list for a build where $STOKER_APT_MIRROR names a mirror; None: Debian's own."""
    mirror = env.get("STOKER_APT_MIRROR")
    return f"deb {mirror} {suite} main\n" if mirror else None
