"""Calls a worker of this machine into a session: an empty file in its folder, named as the session.

The worker's supervisor looks for such files, takes each away and goes to the api (docs/worker-contract.md). Called by
the api through its own protocol.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from stoker.spec.worker import SESSIONS_FOLDER

from .folders import Places

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class WorkerCalls:
    def __init__(self, datadir: Places) -> None:
        self._workers = datadir.workers

    async def call(self, pod_uid: str, session_id: str) -> None:
        """Raises: OSError."""
        await asyncio.to_thread(_make, self._file(pod_uid, session_id))

    async def withdraw(self, pod_uid: str, session_id: str) -> None:
        """Raises: OSError."""
        await asyncio.to_thread(self._file(pod_uid, session_id).unlink, missing_ok=True)

    def _file(self, pod_uid: str, session_id: str) -> Path:
        """Raises: ValueError for what is no name: it becomes a file's."""
        if not _NAME.fullmatch(pod_uid) or not _NAME.fullmatch(session_id):
            raise ValueError(f"{pod_uid!r} is no uid, or {session_id!r} no session")
        return self._workers / pod_uid / SESSIONS_FOLDER / session_id


def _make(file: Path) -> None:
    # Only in a folder that a worker has: one that is gone is not called back.
    file.parent.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
