"""The user's code on its way from the api to the worker's folder, on a thread of its own that ends when it is there.

Owns the tries, their pauses and what each answer means. The loop asks `done`, is woken when that changes, and logs
`lines`: the log is the loop's alone. Imported only where a job has code.
"""

from __future__ import annotations

import http.client
import os
import shutil
import threading
import time

from .alive import document
from .folder import CODE_FOLDER, CODE_MARK, Launch
from .link import Answer, bearer, newest_target, open_connection, place, seconds
from .unpack import CantKeep, Damaged, Malformed, Torn, read_manifest, write_files

MYPY = False
if MYPY:
    from typing import Callable

CODE_PATH = "/v1/report/code"
BUNDLE_TYPE = "application/vnd.stoker.bundle"
READ_S = 30.0
BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0)
DAMAGED_TRIES = 3
_ANSWER_BYTES = 65_536
_COARSE = 5
"""CLOCK_REALTIME_COARSE, which Python has no name for."""


class _NotYet(Exception):
    """The api answered, and may answer otherwise later."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class _Gone(Exception):
    """The api has no such bundle."""


class CodeFetch:
    """One fetch, which begins at once."""

    def __init__(self, folder: str, launch: Launch, wake: Callable[[], None]) -> None:
        """`wake` is called, on our thread, when there is something to see."""
        self._folder = folder
        self._launch = launch
        self._target = launch.report or {}
        self._wake = wake
        self._lines: list[str] = []
        self._cancelled = threading.Event()
        self.done = False
        self.refusal = ""
        """Why there is no code, once `done`; '': it is there."""
        threading.Thread(target=self._work, daemon=True).start()

    def lines(self) -> list[str]:
        """What is to be logged since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def cancel(self) -> None:
        """It is not wanted any more."""
        self._cancelled.set()

    def _work(self) -> None:
        try:
            why = self._fetch()
        except Exception as error:  # noqa: BLE001 (the thread's edge: the loop must learn of its end)
            why = "%r" % error
        if why:
            self.refusal = "can't fetch the job's code %s: %s" % (self._launch.code, why)
        self.done = True
        self._wake()

    def _fetch(self) -> str:
        """Why it can't be had; '': it is there."""
        if not self._target:
            return "this worker does not know where Stoker's api is (--api-url of the operator)"
        give_up_at = time.monotonic() + self._launch.code_timeout_s
        tries = damaged = 0
        while not self._cancelled.is_set():
            asked_s = 0.0
            try:
                self._try_once()
                return ""
            except _Gone as error:
                why = str(error)
                return why if "submit" in why else why.rstrip(".") + "; submit the job again from its folder"
            except Malformed as error:
                return "it is refused: %s" % error
            except CantKeep as error:
                return "%s (in %s)" % (error, self._folder)
            except _NotYet as error:
                why, asked_s = str(error), error.retry_after_s
            except Damaged as error:
                why = str(error)
                damaged += 1
                if damaged == DAMAGED_TRIES:
                    return "%s, %d times" % (why, damaged)
            except (Torn, OSError, http.client.HTTPException, ValueError, KeyError) as error:
                why = str(error) or type(error).__name__
            self._target = newest_target(self._folder, self._target)
            pause_s = max(BACKOFF_S[min(tries, len(BACKOFF_S) - 1)], min(asked_s, BACKOFF_S[-1]))
            pause_s *= 0.75 + os.urandom(1)[0] / 512
            tries += 1
            if time.monotonic() + pause_s >= give_up_at:
                return "%s; given up after %d tries in %g s" % (why, tries, self._launch.code_timeout_s)
            if tries == 2:  # not at the first: an api often knows a pod a moment later than its worker runs
                self._lines.append("the job's code can't be fetched yet, trying on: " + why)
                self._wake()
            self._cancelled.wait(pause_s)
        return "stopped"

    def _try_once(self) -> None:
        connection = open_connection(self._target, READ_S)
        try:
            headers = {"Authorization": bearer(self._target), "Accept": BUNDLE_TYPE}
            connection.request("GET", place(self._target, CODE_PATH), headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _error_of(response)
            self._unpack(self._reader(response))
        finally:
            connection.close()

    def _reader(self, response: http.client.HTTPResponse) -> Callable[[int], bytes]:
        def read(size: int) -> bytes:
            if self._cancelled.is_set():
                raise Torn("stopped")
            return response.read(size)

        return read

    def _unpack(self, read: Callable[[int], bytes]) -> None:
        """All of it under its name, or nothing."""
        home, building = self._folder + "/" + CODE_FOLDER, self._folder + "/." + CODE_FOLDER
        entries = read_manifest(read, self._launch.code)
        try:
            for old in (home, building):  # of a supervisor that was killed before it had begun
                if os.path.lexists(old):
                    shutil.rmtree(old)
            os.mkdir(building, 0o755)
            os.chmod(building, 0o755)
        except OSError as error:
            raise CantKeep("its folder can't be made: %s" % (error.strerror or error)) from None
        try:
            write_files(entries, read, building)
            os.rename(building, home)
            _mark(self._folder + "/" + CODE_MARK)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise


def _mark(path: str) -> None:
    """Write the file than which all that was shipped is older, and all that the command writes newer."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)  # its ctime is now, also where it was there
            marked_ns = os.fstat(fd).st_ctime_ns
        finally:
            os.close(fd)
    except OSError as error:
        raise CantKeep("its folder can't be marked: %s" % (error.strerror or error)) from None
    # Files get the kernel's coarse time: its next tick must have come. Bounded, for clocks that are set back.
    for _ in range(50):
        if time.clock_gettime_ns(_COARSE) > marked_ns:
            return
        time.sleep(0.001)


def _error_of(response: http.client.HTTPResponse) -> Exception:
    """What an answer other than 200 means."""
    problem = document(Answer(response.status, response.read(_ANSWER_BYTES), 0.0))
    detail = problem.get("detail")
    reason = "".join(c if c.isprintable() else " " for c in detail[:500]) if isinstance(detail, str) else ""
    # A 404 of the api's own, which has a code; that of a proxy before it has none. A pod it does not know yet is a 503.
    if response.status in (404, 410) and isinstance(problem.get("code"), str):
        return _Gone(reason or "the server does not have it any more")
    why = "the api answered %d" % response.status + (": " + reason if reason else "")
    return _NotYet(why, seconds(response.getheader("Retry-After")))
