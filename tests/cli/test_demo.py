"""`make demo` as a newcomer runs it: real training through the whole chain, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

if not all(map(find_spec, ("torch", "sklearn", "fastapi"))):  # importing them would cost each process seconds
    pytest.skip("torch, sklearn or fastapi is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def demo(tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tools/demo.py")],
            env={**os.environ, "STOKER_DEMO_DATA": str(tmp_path / "demo")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def _left_over(folder: Path) -> list[str]:
    """Command lines of processes that name the demo's folder in their arguments or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if entry.name != str(os.getpid()) and not zombie and any(str(folder).encode() in text for text in texts):
            found.append(texts[0].replace(b"\0", b" ").decode())
    return found


def test_the_demo(demo: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    process = demo()
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if " Succeeded " in line and "%" in line}
    for name in ("digits", "own-script", "mnist-ddp"):
        assert float(rows[name][2].rstrip("%")) >= 97, out
    assert "$ stoker why mnist-ddp\nmnist-ddp is Queued: " in out
    assert out.count("split of training and test images: ") == 2
    assert "demo done in " in out
    assert _left_over(tmp_path / "demo") == []
    saved = [line.rpartition(": ")[2] for line in out.splitlines() if ": checkpoint of step" in line]
    assert len(saved) == 3 and all(Path(path).exists() for path in saved)


# Ctrl-C's way to the handler is Python's own; from there on both are one.
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.sweep)])
def test_an_interrupted_demo_leaves_nothing_running(
    demo: Callable[[], subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    process = demo()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if " Running " in line + " ":
                break
        process.send_signal(number)
        out, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130 and "interrupted" in out and "Traceback" not in out, out
    assert _left_over(tmp_path / "demo") == []


def test_a_folder_that_is_no_demo_s_is_left_alone(demo: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").write_text("years of work")
    process = demo()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "nothing is done to it" in out
    assert (tmp_path / "demo" / "thesis.tex").exists()
