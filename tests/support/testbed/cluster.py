"""What a test sees of a throw-away cluster, whether the bed started it or the environment names it.

Never points at a cluster that no one called throw-away: `existing` reads `$KUBECONFIG_TESTS`, and `$KUBECONFIG` only
beside `STOKER_TEST_CLUSTER=1`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

from tests.support.testbed import build
from tests.support.testbed.errors import BedError, Unavailable
from tests.support.testbed.parts import is_bed

CRDS = Path(__file__).parents[3] / "helm" / "stoker" / "files" / "crds"


class Cluster:
    """A cluster by its administrator's kubeconfig."""

    def __init__(self, kubeconfig: Path, url: str) -> None:
        self.kubeconfig = kubeconfig
        self.url = url
        self._has: set[Path] = set()
        self._collects = False

    def token(self, user: str) -> str:
        """A bearer token of this user. Raises: Unavailable where the cluster's users are not ours."""
        raise Unavailable(f"no token for {user}: {self.kubeconfig} is another owner's cluster")

    def kubeconfig_for(self, user: str) -> Path:
        """A kubeconfig of this user. Raises: Unavailable where the cluster's users are not ours."""
        raise Unavailable(f"no kubeconfig for {user}: {self.kubeconfig} is another owner's cluster")

    def install_crds(self, *files: Path) -> None:
        """Stoker's kinds, or those of `files`: established when this returns; once per cluster."""
        names = [f"--filename={path}" for path in files or (CRDS,) if path not in self._has]
        if names:
            self.kubectl("apply", "--server-side", "--force-conflicts", *names)
            self.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
            self._has.update(files or (CRDS,))

    def wait_for_collector(self) -> None:
        """Until the garbage collector deletes what a job owned: it looks for new kinds twice a minute only."""
        if self._collects:
            return
        name = f"owner-{uuid.uuid4().hex[:8]}"
        job = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
        job |= {"spec": {"trainer": {"command": ["true"]}}}
        made = json.loads(self.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(job)))
        owner = {key: job[key] for key in ("apiVersion", "kind")} | {"name": name, "uid": made["metadata"]["uid"]}
        owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]}}
        self.kubectl("create", "-f", "-", stdin=json.dumps(owned))
        self.kubectl("delete", "trainingjob", name, "--cascade=background", "--wait=true", "--timeout=10s")
        self.kubectl("wait", f"configmap/{name}", "--for=delete", "--timeout=90s", timeout_s=100)
        self._collects = True

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
