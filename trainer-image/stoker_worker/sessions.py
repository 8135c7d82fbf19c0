"""The sessions of a worker as its supervisor sees them: one process for each id, and which processes are theirs.

Owns which ids were seen and which processes are sessions. Never reads or carries what a session sends; `session` does,
in the process started here. Imported with the first id. Called by the supervisor's loop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

from .folder import Launch

AT_ONCE = 8
TURNED_AWAY_AT_ONCE = 8
"""More than `AT_ONCE` are started only to say that there are too many; beyond these there is no answer."""
REMEMBERED = 1000

_ID_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_")


class WorkerSessions:
    def __init__(self, folder: str, launch: Launch) -> None:
        self._folder = folder
        self._env = launch.env
        self._seen: dict[str, None] = {}
        self.pids: set[int] = set()

    def start(self, session_id: str) -> str:
        """Start the session's process, if the id is a new one. Returns: what went wrong, for the log."""
        if session_id in self._seen or not _is_id(session_id):
            return ""
        if len(self.pids) >= AT_ONCE + TURNED_AWAY_AT_ONCE:
            return ""  # not marked as seen: it may come again
        self._seen[session_id] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        argv = [sys.executable, "-I", "-S", sys.argv[0], "--session", session_id, self._folder, str(os.getpid())]
        if len(self.pids) >= AT_ONCE:
            argv.append("%d sessions are open in this worker, the most there may be; end one" % len(self.pids))
        try:
            # The command's own environment: that is what a session's command gets. Descriptors are ours alone.
            self.pids.add(
                os.posix_spawn(
                    sys.executable,
                    argv,
                    self._env,
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    ],
                    setsigmask=[],
                    setsigdef=[_signal.SIGTERM, _signal.SIGINT, _signal.SIGCHLD, _signal.SIGHUP],
                )
            )
        except (OSError, ValueError, NotImplementedError) as error:
            return "a session could not be started: %s" % error
        return ""


def _is_id(text: str) -> bool:
    return 0 < len(text) <= 128 and _ID_CHARS.issuperset(text) and text[0] != "-"
