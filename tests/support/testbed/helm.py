"""One release of a chart on a cluster, by the real helm.

Owns helm's command line, its time-outs and its own folders (nothing of the caller's configuration is read). Called by
the end-to-end tests and the proofs.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.testbed import build
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import BedError

WAIT_S = 180


class Release:
    """`name` in `namespace`, whether it is installed or not."""

    def __init__(self, cluster: Cluster, name: str, namespace: str) -> None:
        """Raises: Unavailable where helm was not built."""
        self._cluster, self.name, self.namespace = cluster, name, namespace
        self._program = build.program("helm")

    def install(self, chart: Path, values: Mapping[str, Any]) -> str:
        """Install and wait until all of it is ready. Returns the chart's notes. Raises: BedError."""
        return self._apply("install", chart, values)

    def upgrade(self, chart: Path, values: Mapping[str, Any]) -> str:
        """Upgrade and wait until all of it is ready. Returns the chart's notes. Raises: BedError."""
        return self._apply("upgrade", chart, values)

    def rollback(self, revision: int) -> None:
        """Back to a former revision, and wait until all of it is ready. Raises: BedError."""
        self._run("rollback", self.name, str(revision), "--wait", f"--timeout={WAIT_S}s")

    def uninstall(self) -> str:
        """Remove it, and wait until all of it is gone. Returns what helm says of things kept. Raises: BedError."""
        return self._run("uninstall", self.name, "--wait", f"--timeout={WAIT_S}s")

    def test(self) -> str:
        """Run the chart's own tests. Raises: BedError where one fails."""
        return self._run("test", self.name, "--logs", f"--timeout={WAIT_S}s")

    @property
    def revisions(self) -> list[dict[str, Any]]:
        """Its history, oldest first; [] where it is not installed."""
        try:
            found: list[dict[str, Any]] = json.loads(self._run("history", self.name, "-o", "json"))
        except BedError as error:
            if "not found" in str(error):
                return []
            raise
        return found

    def _apply(self, verb: str, chart: Path, values: Mapping[str, Any]) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            return self._run(verb, self.name, str(chart), "-f", file.name, "--wait", f"--timeout={WAIT_S}s")

    def _run(self, *args: str) -> str:
        with tempfile.TemporaryDirectory(prefix="stoker-helm-") as home:
            env = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HELM_CACHE_HOME": f"{home}/cache",
                "HELM_CONFIG_HOME": f"{home}/config",
                "HELM_DATA_HOME": f"{home}/data",
                "HOME": home,
            }
            command = [str(self._program), f"--kubeconfig={self._cluster.kubeconfig}", f"--namespace={self.namespace}"]
            done = subprocess.run(
                [*command, *args], capture_output=True, text=True, timeout=WAIT_S + 30, env=env, check=False
            )
        if done.returncode:
            raise BedError(f"helm {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout
