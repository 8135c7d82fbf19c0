"""How long `stoker up` takes to be ready, and what it and its workers cost while nothing happens.

python -m tools.verify.start [--starts 7] [--idle 20]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from stoker.spec.job import Phase
from tests.support.harness import Server, cpu_s, machine, rss_mib, running, stat_of, until


def starts(folder: Path, count: int) -> list[float]:
    """Seconds from exec to ready, each start on a data folder of its own."""
    taken = []
    for number in range(count):
        with running(folder / f"start-{number}", "--virtual-gpus", "2") as server:
            taken.append(server.ready_s)
    return taken


def idle(folder: Path, seconds: float) -> dict[str, tuple[float, float]]:
    """process → (CPU in percent of one core, RSS in MiB) over an idle time with one sleeping job."""
    with running(folder / "idle", "--virtual-gpus", "2") as server, server.client() as client:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        client.submit({"gpusPerWorker": 1, "trainer": {"command": command, "workingDir": "/"}}, name="sleeper")
        client.wait("sleeper", [Phase.RUNNING], 20)
        time.sleep(2)
        pids = _pids(server)
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        found = {name: (100 * (cpu_s(pid) - before[name]) / seconds, rss_mib(pid)) for name, pid in pids.items()}
        client.cancel("sleeper")
        until(lambda: not server.workers(), "the sleeper's end", 40)
        return found


def _pids(server: Server) -> dict[str, int]:
    assert server.process is not None
    rank = next(p for p in server.workers() if p.rank is not None)
    supervisor = int(stat_of(rank.pid)[1])
    return {"stoker up": server.process.pid, "supervisor": supervisor, "the job's own python": rank.pid}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--idle", type=float, default=20.0)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        taken = starts(Path(name), given.starts)
        print(f"start to ready, s: median {statistics.median(taken):.2f}, all {[round(t, 2) for t in taken]}")
        for process, (cpu, rss) in idle(Path(name), given.idle).items():
            print(f"{process:22} idle CPU {cpu:.2f} % of a core, RSS {rss:.1f} MiB")
