"""Jobs and other objects → JSON bytes and ETags.

Keeps the newest rendering of each of a few thousand jobs: two hundred followers of a job, or a page that is asked for
again, cost one dump.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Resource
from stoker.spec.worker import Progress

from .progress import ProgressBoard

_KEPT = 4096


def dump(obj: Resource) -> bytes:
    """The object as the api shows it (`Resource.dump`), on one line."""
    return obj.model_dump_json(by_alias=True, exclude_none=True).encode()


def etag(obj: Resource) -> str:
    return f'"{obj.uid}.{obj.metadata.resource_version}"'


def joined(items: Iterable[bytes], tail: bytes = b"") -> bytes:
    """{"items":[…]} with `tail` (`,"nextCursor":…`) behind it."""
    return b'{"items":[' + b",".join(items) + b"]" + tail + b"}"


class JobRenderer:
    """Renders jobs with the newest progress there is."""

    def __init__(self, board: ProgressBoard) -> None:
        self._board = board
        self._kept: OrderedDict[str, tuple[str, float | None, bytes]] = OrderedDict()

    def job(self, job: TrainingJob) -> bytes:
        progress = self._board.newest(job)
        version, at = job.metadata.resource_version, None if progress is None else progress.at
        kept = self._kept.get(job.uid)
        if kept is not None and kept[0] == version and kept[1] == at:
            self._kept.move_to_end(job.uid)
            return kept[2]
        data = dump(with_progress(job, progress))
        if job.uid:
            self._kept[job.uid] = (version, at, data)
            self._kept.move_to_end(job.uid)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return data


def with_progress(job: TrainingJob, progress: Progress | None) -> TrainingJob:
    if progress is None or progress is job.status.progress:
        return job
    return job.model_copy(update={"status": job.status.model_copy(update={"progress": progress})})
