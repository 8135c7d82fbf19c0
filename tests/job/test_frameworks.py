"""The examples of Hugging Face's Trainer, Lightning and Accelerate: suspended and resumed they end as uninterrupted.

`make sweep` runs them, with the real packages (`tests/support/frameworks.py`), on two workers of a real `stoker up`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import Client, Job
from stoker.spec.job import Phase
from tests.support.frameworks import frameworks
from tests.support.harness import Server, running, until
from tests.support.testbed.errors import Unavailable

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.sweep, pytest.mark.torch, pytest.mark.timeout(900)]
GRACE_S = 60


@pytest.fixture(scope="module")
def packages() -> str:
    try:
        return str(frameworks())
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("up") / "data", "--virtual-gpus", "4", "--cpus", "8") as server:
        yield server


def start(client: Client, packages: str, example: str, *args: str, workers: int, data: dict[str, str]) -> Job:
    env = {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "train.py", *args]
    folder = EXAMPLES / example
    return client.run(command, code=folder, workers=workers, gpus=1, memory="3Gi", env=env, data=data)


def ended(job: Job) -> str:
    """The last line of the job's first worker."""
    log = "".join(chunk.text for chunk in job.wait(600).logs())
    (line,) = re.findall(r"^done: .*$", log, re.MULTILINE)
    return str(line)


@pytest.mark.parametrize(
    ("example", "args", "workers", "steps"),
    [
        ("hf-trainer", ("--steps", "150"), 2, 150),
        ("lightning", ("--epochs", "8"), 2, 8 * 28),
        ("lora", ("--steps", "300"), 1, 300),
    ],
)
def test_suspended_and_resumed_it_ends_as_uninterrupted(
    server: Server, packages: str, tmp_path: Path, example: str, args: tuple[str, ...], workers: int, steps: int
) -> None:
    data = {}
    if example == "lora":
        data = {"weights": str(tmp_path / "base")}
        make = [sys.executable, str(EXAMPLES / "lora/make_weights.py"), data["weights"]]
        subprocess.run(make, env={"PYTHONPATH": packages, "OMP_NUM_THREADS": "2"}, check=True, timeout=300)
    with server.client() as client:
        whole = ended(start(client, packages, example, *args, workers=workers, data=data))
        assert f"step {steps} " in whole
        job = start(client, packages, example, *args, workers=workers, data=data)

        def at_work() -> bool:
            progress = job.refresh().status.progress
            return progress is not None and progress.total_steps == steps and progress.step > steps // 10

        until(at_work, "its progress is shown", 300)
        began = time.monotonic()
        job.suspend()
        stopped = client.wait(job.name, [Phase.SUSPENDED], GRACE_S)
        took_s = time.monotonic() - began
        progress = stopped.status.progress
        assert progress is not None and progress.checkpoint is not None and "loss" in progress.metrics
        assert steps // 10 < progress.checkpoint.step < steps, "in the middle"
        (end,) = stopped.status.attempts
        assert {worker.exit_code for worker in end.workers} == {75}, end
        job.resume()
        again = ended(job)
        resumed = job.refresh()
        assert resumed.status.attempt == 2 and resumed.status.progress is not None
        assert resumed.status.progress.step == steps
        curve = job.metrics("loss").columns()
        assert set(curve["attempt"]) == {1, 2}
        print(f"{example}: {whole} | {again}; stopped at {progress.checkpoint.step} in {took_s:.1f} s")
        assert again == whole
