"""Takes a bed down, however it was started and ended: processes, pods, namespaces, etcd's data, the folder.

Does nothing where nothing is left. Called by `down`, by the guard of a killed run, and before a new start.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.testbed import cgroups
from tests.support.testbed.control_plane import memory_folder
from tests.support.testbed.network import Network
from tests.support.testbed.parts import is_bed, kill_all, until


def tear_down(folder: Path) -> None:
    """Removes everything of the bed in `folder`. Raises: BedError where a process or a mount does not go."""
    if not is_bed(folder):
        return
    kill_all(folder)
    record = folder / "network.json"
    if record.exists():
        network = Network(json.loads(record.read_text())["number"])
        for node in sorted((folder / "nodes").glob("n*")):
            cgroups.remove(network.node_namespace(int(node.name[1:])))
        network.down()
    shutil.rmtree(memory_folder(folder), ignore_errors=True)
    # The nodes' mounts end with their namespaces, a moment after the last process.
    until(lambda: _removed(folder), f"removal of {folder}", 20, every_s=0.2)


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
