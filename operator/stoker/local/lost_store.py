"""Whether a data folder has lost its store: a new one begun silently would forget every job, and the agent would stop
their workers as strangers.

Looks only; deletes and stops nothing. Called by `stoker up`, with the folder's lock held.
"""

from __future__ import annotations

from .agent.folders import WorkerFolder
from .datadir import DataDir, DataDirError


def check_store(datadir: DataDir, *, new_store: bool) -> None:
    """Nothing for a folder whose store is there, and for one that never had any.

    `new_store`: the lost one is given up. Raises: DataDirError (the ways to go on), OSError.
    """
    there = datadir.db.exists()
    if there and datadir.db.stat().st_size:
        if new_store:
            raise DataDirError(f"--new-store is for a store that is lost; {datadir.db} is there")
        return
    left = [f"{folder.name}/" for folder in (datadir.jobs, datadir.workers) if any(folder.iterdir())]
    left += [path.name for path in (datadir.tokens,) if path.exists()]
    if not left:
        return
    if not new_store:
        raise DataDirError(
            f"{datadir.db} is {'empty' if there else 'missing'}, but {datadir.path} has been in use"
            f" ({', '.join(left)}): put stoker.db back from a backup, or forget its jobs and begin anew with"
            f" `stoker up --new-store` (tokens stay, and checkpoints in {datadir.jobs})"
        )
    running = [entry.name for entry in datadir.workers.iterdir() if WorkerFolder(datadir.workers, entry.name).is_held()]
    if running:
        raise DataDirError(
            f"{len(running)} of the lost store's workers still run ({', '.join(sorted(running)[:8])}), and a new one"
            " would not know them: wait for their end or end them yourself, or give another folder (--data)"
        )
