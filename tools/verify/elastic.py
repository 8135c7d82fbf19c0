"""An elastic training that grows and shrinks sees the very samples of one that never was resized, each once.

    python -m tools.verify.elastic

Under a real `stoker up` with virtual GPUs a job of the trainer with `elastic: {min: 1, max: 2}` starts with one
worker beside another job, grows when that one has gone, and makes room for one of higher priority. Every step that it
trained is compared with those of an equal job of one worker: the cursor (what was consumed of which epoch, from which
the order follows) must be equal, the loss up to the rounding of sums.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stoker.client.client import Client
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.outcome import Intent
from tests.support.harness import running, until
from tools.verify.gang import hold
from tools.verify.resume import Traced, default_config

EPOCHS = 400
"""So many that neither job ends while it is looked at."""


def check(folder: Path, steps: int = 10) -> str:
    """What was proved, in one line. `steps`: to be trained by each attempt. Raises: AssertionError."""
    with running(folder / "data", "--virtual-gpus", "3", "--cpus", "8") as server, server.client() as client:
        client.calls.put("queues", "default", {"preemption": {"withinQueue": "LowerPriority"}})
        alone = _submit(client, folder, "alone", preemptible=False)
        client.submit(hold(600), name="first")
        client.wait("first", [Phase.RUNNING], 60)
        elastic = _submit(client, folder, "elastic", workers=2, elastic={"min": 1, "max": 2})
        _trains(client, elastic, 1, 1, steps)
        client.cancel("first")
        _trains(client, elastic, 2, 2, steps)
        client.submit({"trainer": {"command": ["true"]}, "gpusPerWorker": 1, "priority": 1}, name="urgent")
        client.wait("urgent", [Phase.SUCCEEDED], 60)
        job = _trains(client, elastic, 3, 1, steps)
        client.cancel("elastic")
        client.wait("elastic", [Phase.CANCELLED], 60)
        asked = [(one.intent, len(one.workers)) for one in job.status.attempts]
        assert asked == [(Intent.RESIZE, 1), (Intent.RESIZE, 2)], asked
        assert (job.status.retries, client.get("urgent").status.attempt) == ({}, 1)
        trained = [line for line in elastic.lines() if "loss" in line]
        until(lambda: alone.count() >= elastic.count(), "as many steps", 120)
        client.cancel("alone")
        _same(trained, {line["step"]: line for line in alone.lines() if "loss" in line})
    return f"1, 2 and 1 worker(s): {len(trained)} steps, each once, with the samples of a job of one worker"


def _submit(client: Client, folder: Path, name: str, **spec: Any) -> Traced:
    config = default_config(EPOCHS)
    trace = folder / f"{name}.trace"
    spec |= {
        "gpusPerWorker": 1,
        "cpu": "1",
        "trainer": {"recipe": config["recipe"], "config": config["config"]},
        "precision": config["precision"],
        "checkpoint": {"every": "1s", "keep": 2, "grace": "20s"},
        "env": {"STOKER_TRACE_FILE": str(trace)},
    }
    client.submit(spec, name=name)
    return Traced(folder / name, trace)


def _trains(client: Client, traced: Traced, attempt: int, workers: int, steps: int) -> TrainingJob:
    """Wait until that attempt has made so many steps."""
    name = traced.folder.name
    until(lambda: client.get(name).status.attempt == attempt, f"attempt {attempt}", 90)
    client.wait(name, [Phase.RUNNING], 60)
    before = traced.count()
    until(lambda: traced.count() >= before + steps, f"{steps} steps of attempt {attempt}", 90)
    job = client.get(name)
    assert (job.status.attempt, len(job.status.placement)) == (attempt, workers), job.status
    return job


def _same(trained: list[dict[str, Any]], wanted: dict[int, dict[str, Any]]) -> None:
    assert [line["step"] for line in trained] == list(range(1, len(trained) + 1)), "each step once"
    for line in trained:
        other = wanted[line["step"]]
        assert line["cursor"] == other["cursor"], f"step {line['step']}: other samples"
        losses = [float.fromhex(one["loss"]) for one in (line, other)]
        assert math.isclose(*losses, rel_tol=1e-2), f"step {line['step']}: {losses}"


if __name__ == "__main__":
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-verify-") as name:
        line = check(Path(name))
    print(f"{line}; {time.monotonic() - began:.0f} s", file=sys.stdout)
