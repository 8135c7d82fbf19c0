"""The environment that the sections run in: this Python's packages, the carried wheels, and the repository's rooms.

A temporary virtual environment whose one .pth file lists them, wheels first. Workers of `stoker up` inherit no
PYTHONPATH, so a variable would not do. Never uses the network; where all packages are installed no wheel is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".whl"
NEEDED = ("pydantic", "fastapi", "uvicorn", "httptools", "websockets", "pathspec", "pynvml", "pytest_asyncio")
ROOMS = ("operator", "api", "trainer-image", ".")


class NoGpu(Exception):
    """There is nothing to check here."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no GPU: {why}; run it on a machine with an NVIDIA GPU and its driver")


class NoWheels(Exception):
    """Packages are missing here, and none were carried."""

    def __init__(self) -> None:
        super().__init__("packages are missing, .whl/ is empty: run `make gpu-check-wheels` where there is a network")


def gpu_name() -> str:
    """The first GPU's, as its driver reports it. Raises: NoGpu."""
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise NoGpu("nvidia-smi was not found") from None
    except subprocess.TimeoutExpired:
        raise NoGpu("nvidia-smi did not answer within 60 s") from None
    if done.returncode or not done.stdout.strip():
        raise NoGpu((done.stdout + done.stderr).strip() or "nvidia-smi lists none")
    return done.stdout.splitlines()[0].strip()


@dataclass(frozen=True)
class Environment:
    python: Path

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
        return kept | {"PATH": f"{self.python.parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def machine(self) -> dict[str, str]:
        """Versions, as text, by name."""
        code = "import torch; print(torch.__version__)"
        asked = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True, timeout=120)
        driver = Path("/proc/driver/nvidia/version")
        return {
            "kernel": platform.release(),
            "CPUs": str(os.cpu_count()),
            "Python": platform.python_version(),
            "torch": asked.stdout.strip() or "none",
            "driver": driver.read_text().split("  ")[1] if driver.exists() else "unknown",
        }


@contextlib.contextmanager
def prepared() -> Iterator[Environment]:
    """Raises: NoWheels; CalledProcessError where the wheels do not fit this Python."""
    with tempfile.TemporaryDirectory(prefix="stoker-gpu-check-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # a process without root's rights runs this Python too
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=60)
        site = folder / "site"
        site.mkdir()
        if any(importlib.util.find_spec(name) is None for name in NEEDED):
            wheels = sorted(WHEELS.glob("*.whl"))
            if not wheels:
                raise NoWheels
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir"]
            subprocess.run([*pip, "--target", site, *wheels], check=True, timeout=120)
        ours = [str(site), *(str(ROOT / room) for room in ROOMS)]
        [packages] = (folder / "env" / "lib").glob("python*/site-packages")
        there = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (packages / "gpu_check.pth").write_text("\n".join([*ours, *there]) + "\n")
        yield Environment(folder / "env" / "bin" / "python")
