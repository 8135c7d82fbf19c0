"""`make gpu-check` as far as it goes without a GPU: isolation, the report's shape, NVML's section over the fake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvml_scenario import NoCompiler, Scenario
from tools.gpu_check.__main__ import run
from tools.gpu_check.environment import Environment
from tools.gpu_check.report import Report, Section

ROOT = Path(__file__).parents[2]
PATHS = {"PYTHONPATH": str(ROOT)}


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a driver here")
    command = [sys.executable, "-m", "tools.gpu_check", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=os.environ | PATHS, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, (tmp_path / "out").exists()) == (2, "", False)
    assert done.stderr == "no GPU: nvidia-smi was not found; run it on a machine with an NVIDIA GPU and its driver\n"


class Here(Environment):
    def variables(self) -> dict[str, str]:
        return os.environ | PATHS


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("print('the last words'); exit(3)", "exit 3\nthe last words"),
        ("import os; os.kill(os.getpid(), 9)", "exit -9"),
        ("import time; time.sleep(60)", "stopped after 1 s"),
        ("print('noise'); print('FIGURES {\"a\": 1.5}')", ""),
    ],
)
def test_a_section_that_fails_crashes_or_hangs_is_reported(program: str, error: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} - <<'END'\n{program}\nEND\n")
    python.chmod(0o755)
    section = run("update", Here(python), 1.0 if "sleep" in program else 30.0)
    assert (section.error, section.figures) == (error, {} if error else {"a": 1.5})


def test_the_report(tmp_path: Path) -> None:
    at = "2026-11-22 12:00"
    sections = [
        Section("update", at, 1.5, {"ratio": 1.2345, "bytes": 10_000.0, "counter": None}),
        Section("nvml", at, 2, error="gone"),
    ]
    report = Report("NVIDIA H200 (141 GB)", {"torch": "2.11"}, sections)
    report.write(tmp_path)
    assert json.loads((tmp_path / "nvidia-h200-141-gb.json").read_text())["sections"][1]["error"] == "gone"
    text = (tmp_path / "nvidia-h200-141-gb.md").read_text()
    for row in ("torch 2.11. Failed: nvml.", "| ratio | 1.234 |", "| bytes | 10,000 |", "| counter | not there |"):
        assert row in text
    later = Report("NVIDIA H200 (141 GB)", {"torch": "2.11"})
    later.keep(tmp_path)
    later.put(Section("nvml", "2026-11-23 12:00", 3))
    assert later.sections == [sections[0], Section("nvml", "2026-11-23 12:00", 3)]
    other = Report("NVIDIA H200 (141 GB)", {"torch": "2.12"})
    other.keep(tmp_path)
    assert not other.sections, "another torch"


@pytest.mark.slow
def test_nvml_over_the_fake_library(tmp_path: Path) -> None:
    """Every call by its C name with its latency; what is refused is named; GPM without root."""
    scenario = Scenario(tmp_path)
    scenario.add_gpu(watts=400.0, busy=90.0, sm=45.0)
    try:
        fake = scenario.write().env()
    except NoCompiler as error:
        pytest.skip(str(error))

    class Faked(Environment):
        def variables(self) -> dict[str, str]:
            return os.environ | PATHS | fake

    section = run("nvml", Faked(Path(sys.executable)), 60)
    assert not section.error, section.error
    assert "nvmlDeviceGetFieldValues: p99, µs" in section.figures and "a poll: p50, µs" in section.figures
    assert "as root: GPM values" in section.figures


@pytest.mark.slow
@pytest.mark.torch
def test_a_burn_in_gives_its_time_and_bandwidths() -> None:
    """Here on the host."""
    pytest.importorskip("torch")
    section = run("burn_in", Here(Path(sys.executable)), 60)
    assert not section.error, section.error
    assert section.figures["wrong"] == "nothing" and section.figures["NVLink"] == "not measured: no GPU"
    rates = [section.figures[f"copies with the host, GB/s: {way}"] for way in ("to", "from")]
    assert all(isinstance(rate, float) and rate > 0 for rate in rates)
