"""The real exporter as a process, asked over HTTP; workers' folders as the node agent leaves them. For tests, tools."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import until

DEADLINE_S = 60.0


class Exporter:
    """A context: started at its begin, ended by SIGTERM at its end unless the test did it."""

    def __init__(self, *options: str, env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "stoker.exporter", "--host", "127.0.0.1", "--port", "0", "--node", "node-a"]
        self.process = subprocess.Popen(
            [*command, "--interval", "200ms", *options],
            env={**os.environ, **env},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def __enter__(self) -> Exporter:
        found = until(lambda: re.search(r"on port (\d+)", "".join(self.said)) or self.process.poll(), "the port")
        assert isinstance(found, re.Match), "".join(self.said)
        self.port = int(found[1])
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    def values(self) -> dict[tuple[str, str], float]:
        """(name, its own labels' values, in the order of their names) → value; of GPU 0 where there are several."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                own = {k: v for k, v in sorted(sample.labels.items()) if k not in ("node", "gpu", "uuid")}
                if sample.labels.get("gpu", "0") == "0":
                    found[sample.name, ",".join(own.values())] = sample.value
        return found

    def value(self, name: str, own: str = "") -> float | None:
        return self.values().get((name, own))

    def child(self) -> int | None:
        """The pid of the NVML child."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and f"PPid:\t{self.process.pid}\n" in (entry / "status").read_text():
                    return int(entry.name)
            except OSError:
                continue
        return None


def worker(workers: Path, name: str, uuids: list[str], *, simulated: bool = False) -> Any:
    """A worker that lives until what is returned is closed."""
    folder = workers / f"pod-{name}"
    folder.mkdir(parents=True)
    order = {
        "project": "vision",
        "podName": f"{name}-1-0",
        "podUid": folder.name,
        "jobUid": f"job-{name}",
        "jobName": name,
        "attempt": 1,
        "worker": 0,
        "gpuUuids": uuids,
        "simulatedGpus": simulated,
    }
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "launch.json").write_text(json.dumps(order))
    (folder / "started.json").write_text("{}")
    return lock
