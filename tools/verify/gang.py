"""Six jobs on 2 virtual GPUs, one of them a gang of 2, in two queues with limits: what runs, counted from outside.

    python -m tools.verify.gang

Counts GPUs from the environments of live processes every 20 ms; exits 1 if a promise was broken.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.client import Client
from stoker.spec.job import ENDED, Phase
from tests.support.harness import Server, WorkerProcess, running, until

# A rank that holds its place for a while, as a data loader's child does.
HOLD = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "


@dataclass
class Watch:
    """Samples the live worker processes until stopped."""

    server: Server
    queue_of: dict[str, str]
    most_gpus: int = 0
    most_by_queue: dict[str, int] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    samples: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.take(self.server.workers())

    def take(self, live: list[WorkerProcess]) -> None:
        self.samples += 1
        held: dict[str, set[str]] = {}
        for process in live:
            for gpu in process.gpus:
                held.setdefault(gpu, set()).add(process.pod_uid)
        self.doubled += [f"{gpu} held by {pods}" for gpu, pods in held.items() if len(pods) > 1]
        self.most_gpus = max(self.most_gpus, len(held))
        for queue in set(self.queue_of.values()):
            mine = {gpu for p in live for gpu in p.gpus if self.queue_of.get(p.job) == queue}
            self.most_by_queue[queue] = max(self.most_by_queue.get(queue, 0), len(mine))

    def stop(self) -> None:
        self._over.set()


def hold(seconds: float, **given: object) -> dict[str, object]:
    """A job of one process (and a child) that holds its place for so long."""
    command = [sys.executable, "-c", f"{HOLD} time.sleep({seconds})"]
    return {"gpusPerWorker": 1, "cpu": "100m", "trainer": {"command": command, "workingDir": "/"}, **given}


def check(data: Path) -> dict[str, object]:
    """Run it; returns the figures. Raises: AssertionError naming the broken promise."""
    with running(data, "--virtual-gpus", "2", "--cpus", "8") as server, server.client() as client:
        client.put_queue("narrow", {"limit": {"gpus": 1}})
        client.put_queue("wide", {"limit": {"gpus": 2}})
        queues = {"n1": "narrow", "n2": "narrow", "n3": "narrow", "w1": "wide", "w2": "wide", "gang": "wide"}
        watch = Watch(server, queues)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            figures = _scenario(server, client)
        finally:
            watch.stop()
            thread.join()
        assert watch.doubled == [], f"a GPU was in two hands: {watch.doubled[:3]}"
        assert watch.most_gpus == 2, f"{watch.most_gpus} GPUs in use at once; there are 2"
        assert watch.most_by_queue["narrow"] <= 1, "queue narrow was over its limit"
        assert server.workers() == [], "processes are left"
    return figures | {
        "samples": watch.samples,
        "most GPUs in use": watch.most_gpus,
        "most in queue narrow (limit 1)": watch.most_by_queue["narrow"],
    }


def _scenario(server: Server, client: Client) -> dict[str, object]:
    # One GPU is held; the gang needs two: nothing of it may run, and `why` must say by how much it is short.
    client.submit(hold(3, queue="narrow"), name="n1")
    client.wait("n1", [Phase.RUNNING], 20)
    client.submit(hold(60, queue="wide", workers=2, checkpoint={"grace": "2s"}), name="gang")
    why = until(lambda: client.why("gang") if client.why("gang").blockers else None, "why", 10)
    short = next(b for b in why.blockers if b.resource == "gpus")
    assert (short.short, short.of) == (1, 2), short
    alone = [p for p in server.workers() if p.job == "gang"]
    assert alone == [], f"with one GPU free, processes of the gang run: {alone}"
    assert client.get("gang").status.phase is Phase.QUEUED
    # The second in the narrow queue is held by the queue's limit, though a GPU is free.
    client.submit(hold(1, queue="narrow"), name="n2")
    narrow = until(lambda: client.why("n2") if client.why("n2").blockers else None, "why", 10)
    assert narrow.blockers[0].code == "QueueLimit" and narrow.blockers[0].short == 1, narrow
    # When n1 ends, n2 was there later than the gang: the gang starts as a whole.
    client.wait("gang", [Phase.RUNNING], 30)
    ranks = until(lambda: [p for p in server.workers() if p.job == "gang" and p.rank is not None], "ranks", 10)
    until(lambda: len({p.worker for p in server.workers() if p.job == "gang"}) == 2, "both workers of the gang", 10)
    for name in ("n3", "w1", "w2"):
        client.submit(hold(1, queue="narrow" if name.startswith("n") else "wide"), name=name)
    # One worker dies: none is left.
    killed = time.monotonic()
    os.kill(ranks[0].pid, signal.SIGKILL)
    attempt = {p.pod_uid for p in server.workers() if p.job == "gang"}
    until(lambda: not any(p.pod_uid in attempt for p in server.workers()), "the gang's processes gone", 20, 0.01)
    gone_s = time.monotonic() - killed
    job = until(lambda: (j := client.get("gang")).status.attempts and j, "the attempt's end", 10)
    assert job.status.attempts[0].category == "Killed", job.status.attempts[0]
    for name in ("n2", "n3", "w1", "w2"):
        ended = client.wait(name, ENDED, 60)
        assert ended.status.phase is Phase.SUCCEEDED, ended.status
    client.cancel("gang")
    assert client.wait("gang", ENDED, 30).status.phase is Phase.CANCELLED
    return {
        "why gang": why.summary,
        "why n2": narrow.summary,
        "seconds from a worker's death to none left": round(gone_s, 2),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, value in check(Path(folder) / "data").items():
            print(f"{name:50} {value}")
