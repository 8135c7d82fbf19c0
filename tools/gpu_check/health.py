"""The health loop on the real GPU: a fault that is reported of it, its burn-in as the operator runs it, jobs again; and
a program's own mistake (XID 31), which is an event on its job and makes no GPU sick.

The fault is posted with the exporter's own token: no GPU is broken for it. Without a GPU only `stoker up` is tried.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import httpx
import torch

from stoker.client.client import Client
from stoker.spec.names import SYSTEM_PROJECT
from stoker.spec.report_tokens import exporter_token
from tests.support.harness import Server, running, until
from tools.gpu_check.report import Figure

ON_GPU = torch.cuda.is_available()
NODE = "local"
ONE_GPU = {"gpusPerWorker": 1, "cpu": "1", "memory": "4Gi"}
FAULT = 62
"""A HardwareFault, which is over 15 s later."""
BAD_POINTER = """
import torch, triton, triton.language as tl
@triton.jit
def store(where): tl.store(where + (1 << 40), 1.0)
store[(1,)](torch.zeros(1, device="cuda"))
torch.cuda.synchronize()
"""


def measure() -> dict[str, Figure]:
    """Raises: AssertionError where the GPU did not pass or the mistake made it sick; TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="stoker-gpu-check-") as scratch:
        folder = Path(scratch)
        options = ("--cpus", "4", "--memory", "16Gi", *([] if ON_GPU else ["--virtual-gpus", "1"]))
        with running(folder / "data", *options) as server, server.client() as client:
            if not ON_GPU:
                return {"GPUs": len(client.node(NODE).status.gpus)}
            until(lambda: client.node(NODE).status.gpus[0].power_limit_watts, "the exporter reports", 30)
            (folder / "mistake.py").write_text(BAD_POINTER)
            return _of_a_mistake(client, folder) | _of_a_fault(server, client)


def _of_a_mistake(client: Client, folder: Path) -> dict[str, Figure]:
    trainer = {"command": [sys.executable, "mistake.py"], "workingDir": str(folder)}
    client.submit({"trainer": trainer, **ONE_GPU}, name="mistake")
    job = client.wait("mistake", until=["Failed"], timeout=60)
    began = time.monotonic()
    until(lambda: _xids(client), "an event of the XID on the job", 20)
    seconds = time.monotonic() - began
    assert not client.node(NODE).status.sick, client.node(NODE).status.sick
    return {
        "a program's own mistake: the job": job.status.message,
        "a program's own mistake: its event": "; ".join(_xids(client)),
        "a program's own mistake: s from its end to the event": seconds,
    }


def _xids(client: Client) -> list[str]:
    return [event.message for event in client.past_events("mistake") if "XID" in event.message]


def _of_a_fault(server: Server, client: Client) -> dict[str, Figure]:
    [gpu] = client.node(NODE).status.gpus
    began = time.monotonic()
    _post(
        server, {"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "xids": [{"code": FAULT, "at": time.time()}]}
    )
    until(lambda: client.node(NODE).status.sick, "the GPU is sick", 10)
    client.submit({"trainer": {"command": ["true"]}, **ONE_GPU}, name="after")
    why = until(lambda: _named(client), "`why` names the GPU", 10)
    client.wait("after", timeout=90)
    seconds = time.monotonic() - began
    [test] = client.ls(project=SYSTEM_PROJECT)
    found = json.loads(b"".join(client.log_bytes(test.metadata.name, project=SYSTEM_PROJECT)).decode().splitlines()[-1])
    assert found["passed"] and not client.node(NODE).status.sick, found
    return {
        "why, meanwhile": why,
        "s from the fault to a job on the GPU again": seconds,
        "of these the test itself": found["seconds"],
        "words of memory that were wrong": found["wrong_words"],
    }


def _named(client: Client) -> str:
    summary = client.why("after").summary
    return summary if "sick" in summary else ""


def _post(server: Server, gpu: dict[str, object]) -> None:
    token = exporter_token((server.data / "report.key").read_bytes(), NODE)
    answer = httpx.post(
        f"{server.url}/v1/report/gpus",
        headers={"Authorization": f"Bearer {token}"},
        json={"node": NODE, "gpus": [gpu]},
        timeout=10,
    )
    assert answer.status_code == 200, answer.text
