"""Takes a bed down, whoever started it and however it ended: processes, nodes, etcd's data, the folder itself.

Does nothing where nothing is left. Called by `down`, by the guard of a killed run, and before a new start.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from testbed.control_plane import memory_folder
from testbed.parts import is_bed, kill_all


def tear_down(folder: Path) -> None:
    """Removes everything of the bed in `folder`. Raises: BedError where a process does not die."""
    if not is_bed(folder):
        return
    kill_all(folder)
    shutil.rmtree(memory_folder(folder), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
