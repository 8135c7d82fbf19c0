"""Hugging Face's and Lightning's packages for the tests that try them for real: with our torch, in a folder apart.

Owns `<cache>/frameworks-<what is in it>`, a folder for PYTHONPATH, which uv fills once from the package index (216 MB).
Called by the tests marked `sweep`; `python -m tests.support.frameworks` prints the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("accelerate>=1.15", "lightning>=2.6", "peft>=0.21", "tensorboard>=2.21", "transformers>=5.23")
_OURS = ("torch", "numpy")
"""Of our own environment: these are not fetched again."""


def frameworks() -> Path:
    """The folder. Raises: Unavailable where the packages can't be had."""
    name = hashlib.sha256(repr((_PACKAGES, _OURS, sys.version_info[:2])).encode()).hexdigest()[:12]
    folder = build.cache() / f"frameworks-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder.with_suffix(".new"))
            folder.with_suffix(".new").rename(folder)
    return folder


def _install(folder: Path) -> None:
    left_out = folder.with_suffix(".txt")
    left_out.write_text("".join(f'{package}; sys_platform == "none"\n' for package in _OURS))
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    options = ["--target", str(folder), "--overrides", str(left_out), "-c", str(_ROOT / "constraints.txt")]
    try:
        subprocess.run([*uv, *options, *_PACKAGES], check=True, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"the frameworks can't be installed: {getattr(error, 'stderr', '') or error}") from None


if __name__ == "__main__":
    print(frameworks())
