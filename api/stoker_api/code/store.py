"""All code that this server holds, by project: what the routes ask, with disk work off the event loop.

Owns which projects there are, the threads and the account. Never asks who may do what (the routes) and decides no
garbage (`project.py`). One process per folder. Called by the routes, `jobs/checks.py` and `services.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from stoker.spec.code import CodeManifest
from stoker.spec.job import TrainingJob
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker_api.code.quota import CodeLimits, CodeQuota

from .bundle import StoredBundle
from .project import Missing, ProjectCode, Stored
from .upload import Files, PackCounts, Upload

P = ParamSpec("P")
T = TypeVar("T")

_PROJECT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_THREADS = 8
_SYNCS = 8
_GATHER_BYTES = 256 << 10
"""Bytes of a request that go to a thread at once."""


class CodeStore:
    def __init__(self, folder: Path, clock: Clock, limits: CodeLimits | None = None) -> None:
        """Reads the folder: what an earlier process stored is there again, what it left half is not. Raises: OSError.

        Cost: one stat per file held.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder, self._clock = folder, clock
        self.limits = limits or CodeLimits()
        self._room = CodeQuota(folder, self.limits)
        self._guard = threading.Lock()
        self._projects = {
            path.name: ProjectCode(path, self._room, clock)
            for path in folder.iterdir()
            if path.is_dir() and _PROJECT.fullmatch(path.name)
        }
        self._threads = ThreadPoolExecutor(_THREADS, "code")
        self._syncing = ThreadPoolExecutor(_SYNCS, "code-sync")

    @property
    def total_bytes(self) -> int:
        """What all of it takes."""
        return self._room.held

    @property
    def bundles(self) -> int:
        return sum(project.bundles for project in list(self._projects.values()))

    async def put(self, project: str, digest: str, manifest: CodeManifest) -> Stored | Missing:
        """Raises: WrongSize, CodeFull, OSError."""
        return await self.run(lambda: self._made(project).put(digest, manifest))

    async def find(self, project: str, digest: str) -> StoredBundle | None:
        """The bundle if it and all its files are here; that is a use of it. Raises: OSError."""
        found = self._projects.get(project)
        return None if found is None else await self.run(found.find, digest)

    @contextlib.asynccontextmanager
    async def receiving(self, project: str, *, gzip: bool) -> AsyncIterator[PackReceiver]:
        """Takes a pack while inside; what came whole stays. Raises: OSError."""
        receiver = PackReceiver(self, await self.run(lambda: self._upload(project, gzip=gzip)))
        try:
            yield receiver
        finally:
            await self.run(receiver.upload.close)

    async def pieces(self, project: str, bundle: StoredBundle) -> AsyncIterator[bytes]:
        """What a worker is sent. Raises: OSError, EOFError."""
        rest: Iterator[bytes] = self._projects[project].pieces(bundle)
        while (piece := await self.run(lambda: next(rest, b""))) != b"":
            yield piece

    async def sweep(self, named: Mapping[str, Set[str]]) -> int:
        """Remove what is unused, `named` being what jobs name by project; how many bytes. Raises: OSError."""
        freed = 0
        for name, project in list(self._projects.items()):
            steps = project.sweep(named.get(name, frozenset()), self.limits.keep_s)
            freed += await self.run(_sum, steps)
        return freed

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work` in a thread. Shielded: a request that is cut off leaves no half-done work to the next one."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._threads, lambda: work(*args, **kwargs)))

    def _upload(self, project: str, *, gzip: bool) -> Upload:
        return Upload(Files(self._made(project), self._room, self._syncing), gzip=gzip)

    def _made(self, project: str) -> ProjectCode:
        with self._guard:
            found = self._projects.get(project)
            if found is None:
                if not _PROJECT.fullmatch(project):
                    raise ValueError(f"{project!r} is no project's name")  # it becomes a folder's
                found = self._projects[project] = ProjectCode(self._folder / project, self._room, self._clock)
            return found


def _sum(steps: Iterator[int]) -> int:
    return sum(steps)


class PackReceiver:
    """The loop's side of an upload: gathers chunks, and hands them to a thread one after the other."""

    def __init__(self, store: CodeStore, upload: Upload) -> None:
        self._store, self.upload = store, upload
        self._gathered = bytearray()

    async def feed(self, chunk: bytes) -> None:
        """Raises: BadPack, CodeFull, OSError."""
        self._gathered += chunk
        if len(self._gathered) >= _GATHER_BYTES:
            await self._pass_on()

    async def finish(self) -> PackCounts:
        """Raises: as `feed`."""
        await self._pass_on()
        return await self._store.run(self.upload.finish)

    async def _pass_on(self) -> None:
        data, self._gathered = bytes(self._gathered), bytearray()
        await self._store.run(self.upload.feed, data)


log = logging.getLogger(__name__)
EVERY_S = 3600.0


async def keep_tidy(code: CodeStore, jobs: WatchCache[TrainingJob], clock: Clock) -> None:
    """Runs until cancelled. Before the first jobs are read, nothing is garbage."""
    await jobs.synced()
    while True:
        try:
            freed = await code.sweep(named_by(jobs.values()))
        except OSError as error:
            log.warning("old code can't be removed: %s", error)
        else:
            if freed:
                log.info("removed %d bytes of unused code", freed)
        await clock.sleep(EVERY_S)


def named_by(jobs: Iterable[TrainingJob]) -> dict[str, set[str]]:
    """Project → the digests that its jobs name."""
    found: dict[str, set[str]] = {}
    for job in jobs:
        if job.spec.trainer.code is not None:
            found.setdefault(job.metadata.namespace, set()).add(job.spec.trainer.code)
    return found
