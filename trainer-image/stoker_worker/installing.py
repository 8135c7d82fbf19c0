"""The installing of a job's packages as its supervisor sees it: one process, what it prints, and what came of it.

Owns the process and the hold on the environment. Never installs anything; `install` does, in the process started here.
Imported only where a job has `trainer.requirements`. Called by the supervisor's loop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

from .folder import Launch, read_environment
from .output import RankOutput


class Installing:
    """Begins at once. Raises: OSError."""

    def __init__(self, folder: str, launch: Launch, output: RankOutput) -> None:
        self._folder, self._launch = folder, launch
        self.output = output
        argv = [sys.executable, "-I", "-S", sys.argv[0], "--install", folder, str(os.getpid())]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                argv,
                launch.env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output.write_fd, 1),
                    (os.POSIX_SPAWN_DUP2, output.write_fd, 2),
                ],
                setsigmask=[],
                setsigdef=[_signal.SIGTERM, _signal.SIGINT, _signal.SIGCHLD, _signal.SIGHUP],
            )
        finally:
            output.close_write()

    def ended(self, status: int) -> str:
        """Let the command have the environment. Returns: why there is none; '': it is there."""
        place = read_environment(self._folder) if status == 0 else ""
        if place and self._hold(place):
            env = self._launch.env
            env["VIRTUAL_ENV"] = place
            env["PATH"] = place + "/bin:" + env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
            return ""
        message = self.output.last_line().replace("[stoker] ", "", 1)
        return message or "%s could not be installed" % self._launch.requirements

    def _hold(self, place: str) -> bool:
        """Keep it from being removed, for as long as we live: what removes it asks for this lock."""
        import fcntl

        from .environments import MARK

        try:
            fd = os.open(place + "/" + MARK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # a file system that can't lock keeps it for an hour
        return True
