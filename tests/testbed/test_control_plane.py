"""The control plane on loopback: what it allows, what survives the loss of its parts, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.testbed import build
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.errors import BedError
from tests.support.testbed.parts import Part, make_bed, marked, until
from tests.support.testbed.teardown import tear_down

ROOT = Path(__file__).resolve().parents[2]


def test_admission_and_version(control_plane: Cluster) -> None:
    control_plane.kubectl("label", "namespace", "kube-public", "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(BedError, match="violates PodSecurity"):
        control_plane.kubectl("run", "root", "--image=busybox", "--privileged", "--namespace=kube-public")
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        assert f'"gitVersion": "{build.kubernetes_version()}"' in control_plane.kubectl("version", "--output=json")


@pytest.mark.slow
def test_parts_may_die_and_come_back(own_control_plane: ControlPlane) -> None:
    plane, parts = own_control_plane, own_control_plane.parts
    plane.kubectl("create", "configmap", "kept", "--from-literal=a=b")

    parts["kube-apiserver"].kill()
    assert plane.get("/readyz") == ""
    parts["kube-apiserver"].start()
    plane.wait_ready()
    assert plane.kubectl("get", "configmap", "kept", "--output=jsonpath={.data.a}") == "b"

    parts["etcd"].stop()
    assert plane.get("/readyz") != "ok"
    parts["etcd"].start()
    plane.wait_ready()

    parts["kube-apiserver"].freeze()
    assert plane.get("/readyz") == ""
    parts["kube-apiserver"].thaw()
    plane.wait_ready()
    assert plane.kubectl("get", "configmap", "kept", "--output=jsonpath={.data.a}") == "b"

    parts["kube-controller-manager"].kill()
    plane.kubectl("create", "deployment", "waits", "--image=none")
    assert plane.kubectl("get", "replicasets", "--output=name") == ""
    parts["kube-controller-manager"].start()
    until(lambda: plane.kubectl("get", "replicasets", "--output=name"), "the controllers work again", 30)


@pytest.mark.slow
def test_two_side_by_side_and_nothing_left(own_control_plane: ControlPlane) -> None:
    with ControlPlane(controllers=False, scheduler=False, users={"carol": ["team-c"]}, etcd_on_disk=True) as other:
        assert other.url != own_control_plane.url
        other.kubectl("create", "namespace", "only-there")
        assert "only-there" not in own_control_plane.kubectl("get", "namespaces")
        who = other.kubectl("auth", "whoami", "--output=jsonpath={.status.userInfo.groups}", user="carol")
        assert "team-c" in who
        folder, pids = other.folder, list(marked(other.folder))
        assert len(pids) == 2
    assert not alive(pids) and not folder.exists()


def test_a_part_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, control_plane: Cluster, request: pytest.FixtureRequest
) -> None:
    plane = ControlPlane(tmp_path / "bed", args={"kube-apiserver": ["--no-such-flag"]})
    with pytest.raises(BedError, match="unknown flag: --no-such-flag"):
        plane.start()
    assert not list(marked(plane.folder))
    plane.close()


@pytest.mark.slow
def test_a_killed_owner_leaves_nothing(tmp_path: Path, control_plane: Cluster) -> None:
    folder = tmp_path / "bed"
    script = (
        "import time, pathlib; from tests.support.testbed.control_plane import ControlPlane\n"
        f"plane = ControlPlane(pathlib.Path({str(folder)!r}), controllers=False, scheduler=False).start()\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, env=os.environ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
        pids = list(marked(folder))
        assert len(pids) == 2
        owner.send_signal(signal.SIGKILL)
    until(lambda: not folder.exists() and not alive(pids), "the guard has cleaned up", 20)


def alive(pids: list[int]) -> list[int]:
    """Those that run; one that no parent has waited for yet does not."""
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_bed_ends_its_own_processes_only(tmp_path: Path) -> None:
    """Not what was started from a shell in which the bed is named, as the documentation says."""
    folder = tmp_path / "bed"
    make_bed(folder)
    Part(folder, "own", ["/bin/sleep", "600"]).start()
    part = Part(folder, "own")
    with subprocess.Popen(["/bin/sleep", "600"], env={"STOKER_TESTBED": str(folder)}) as bystander:
        assert list(marked(folder)) == [part.pid]
        pids = [part.pid]
        tear_down(folder)
        assert not alive(pids) and bystander.poll() is None
        bystander.kill()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, control_plane: Cluster) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(BedError, match="not a test bed's"):
        ControlPlane(tmp_path)
    assert (tmp_path / "precious").exists()
