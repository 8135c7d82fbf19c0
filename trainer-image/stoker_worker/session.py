"""One session (`stoker exec`, `port-forward`, the job's files): the process that connects to the api and carries it.

Owns the process's loop: the WebSocket on one side, a service (`exec_session.Exec`, `forward.Forward`,
`files_session.Files`) on the other.
When one side does not take, nothing is read from the other. Started by the supervisor (`sessions`) as `--session <id>
<folder> <supervisor's pid> [why not]`, with the command's environment. Never writes into the worker's folder.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

from .exec_session import Exec, command_of
from .folder import CODE_FOLDER, LAUNCH_FILE, Launch, read_launch
from .fork_exec import CannotFork
from .forward import Forward
from .light_stdlib import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, parse_json, prctl, render_json
from .wake_pipe import WakePipe
from .websocket import GOING_AWAY, NORMAL, PROTOCOL_ERROR, TEXT, HandshakeRefused, WebSocket, WebSocketLost, connect

MYPY = False
if MYPY:
    from typing import Any, Callable, Union

    from .files_session import Files

    Service = Union[Exec, Files, Forward]

SESSION_PATH = "/v1/report/sessions/"
SUBPROTOCOL = "v1.session.stoker.dev"
CONNECT_S = 10.0
REQUEST_S = 30.0
QUEUED_BYTES = 1 << 18
"""Once so much waits for the WebSocket, nothing more is read from the other side."""
CLOSE_S = 5.0
LAST_CLOSE_S = 0.7
"""For the close handshake, once the worker ends."""


def main(argv: list[str], stop_requests: list[int]) -> int:
    """Serve one session to its end. Returns: the process's exit code."""
    session_id, folder, parent = argv[:3]
    os.setsid()
    prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
    # What the command leaves behind stays below us while we live: that is how the supervisor knows it from its ranks'.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != int(parent):
        return 1
    try:
        launch = read_launch(folder + "/" + LAUNCH_FILE)
        target = launch.report or {}
        wake = WakePipe()
        socket = connect(target, SESSION_PATH + session_id, SUBPROTOCOL, CONNECT_S)
    except (OSError, HandshakeRefused, ValueError, KeyError) as error:
        sys.stderr.write("[stoker] a session could not be joined: %s\n" % (str(error) or repr(error)))
        return 1
    session = WorkerSession(socket, wake, lambda request: _serve(request, folder, launch, socket), stop_requests)
    if len(argv) > 3:
        session.refuse(argv[3])
    session.run()
    return 0


def _serve(request: dict[str, Any], folder: str, launch: Launch, socket: WebSocket) -> Service:
    """Raises: ValueError, OSError, CannotFork."""
    if request.get("kind") == "exec":
        return Exec(command_of(request, dict(os.environ), launch.working_dir), request, socket.send)
    if request.get("kind") == "files":
        from .files_session import Files
        from .result_files import ResultFiles

        output = os.environ.get("STOKER_OUTPUT_DIR") or launch.env["STOKER_OUTPUT_DIR"]
        return Files(ResultFiles(output, {launch.worker: folder + "/" + CODE_FOLDER}), socket.send)
    port = request.get("port")
    if request.get("kind") == "forward" and isinstance(port, int) and 0 < port < 1 << 16:
        return Forward(port, socket.send)
    raise ValueError("this worker knows no such kind of session")


class WorkerSession:
    def __init__(
        self, socket: WebSocket, wake: WakePipe, serve: Callable[[dict[str, Any]], Service], stop_requests: list[int]
    ) -> None:
        self._socket = socket
        self._wake = wake
        self._serve = serve
        self._stop_requests = stop_requests
        self._stopped = False
        self._refusal = ""
        self._service: Service | None = None
        self._lost = False
        self._closing = False
        self._over_at: float | None = time.monotonic() + REQUEST_S

    def refuse(self, why: str) -> None:
        """Whatever is asked for, answer that it can't be."""
        self._refusal = why

    def run(self) -> None:
        while self.turn():
            pass
        self._socket.drop()

    def turn(self, longest_s: float | None = None) -> bool:
        """Wait for something and do it; whether there is more to do."""
        now = time.monotonic()
        self._see_stop(now)
        if self._service is not None:
            self._service.turn(now, self._room)
            if self._service.done:
                if self._lost:
                    return False
                self._close(now)
        if not self._lost:
            self._try(self._socket.flush)
        if self._socket.closed and not self._socket.queued:
            self._leave(now)
        if self._lost and (self._service is None or self._service.done):
            return False
        if self._over_at is not None and now >= self._over_at:
            if self._closing or self._lost:
                return False
            self._close(now, PROTOCOL_ERROR, "no request came")
        self._wait(now, longest_s)
        return True

    def _room(self) -> bool:
        return self._socket.queued < QUEUED_BYTES

    def _wait(self, now: float, longest_s: float | None) -> None:
        service = self._service
        poll = select.poll()
        poll.register(self._wake.fd, select.POLLIN)
        taking = not self._lost and not (service is not None and service.full and not self._closing)
        if not self._lost:
            events = (select.POLLIN if taking else select.POLLRDHUP) | (select.POLLOUT if self._socket.queued else 0)
            poll.register(self._socket.fileno(), events)
        if service is not None:
            for fd, events in service.interests(self._room() and not self._lost):
                poll.register(fd, events)
        due = [at - now for at in (self._over_at, service.due() if service is not None else None) if at is not None]
        if longest_s is not None:
            due.append(longest_s)
        if taking and self._socket.readable:
            due.append(0.0)
        ready = poll.poll(max(0.0, min(due)) * 1000 + 1 if due else None)
        for fd, events in ready:
            if fd == self._wake.fd:
                self._wake.drain()
            elif not self._lost and fd == self._socket.fileno():
                if not taking and events & (select.POLLHUP | select.POLLERR | select.POLLRDHUP):
                    self._leave(now)
            elif service is not None:
                service.ready(fd, events)
        if taking and (self._socket.readable or any(fd == self._socket.fileno() for fd, _ in ready)):
            self._try(self._receive)

    def _receive(self) -> None:
        for kind, data in self._socket.receive():
            if self._closing or self._lost:
                return
            if self._service is None:
                self._begin(kind, data)
            elif kind != TEXT and data:
                self._service.message(data)

    def _begin(self, kind: int, data: bytes) -> None:
        """The first message says what is wanted."""
        self._over_at = None
        why = self._refusal
        try:
            request = parse_json(data.decode("utf-8", "replace")) if kind == TEXT else None
            if not isinstance(request, dict):
                raise ValueError("the first message is no request")
            if not why:
                self._service = self._serve(request)
        except (OSError, ValueError, CannotFork) as error:
            why = str(error)
        if why:
            self._answer({"ready": False, "message": why})
            self._close(time.monotonic())
        else:
            self._answer({"ready": True})

    def _answer(self, document: dict[str, Any]) -> None:
        self._socket.send(render_json(document).encode(), TEXT)

    def _see_stop(self, now: float) -> None:
        if self._stop_requests and not self._stopped:
            self._stopped = True
            if self._service is None:
                self._close(now, GOING_AWAY, "the worker has ended")
            else:
                self._service.stop(now)
            if self._closing:
                self._over_at = now + LAST_CLOSE_S

    def _close(self, now: float, code: int = NORMAL, reason: str = "") -> None:
        if not self._closing:
            self._closing = True
            self._socket.close(code, reason)
            self._over_at = now + (LAST_CLOSE_S if self._stopped else CLOSE_S)

    def _leave(self, now: float) -> None:
        """The other side does not listen any more."""
        if not self._lost:
            self._lost = True
            self._over_at = None
            if self._service is not None and not self._service.done:
                self._service.leave(now)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except WebSocketLost:
            self._leave(time.monotonic())
