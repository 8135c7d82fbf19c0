"""What a test sees of a throw-away cluster, whether the bed started it or the environment names it.

Never points at a cluster that nobody called throw-away: `existing` reads `$KUBECONFIG_TESTS`, and `$KUBECONFIG` only
beside `STOKER_TEST_CLUSTER=1`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.testbed import build
from tests.support.testbed.errors import BedError, Unavailable
from tests.support.testbed.parts import is_bed


class Cluster:
    """A cluster by its administrator's kubeconfig."""

    def __init__(self, kubeconfig: Path, url: str) -> None:
        self.kubeconfig = kubeconfig
        self.url = url

    def token(self, user: str) -> str:
        """A bearer token of this user. Raises: Unavailable where the cluster's users are not ours."""
        raise Unavailable(f"no token for {user}: {self.kubeconfig} is somebody else's cluster")

    def kubeconfig_for(self, user: str) -> Path:
        """A kubeconfig of this user. Raises: Unavailable where the cluster's users are not ours."""
        raise Unavailable(f"no kubeconfig for {user}: {self.kubeconfig} is somebody else's cluster")

    def kubectl(self, *args: str, user: str = "", stdin: str = "", timeout_s: float = 60.0, check: bool = True) -> str:
        """What kubectl printed on stdout, as the administrator or as `user`.

        Raises: BedError with its stderr where it failed and `check` is on.
        """
        config = self.kubeconfig_for(user) if user else self.kubeconfig
        command = [_kubectl(), f"--kubeconfig={config}", *args]
        if is_bed(config.parent):  # another bed may have had the same address, and other kinds
            command.append(f"--cache-dir={config.parent}/kubectl-cache")
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BedError(f"kubectl {' '.join(args)} did not end within {timeout_s:.0f} s") from None
        if check and done.returncode:
            raise BedError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout


def existing() -> Cluster | None:
    """The throw-away cluster that the environment names, if any."""
    named = os.environ.get("KUBECONFIG_TESTS")
    if not named and os.environ.get("STOKER_TEST_CLUSTER") == "1":
        named = os.environ.get("KUBECONFIG")
    if not named:
        return None
    cluster = Cluster(Path(named), "")
    view = ("config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}")
    cluster.url = cluster.kubectl(*view).strip()
    return cluster


def _kubectl() -> str:
    try:
        return str(build.program("kubectl"))
    except Unavailable:
        if installed := shutil.which("kubectl"):
            return installed
        raise
