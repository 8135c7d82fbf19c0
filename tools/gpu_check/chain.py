"""The whole chain on the real GPU: `stoker up`, examples/digits.yaml to its target, and what its usage says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pynvml

from stoker.spec.job import AttemptEnd, Phase, TrainingJob
from stoker.spec.usage import JobUsage, UsageState
from tests.support.harness import running, until
from tools.gpu_check.report import Figure

ROOT = Path(__file__).resolve().parents[2]
USED = ("gpu_seconds", "busy_seconds", "sm_active_seconds", "unobserved_seconds", "energy_joules", "memory_peak_bytes")


def measure() -> dict[str, Figure]:
    """Raises: AssertionError where the job missed its target, or a real GPU's receipts are empty; TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="stoker-gpu-check-") as scratch:
        real = Path("/dev/nvidiactl").exists()
        with running(Path(scratch) / "data", *([] if real else ["--virtual-gpus", "1"])) as server:
            began = time.monotonic()
            with _energy_counter() if real else contextlib.nullcontext([]) as counter:
                _run_digits(server.data)
            took_s = time.monotonic() - began
            with server.client() as client:
                [node] = client.nodes()
                job = until(lambda: _counted(client.get("digits")), "the job's usage is final", 60)
    usage, progress = job.status.usage or JobUsage(), job.status.progress
    assert job.status.phase is Phase.SUCCEEDED and progress and progress.metrics["accuracy"] >= 0.97, job.status
    attempt = job.status.attempts[-1]
    joules = _between(counter, attempt) if counter else None
    assert not real or (usage.gpu_seconds and usage.energy_joules and not usage.simulated), usage
    return {
        "GPUs": ", ".join(gpu.model for gpu in node.status.gpus),
        "`stoker up` ready, s": server.ready_s,
        "`stoker run -f examples/digits.yaml`, s": took_s,
        "accuracy": progress.metrics["accuracy"],
        **{f"usage: {name}": getattr(usage, name) for name in USED},
        "usage: energy_joules ÷ NVML's counter from the attempt's begin to its end": joules
        and usage.energy_joules / joules,
    }


@contextlib.contextmanager
def _energy_counter() -> Iterator[list[tuple[float, float]]]:
    """(Unix time in seconds, joules) of the first GPU, every 20 ms until the block ends."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    read: list[tuple[float, float]] = []
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.02):
            read.append((time.time(), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield read
    finally:
        over.set()
        thread.join()


def _between(counter: list[tuple[float, float]], attempt: AttemptEnd) -> float:
    """Joules from the attempt's begin to its end."""
    assert attempt.started_at
    at, joules = zip(*counter, strict=True)
    began, ended = np.interp([attempt.started_at.timestamp(), attempt.ended_at.timestamp()], at, joules)
    return float(ended - began)


def _run_digits(data: Path) -> None:
    command = [sys.executable, "-m", "stoker.cli.main", "run", "-f", str(ROOT / "examples" / "digits.yaml")]
    done = subprocess.run(
        [*command, "--name", "digits"], env=os.environ | {"STOKER_HOME": str(data)},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def _counted(job: TrainingJob) -> TrainingJob | None:
    return job if job.status.usage and job.status.usage.state is UsageState.FINAL else None
