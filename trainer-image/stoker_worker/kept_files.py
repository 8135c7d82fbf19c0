"""What a command wrote beside its code, moved into the job's output folder when the worker ends.

Owns what is kept and how far: within one file system it is renamed, whatever its size; from a pod's own disk onto a
volume it is copied, up to `MOST_BYTES` and `MOST_S`. Follows no symbolic link on either side. Called by the supervisor
after the last process of the worker's, before the exit record; imported only where a job has code.
"""

from __future__ import annotations

import errno
import os
import time

from .folder import CODE_FOLDER, Launch
from .result_files import MOST_LISTED, MOST_LOOKED_AT, FoundFile, beside_code_name, marked_at, open_folder, walk

MYPY = False
if MYPY:
    from typing import Callable

MOST_BYTES = 1 << 30
MOST_S = 25.0
"""Shorter than what the kubelet leaves beyond the job's grace (`GRACE_MARGIN_S` of the operator's)."""
NAMED = 5
_PIECE = 1 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _TooMuch(Exception):
    """A file beyond a limit."""


def keep_files(folder: str, launch: Launch) -> list[str]:
    """Move what is the command's own out of its copy of the code. Returns: lines for the log; it never raises."""
    output = launch.env.get("STOKER_OUTPUT_DIR") or ""
    code = folder + "/" + CODE_FOLDER
    mark = marked_at(code)
    if mark is None or not output or output.startswith(code + "/") or output == code:
        return []
    keeper = _Keeper(launch.worker)
    try:
        source = open_folder(code, [])
        try:
            found = list(walk(source, "", mark, [MOST_LOOKED_AT]))
            if found:
                keeper.keep(source, open_folder(output, []), found)
        finally:
            os.close(source)
    except OSError as error:
        return ["what the command wrote beside its code can't be kept: %s" % (error.strerror or error)]
    except Exception as error:  # noqa: BLE001 (the edge: whatever lies there, the exit record must be written)
        return ["what the command wrote beside its code can't be kept: %r" % error]
    return keeper.lines()


class _Keeper:
    def __init__(self, worker: int) -> None:
        self._name = beside_code_name(worker)
        self._give_up_at = time.monotonic() + MOST_S
        self._left = MOST_BYTES
        self._kept = 0
        self._lost: list[str] = []
        self._why = ""

    def keep(self, source: int, output: int, found: list[FoundFile]) -> None:
        """Small ones first: of what is too much for a copy the most files are kept. Closes `output`."""
        try:
            for one in sorted(found, key=lambda file: (file.size, file.path)):
                try:
                    if self._kept >= MOST_LISTED:
                        raise _TooMuch("over the limit of %d files" % MOST_LISTED)
                    self._move(source, output, one)
                except (OSError, _TooMuch) as error:
                    why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
                    self._lost.append(one.path)
                    self._why = self._why or why
                else:
                    self._kept += 1
        finally:
            os.close(output)

    def lines(self) -> list[str]:
        """What is kept is not mentioned: the log is the command's own, and `stoker run` says where the files are."""
        if not self._lost:
            return []
        named = ", ".join("".join(c if c.isprintable() else "?" for c in path) for path in self._lost[:NAMED])
        number = len(self._lost)
        return [
            "%d file%s written beside the code %s not kept (%s): %s%s; write results to $STOKER_OUTPUT_DIR"
            % (
                number,
                "" if number == 1 else "s",
                "was" if number == 1 else "were",
                self._why,
                named,
                ", …" if number > NAMED else "",
            )
        ]

    def _move(self, source: int, output: int, one: FoundFile) -> None:
        """Raises: OSError, _TooMuch."""
        parts = one.path.split("/")
        there = _within(source, parts[:-1], make=False)
        try:
            here = _within(output, [self._name, *parts[:-1]], make=True)
            try:
                try:
                    os.rename(parts[-1], parts[-1], src_dir_fd=there, dst_dir_fd=here)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    self._copy(there, here, parts[-1], one)
            finally:
                os.close(here)
        finally:
            os.close(there)

    def _copy(self, there: int, here: int, name: str, one: FoundFile) -> None:
        """Written aside and renamed. Raises: OSError, _TooMuch."""
        aside = ".%s.part" % name[:200]
        if one.kind == "link":
            target = os.readlink(name, dir_fd=there)
            _remove(here, aside)
            os.symlink(target, aside, dir_fd=here)
            os.rename(aside, name, src_dir_fd=here, dst_dir_fd=here)
            return
        if one.size > self._left:
            raise _TooMuch("over the limit of %d MiB for what is copied" % (MOST_BYTES >> 20))
        _remove(here, aside)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=there)
        try:
            out = os.open(aside, _NEW_FILE, 0o644, dir_fd=here)
            try:
                try:
                    self._carry(lambda: os.read(fd, _PIECE), out)
                    found = os.fstat(fd)
                    os.utime(out, ns=(found.st_atime_ns, found.st_mtime_ns))
                    os.fchmod(out, found.st_mode & 0o755)
                finally:
                    os.close(out)
                os.rename(aside, name, src_dir_fd=here, dst_dir_fd=here)
            except BaseException:
                _remove(here, aside)
                raise
        finally:
            os.close(fd)

    def _carry(self, read: Callable[[], bytes], out: int) -> None:
        data = read()
        while data:
            if time.monotonic() >= self._give_up_at:
                raise _TooMuch("the copy took longer than %g s" % MOST_S)
            view = memoryview(data)
            while view:
                view = view[os.write(out, view) :]
            self._left -= len(data)
            data = read()


def _within(root: int, parts: list[str], make: bool) -> int:
    """The folder below `root`, whose descriptor stays open. No link is followed. Raises: OSError."""
    fd = os.dup(root)
    for part in parts:
        try:
            if make:
                try:
                    os.mkdir(part, 0o777, dir_fd=fd)
                except FileExistsError:
                    pass
            below = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
