"""One machine as its user has it: a `stoker up` on a free port, and the `stoker` command in a project's folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

STOKER = [sys.executable, "-m", "stoker.cli.main"]


class Machine:
    def __init__(self, home: Path, work: Path) -> None:
        """`home`: the data folder. `work`: where commands are given."""
        self.home, self.work = home, work
        self.env = {**os.environ, "STOKER_HOME": str(home)}
        self.up = subprocess.Popen([*STOKER, "up", "--port", "0"], env=self.env, stderr=subprocess.PIPE, text=True)
        assert self.up.stderr is not None
        while not (line := self.up.stderr.readline()).startswith("stoker: ready"):
            assert line, "stoker up did not start"

    def __call__(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*STOKER, *args], env=self.env, cwd=self.work, capture_output=True, text=True, timeout=120
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def job(self, name: str) -> Any:
        return json.loads(self("get", name, "-o", "json").stdout)

    def close(self) -> None:
        self.up.send_signal(signal.SIGTERM)
        self.up.communicate(timeout=60)
