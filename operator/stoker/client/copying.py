"""Files and folders of a job's output, copied to this machine.

Owns which file goes where: what a server names is anybody's, and never leads out of the folder that was given. Called
by `Client.cp` and `stoker cp`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import ApiError, BadInput, StokerError
from .fetching import fetch_into

if TYPE_CHECKING:
    from .calls import Calls

_MOST_COMPONENT_BYTES = 255


class Copied(NamedTuple):
    files: int
    size_bytes: int
    links: int
    """Symbolic links, which are left out."""


class Listed(NamedTuple):
    """What a path of a job's output is."""

    job: str
    path: str
    below: Any | None
    """Of a folder what it holds; None: no folder, so a file."""


def look(calls: Calls, job: str, path: str, project: str | None = None) -> Listed:
    """Raises: ApiError, BadInput."""
    path = path.strip("/")
    if {".", ".."} & set(path.split("/")):
        raise BadInput(f"{path}: the path is one within the output folder, without `.` and `..`")
    try:
        return Listed(job, path, calls.files(job, path, project=project))
    except ApiError as error:
        if error.code != "NoFile" or not path:
            raise
        return Listed(job, path, None)


def copy(
    calls: Calls,
    listed: Listed,
    to: str | os.PathLike[str],
    project: str | None = None,
    on_file: Callable[[str, Path], object] = lambda path, place: None,
) -> Copied:
    """Into `to` if that is a folder or ends with '/', else there. Raises: StokerError, OSError."""
    files = size_bytes = 0
    for path, place in _wanted(listed, os.fspath(to)):
        place.parent.mkdir(parents=True, exist_ok=True)
        size_bytes += fetch_into(place, partial(calls.fetch_file, listed.job, path, project=project))
        files += 1
        on_file(path, place)
    items = listed.below["items"] if listed.below is not None else ()
    return Copied(files, size_bytes, sum(item["kind"] != "file" for item in items))


def _wanted(listed: Listed, given: str) -> Iterator[tuple[str, Path]]:
    """The files, each with its place here."""
    last = listed.path.rpartition("/")[2]
    to = Path(given)
    into = to.is_dir() or given.endswith("/")
    if listed.below is None:
        yield listed.path, to / _own(last) if into else to
        return
    if listed.below["truncated"]:
        raise BadInput(f"{listed.job}:{listed.path} holds too many files for one copy; name folders within it")
    base = to / _own(last) if last and into else to
    for item in listed.below["items"]:
        if item["kind"] == "file":
            within = item["path"].removeprefix(listed.below["folder"]).lstrip("/")
            yield item["path"], base.joinpath(*map(_own, within.split("/")))


def _own(name: str) -> str:
    """A part of a path as the server gave it. Raises: StokerError for what could lead elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > _MOST_COMPONENT_BYTES:
        raise StokerError(f"a file's name can't be one here: {name!r}")
    return name
