"""A job's files on one machine: its output folder, and its workers' folders for what they write beside their code.

Owns the threads that read: a slow disk holds up nothing but file requests. What may be opened is
`stoker_worker.result_files`' business. Picked by `stoker up`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.rest import FileList, JobFile
from stoker.spec.worker import CODE_FOLDER
from stoker.store.cache import WatchCache
from stoker_api.ports import FileStamp
from stoker_api.problems import Problem, ProblemCode
from stoker_worker.result_files import NoSuchFile, ResultFiles

T = TypeVar("T")

THREADS = 4
PIECE_BYTES = 1 << 18
CALL_S = 15.0
"""For one listing, one opening, one piece."""


class LocalFiles:
    """`jobs_folder` and `workers_folder`: those of the data folder. `close` once, at the end."""

    def __init__(self, jobs_folder: Path, workers_folder: Path, pods: WatchCache[Pod]) -> None:
        self._jobs_folder, self._workers_folder, self._pods = jobs_folder, workers_folder, pods
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def place(self, job: TrainingJob) -> str | None:
        return str(self._output(job)) if job.status.attempt else None

    async def list(self, job: TrainingJob, folder: str, limit: int) -> FileList:
        files = self._files(job)

        def listed() -> FileList:
            found = files.listing(folder, limit)
            items = tuple(
                JobFile(path=one.path, kind=one.kind, size=one.size, modified_at=_time(one.modified_at))
                for one in found.files
            )
            return FileList(items=items, folder=found.folder, truncated=found.truncated)

        return await self._in_thread(listed)

    async def open(self, job: TrainingJob, path: str) -> LocalFile:
        fd, found = await self._in_thread(lambda: self._files(job).open(path))
        return LocalFile(fd, found, self._threads)

    def _output(self, job: TrainingJob) -> Path:
        return self._jobs_folder / job.uid / "output"

    def _files(self, job: TrainingJob) -> ResultFiles:
        beside = {}
        if job.spec.trainer.code is not None and job.status.attempt:
            for worker in range(job.spec.most_workers):
                name = f"{job.metadata.name}-{job.status.attempt}-{worker}"
                pod = self._pods.get(Key(job.metadata.namespace, name))
                if pod is not None:
                    beside[worker] = str(self._workers_folder / pod.uid / CODE_FOLDER)
        return ResultFiles(str(self._output(job)), beside)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Raises: Problem."""
        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except NoSuchFile as error:
            raise Problem(ProblemCode.NO_FILE, f"{_sentence(str(error))}; `stoker files JOB` lists them.") from None
        except TimeoutError:
            raise Problem(ProblemCode.UNAVAILABLE, "The disk does not answer; try again.", retry_after_s=5) from None
        except OSError as error:
            raise Problem(ProblemCode.NO_FILE, f"It can't be read: {error.strerror or error}.") from None


class LocalFile:
    """One open file. `close` in any case."""

    def __init__(self, fd: int, found: os.stat_result, threads: ThreadPoolExecutor) -> None:
        self._fd, self._threads = fd, threads
        self.stamp = FileStamp(
            found.st_size, _time(found.st_mtime), f'"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"'
        )

    async def pieces(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` up to before `end`. Raises: OSError (the file has become shorter), TimeoutError."""
        loop, fd = asyncio.get_running_loop(), self._fd
        while start < end:
            async with asyncio.timeout(CALL_S):
                piece = await loop.run_in_executor(self._threads, os.pread, fd, min(PIECE_BYTES, end - start), start)
            if not piece:
                raise OSError("the file has become shorter while it was read")
            start += len(piece)
            yield piece

    async def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Behind a read that is still under way: its descriptor must not be another file's by then.
            await asyncio.get_running_loop().run_in_executor(self._threads, os.close, fd)


def _time(at_s: float) -> datetime:
    """A file's time may be anything."""
    try:
        return datetime.fromtimestamp(int(at_s), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
