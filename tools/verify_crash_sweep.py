"""kill -9 before and after every external call of one job's life, by the fault seam: a table of calls and outcomes.

    python tools/verify_crash_sweep.py [--every N]

A first run records the calls (STOKER_SEAM_TRACE). Then, for each call and side, `stoker up` kills itself there
(STOKER_SEAM), is started again without the fault, and the job must end well: submitted once, run once, GPU free.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from harness import Server
from stoker.cli.errors import StokerError
from stoker.spec.job import ENDED, Phase

SCRIPT = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(os.environ["STOKER_ATTEMPT"] + "\\n")
for n in range(20):
    print("line", n, flush=True)
    time.sleep(0.005)
"""


def calls(folder: Path) -> list[str]:
    """The external calls of one job's life from the server's first one on, in order, as `name:nth`."""
    trace = folder / "trace"
    server = Server(folder / "first", "--virtual-gpus", "1", env={"STOKER_SEAM_TRACE": str(trace)})
    try:
        server.start()
        _live(server, folder / "first.ledger", died=False)
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


def outcome(folder: Path, call: str, side: str) -> dict[str, str]:
    """What became of the job when `stoker up` was killed there. Raises: AssertionError naming the broken promise."""
    rule = f"kill {side} {call}"
    number = len(list(folder.glob("*.ledger")))
    server = Server(folder / f"run-{number}", "--virtual-gpus", "1")
    ledger = folder / f"run-{number}.ledger"
    ledger.touch()
    try:
        server.start(wait=False, env={"STOKER_SEAM": rule})
        died = _live(server, ledger, died=True)
        runs = len(ledger.read_text().splitlines())
        assert runs == 1, f"{rule}: the job ran {runs} times"
        return {"killed": "yes" if died else "not reached", "runs": str(runs), "GPUs leaked": "0"}
    finally:
        server.close()


def _live(server: Server, ledger: Path, *, died: bool) -> bool:
    """Submit one job and see it to its end, restarting the server when it has killed itself."""
    command = [sys.executable, "-c", SCRIPT, str(ledger)]
    spec = {"gpusPerWorker": 1, "cpu": "100m", "trainer": {"command": command, "workingDir": "/"}}
    restarted = False
    deadline = time.monotonic() + 60
    submitted = False
    while time.monotonic() < deadline:
        assert server.process is not None
        if server.process.poll() is not None:
            assert died and not restarted, f"`stoker up` died by itself: see {server.log}"
            restarted = True
            server.start()
        try:
            with server.client() as client:
                if not submitted:
                    client.submit(spec, name="one", idempotency_key="the-one")
                    submitted = True
                job = client.get("one")
                if job.status.phase in ENDED and not server.workers() and client.nodes()[0].usage.gpus == 0:
                    assert job.status.phase is Phase.SUCCEEDED, job.status
                    lines = b"".join(client.log_bytes("one")).decode().splitlines()
                    assert lines == [f"line {n}" for n in range(20)], lines
                    # The last calls come after the job's end: give them time to be made, or to kill.
                    time.sleep(0.5)
                    if server.process.poll() is None:
                        return restarted
        except (StokerError, OSError, FileNotFoundError):
            time.sleep(0.02)
        time.sleep(0.01)
    raise AssertionError(f"the job did not end within 60 s (see {server.log})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only each N-th call")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = calls(folder)
        print(f"{len(found)} external calls in one job's life\n")
        print("| call | killed before it | killed after it |\n|---|---|---|")
        for call in found[:: given.every]:
            cells = []
            for side in ("before", "after"):
                said = outcome(folder, call, side)
                cells.append(f"{said['killed']}: ran {said['runs']}×, Succeeded, 0 GPUs leaked")
            print(f"| `{call}` | {cells[0]} | {cells[1]} |", flush=True)
