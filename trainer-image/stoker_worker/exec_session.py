"""`stoker exec`: a command in the worker, and its descriptors carried over a session.

Owns the command's process, its pseudo-terminal or pipes, and what was sent for its standard input and not taken yet.
Never touches the WebSocket but by the `send` it is given. Called by the session's loop (`session`).

Messages: the first byte is the channel, the rest its content (`docs/worker-contract.md`, Sessions).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import select
import struct
import termios

from .descendants import send_group
from .fork_exec import NOT_FOUND, CannotFork, Command, find_command, start
from .light_stdlib import parse_json, render_json

MYPY = False
if MYPY:
    from typing import Any, Callable

STDIN, STDOUT, STDERR, RESIZE, END_OF_STDIN, EXIT = range(6)
READ_BYTES = (1 << 16) - 1  # with the channel's byte: 64 KiB
STDIN_BYTES = 1 << 22
"""Once so much waits for the command, no more is taken: pings wait too, so it is generous."""
LAST_S = 1.2
"""What the command gets when the worker ends, before its exit is reported as it stands."""
HANGUP_S = 2.0
"""What the command gets when the caller has left: SIGHUP, then SIGKILL."""
ENDED = "the worker has ended"


class Exec:
    def __init__(self, command: Command, request: dict[str, Any], send: Callable[[bytes], None]) -> None:
        """Raises: OSError (no terminal to be had), ValueError (a request that is none)."""
        self._send = send
        self._waiting = bytearray()
        self._waiting_ends = False
        """Nothing comes behind what waits."""
        self._stdin = -1
        self._terminal = bool(request.get("tty"))
        self._outputs: dict[int, int] = {}  # descriptor -> channel
        self._exit: tuple[int, str] | None = None
        self._kill_at: float | None = None
        self._worker_ends = False
        self._pid = -1
        self.done = False
        if self._terminal:
            self._open_terminal(command, request)
        else:
            self._open_pipes(command)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= STDIN_BYTES

    def message(self, data: bytes) -> None:
        channel, content = data[0], data[1:]
        if channel == STDIN and self._stdin >= 0:
            self._waiting += content
        elif channel == END_OF_STDIN and self._stdin >= 0:
            if self._terminal:
                self._waiting += termios.tcgetattr(self._stdin)[6][termios.VEOF]
            else:
                self._waiting_ends = True
                self._write()
        elif channel == RESIZE and self._terminal and self._stdin >= 0:
            try:
                size = parse_json(content.decode("utf-8", "replace"))
                _resize(self._stdin, size if isinstance(size, dict) else {})
            except (ValueError, OSError):
                pass

    def interests(self, room: bool) -> list[tuple[int, int]]:
        """Descriptors and the events wanted of them; `room`: whether more may be sent."""
        wanted = dict.fromkeys(self._outputs, select.POLLIN) if room else {}
        if self._waiting and self._stdin >= 0:
            wanted[self._stdin] = wanted.get(self._stdin, 0) | select.POLLOUT
        return list(wanted.items())

    def ready(self, fd: int, events: int) -> None:
        if fd == self._stdin and events & (select.POLLOUT | select.POLLERR):
            self._write()
        if fd in self._outputs and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._read(fd)

    def turn(self, now: float, room: Callable[[], bool]) -> None:
        """Reap, and once the command has ended bring out what it had still written, then its exit."""
        self._reap()
        if self._exit is None and self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if self._worker_ends:
                self._exit = (128 + _signal.SIGKILL, ENDED)
            else:
                send_group(self._pid, _signal.SIGKILL)
        if self._exit is None or self.done:
            return
        for fd in list(self._outputs):
            # What it wrote is there to be read at once; who else holds the pipe is not waited for.
            while fd in self._outputs and room():
                if not self._read(fd):
                    self._outputs.pop(fd, None)
        if not self._outputs:
            code, message = self._exit
            self._send(bytes((EXIT,)) + render_json({"exitCode": code, "message": message}).encode())
            self.done = True

    def due(self) -> float | None:
        return self._kill_at if self._exit is None else None

    def stop(self, now: float) -> None:
        """The worker ends; its supervisor has signalled the command too, but a shell at a terminal ignores SIGTERM."""
        self._worker_ends = True
        self._hang_up(now + LAST_S, self._terminal)

    def leave(self, now: float) -> None:
        """The caller has left."""
        for fd in self._outputs:
            if fd != self._stdin:
                os.close(fd)
        self._outputs.clear()
        self._close_stdin()
        self._hang_up(now + HANGUP_S)

    def _hang_up(self, kill_at: float, signal: bool = True) -> None:
        if self._exit is None:
            if signal:
                send_group(self._pid, _signal.SIGHUP)
                send_group(self._pid, _signal.SIGCONT)
            self._kill_at = kill_at

    def _open_terminal(self, command: Command, request: dict[str, Any]) -> None:
        ours, theirs = os.openpty()
        try:
            _resize(ours, request)
            os.set_blocking(ours, False)
            if self._begin(command, (theirs, theirs, theirs)):
                self._stdin = ours
                self._outputs[ours] = STDOUT
        finally:
            os.close(theirs)
            if self._stdin < 0:
                os.close(ours)

    def _open_pipes(self, command: Command) -> None:
        stdin_r, stdin_w = os.pipe()
        stdout_r, stdout_w = os.pipe()
        stderr_r, stderr_w = os.pipe()
        began = False
        try:
            for fd in (stdin_w, stdout_r, stderr_r):
                os.set_blocking(fd, False)
            began = self._begin(command, (stdin_r, stdout_w, stderr_w))
        finally:
            for fd in (
                (stdin_r, stdout_w, stderr_w) if began else (stdin_r, stdout_w, stderr_w, stdin_w, stdout_r, stderr_r)
            ):
                os.close(fd)
        if began:
            self._stdin = stdin_w
            self._outputs = {stdout_r: STDOUT, stderr_r: STDERR}

    def _begin(self, command: Command, stdio: tuple[int, int, int]) -> bool:
        """Whether the command runs; if not, why is its exit, as a shell would have it."""
        try:
            self._pid = start(command, stdio, terminal=self._terminal)
        except CannotFork as error:
            self._exit = (error.exit_code, str(error))
            return False
        return True

    def _read(self, fd: int) -> bool:
        """Carry one piece; whether there may be more at once."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process holds the terminal's other side
            data = b""
        if data:
            self._send(bytes((self._outputs[fd],)) + data)
            return True
        del self._outputs[fd]
        if fd != self._stdin:
            os.close(fd)
        return False

    def _write(self) -> None:
        try:
            while self._waiting and self._stdin >= 0:
                del self._waiting[: os.write(self._stdin, self._waiting[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # EPIPE: it does not want to read any more
            self._close_stdin()
        if self._waiting_ends:
            self._close_stdin()

    def _close_stdin(self) -> None:
        self._waiting.clear()
        fd, self._stdin = self._stdin, -1
        if fd >= 0 and fd not in self._outputs:
            os.close(fd)

    def _reap(self) -> None:
        """Also what the command left to us; we are its orphans' parent while we live."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid and self._exit is None:
                message = ENDED if self._worker_ends else ""
                if os.WIFSIGNALED(status):
                    signum = os.WTERMSIG(status)
                    self._exit = (128 + signum, message or "ended by signal %d" % signum)
                else:
                    self._exit = (os.WEXITSTATUS(status), message)


def command_of(request: dict[str, Any], env: dict[str, str], working_dir: str) -> Command:
    """What is to be run: the request's arguments, or the worker's shell. Raises: ValueError, CannotFork."""
    argv = request.get("argv") or []
    if not isinstance(argv, list) or not all(isinstance(one, str) and "\0" not in one for one in argv):
        raise ValueError("argv must be a list of strings")
    if argv and not argv[0]:
        raise ValueError("argv names no program")
    env = dict(env)
    term = request.get("term")
    if isinstance(term, str) and 0 < len(term) <= 64 and term.isprintable():
        env["TERM"] = term
    if not (os.path.isdir(working_dir) and os.access(working_dir, os.X_OK)):
        working_dir = "/"  # it may be what is to be looked into
    return Command([str(word) for word in argv] or [_shell(env)], env, working_dir)


def _shell(env: dict[str, str]) -> str:
    for name in (env.get("SHELL", ""), "bash", "sh", "/bin/bash", "/bin/sh"):
        if not name or name.endswith(("nologin", "false")):
            continue
        try:
            path = find_command(name, env)
        except CannotFork:
            continue
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise CannotFork(NOT_FOUND, "this worker has no shell (no $SHELL, bash or sh); name a command")


def _resize(fd: int, size: dict[str, Any]) -> None:
    """Raises: OSError."""
    sides = [size.get(name) for name in ("rows", "columns")]
    rows, columns = (side if isinstance(side, int) and 0 < side < 1 << 16 else 0 for side in sides)
    if rows and columns:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
