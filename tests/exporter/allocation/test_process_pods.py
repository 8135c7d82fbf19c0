"""Pods of processes, by cgroups as they are written by kubelets."""

import os

import pytest

from stoker.exporter.allocation.process_pods import pods_of

UID = "0f6c5b3e-1f1d-4c3a-9a55-0a3d3b1c2d4e"


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"0::/kubepods/burstable/pod{UID}/8d7c", UID),
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-8d.scope", UID),
        (f"12:memory:/kubepods/pod{UID}/8d\n0::/kubepods/pod{UID}/8d", UID),
        (f"0::/kubelet/kubepods/besteffort/pod{UID}/8d", UID),
        ("0::/system.slice/ssh.service", None),
        ("0::/kubepods/podless", None),
        (f"1:cpu:/pod{UID}/a\n2:memory:/pod{UID[:-1]}0/a", None),
        ("", None),
    ],
)
def test_pods_of(tmp_path, cgroup, uid):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(cgroup)
    assert pods_of([7, 8], tmp_path) == ({} if uid is None else {7: uid})


def test_a_real_process_of_no_pod():
    assert set(pods_of([os.getpid()])) <= {os.getpid()}
