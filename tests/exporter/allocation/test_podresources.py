"""The hand decoder: what real messages hold, and what bytes that are none do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.exporter.allocation.podresources import ClaimedDevice, PluginDevice, PodDevices, decode

from .kubelet_world import block, devices, dynamic, gpu_pod, pod, varint


def test_every_field_that_counts_and_none_that_does_not():
    held = (
        devices("nvidia.com/gpu", "GPU-a", "GPU-b"),
        devices("rdma/hca", "mlx5_0"),
        dynamic("gpu.nvidia.com", "n1", "gpu-0"),
    )
    answer = pod("worker-0", *held, namespace="team-a", containers=3) + pod("other", namespace="kube-system")
    assert decode(answer) == [
        PodDevices(
            "team-a",
            "worker-0",
            (
                PluginDevice("nvidia.com/gpu", "GPU-a"),
                PluginDevice("nvidia.com/gpu", "GPU-b"),
                PluginDevice("rdma/hca", "mlx5_0"),
            ),
            (ClaimedDevice("gpu.nvidia.com", "n1", "gpu-0"),),
        ),
        PodDevices("kube-system", "other"),
    ]


def test_a_newer_kubelets_fields_are_skipped():
    news = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + b"12345678" + varint(11 << 3 | 5) + b"1234"
    inner = gpu_pod("worker-0", "GPU-a")
    assert decode(news + inner + block(77, "new") + news) == decode(inner)


def test_an_id_that_several_containers_hold_counts_once():
    both = block(3, devices("nvidia.com/gpu", "GPU-a")) * 2
    assert decode(block(1, block(1, "w") + both))[0].plugin == (PluginDevice("nvidia.com/gpu", "GPU-a"),)


def test_nothing_is_an_answer_too():
    assert decode(b"") == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\x05abc", "longer than its message"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "without an end"),
        (b"\x0a", "without an end"),
        (b"\x0b", "wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x09\x01", "longer than its message"),
        (block(1, block(1, b"\xff\xfe")), "utf-8"),
    ],
)
def test_what_is_no_answer_is_refused(data, why):
    with pytest.raises(ValueError, match=why):
        decode(data)


@given(st.binary(max_size=400))
def test_random_bytes_are_pods_or_a_value_error(data):
    try:
        pods = decode(data)
    except ValueError:
        return
    assert all(isinstance(one, PodDevices) for one in pods)


TEXT = st.text(max_size=20)


@given(st.data())
def test_a_message_with_bytes_turned_over_never_crashes(data):
    message = bytearray(gpu_pod("worker-0", "GPU-a::1", "GPU-b") + pod("x", dynamic("gpu.nvidia.com", "p", "gpu-1")))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(message[: data.draw(st.integers(0, len(message)))]))
    except ValueError:
        pass


@given(st.lists(st.tuples(TEXT, TEXT, TEXT, st.lists(TEXT, max_size=3, unique=True)), max_size=5))
def test_what_is_written_is_read(pods):
    answer = b"".join(
        pod(name, devices(resource, *ids), namespace=namespace) for namespace, name, resource, ids in pods
    )
    assert decode(answer) == [
        PodDevices(namespace, name, tuple(PluginDevice(resource, one) for one in ids))
        for namespace, name, resource, ids in pods
    ]
