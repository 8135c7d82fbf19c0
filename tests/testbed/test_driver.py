"""The bed's GPU drivers: what goes on as they are reset."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import cluster_driver
from tests.support.cluster_driver import NodeDrivers


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "built").write_bytes(b"")
    monkeypatch.setattr(cluster_driver, "library", lambda: tmp_path / "built")
    (tmp_path / "driver").mkdir()
    return {"n0": SimpleNamespace(driver=tmp_path / "driver", index=0, gpus=2)}


def counted(drivers: NodeDrivers, uuid: str, at: float) -> float:
    """What the library answers of it then, in joules."""
    gpu = drivers.gpu(uuid)
    return gpu.energy_offset_mj / 1000 + gpu.integral("watts", gpu.energy_since, at)


@pytest.mark.parametrize("watts", [1000.0, 10.0])
def test_energy_counters_go_on_over_resets_and_the_next_run_on_a_kept_bed(nodes: dict[str, Any], watts: float) -> None:
    drivers, began = NodeDrivers(nodes), time.time()
    for _ in range(2):
        drivers.gpu("GPU-n0-1").step(began - 1800, watts=watts)
        drivers.scenario["n0"].write()
        since = time.time()
        before = [counted(drivers, "GPU-n0-1", since), counted(drivers, "GPU-n0-0", began)]
        drivers.reset("n0")
        until = time.time()
        taken = counted(drivers, "GPU-n0-1", until) - before[0]
        assert -0.01 <= taken <= max(watts, 300) * (until - since) + 0.01
        assert counted(drivers, "GPU-n0-0", began) == before[1], "it did the same all the time"
    then = counted(drivers, "GPU-n0-1", began)
    assert counted(NodeDrivers(nodes), "GPU-n0-1", began) == then
