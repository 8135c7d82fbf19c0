"""Device names, by what a frame shows."""

import pytest

from stoker.exporter.allocation.devices import Devices

from .conftest import gpu, mig

# NVML's index 0 is device file 1 and the other way round, as on a machine whose PCI order differs; 2 is 2.
CROSSED = Devices(
    [
        gpu(0, uuid="GPU-a", minor=1),
        gpu(1, uuid="GPU-b", minor=0),
        gpu(2, uuid="GPU-0a1b2c3d-0000-1111-2222-333344445555", minor=2, mig=(mig("MIG-x", 7), mig("MIG-y", 9))),
    ]
)
UNNUMBERED = Devices([gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-b")])


@pytest.mark.parametrize(
    ("device_id", "uuid"),
    [
        ("GPU-a", "GPU-a"),
        ("GPU-elsewhere", "GPU-elsewhere"),
        ("MIG-x", "MIG-x"),
        ("GPU-a::3", "GPU-a"),
        ("MIG-x::0", "MIG-x"),
        ("nvidia.com/gpu=GPU-a", "GPU-a"),
        ("nvidia.com/gpu=GPU-a::1", "GPU-a"),
        ("nvidia.com/mig=MIG-y", "MIG-y"),
        ("0", "GPU-a"),
        ("1::4", "GPU-b"),
        ("nvidia.com/gpu=1", "GPU-b"),
        ("nvidia0", "GPU-b"),
        ("nvidia1/vgpu2", "GPU-a"),
        ("/dev/nvidia1", "GPU-a"),
        ("nvidia2/gi9", "MIG-y"),
        ("nvidia2/gi7/vgpu0", "MIG-x"),
        ("nvidia2/gi1", None),
        ("9", None),
        ("nvidia9", None),
        ("0:1", None),
        ("nvidia.com/gpu=all", None),
        ("", None),
        ("::", None),
    ],
)
def test_a_plugins_device(device_id, uuid):
    assert CROSSED.resolve(device_id) == uuid


def test_device_files_are_not_indices():
    assert UNNUMBERED.resolve("nvidia0") is None
    assert UNNUMBERED.resolve("0") == "GPU-a"


def test_before_the_first_frame_only_uuids_are_resolved():
    nothing = Devices([])
    assert (nothing.resolve("GPU-a::1"), nothing.resolve("0"), nothing.resolve("nvidia0")) == ("GPU-a", None, None)


@pytest.mark.parametrize(
    ("devices", "name", "uuid"),
    [
        (CROSSED, "gpu-2", "GPU-0a1b2c3d-0000-1111-2222-333344445555"),
        (CROSSED, "gpu-0", None),  # index and device file say different things, and drivers differ in which they mean
        (UNNUMBERED, "gpu-0", None),
        (CROSSED, "gpu-0A1B2C3D-0000-1111-2222-333344445555", "GPU-0a1b2c3d-0000-1111-2222-333344445555"),
        (CROSSED, "0a1b2c3d-0000-1111-2222-333344445555", "GPU-0a1b2c3d-0000-1111-2222-333344445555"),
        (CROSSED, "gpu-ffffffff-0000-1111-2222-333344445555", None),
        (CROSSED, "gpu-2-mig-9-4-4", None),
        (CROSSED, "", None),
    ],
)
def test_a_claimed_device(devices, name, uuid):
    assert devices.resolve_claimed(name) == uuid


def test_what_can_be_held():
    assert CROSSED.holdable == {"GPU-a", "GPU-b", "MIG-x", "MIG-y"}
