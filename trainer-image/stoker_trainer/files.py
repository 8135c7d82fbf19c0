"""Files that are there whole or not at all. Called by checkpoints, progress, the ledger and the export."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_synced(path: Path, data: bytes) -> None:
    """`data` at `path`, on the disk when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes, *, sync: bool) -> None:
    """`path` holds the old content or `data`, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if sync:
        write_synced(temporary, data)
    else:
        temporary.write_bytes(data)
    temporary.replace(path)
    if sync:
        sync_folder(path.parent)


def replace_json(path: Path, value: Any, *, sync: bool) -> None:
    replace(path, (json.dumps(value, indent=1) + "\n").encode(), sync=sync)


def sync_folder(folder: Path) -> None:
    """Renames in `folder` are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
