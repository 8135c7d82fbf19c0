"""A GPU driver on each of the bed's nodes: our fake NVML, and what the GPUs there do.

Owns the files in the nodes' driver folders, with the uuids that the bed's device plugin hands out. Never talks to the
cluster. Called by `cluster_stack`; tests change `scenario[node]` and write it: running exporters see it at their next
poll.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.nvml_scenario import Gpu, Scenario, library
from tests.support.testbed.node import DRIVER_ROOT, Node

__all__ = ["DRIVER_ROOT", "NodeDrivers", "watts_of"]

BUSY, SM, USED = 80.0, 50.0, 20 << 30
"""What every GPU does until a test says otherwise: percent, percent, bytes."""


def watts_of(node: Node, index: int) -> float:
    """Of each GPU another one: what is attributed to the wrong one shows."""
    return 200.0 + 100.0 * node.index + 10.0 * index


class NodeDrivers:
    """`nodes`: each with as many GPUs as it offers to the scheduler. Raises: NoCompiler."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = dict(nodes)
        self.scenario: dict[str, Scenario] = {}
        for name, node in self._nodes.items():
            fresh = node.driver / "libnvidia-ml.so.1.new"
            shutil.copyfile(library(), fresh)  # a link would lead out of what pods mount
            fresh.replace(node.driver / "libnvidia-ml.so.1")  # a running exporter keeps the one it has
            self.reset(name)

    def reset(self, name: str) -> None:
        """As at the begin: no steps, no faults, no XIDs. Energy counters go on from where they are."""
        node = self._nodes[name]
        before = self.scenario.get(name)
        scenario = self.scenario[name] = Scenario(node.driver)
        kept, now = _counters(scenario.path), time.time()
        for index in range(node.gpus):
            gpu = scenario.add_gpu(uuid=f"GPU-{name}-{index}", watts=watts_of(node, index), busy=BUSY, sm=SM, used=USED)
            if gpu.uuid in kept:
                gpu.energy_since, gpu.energy_offset_mj = kept[gpu.uuid]
            if before is not None:
                since = gpu.energy_since
                behind_j = before.gpus[index].integral("watts", since, now) - gpu.integral("watts", since, now)
                gpu.energy_offset_mj += round(behind_j * 1000)
        scenario.write()

    def gpu(self, uuid: str) -> Gpu:
        """By the device plugin's id of it."""
        return next(gpu for scenario in self.scenario.values() for gpu in scenario.gpus if gpu.uuid == uuid)


def _counters(scenario: Path) -> dict[str, tuple[float, int]]:
    """Uuid → since when, and from what, its energy counts, as this run or the one before on a kept bed left it: a
    counter that falls costs what is attributed a second."""
    lines = scenario.read_text().splitlines() if scenario.exists() else []
    gpus = [dict(field.split("=", 1) for field in line.split("\t")[1:]) for line in lines if line.startswith("gpu\t")]
    return {gpu["uuid"]: (float(gpu["energy_since"]), int(gpu["energy_offset_mj"])) for gpu in gpus}
