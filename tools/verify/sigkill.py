"""`stoker up` is killed with SIGKILL again and again while jobs come, run and end; nothing may be lost or run twice.

    python -m tools.verify.sigkill [--kills 20]

Each job writes one line into a ledger of its own at its start (who ran it) and prints numbered lines; some end with an
exit code of their own. A submitter goes on all the while with idempotency keys. Exits 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.spec.job import ENDED, Phase, TrainingJob
from tests.support.harness import Server, until

SCRIPT = """
import os, sys, time
ledger, lines, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(ledger, "a") as file:
    file.write(f"{os.environ['STOKER_ATTEMPT']} {os.getpid()} {os.environ['STOKER_GPU_UUIDS']}\\n")
for n in range(lines):
    print("line", n, flush=True)
    time.sleep(0.01)
sys.exit(code)
"""


@dataclass
class Submitter:
    """Submits jobs until it is stopped; a call that a kill cut off is repeated under the same key."""

    server: Server
    folder: Path
    rng: random.Random
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """job → (lines, exit code)"""
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number = 0
        while not self._over.wait(0.25):
            name, lines, code = f"job-{number:03d}", self.rng.randint(0, 250), self.rng.choice((0, 0, 0, 3))
            self._submit(name, lines, code)
            self.sent[name] = (lines, code)
            number += 1

    def _submit(self, name: str, lines: int, code: int) -> None:
        command = [sys.executable, "-c", SCRIPT, str(self.folder / name), str(lines), str(code)]
        spec = {
            "gpusPerWorker": self.rng.choice((0, 1)),
            "cpu": "100m",
            "memory": "64Mi",
            "trainer": {"command": command, "workingDir": "/"},
        }
        key = str(uuid.uuid4())
        while True:
            try:
                with self.server.client() as client:
                    client.submit(spec, name=name, idempotency_key=key)
                return
            except (StokerError, OSError):
                time.sleep(0.05)

    def stop(self) -> None:
        self._over.set()


def check(folder: Path, kills: int, seed: int = 1) -> dict[str, object]:
    """Run it; returns the figures. Raises: AssertionError naming the broken promise."""
    rng = random.Random(seed)
    ledgers = folder / "ledgers"
    ledgers.mkdir(parents=True)
    server = Server(folder / "data", "--virtual-gpus", "2", "--cpus", "2")
    survived = 0
    try:
        server.start()
        submitter = Submitter(server, ledgers, random.Random(seed + 1))
        thread = threading.Thread(target=submitter.run)
        thread.start()
        ready = []
        for _ in range(kills):
            time.sleep(rng.uniform(0.05, 1.5))
            before = {p.pid for p in server.workers()}
            server.kill()
            after = {p.pid for p in server.workers()}
            survived += len(before & after)
            time.sleep(rng.uniform(0, 0.3))
            server.start()
            ready.append(server.ready_s)
        submitter.stop()
        thread.join()
        with server.client() as client:
            until(lambda: all(j.status.phase in ENDED for j in client.ls()), "every job's end", 180, 0.5)
            jobs = {job.metadata.name: job for job in client.ls()}
            assert set(jobs) == set(submitter.sent), f"lost or invented: {set(jobs) ^ set(submitter.sent)}"
            for name, (lines, code) in submitter.sent.items():
                _check_job(client, jobs[name], ledgers / name, lines, code)
            held = client.nodes()[0].usage.gpus
            assert held == 0, f"{held} GPUs are still held"
        until(lambda: not server.workers(), "no process left", 10)
    finally:
        server.close()
    ready.sort()
    return {
        "kills": kills,
        "jobs": len(jobs),
        "processes alive across a kill": survived,
        "jobs lost": 0,
        "jobs run twice": 0,
        "log lines lost or doubled": 0,
        "median seconds from restart to ready": round(ready[len(ready) // 2], 2),
    }


def _check_job(client: Client, job: TrainingJob, ledger: Path, lines: int, code: int) -> None:
    name, end = job.metadata.name, job.status.attempts[-1]
    runs = ledger.read_text().splitlines()
    assert len(runs) == 1, f"{name} ran {len(runs)} times: {runs}"
    assert job.status.phase is (Phase.FAILED if code else Phase.SUCCEEDED), f"{name}: {job.status}"
    assert end.workers[0].exit_code == code, f"{name}: exit code {end.workers[0].exit_code}, not {code}"
    logged = b"".join(client.log_bytes(name)).decode().splitlines()
    assert logged == [f"line {n}" for n in range(lines)], f"{name}: {len(logged)} log lines, not {lines}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, value in check(Path(folder), given.kills, given.seed).items():
            print(f"{name:45} {value}")
