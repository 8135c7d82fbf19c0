"""A GPU falls off the bus on a real `stoker up` over the fake NVML: the job goes on elsewhere, none lands there again
until an administrator says so, or a burn-in is passed.

Prints the seconds from the XID to the job running elsewhere (goal: 10), and until the GPU is back.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from stoker.client.client import Client
from stoker.client.errors import ApiError
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.names import SYSTEM_PROJECT
from stoker.spec.rest_nodes import NodeWithUsage
from tests.support.burn_in_torch import TORCH_WITH_A_GPU
from tests.support.harness import running, until
from tests.support.nvml_scenario import NoCompiler, Scenario

pytestmark = pytest.mark.slow

GPUS = 2
SAVES = """
import os, pathlib, signal, sys, time
kept = pathlib.Path(os.environ["STOKER_CHECKPOINT_DIR"]) / "kept"
saved = kept.read_text() if kept.exists() else "nothing"
print("gpu", os.environ.get("CUDA_VISIBLE_DEVICES"), "after", saved, flush=True)
def save(*_):
    kept.write_text("a checkpoint")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
while True:
    time.sleep(0.1)
"""
SAYS = ["sh", "-c", "echo gpu $CUDA_VISIBLE_DEVICES"]
SMALL = {"gpusPerWorker": 1, "cpu": "100m", "memory": "64Mi"}
STOPPED = {"exitZeroAfterSignal": "Stopped"}


def _on_gpu(client: Client, name: str) -> str:
    """The GPU that the job's newest attempt has."""
    until(lambda: b"gpu" in b"".join(client.log_bytes(name)), timeout_s=20)
    return b"".join(client.log_bytes(name)).decode().split()[1]


def _node(client: Client) -> NodeWithUsage:
    return client.node("local")


def _runs(client: Client, name: str, attempt: int) -> TrainingJob | None:
    job = client.get(name)
    return job if (job.status.attempt, job.status.phase) == (attempt, Phase.RUNNING) else None


def test_xid_79_moves_the_job_and_nothing_lands_there_until_an_administrator_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, env = _machine(tmp_path)
    trainer = {"command": [sys.executable, "-c", SAVES], "workingDir": "/"}
    options = ("--cpus", "8", "--memory", "8Gi", "--no-burn-in")
    with running(tmp_path / "data", *options, env=env) as server, server.client() as client:
        until(lambda: _node(client).status.gpus, timeout_s=20)
        client.submit({"trainer": trainer, **SMALL, "stop": STOPPED}, name="moved")
        client.wait("moved", until=["Running"])
        sick = _on_gpu(client, "moved")
        index = next(gpu.index for gpu in _node(client).status.gpus if gpu.uuid == sick)
        until(lambda: _is_reported(client), timeout_s=30)  # NVML repeats no XID of before the exporter began
        at = time.time() + 0.2
        scenario.xid(index, at, 79)
        scenario.write()
        until(lambda: _runs(client, "moved", 2), timeout_s=40)
        seconds = time.time() - at
        with capsys.disabled():
            print(f"\nXID 79 to the job running on another GPU: {seconds:.1f} s")
        job = client.get("moved")
        assert job.status.retries == {} and "is sick (XID 79)" in job.status.attempts[0].message
        assert _on_gpu(client, "moved") != sick
        assert b"after a checkpoint" in b"".join(client.log_bytes("moved"))
        client.cancel("moved")
        client.wait("moved", until=["Cancelled"])
        landed = Counter[str]()
        for number in range(4):
            client.submit(
                {"trainer": {"command": ["sh", "-c", "echo gpu $CUDA_VISIBLE_DEVICES"]}, **SMALL}, name=f"j{number}"
            )
        for number in range(4):
            client.wait(f"j{number}")
            landed[_on_gpu(client, f"j{number}")] += 1
        assert landed[sick] == 0 and sum(landed.values()) == 4
        (known,) = _node(client).status.sick
        assert (known.uuid, [cause.code for cause in known.causes]) == (sick, ["OffTheBus"])
        until(lambda: not _node(client).status.sick[0].holders, "a report without holders")
        client.submit({"trainer": trainer, **SMALL, "gpusPerWorker": 2}, name="both")
        until(lambda: "sick: XID 79 since" in client.why("both").summary, timeout_s=20)
        client.uncordon("local", gpu=sick)
        client.wait("both", until=["Running"])


def test_once_it_is_over_a_burn_in_runs_on_that_gpu_and_it_takes_jobs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    scenario, env = _machine(tmp_path)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/sitecustomize.py").write_text(TORCH_WITH_A_GPU)
    env["PYTHONPATH"] = str(tmp_path / "torch")
    options = ("--cpus", "8", "--memory", "8Gi", "--burn-in-seconds", "0", "--pass-env", "PYTHONPATH")
    with running(tmp_path / "data", *options, env=env) as server, server.client() as client:
        until(lambda: _is_reported(client), timeout_s=30)
        at = time.time() + 0.2
        scenario.xid(0, at, 79)
        scenario.write()
        until(lambda: _node(client).status.sick, timeout_s=20)
        sick = _node(client).status.sick[0].uuid
        assert [(one.gpu, one.state) for one in _node(client).burn_ins] == [(sick, "Waiting")]
        client.submit({"trainer": {"command": SAYS}, **SMALL, "gpusPerWorker": GPUS}, name="both")
        client.wait("both", timeout=80)
        with capsys.disabled():
            print(f"\nXID 79 to the GPU leased again: {time.time() - at:.1f} s")
        (test,) = client.ls(project=SYSTEM_PROJECT)
        assert test.status.burn_in is not None and test.status.burn_in.gpu == sick and test.status.attempt == 1
        assert b'"passed": true' in b"".join(client.log_bytes(test.metadata.name, project=SYSTEM_PROJECT))
        with pytest.raises(ApiError, match="Stoker's own jobs"):
            client.submit({"trainer": {"command": SAYS}, **SMALL}, name="mine", project=SYSTEM_PROJECT)


def _machine(folder: Path) -> tuple[Scenario, dict[str, str]]:
    try:
        (folder / "nvml").mkdir()
        scenario = Scenario(folder / "nvml")
        for _ in range(GPUS):
            scenario.add_gpu()
        return scenario, scenario.write().env()
    except NoCompiler as error:
        pytest.skip(str(error))


def _is_reported(client: Client) -> bool:
    """The node's exporter has reported its GPUs."""
    return any(gpu.power_limit_watts for gpu in _node(client).status.gpus)
