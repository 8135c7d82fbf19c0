"""The inventory against a small NVML of our own: what is there, in use, lost, split, stuck or crashing."""

import os
import shutil
import subprocess

import pytest

from stoker.local.agent.driver import is_here
from stoker.local.agent.inventory import NvmlGpus, VirtualGpus

FAKE_NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* One line a GPU in $FAKE_NVML: "name memory major minor mig lost pid" (pid 0: none). "hang" and "crash" do so. */
static struct {
    char name[64];
    unsigned long long memory;
    int major, minor, lost;
    unsigned mig, pid;
} gpus[16];
static unsigned count;
int nvmlInit_v2(void) {
    char line[256];
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    while (fgets(line, sizeof line, file)) {
        if (!strncmp(line, "hang", 4)) for (;;) pause();
        if (!strncmp(line, "crash", 5)) abort();
        if (!strncmp(line, "refuse", 6)) return 9;
        if (sscanf(line, "%63s %llu %d %d %u %d %u", gpus[count].name, &gpus[count].memory, &gpus[count].major,
                   &gpus[count].minor, &gpus[count].mig, &gpus[count].lost, &gpus[count].pid) == 7) count++;
    }
    fclose(file);
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) {
    *device = (void *)(size_t)(i + 1);
    return gpus[i].lost ? 15 : 0;
}
#define INDEX ((size_t)device - 1)
#define G gpus[INDEX]
int nvmlDeviceGetUUID(void *device, char *out, unsigned size) { snprintf(out, size, "GPU-%zu", INDEX); return 0; }
int nvmlDeviceGetName(void *device, char *out, unsigned size) { snprintf(out, size, "%s", G.name); return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    *now = *pending = G.mig == 1;
    return G.mig == 2 ? 3 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *m) { m[0] = G.memory; m[1] = m[2] = 0; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *a, int *b) { *a = G.major; *b = G.minor; return 0; }
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, process *out) {
    unsigned room = *n, wanted = G.pid ? 70 : 0;  /* more than a first guess holds */
    *n = wanted;
    if (room < wanted) return 7;
    for (unsigned i = 0; i < wanted; i++) { out[i].pid = G.pid; out[i].used = 1; }
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(FAKE_NVML)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(folder / "nvml.c")], check=True
    )
    return folder


@pytest.fixture
def nvml(library, tmp_path):
    def make(text, **options):
        (tmp_path / "gpus").write_text(text)
        env = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(tmp_path / "gpus")}
        return NvmlGpus(env=env, driver=[tmp_path], **options)

    return make


async def read(inventory, held=(), ours=()):
    return await inventory.read(lambda: held, lambda pid: pid in ours)


async def test_what_nvml_shows_is_told(nvml):
    gpus = await read(nvml("H200 150754820096 9 0 0 0 0\nL4 24152899584 8 9 2 0 0\n"))
    assert [(g.uuid, g.index, g.model, g.memory_bytes, g.compute_capability) for g in gpus] == [
        ("GPU-0", 0, "H200", 150754820096, "9.0"),
        ("GPU-1", 1, "L4", 24152899584, "8.9"),
    ]
    assert all(not g.unavailable and not g.simulated for g in gpus)


async def test_a_gpu_that_a_foreign_process_uses_is_unavailable(nvml):
    other = subprocess.Popen(["sleep", "100"])
    try:
        inventory = nvml(f"A 1 8 0 0 0 {other.pid}\n")
        assert (await read(inventory))[0].unavailable == f"in use by foreign process {other.pid} (sleep)"
        assert (await read(inventory, ours=[other.pid]))[0].unavailable == ""
        assert (await read(inventory, held=["GPU-0"]))[0].unavailable == ""
    finally:
        other.kill()
        other.wait()


async def test_a_gpu_split_by_mig_is_not_leased_whole(nvml):
    assert "MIG" in (await read(nvml("A100 1 8 0 1 0 0\n")))[0].unavailable


async def test_a_gpu_that_is_lost_stays_listed_as_lost(nvml, tmp_path):
    inventory = nvml("A 1 8 0 0 0 0\nB 1 8 0 0 0 0\n")
    await read(inventory)
    (tmp_path / "gpus").write_text("A 1 8 0 0 0 0\nB 1 8 0 0 1 0\n")
    first, second = await read(inventory)
    assert first.unavailable == "" and (second.uuid, second.model) == ("GPU-1", "B")
    assert second.unavailable.startswith("lost (")


@pytest.mark.parametrize("trouble", ["hang", "crash", "refuse"])
async def test_a_driver_in_trouble_makes_its_gpus_unavailable_and_hangs_nobody(nvml, tmp_path, trouble):
    inventory = nvml("A 1 8 0 0 0 0\n", timeout_s=1.0)
    await read(inventory)
    (tmp_path / "gpus").write_text(trouble + "\n")
    for _ in range(2):
        gpus = await read(inventory)
        assert [g.uuid for g in gpus] == ["GPU-0"] and "the driver" in gpus[0].unavailable
    await inventory._child.wait()
    (tmp_path / "gpus").write_text("A 1 8 0 0 0 0\n")
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


async def test_a_library_where_the_loader_is_told_to_look_is_a_driver(nvml, library, tmp_path):
    inventory = nvml("A 1 8 0 0 0 0\n")
    inventory._driver = (tmp_path / "none",)
    assert [gpu.model for gpu in await read(inventory)] == ["A"]
    assert not is_here({"LD_LIBRARY_PATH": str(tmp_path)}, [tmp_path / "none"])
    assert is_here({"LD_LIBRARY_PATH": f"{tmp_path}::{library}"}, [tmp_path / "none"])
    assert is_here({}, [tmp_path])
