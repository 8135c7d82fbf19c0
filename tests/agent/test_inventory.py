"""The inventory over the fake NVML: what is there, in use, lost, split, stuck or crashing."""

import os
import subprocess

import pytest

from stoker.local.agent.inventory import NvmlGpus, VirtualGpus
from stoker.nvml import has_driver
from tests.support.nvml_scenario import GPU_IS_LOST, H200_BYTES


@pytest.fixture
def nvml(scenario, tmp_path):
    """An inventory over the fake NVML as the scenario is then."""

    def make(**options):
        scenario.write()
        return NvmlGpus(env={**os.environ, **scenario.env()}, driver=[tmp_path], **options)

    return make


async def read(inventory, held=(), ours=()):
    return await inventory.read(lambda: held, lambda pid: pid in ours)


async def test_what_nvml_shows(nvml, scenario):
    scenario.add_gpu()
    scenario.add_gpu(name="NVIDIA L4", memory=24152899584, cc="8.9")
    gpus = await read(nvml())
    assert [(g.uuid, g.index, g.model, g.memory_bytes, g.compute_capability) for g in gpus] == [
        (scenario.gpus[0].uuid, 0, "NVIDIA H200", H200_BYTES, "9.0"),
        (scenario.gpus[1].uuid, 1, "NVIDIA L4", 24152899584, "8.9"),
    ]
    assert all(not g.unavailable and not g.simulated for g in gpus)


async def test_a_gpu_that_a_foreign_process_uses_is_unavailable(nvml, scenario):
    with subprocess.Popen(["sleep", "100"]) as other:
        gpu = scenario.add_gpu(processes=[(other.pid, 1 << 30, 50)] * 70)
        inventory = nvml()
        assert (await read(inventory))[0].unavailable == f"in use by foreign process {other.pid} (sleep)"
        assert (await read(inventory, ours=[other.pid]))[0].unavailable == ""
        assert (await read(inventory, held=[gpu.uuid]))[0].unavailable == ""
        other.kill()


async def test_a_gpu_split_by_mig_is_not_leased_whole(nvml, scenario):
    scenario.add_gpu().add_mig()
    assert "MIG" in (await read(nvml()))[0].unavailable


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex_v2", "*"])
async def test_a_gpu_that_is_lost_stays_listed_as_lost(nvml, scenario, call):
    scenario.add_gpu()
    scenario.add_gpu(name="NVIDIA L4")
    inventory = nvml()
    await read(inventory)
    scenario.fault(call, gpu=1, code=GPU_IS_LOST)
    scenario.write()
    for _ in range(2):
        first, second = await read(inventory)
        assert first.unavailable == "" and (second.uuid, second.model) == (scenario.gpus[1].uuid, "NVIDIA L4")
        assert second.unavailable.startswith("lost (")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"do": "hang"}, "the driver does not answer"),
        ({"do": "segv"}, "the driver does not answer"),
        ({"code": 9}, "the driver does not answer (DRIVER_NOT_LOADED)"),
    ],
)
async def test_a_driver_in_trouble_makes_its_gpus_unavailable_and_hangs_nothing(nvml, scenario, fault, why):
    scenario.add_gpu()
    inventory = nvml()
    await read(inventory)
    if fault.get("do") == "hang":
        inventory._timeout_s = 1.0
    scenario.fault("nvmlInitWithFlags", **fault)
    scenario.fault("nvmlInit_v2", **fault)
    scenario.write()
    for _ in range(2):
        assert [(gpu.uuid, gpu.unavailable) for gpu in await read(inventory)] == [(scenario.gpus[0].uuid, why)]
    await inventory._child.wait()
    inventory._timeout_s = 20.0
    scenario.clear_faults()
    scenario.write()
    assert (await read(inventory))[0].unavailable == ""


async def test_without_a_driver_nothing_is_started(tmp_path):
    inventory = NvmlGpus(driver=[tmp_path / "none"], env={"LD_LIBRARY_PATH": f"{tmp_path}:/usr/lib"})
    assert await read(inventory) == () and inventory._child is None


async def test_virtual_gpus_are_marked():
    gpus = await read(VirtualGpus(2))
    assert [(g.uuid, g.model, g.simulated, g.memory_bytes) for g in gpus] == [
        ("SIM-0", "Simulated GPU", True, 16 << 30),
        ("SIM-1", "Simulated GPU", True, 16 << 30),
    ]


async def test_a_library_where_the_loader_looks_is_a_driver(nvml, scenario, tmp_path):
    scenario.add_gpu()
    inventory = nvml()
    inventory._driver = (tmp_path / "none",)
    assert [gpu.model for gpu in await read(inventory)] == ["NVIDIA H200"]
    assert not has_driver({"LD_LIBRARY_PATH": "/usr"}, [tmp_path / "none"])
    assert has_driver({"LD_LIBRARY_PATH": f"/usr::{tmp_path}"}, [tmp_path / "none"])
    assert has_driver({}, [tmp_path])
