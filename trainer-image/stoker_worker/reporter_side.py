"""A worker's reports while it lives and when it ends: its log, the copy on stdout, its progress; and what comes back.

Owns the log, the copy's turn in the loop's poll and the reporter, started only when there is something to report.
Never decides anything: the loop (`supervisor`) asks what the api wants. Used by the loop's thread alone, but for
`_on_stop`, `_on_sessions` and `_on_stall`, which the reporter's calls.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

from .folder import LOG_FILE, SESSIONS_FOLDER, Launch
from .log_times import SUFFIX, LogTimes
from .output import Log
from .steps import Steps

MYPY = False
if MYPY:
    from typing import Any

    from .pod import PodOrder
    from .reporting import Reporter
    from .spool import Spool
    from .wake_pipe import WakePipe

LAST_REPORT_S = 2.0
LAST_SHIPPING_S = 30.0
SHIPPING_PATIENCE_S = 5.0
"""In a pod, after the end: how long the api may take log, and how long it may take none."""
LAST_MIRROR_S = 2.0
"""How long stdout may take for what it has not taken yet."""
KUBELET_MARGIN_S = 5.0
"""What is kept of the time between the kubelet's SIGTERM and its SIGKILL for our own last reports."""
REPORT_EVERY_S = 1.0
ASK_AFTER_S = 5.0
"""In a pod, from here on the api is asked whether to stop, also by a worker with nothing else to report."""


class ReporterSide:
    def __init__(self, folder: str, launch: Launch, pod: PodOrder | None, poll: select.poll, wake: WakePipe) -> None:
        """`pod`: what belongs to a pod; None where the node agent takes care of the log."""
        self._folder = folder
        self._launch = launch
        self._pod = pod
        self._poll = poll
        self._wake = wake
        self._spool: Spool | None = None
        if pod is None:
            self.log = _log(folder, launch.log_bytes)
        else:
            self.log = self._spool = _spool(folder, pod)
        self._mirror_watched = False
        self._reporter: Reporter | None = None
        self._ask_from = time.monotonic() + ASK_AFTER_S
        self.steps = Steps(folder)
        self._states: dict[str, Any] = {}
        """What is reported beside the newest progress, again and again: `held`, `stalled`."""
        self._learns_stall = launch.stall_s > 0 and launch.worker > 0
        self.stalled: tuple[float, str] | None = None
        """When the gang's ranks are to be ended for making no progress, by the monotonic clock, and why."""
        self._session_ids: list[str] = []
        self.why_stop = ""
        """Why the api wants us to stop."""

    def due(self, now: float) -> list[float]:
        """When `turn` has something to do, whatever else happens."""
        due = [now + REPORT_EVERY_S] if self._launch.report else []
        return [*due, now + 1.0] if self.log.lossy else due

    def stdout_ready(self) -> None:
        self._mirror(flush=True)

    def turn(self, now: float) -> None:
        """After each wait of the loop."""
        if self.log.lossy:
            self.log.report_loss()
        if self._spool is not None:
            self._mirror()
            if self._launch.report and self.log.size():
                self._reporting().grown()
        if self._launch.report:
            self._report()
            if (self._pod is not None or self._learns_stall) and now > self._ask_from:
                self._reporting()
        elif self._launch.stall_s > 0 or self._launch.target is not None:
            self.steps.look()

    def session_ids(self) -> list[str]:
        """The sessions that users have asked for since the last call; some perhaps again."""
        if not self._launch.report:
            return []
        if self._pod is None:
            return _take_names(self._folder + "/" + SESSIONS_FOLDER)
        ids: list[str] = []
        while self._session_ids:
            ids.append(self._session_ids.pop())
        return ids

    def add(self, **states: dict[str, Any]) -> None:
        """Report that the worker is held or stalled, beside its newest progress, until `finish`."""
        self._states.update(states)
        if self._launch.report:
            self._reporting().offer(self._newest())

    def finish(self, stop_at: float | None) -> None:
        """Bring out what is not out yet. `stop_at`: since when the kubelet waits for us, if it does."""
        if self._launch.report:
            if self._states:
                self._states = {}
                self._reporting().offer(self._newest())
            self._report()
        if self._spool is not None:
            self._ship_the_rest(self._spool, stop_at)
        elif self._reporter is not None:
            self._reporter.finish(LAST_REPORT_S, LAST_REPORT_S)

    def _newest(self) -> dict[str, Any]:
        """The newest progress as of now: one with an older time would be taken for a stale one."""
        self.steps.look()
        progress = self.steps.progress or {}
        now = time.time()
        return dict(progress, at=max(now, progress.get("at", now) + 0.001), **self._states)

    def _mirror(self, flush: bool = False) -> None:
        """Have stdout watched while something waits for it."""
        assert self._spool is not None
        mirror = self._spool.mirror
        if flush:
            mirror.flush()
        if mirror.waiting and not self._mirror_watched:
            self._poll.register(mirror.fd, select.POLLOUT)
        elif not mirror.waiting and self._mirror_watched:
            self._poll.unregister(mirror.fd)
        self._mirror_watched = mirror.waiting

    def _report(self) -> None:
        """Hand the newest progress to the reporter, which may take its time."""
        if self._states or not self.steps.look():
            return
        assert self.steps.progress is not None
        self._reporting().offer(self.steps.progress)

    def _reporting(self) -> Reporter:
        if self._reporter is None:
            from .reporting import Reporter  # http.client costs 40 ms: only for workers that report

            # The node agent is beside its workers and stops them itself; the api of one machine leaves files.
            on_stop = None if self._pod is None else self._on_stop
            on_stall = self._on_stall if self._learns_stall else None
            self._reporter = Reporter(self._folder, self._launch, self._spool, on_stop, self._on_sessions, on_stall)
        return self._reporter

    def _on_stop(self, why: str) -> None:
        """From here on it is a stop signal like any other."""
        self.why_stop = why
        os.kill(os.getpid(), _signal.SIGTERM)

    def _on_sessions(self, ids: list[str]) -> None:
        self._session_ids.extend(ids)
        self._wake.poke()

    def _on_stall(self, in_s: float, why: str) -> None:
        if self.stalled is None:
            self.stalled = (time.monotonic() + in_s, why)
            self._wake.poke()

    def _ship_the_rest(self, spool: Spool, stop_at: float | None) -> None:
        """What is left for stdout and for the api, for as long as each goes on taking it and the kubelet lets us."""
        began = time.monotonic()
        limit_s = LAST_SHIPPING_S
        if stop_at is not None and self._pod is not None and self._pod.termination_grace_s:
            kubelet_kills_at = stop_at + self._pod.termination_grace_s
            limit_s = max(0.5, min(limit_s, kubelet_kills_at - KUBELET_MARGIN_S / 2 - began))
        reporter = self._reporting() if self._launch.report and spool.size() else self._reporter
        if reporter is not None:
            reporter.grown()
        self._mirror()
        while spool.mirror.waiting and time.monotonic() < began + min(limit_s, LAST_MIRROR_S):
            for fd, _event in self._poll.poll(100):
                if fd == self._wake.fd:
                    self._wake.drain()
                elif fd == spool.mirror.fd:
                    self._mirror(flush=True)
        if reporter is not None:
            reporter.finish(max(0.5, began + limit_s - time.monotonic()), SHIPPING_PATIENCE_S)


def _log(folder: str, limit_bytes: int) -> Log:
    path = folder + "/" + LOG_FILE
    if limit_bytes:
        from .bounded_log import BoundedLog

        why = "this log has reached its limit of %d bytes (`stoker up --log-bytes`)" % limit_bytes
        log: Log = BoundedLog(path, limit_bytes, why)
    else:
        log = Log(path)
    try:
        log.times = LogTimes(path + SUFFIX)
    except OSError:
        pass  # the log is worth more than its times
    return log


def _spool(folder: str, pod: PodOrder) -> Spool:
    from .mirror import Mirror
    from .spool import Spool

    return Spool(folder + "/" + LOG_FILE, Mirror(1), pod.spool_bytes, pod.launch.report is not None)


def _take_names(folder: str) -> list[str]:
    """The files of a folder, which are removed: each names a session, once."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            os.unlink(folder + "/" + name)
        except OSError:
            pass
    return names
