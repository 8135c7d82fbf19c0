"""How a run behaves without a cluster of its own: skips loudly, fails in CI, takes over only a throw-away one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.testbed.cluster import Cluster, existing
from tests.support.testbed.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
WANTS_A_CLUSTER = "tests/testbed/test_control_plane.py::test_admission_and_version"


def run_without_cluster(tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    left_out = {"CI", "KUBEBUILDER_ASSETS", "KUBECONFIG_TESTS", "STOKER_TEST_CLUSTER"}
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", WANTS_A_CLUSTER]
    env |= {"STOKER_CACHE": str(tmp_path), **more}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


def test_skips_are_reported_at_the_end(tmp_path: Path) -> None:
    done = run_without_cluster(tmp_path)
    assert done.returncode == 0
    assert "NOT TESTED" in done.stdout
    assert "1 test skipped, nothing of it is proved here: etcd is not built yet: run `make testbed" in done.stdout


def test_ci_never_skips(tmp_path: Path) -> None:
    done = run_without_cluster(tmp_path, CI="true")
    assert done.returncode == 1
    assert "CI never skips the test bed: etcd is not built yet" in done.stdout


def test_only_a_throw_away_cluster_is_taken_over(control_plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG_TESTS", "STOKER_TEST_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    assert existing() is None
    monkeypatch.setenv("STOKER_TEST_CLUSTER", "1")
    found = existing()
    assert found is not None and found.url == control_plane.url
    assert "kube-system" in found.kubectl("get", "namespaces")
    with pytest.raises(Unavailable, match="another owner's cluster"):
        found.token("alice")
