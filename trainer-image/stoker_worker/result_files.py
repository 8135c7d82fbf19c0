"""What a job leaves behind: its output folder, and what its workers write beside their code while they run.

Owns listing and opening, and trusts nothing that lies there: every path is walked one component at a time with
O_NOFOLLOW, so no symbolic link leads out of a folder, and only regular files are opened. Never writes. Called by a
worker's session (`files_session`), the pod that serves a job's files after its end, and on one machine the api.
"""

from __future__ import annotations

import os
import stat

from .folder import CODE_MARK

MYPY = False
if MYPY:
    from typing import Iterator

BESIDE_CODE = "beside-code"
"""The folder within the output that what was written beside the code is kept in; of worker N: `beside-code-N`."""
MOST_LISTED = 10_000
MOST_LOOKED_AT = 100_000
"""Entries; a listing that would look at more is cut off."""
MAX_DEPTH = 64
MAX_PATH = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SKIPPED_FOLDERS = frozenset(("__pycache__", ".git", ".venv", "node_modules"))
_SKIPPED_FILES = (".pyc", ".DS_Store")


class NoSuchFile(Exception):
    """There is nothing to open under this path; the text says why, for people."""


class FoundFile:
    """One entry of a listing. `kind`: `file` or `link`."""

    __slots__ = ("kind", "modified_at", "path", "size")

    def __init__(self, path: str, kind: str, size: int, modified_at: float) -> None:
        self.path = path
        self.kind = kind
        self.size = size
        self.modified_at = modified_at


class Listing:
    """Files by path; `folder`: what they are below; `truncated`: there are more."""

    __slots__ = ("files", "folder", "truncated")

    def __init__(self, files: list[FoundFile], folder: str, truncated: bool) -> None:
        self.files = files
        self.folder = folder
        self.truncated = truncated


class ResultFiles:
    """The files of one job. `beside_code`: worker's number -> its copy of the code, where that is at hand."""

    def __init__(self, output: str, beside_code: dict[int, str] | None = None) -> None:
        self._output = output
        self._beside_code = beside_code or {}

    def listing(self, folder: str = "", limit: int = MOST_LISTED) -> Listing:
        """All files below `folder`; one that worker 0 made beside its code is found by its own path too.

        Raises: NoSuchFile, where the path leads to no folder; OSError.
        """
        parts = parse_path(folder)
        found = self._listing(parts, limit)
        if found is None and parts and parts[0] != BESIDE_CODE:
            found = self._listing([BESIDE_CODE, *parts], limit)
        if found is None and parts:
            raise NoSuchFile("there is no folder %s" % _shown(folder))
        return found or Listing([], "", False)

    def _listing(self, parts: list[str], limit: int) -> Listing | None:
        """None: there is no such folder."""
        found: dict[str, FoundFile] = {}
        budget = [MOST_LOOKED_AT]
        there = False
        for root, prefix, since_ns in self._roots():
            inside = _below(parts, prefix)
            if inside is None:
                continue
            above, shown = inside
            try:
                fd = open_folder(root, above)
            except FileNotFoundError:
                continue
            except OSError:
                if above:
                    continue  # a file, or a link
                raise
            there = True
            try:
                for one in walk(fd, shown, since_ns, budget):
                    found[one.path] = one
            finally:
                os.close(fd)
        if not there:
            return None
        listed = sorted(found.values(), key=lambda one: one.path)
        return Listing(listed[:limit], "/".join(parts), len(listed) > limit or budget[0] <= 0)

    def open(self, path: str) -> tuple[int, os.stat_result]:
        """A regular file, open for reading, by its descriptor. What lies beside the code is found by its own path too.

        Raises: NoSuchFile; OSError.
        """
        parts = parse_path(path)
        if not parts:
            raise NoSuchFile("name a file")
        why: NoSuchFile | None = None
        for root, prefix, since_ns in (*self._roots(), *self._aliases()):
            if parts[: len(prefix)] != prefix or len(parts) == len(prefix):
                continue
            try:
                fd, found = open_file(root, parts[len(prefix) :])
            except FileNotFoundError:
                continue
            except NoSuchFile as error:
                why = why or error
                continue
            if found.st_ctime_ns > since_ns:
                return fd, found
            os.close(fd)
            why = why or NoSuchFile("%s is as it was shipped; `trainer.code` names its bundle" % _shown(path))
        raise why or NoSuchFile("there is no file %s" % _shown(path))

    def _roots(self) -> Iterator[tuple[str, list[str], int]]:
        """Folder, the path it is shown under, and since when (ctime, ns) what is in it is the job's own."""
        yield self._output, [], -1
        for worker, code in sorted(self._beside_code.items()):
            mark = marked_at(code)
            if mark is not None:
                yield code, [beside_code_name(worker)], mark

    def _aliases(self) -> Iterator[tuple[str, list[str], int]]:
        """What worker 0 wrote beside its code, by the path that the command used."""
        yield os.path.join(self._output, BESIDE_CODE), [], -1
        mark = marked_at(self._beside_code[0]) if 0 in self._beside_code else None
        if mark is not None:
            yield self._beside_code[0], [], mark


def beside_code_name(worker: int) -> str:
    return BESIDE_CODE if worker == 0 else "%s-%d" % (BESIDE_CODE, worker)


def marked_at(code: str) -> int | None:
    """When the code was complete, by ctime in ns: what is newer is the job's own. None: it is not there (yet)."""
    try:
        return os.stat(os.path.join(os.path.dirname(code), CODE_MARK), follow_symlinks=False).st_ctime_ns
    except OSError:
        return None


def parse_path(path: str) -> list[str]:
    """Raises: NoSuchFile for what is no path within a folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if len(path) > MAX_PATH or ".." in parts or "\0" in path or len(parts) > MAX_DEPTH:
        raise NoSuchFile("%s is no path within the output folder" % _shown(path))
    return parts


def open_folder(root: str, parts: list[str]) -> int:
    """A folder's descriptor; no component is followed that is a link, the root itself included. Raises: OSError."""
    fd = os.open(root, _DIRECTORY)
    for part in parts:
        try:
            below = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def open_file(root: str, parts: list[str]) -> tuple[int, os.stat_result]:
    """Raises: FileNotFoundError; NoSuchFile, where it is there and no regular file; OSError."""
    shown = _shown("/".join(parts))
    try:
        folder = open_folder(root, parts[:-1])
    except NotADirectoryError:
        raise FileNotFoundError(parts[-1]) from None  # O_DIRECTORY on a link is this too
    try:
        _want_regular(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False), shown)
        # O_NONBLOCK: were it a pipe by now, to open it would wait for a writer.
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        found = os.fstat(fd)
        _want_regular(found, shown)
    except BaseException:
        os.close(fd)
        raise
    return fd, found


def walk(fd: int, shown: str, since_ns: int, budget: list[int]) -> Iterator[FoundFile]:
    """Files and links below the open folder, whose own path is `shown`. What can't be read is left out.

    `since_ns`: -1: everything; else only what is newer, and no caches (`__pycache__`, `.venv`). `budget[0]`: how many
    entries may still be looked at.
    """
    own_only = since_ns >= 0
    if own_only and _exists(fd, "pyvenv.cfg"):
        return
    try:
        names = os.listdir(fd)
    except OSError:
        return
    for name in sorted(names):
        budget[0] -= 1
        if budget[0] <= 0:
            return
        path = shown + "/" + name if shown else name
        try:
            path.encode()
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (OSError, UnicodeEncodeError):
            continue
        if stat.S_ISDIR(found.st_mode):
            if (own_only and name in _SKIPPED_FOLDERS) or path.count("/") >= MAX_DEPTH:
                continue
            try:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
            except OSError:
                continue
            try:
                yield from walk(below, path, since_ns, budget)
            finally:
                os.close(below)
        elif own_only and (found.st_ctime_ns <= since_ns or name.endswith(_SKIPPED_FILES)):
            continue
        elif stat.S_ISREG(found.st_mode):
            yield FoundFile(path, "file", found.st_size, found.st_mtime)
        elif stat.S_ISLNK(found.st_mode):
            yield FoundFile(path, "link", 0, found.st_mtime)


def _below(parts: list[str], prefix: list[str]) -> tuple[list[str], str] | None:
    """What is asked for (`parts`) within a root that is shown as `prefix`: the folder there, and its path as shown."""
    if parts[: len(prefix)] == prefix:
        return parts[len(prefix) :], "/".join(parts)
    if prefix[: len(parts)] == parts:
        return [], "/".join(prefix)
    return None


def _want_regular(found: os.stat_result, shown: str) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise NoSuchFile("%s is a folder; its files have paths of their own" % shown)
    if stat.S_ISLNK(found.st_mode):
        raise NoSuchFile("%s is a symbolic link, and links are not followed; ask for what it points to" % shown)
    raise NoSuchFile("%s is no regular file" % shown)


def _exists(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _shown(path: str) -> str:
    """A path in a message: one line, not endless."""
    return repr("".join(c if c.isprintable() else "?" for c in path[:200]))
