"""Who holds which GPU, asked of a real gRPC server on a unix socket.

Cost, on 2 busy cores: List and decode of 250 pods of which 8 have a GPU takes 11 ms, 10 of them decoding; every 5 s
that is 0.2 % of a core. Everything about 250 pods with 8 slices each takes 60 ms. grpcio adds 20 MB (PSS).
"""

import os
import subprocess
import sys
import threading

import grpc
import pytest

from stoker.exporter.allocation.kubelet_client import Kubelet, KubeletError
from stoker.exporter.allocation.reasons import REASONS, Reason

from .conftest import gpu, mig
from .kubelet_world import devices, dynamic, gpu_pod, pod

SHARED = "nvidia.com/gpu.shared"


@pytest.mark.parametrize(
    ("pods", "held"),
    [
        pytest.param([], {}, id="no pod"),
        pytest.param(
            [gpu_pod("a", "GPU-0000"), gpu_pod("b", "GPU-0001")],
            {"GPU-0000": [("a", 1.0, "exclusive")], "GPU-0001": [("b", 1.0, "exclusive")]},
            id="one pod each",
        ),
        pytest.param(
            [gpu_pod("a", "GPU-0000", "GPU-0001")],
            {"GPU-0000": [("a", 1.0, "exclusive")], "GPU-0001": [("a", 1.0, "exclusive")]},
            id="two GPUs of one pod",
        ),
        pytest.param(
            [gpu_pod("a", "GPU-0000::0", resource=SHARED), gpu_pod("b", "GPU-0000::3", resource=SHARED)],
            {"GPU-0000": [("a", 0.5, "even"), ("b", 0.5, "even")]},
            id="time-sliced: owners present count, not slices",
        ),
        pytest.param(
            [gpu_pod("a", "GPU-0000::0", "GPU-0000::1"), gpu_pod("b", "GPU-0000::3")],
            {"GPU-0000": [("a", 0.5, "even"), ("b", 0.5, "even")]},
            id="two slices are no more time than one",
        ),
        pytest.param(
            [gpu_pod("a", "GPU-0000::2")], {"GPU-0000": [("a", 1.0, "exclusive")]}, id="alone on a shared GPU"
        ),
        pytest.param(
            [gpu_pod("a", "0"), gpu_pod("b", "1")],
            {"GPU-0000": [("a", 1.0, "exclusive")], "GPU-0001": [("b", 1.0, "exclusive")]},
            id="indices",
        ),
        pytest.param(
            [gpu_pod("a", "mlx5_0", resource="rdma/hca"), gpu_pod("b", "AMD-1", resource="amd.com/gpu")],
            {},
            id="other devices",
        ),
    ],
)
def test_holdings(node, pods, held):
    node.has(*pods)
    for one in "ab":
        node.api.knows(one)
    assert node.held() == held
    answer = node.read()
    assert (answer.known, answer.unattributed, answer.doubtful) == (True, {}, ())
    assert answer.mono_s == node.clock.now


def test_mig_devices_share_by_slices(node):
    node.gpus = [gpu(0, mig=(mig("MIG-a"), mig("MIG-b"))), gpu(1)]
    node.has(
        gpu_pod("a", "MIG-a", resource="nvidia.com/mig-1g.10gb"),
        gpu_pod("b", "MIG-b::0", resource="nvidia.com/mig-1g.10gb"),
        gpu_pod("c", "MIG-b::1", resource="nvidia.com/mig-1g.10gb"),
    )
    assert node.held() == {
        "MIG-a": [("a", 1.0, "mig_slices")],
        "MIG-b": [("b", 0.5, "mig_slices"), ("c", 0.5, "mig_slices")],
    }


def test_an_id_that_names_no_gpu_puts_the_free_ones_in_doubt(node):
    node.gpus = [gpu(0), gpu(1), gpu(2, mig=(mig("MIG-a"), mig("MIG-b")))]
    node.has(
        gpu_pod("a", "GPU-0000"),
        gpu_pod("b", "nvidia1"),
        gpu_pod("c", "MIG-a", resource="nvidia.com/mig-1g.10gb"),
    )
    answer = node.read()
    assert answer.unattributed["device_id_unknown"] == 1
    assert answer.doubtful == ("GPU-0001", "MIG-b")
    assert {one.uuid for one in answer.holdings} == {"GPU-0000", "MIG-a"}


def test_indices_before_the_first_frame_leave_all_in_doubt(node):
    gpus, node.gpus = node.gpus, []
    node.has(gpu_pod("a", "0"))
    answer = node.read()
    assert not answer.known and answer.unattributed == {"device_id_unknown": 1}
    node.gpus = gpus
    assert node.held() == {"GPU-0000": [("a", 1.0, "exclusive")]}


def test_a_gpu_that_nvml_does_not_show_is_counted(node):
    node.api.knows("a")
    node.has(gpu_pod("a", "GPU-hidden"))
    assert node.read().unattributed == {"device_unseen": 1}
    node.gpus = []  # no frame yet: nothing can be said about it
    assert node.read().unattributed == {}


def test_dra_devices(node):
    node.gpus = [gpu(0, minor=0), gpu(1, minor=1)]
    for name in "abc":
        node.api.knows(name)
    node.has(
        pod("a", dynamic("gpu.nvidia.com", "n1", "gpu-0")),
        pod("b", dynamic("gpu.nvidia.com", "n1", "gpu-0")),  # the same claim
        pod("c", dynamic("gpu.nvidia.com", "n1", "gpu-1-mig-19-0-1"), dynamic("rdma.example.com", "n1", "gpu-1")),
    )
    answer = node.read()
    assert [(one.uuid, one.owner.pod_name, one.share) for one in answer.holdings] == [
        ("GPU-0000", "a", 0.5),
        ("GPU-0000", "b", 0.5),
    ]
    assert answer.unattributed == {"dra_device_unknown": 1}
    assert answer.doubtful == ("GPU-0001",)


# --- pods that are done, but listed (kubelets before 1.34)


def test_of_two_pods_with_one_device_the_later_holds_it(node):
    node.has(gpu_pod("done", "GPU-0000"))
    assert list(node.held()["GPU-0000"]) == [("done", 1.0, "exclusive")]
    node.clock.now += 5
    node.has(gpu_pod("next", "GPU-0000"), gpu_pod("done", "GPU-0000"))
    assert node.held() == {"GPU-0000": [("next", 1.0, "exclusive")]}


def test_two_that_were_there_before_us_are_ambiguous_until_the_api_knows(node):
    node.has(gpu_pod("done", "GPU-0000"), gpu_pod("next", "GPU-0000"))
    node.api.away = True
    answer = node.read()
    assert answer.holdings == ()
    assert answer.doubtful == ("GPU-0000",)  # not the other: no pod holds that
    assert answer.unattributed == {"holder_ambiguous": 1}
    node.api.away = False
    node.api.knows("done", ended=True)
    node.api.knows("next")
    node.clock.now += 60
    assert node.held() == {"GPU-0000": [("next", 1.0, "exclusive")]}
    assert node.read().doubtful == ()


def test_a_pod_that_has_ended_holds_nothing(node):
    node.has(gpu_pod("done", "GPU-0000"), gpu_pod("strange", "nonsense"))
    node.api.knows("done", ended=True)
    node.api.knows("strange", ended=True)
    answer = node.read()
    assert (answer.holdings, answer.unattributed, answer.doubtful, answer.known) == ((), {}, (), True)


# --- a kubelet in trouble


def test_a_restarted_kubelet_is_found_again_at_once(node):
    node.has(gpu_pod("a", "GPU-0000"))
    assert node.held()
    node.kubelet.stop()
    node.kubelet.start()
    node.has(gpu_pod("b", "GPU-0001"))
    assert list(node.held()) == ["GPU-0001"]


def test_the_last_answer_is_kept_for_a_minute_and_ages(node):
    node.api.knows("a")
    node.has(gpu_pod("a", "GPU-0000"))
    then = node.read()
    node.kubelet.stop()
    node.clock.now += 59
    kept = node.read()
    assert kept == then and kept.mono_s == node.clock.now - 59
    node.clock.now += 2
    gone = node.read()
    assert not gone.known and gone.holdings == ()
    assert gone.unattributed == {"kubelet_socket_missing": 2}  # both GPUs
    assert gone.mono_s == then.mono_s
    node.kubelet.start()
    assert node.read().known


def test_a_kubelet_that_has_just_started_is_not_believed_yet(node):
    """It lists no pod for a second or so; the last answer counts, and ages."""
    node.api.knows("a")
    node.has(gpu_pod("a", "GPU-0000"))
    then = node.read()
    node.kubelet.stop()
    node.has()
    node.kubelet.start()
    node.client._settle_s = 3600.0
    node.clock.now += 5
    assert node.read() == then
    node.clock.now += 60
    assert node.read().unattributed == {"kubelet_starting": 2}
    node.client._settle_s = 0.0
    answer = node.read()
    assert answer.known and answer.holdings == ()


def test_a_kubelet_that_was_never_there(node):
    node.kubelet.stop()
    first = node.read()
    assert not first.known and first.unattributed == {"kubelet_socket_missing": 2}
    node.kubelet.start()
    assert node.read().known


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"answer": b"\x0a\xff"}, "kubelet_answer_unreadable"),
        ({"refuse": (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")}, "kubelet_failed"),
        ({"unsupported": True}, "kubelet_unsupported"),
    ],
)
def test_a_kubelet_that_answers_wrongly(node, trouble, reason):
    node.kubelet.stop()
    for name, value in trouble.items():
        setattr(node.kubelet, name, value)
    node.kubelet.start()
    answer = node.read()
    assert not answer.known and answer.unattributed == {reason: 2}


def test_a_kubelet_that_hangs_is_given_up_after_the_deadline(node):
    node.kubelet.hang = threading.Event()
    client = Kubelet(node.kubelet.socket, timeout_s=0.3, settle_s=0.0)
    with pytest.raises(KubeletError) as met:
        client.list_pods()
    assert met.value.reason == "kubelet_timeout"
    node.kubelet.hang.set()
    node.kubelet.hang = None
    node.has(gpu_pod("a", "GPU-0000"))
    patient = Kubelet(node.kubelet.socket, settle_s=0.0)
    assert b"GPU-0000" in patient.list_pods()
    client.close()
    patient.close()


def test_what_is_no_socket(tmp_path):
    (tmp_path / "kubelet.sock").write_text("")
    with pytest.raises(KubeletError) as met:
        Kubelet(tmp_path / "kubelet.sock").list_pods()
    assert met.value.reason == "kubelet_socket_missing"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", ["socket", "folder"])
def test_who_may_not_open_the_socket_has_a_reason(node, tmp_path, mode):
    node.has(gpu_pod("a", "GPU-0000"))
    for parent in (tmp_path, *tmp_path.parents):
        if str(parent).startswith("/tmp/") and parent.stat().st_uid == os.getuid():
            parent.chmod(0o755)
    node.kubelet.socket.chmod(0o600)
    if mode == "folder":
        tmp_path.chmod(0o700)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from stoker.exporter.allocation.kubelet_client import Kubelet, KubeletError\n"
        "import grpc\n"  # before, for the libraries may not be readable afterwards
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: Kubelet(Path(sys.argv[1])).list_pods()\n"
        "except KubeletError as error: print(error.reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(node.kubelet.socket)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "kubelet_denied", done.stderr


def test_every_reason_is_explained():
    assert list(REASONS) == list(Reason)


def test_a_defect_costs_attribution_only(node, monkeypatch, caplog):
    node.has(gpu_pod("a", "GPU-0000"))
    monkeypatch.setattr(node.api, "ask", lambda _: 1 / 0)
    answer = node.read()
    assert not answer.known and answer.unattributed == {"internal_error": 2}
    assert "ZeroDivisionError" in caplog.text


def test_a_full_node(node):
    """250 pods with 8 devices each: more than gRPC's default of 4 MiB where ids are long."""
    node.gpus = [gpu(i) for i in range(8)]
    node.has(
        *(
            pod(f"pod-{n}", devices("nvidia.com/gpu", *(f"GPU-{i:04}::{n}-{'x' * 2200}" for i in range(8))))
            for n in range(250)
        )
    )
    answer = node.read()
    assert len(answer.holdings) == 250 * 8
    assert all(one.share == 1 / 250 for one in answer.holdings)
