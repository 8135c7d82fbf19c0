"""Users' scripts that do what users' scripts do: right phase, right category, nothing left, log complete.

python -m tools.verify.user_scripts
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.client.client import Client
from stoker.spec.job import ENDED, Phase, TrainingJob
from tests.support.harness import Server, running, until

LINES = 1_000_000
LINE = "line %07d of a log that is written as fast as a process can write, padded to a hundred bytes .......\n"

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("the main process is done")
"""
DEAF = """
import signal, time, subprocess, sys
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
print("ignores signals", flush=True)
time.sleep(600)
"""
LOUD = f"""
import sys
out = sys.stdout
for begin in range(0, {LINES}, 1000):
    out.write("".join({LINE!r} % n for n in range(begin, begin + 1000)))
"""


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    phase: Phase
    category: str | None
    exit_code: int | None
    act: Callable[[Client, str], None] | None = None
    check: Callable[[Client, TrainingJob], str] | None = None


def _cancel_when_it_runs(client: Client, name: str) -> None:
    client.wait(name, [Phase.RUNNING], 20)
    until(lambda: b"ignores signals" in b"".join(client.log_bytes(name)), "the script's first line", 20)
    client.cancel(name)


def _whole_log(client: Client, job: TrainingJob) -> str:
    digest, size = hashlib.sha256(), 0
    for part in client.log_bytes(job.metadata.name):
        digest.update(part)
        size += len(part)
    wanted = hashlib.sha256()
    for number in range(LINES):
        wanted.update((LINE % number).encode())
    assert digest.hexdigest() == wanted.hexdigest(), f"the log differs: {size} bytes"
    return f"{size / 1e6:.0f} MB, sha256 equal"


CASES = (
    Case("exits-0", "print('ok')", Phase.SUCCEEDED, None, 0),
    Case("exits-1", "import sys; sys.exit(1)", Phase.FAILED, "UserError", 1),
    Case("exits-75", "import sys; sys.exit(75)", Phase.FAILED, "UserError", 75),
    Case("exits-64", "import sys; sys.exit(64)", Phase.FAILED, "UserError", 64),
    Case("crashes", "import os; os.kill(os.getpid(), 11)", Phase.FAILED, "UserError", 139),
    Case("leaves-a-daemon", DAEMON, Phase.SUCCEEDED, None, 0),
    Case("ignores-sigterm", DEAF, Phase.CANCELLED, "Interrupted", 137, act=_cancel_when_it_runs),
    Case("prints-100-mb", LOUD, Phase.SUCCEEDED, None, 0, check=_whole_log),
)


def check(data: Path, cases: tuple[Case, ...] = CASES) -> list[tuple[str, ...]]:
    """Run them; returns a row per script. Raises: AssertionError naming the broken promise."""
    with running(data, "--cpus", "2") as server, server.client() as client:
        return [_run(server, client, case) for case in cases]


def _run(server: Server, client: Client, case: Case) -> tuple[str, ...]:
    command = [sys.executable, "-c", case.script]
    spec = {"trainer": {"command": command, "workingDir": "/"}, "checkpoint": {"grace": "1s"}}
    began = time.monotonic()
    client.submit(spec, name=case.name)
    if case.act is not None:
        case.act(client, case.name)
    job = client.wait(case.name, ENDED, 120)
    took_s = time.monotonic() - began
    end = job.status.attempts[-1]
    found = (job.status.phase, end.category, end.workers[0].exit_code)
    assert found == (case.phase, case.category, case.exit_code), f"{case.name}: {found}: {job.status.message}"
    left = [p for p in server.workers() if p.job == case.name]
    assert left == [], f"{case.name}: processes are left: {left}"
    remark = case.check(client, job) if case.check else ""
    return (case.name, str(found[0]), str(found[1] or "-"), str(found[2]), f"{took_s:.1f} s", "0", remark)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print("script | phase | category | exit code | took | processes left | log")
        for row in check(Path(folder) / "data"):
            print(" | ".join(row))
