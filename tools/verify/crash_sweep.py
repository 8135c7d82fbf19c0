"""kill -9 before and after every external call of one job's life, by the fault seam: a table of calls and outcomes.

    python -m tools.verify.crash_sweep [--suspended] [--every N]

A first run records the calls (STOKER_SEAM_TRACE). Then, for each call and side, `stoker up` kills itself there
(STOKER_SEAM), is started again without the fault, and the job must end well: submitted once, each attempt run once,
its log complete, its GPU free. With `--suspended` the life has a suspend and a resume in its middle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.spec.job import ENDED, Phase, TrainingJob
from tests.support.harness import Server

SCRIPT = """
import os, sys, time
attempt = os.environ["STOKER_ATTEMPT"]
with open(sys.argv[1], "a") as file:
    file.write(attempt + "\\n")
if attempt == "1" and sys.argv[2] == "waits":
    time.sleep(600)
for n in range(20):
    print("line", n, flush=True)
    time.sleep(0.005)
"""
WITHIN_S = 180.0
"""For one job's life with a kill in it; a second where nothing else runs."""


def calls(folder: Path, suspended: bool = False) -> list[str]:
    """The external calls of one job's life from the server's first one on, in order, as `name:nth`."""
    trace = folder / "trace"
    server = Server(folder / "first", "--virtual-gpus", "1", env={"STOKER_SEAM_TRACE": str(trace)})
    try:
        server.start()
        _live(server, folder / "first.ledger", suspended, may_die=False)
    finally:
        server.close()
    seen: Counter[str] = Counter()
    found = []
    for line in trace.read_text().splitlines():
        _number, verb, *about = line.split()
        name = f"{verb} {about[0]}" if verb.startswith("store.") else verb
        seen[name] += 1
        found.append(f"{name}:{seen[name]}")
    return found


def outcome(folder: Path, call: str, side: str, suspended: bool = False) -> dict[str, str]:
    """What became of the job when `stoker up` was killed there. Raises: AssertionError naming the broken promise."""
    rule = f"kill {side} {call}"
    number = len(list(folder.glob("*.ledger")))
    server = Server(folder / f"run-{number}", "--virtual-gpus", "1")
    ledger = folder / f"run-{number}.ledger"
    ledger.touch()
    try:
        server.start(wait=False, env={"STOKER_SEAM": rule})
        died = _live(server, ledger, suspended, may_die=True)
        runs = ledger.read_text().split()
        assert runs == (["1", "2"] if suspended else ["1"]), f"{rule}: attempts run: {runs}"
        return {"killed": "yes" if died else "not reached", "runs": str(len(runs))}
    finally:
        server.close()


def _live(server: Server, ledger: Path, suspended: bool, *, may_die: bool) -> bool:
    """Submit one job and see it to its end, restarting the server when it has killed itself. Returns whether it did."""
    command = [sys.executable, "-c", SCRIPT, str(ledger), "waits" if suspended else "goes on"]
    spec = {"gpusPerWorker": 1, "cpu": "100m", "trainer": {"command": command, "workingDir": "/"}}
    restarted = False
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        assert server.process is not None
        if server.process.poll() is not None:
            assert may_die and not restarted, f"`stoker up` died by itself: see {server.log}"
            restarted = True
            server.start()
        try:
            with server.client() as client:
                # Always the same call under the same key: a job that is there is given back, never made twice.
                job = client.submit(spec, name="one", idempotency_key="the-one")
                if suspended and ledger.exists() and ledger.read_text():  # its first attempt has come to its first line
                    _suspend_once(client, job)
                if job.status.phase in ENDED and not server.workers() and client.nodes()[0].usage.gpus == 0:
                    assert job.status.phase is Phase.SUCCEEDED, job.status
                    lines = b"".join(client.log_bytes("one")).decode().splitlines()
                    assert lines == [f"line {n}" for n in range(20)], lines
                    # The last calls come after the job's end: give them time to be made, or to kill.
                    time.sleep(0.5)
                    if server.process.poll() is None:
                        return restarted
        except (StokerError, OSError):
            time.sleep(0.02)
        time.sleep(0.01)
    raise AssertionError(f"the job did not end within {WITHIN_S:.0f} s (see {server.log})")


def _suspend_once(client: Client, job: TrainingJob) -> None:
    """Suspend the first attempt once it runs, and resume the job once it has stopped."""
    if job.status.attempt == 1 and job.status.phase is Phase.RUNNING and not job.spec.suspend:
        client.suspend("one")
    elif job.status.phase is Phase.SUSPENDED and job.spec.suspend:
        client.resume("one")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suspended", action="store_true", help="suspend and resume the job in its middle")
    parser.add_argument("--every", type=int, default=1, help="only each N-th call")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = calls(folder, given.suspended)
        print(f"{len(found)} external calls in one job's life\n")
        print("| call | killed before it | killed after it |\n|---|---|---|")
        for call in found[:: given.every]:
            cells = []
            for side in ("before", "after"):
                ended = outcome(folder, call, side, given.suspended)
                cells.append(f"{ended['killed']}: attempts {ended['runs']}, each run once, Succeeded, 0 GPUs leaked")
            print(f"| `{call}` | {cells[0]} | {cells[1]} |", flush=True)
