"""The trainer's CUDA tests, by pytest: a short job in each precision learns, stops, and goes on with the same bits."""

from __future__ import annotations

import re
import subprocess
import sys

from tools.gpu_check.report import Figure


def measure() -> dict[str, Figure]:
    """Raises: AssertionError with pytest's last lines where a test failed or was left out."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/trainer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=190)
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    wanted = done.returncode == 0 and counts.get("passed", 0) and not counts.get("skipped")
    assert wanted, (done.stdout + done.stderr)[-2500:]
    return {"tests passed": counts["passed"]}
