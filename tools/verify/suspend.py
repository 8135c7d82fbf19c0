"""Exact resume through the whole chain: a job stopped at random steps gives the bits of one that never was.

    python -m tools.verify.suspend [--stops 20] [--how suspend|preempt|sigterm|sigkill] [--workers 1|2]

Two equal jobs run under a real `stoker up`; one is stopped again and again: by suspend and resume over REST, by a job
of higher priority that preempts it, by SIGTERM to a worker's supervisor, or by SIGKILL to one of its processes. Every
traced step (the loss's bits, hashes of weights, optimizer, scaler, generators and cursor) and the final weights must be
equal. Augmentation and dropout are on.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from stoker.client.client import Client
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.outcome import Intent
from tests.support.harness import Server, running, stat_of, until
from tools.verify.resume import Traced, compare, default_config


def check(folder: Path, stops: int, how: str, workers: int, epochs: int = 30, seed: int = 1) -> str:
    """What was proved, in one line. Raises: resume.Mismatch, AssertionError."""
    dice = random.Random(seed)
    with running(folder / "data", "--virtual-gpus", "2", "--cpus", "8") as server, server.client() as client:
        client.calls.put("queues", "default", {"preemption": {"withinQueue": "LowerPriority"}})
        reference = _submit(client, folder, "reference", workers, epochs)
        _ended(client, "reference")
        stopped = _submit(client, folder, "stopped", workers, epochs)
        apart = max(2, reference.count() // (stops + 2))
        for number in range(stops):
            wanted = stopped.count() + dice.randint(1, apart)
            until(lambda wanted=wanted: stopped.count() >= wanted, f"step {wanted}", 60, 0.002)
            before = client.get("stopped")
            assert before.status.phase not in ENDED, f"done after {number} stops; make it longer (--epochs)"
            _stop(server, client, how, dice, number)
        job = _ended(client, "stopped")
        attempts = job.status.attempt
        steps = compare(_output(server, client, reference), _output(server, client, stopped))
    return (
        f"{stops} x {how}, {workers} worker(s): {attempts} attempts, {steps} trace lines "
        f"(reference {reference.count()}) and the weights equal in every bit"
    )


def _submit(client: Client, folder: Path, name: str, workers: int, epochs: int) -> Traced:
    config = default_config(epochs)
    trace = folder / f"{name}.trace"
    spec = {
        "workers": workers,
        "gpusPerWorker": 1,
        "cpu": "1",
        "trainer": {"recipe": config["recipe"], "config": config["config"]},
        "precision": config["precision"],
        "checkpoint": {"every": "100ms", "keep": 2, "grace": "20s"},
        "retry": {"rules": [{"categories": ["Killed", "NodeLost", "UserError"], "limit": 100, "backoff": "50ms"}]},
        "env": {"STOKER_TRACE_FILE": str(trace)},
    }
    client.submit(spec, name=name)
    return Traced(folder / name, trace)


def _stop(server: Server, client: Client, how: str, dice: random.Random, number: int) -> None:
    mine = [p for p in server.workers() if p.job == "stopped" and p.rank is not None]
    if how == "suspend":
        client.suspend("stopped")
        client.wait("stopped", [Phase.SUSPENDED], 60)
        assert not [p for p in server.workers() if p.job == "stopped"], "processes are left"
        client.resume("stopped")
    elif how == "preempt":
        before = client.get("stopped").status.attempt
        client.submit({"trainer": {"command": ["true"]}, "gpusPerWorker": 2, "priority": 1}, name=f"urgent-{number}")
        _ended(client, f"urgent-{number}")
        assert client.get("stopped").status.attempts[-1].intent is Intent.PREEMPT
        until(lambda: client.get("stopped").status.attempt > before, "it goes on", 60)
    elif mine:
        victim = dice.choice(mine)
        supervisor = int(stat_of(victim.pid)[1])
        target = supervisor if how == "sigterm" else dice.choice((victim.pid, supervisor))
        os.kill(target, signal.SIGTERM if how == "sigterm" else signal.SIGKILL)
        until(lambda: not any(p.pod_uid == victim.pod_uid for p in server.workers()), "the worker's end", 60, 0.01)


def _ended(client: Client, name: str) -> TrainingJob:
    job = client.wait(name, ENDED, 600)
    assert job.status.phase is Phase.SUCCEEDED, job.status
    return job


def _output(server: Server, client: Client, traced: Traced) -> Traced:
    traced.folder.mkdir()
    uid = client.get(traced.folder.name).uid
    (traced.folder / "output").symlink_to(server.data / "jobs" / uid / "output")
    return traced


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--how", choices=["suspend", "preempt", "sigterm", "sigkill"], default="suspend")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-verify-") as name:
        line = check(Path(name), given.stops, given.how, given.workers, given.epochs, given.seed)
        print(f"{line}; {time.monotonic() - began:.0f} s", file=sys.stdout)
