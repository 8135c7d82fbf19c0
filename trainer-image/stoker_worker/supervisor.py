"""The supervisor's life: start the ranks, carry their output, stop them when told, reap everything, say how it ended.

Owns the one loop and its deadlines. Called by `entry` with the list that the signal handlers append to. Everything
before the exit record is written happens on one thread; nothing here polls while nothing happens.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

from .ending import STOPPED, Ending
from .family import descendants, send, send_group
from .folder import (
    LOG_FILE,
    PROGRESS_FILE,
    Launch,
    read_progress,
    reserve_exit,
    write_exit,
    write_started,
    write_termination,
)
from .lean import PR_SET_CHILD_SUBREAPER, prctl
from .output import HOLD_S, Log, RankOutput
from .ranks import NOT_STARTABLE, CannotStart, start_rank

MYPY = False
if MYPY:
    from .pod import PodOrder
    from .reporting import Reporter
    from .spool import Spool

FAILURE_GRACE_S = 5.0
"""What the other ranks get after the first failure: TERM, then KILL."""
LEFTOVER_GRACE_S = 2.0
"""What is left when all ranks are done gets TERM, then KILL."""
KILL_AGAIN_S = 0.05
LAST_REPORT_S = 2.0
LAST_SHIPPING_S = 30.0
SHIPPING_PATIENCE_S = 5.0
"""In a pod, after the end: how long the api may take log, and how long it may take none."""
LAST_MIRROR_S = 2.0
"""How long stdout may take for what it has not taken yet."""
KUBELET_MARGIN_S = 5.0
"""The ranks are killed this long before the kubelet kills us, so that the exit record is written."""
REPORT_EVERY_S = 1.0
ASK_AFTER_S = 5.0
"""In a pod, from here on the api is asked whether to stop, also by a worker with nothing else to report."""

BROKEN = 70  # EX_SOFTWARE: no order, no folder, or a fault of our own; there is no exit record beside it


class Supervisor:
    """One worker. `run` is called once."""

    def __init__(
        self, folder: str, launch: Launch, stop_requests: list[int], ready_fd: int, pod: PodOrder | None = None
    ) -> None:
        """`pod`: what belongs to a pod; None where the node agent takes care of log and record."""
        self._folder = folder
        self._launch = launch
        self._stop_requests = stop_requests
        self._ready_fd = ready_fd
        self._pod = pod
        self._spool: Spool | None = None
        if pod is None:
            self._log = Log(folder + "/" + LOG_FILE)
        else:
            self._log = self._spool = _spool(folder, pod)
        self._mirror_watched = False
        self._ending = Ending(launch)
        self._outputs: list[RankOutput] = []
        self._by_fd: dict[int, RankOutput] = {}
        self._live: dict[int, int] = {}  # pid -> rank's number in this worker
        self._told: set[int] = set()  # process groups that got the stop signal with their rank
        self._childless = True
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._leftovers_kill_at: float | None = None
        self._termed: set[int] = set()
        self._ask_from = time.monotonic() + ASK_AFTER_S
        self._told_why = ""
        """Why the api wants us to stop."""
        self._reporter: Reporter | None = None
        self._progress_seen: object = None
        self._poll = select.poll()
        self._wake_fd, wake_w = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(wake_w, False)
        _signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self._poll.register(self._wake_fd, select.POLLIN)

    def run(self) -> int:
        """The worker's exit code, when all its processes are gone and the exit record stands. Raises: OSError."""
        reserve_exit(self._folder)
        write_started(self._folder, self._ending.started_at)
        if self._ready_fd >= 0:
            try:
                os.write(self._ready_fd, b"S")
            except OSError:
                pass  # whoever wanted to know is gone; the next one reads started.json
            os.close(self._ready_fd)
        if os.getpid() != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._start_ranks()
        while True:
            self._reap()
            now = time.monotonic()
            if self._stop_requests and self._stop_at is None:
                self._begin_stop(now)
            if not self._live and self._childless:
                break
            self._enforce(now)
            self._wait(now)
        return self._finish()

    def kill_all(self) -> None:
        """Kill every descendant, for good."""
        self._live.clear()
        while not self._childless:
            for member in descendants():
                send(member.pid, _signal.SIGKILL)
            time.sleep(KILL_AGAIN_S)
            self._reap()

    def _start_ranks(self) -> None:
        launch = self._launch
        if self._pod is not None and self._pod.refusal:
            self._log.say(self._pod.refusal)
            self._ending.rank_ended(0, NOT_STARTABLE, None, self._pod.refusal)
            return
        for local_rank in range(launch.ranks):
            if self._stop_requests or self._ending.failed:
                break
            output = RankOutput(launch.worker * launch.ranks + local_rank, self._log, launch.ranks > 1)
            self._outputs.append(output)
            try:
                pid = start_rank(launch, local_rank, output.write_fd)
            except CannotStart as error:
                self._log.say(str(error))
                self._ending.rank_ended(local_rank, error.exit_code, None, str(error))
                self._end_others(time.monotonic(), FAILURE_GRACE_S)
            else:
                self._live[pid] = local_rank
                self._childless = False
                self._by_fd[output.read_fd] = output
                self._poll.register(output.read_fd, select.POLLIN)
            finally:
                output.close_write()

    def _reap(self) -> None:
        """Take every child that ended; orphans of the ranks come here too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            self._childless = False
            if pid == 0:
                return
            local_rank = self._live.pop(pid, None)
            if local_rank is not None:
                self._rank_ended(local_rank, status)

    def _rank_ended(self, local_rank: int, status: int) -> None:
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if signum is None else None
        output = self._outputs[local_rank]
        if code != 0:
            while output.open and output.pump(time.monotonic()):  # its last line may still be in the pipe
                pass
        first = not self._ending.failed
        self._ending.rank_ended(local_rank, code, signum, output.last_line() if code != 0 else "")
        if first and self._ending.failed and self._live and self._stop_at is None:
            if code == STOPPED:  # told by its gang, not by us: its neighbours are saving, leave them be
                self._kill_at = time.monotonic() + self._launch.grace_s
            else:
                self._end_others(time.monotonic(), FAILURE_GRACE_S)

    def _end_others(self, now: float, grace_s: float) -> None:
        for pid in self._live:
            send_group(pid, _signal.SIGTERM)
        self._kill_at = now + grace_s

    def _begin_stop(self, now: float) -> None:
        """The first stop request counts; later ones change nothing."""
        self._stop_at = now
        self._ending.stop_asked()
        if self._told_why:
            self._log.say("asked to stop by the api: " + self._told_why)
        for pid in self._live:
            send_group(pid, _signal.SIGTERM)
            self._told.add(pid)
        grace_s = self._launch.grace_s
        if self._pod is not None and self._pod.termination_grace_s:
            kubelets_s = self._pod.termination_grace_s
            grace_s = min(grace_s, max(kubelets_s - KUBELET_MARGIN_S, kubelets_s / 2))
        stop_kill_at = now + grace_s
        self._kill_at = stop_kill_at if self._kill_at is None else min(self._kill_at, stop_kill_at)

    def _enforce(self, now: float) -> None:
        """Kill whoever outlived a deadline."""
        if self._live:
            if self._kill_at is not None and now >= self._kill_at:
                if self._stop_at is not None:
                    self._ending.grace_exceeded = True
                self._kill_family()
        else:
            self._clear_leftovers(now)

    def _clear_leftovers(self, now: float) -> None:
        """All ranks are done, something of theirs is not: a daemon, a data loader's child.

        Whoever shares a rank's process group got the stop signal with it and may be saving (`sh -c "python …"`): it
        has the rest of the grace. All others get TERM and a short while.
        """
        saving = self._kill_at is not None and now < self._kill_at
        if self._leftovers_kill_at is None:
            self._leftovers_kill_at = now + LEFTOVER_GRACE_S
        expired = now >= self._leftovers_kill_at
        for member in descendants():
            if saving and member.group in self._told:
                continue
            if expired:
                send(member.pid, _signal.SIGKILL)
            elif member.pid not in self._termed:
                self._termed.add(member.pid)
                send(member.pid, _signal.SIGTERM)

    def _kill_family(self) -> None:
        for pid in self._live:
            send_group(pid, _signal.SIGKILL)
        for member in descendants():
            send(member.pid, _signal.SIGKILL)

    def _wait(self, now: float) -> None:
        """Sleep until something happens or is due, and carry what the ranks printed."""
        due = [output.held_since + HOLD_S for output in self._outputs if output.held_since is not None]
        if self._live:
            if self._kill_at is not None:
                due.append(max(self._kill_at, now + KILL_AGAIN_S))
        else:
            due.append(now + KILL_AGAIN_S)
        if self._log.lossy:
            due.append(now + 1.0)
        if self._launch.report:
            due.append(now + REPORT_EVERY_S)
        timeout_ms = None if not due else max(0.0, (min(due) - now) * 1000 + 1)
        for fd, _event in self._poll.poll(timeout_ms):
            if fd == self._wake_fd:
                _drain_wakeups(fd)
            elif fd not in self._by_fd:
                self._mirror(flush=True)
            else:
                output = self._by_fd[fd]
                output.pump(time.monotonic())
                if not output.open:
                    self._poll.unregister(fd)
                    del self._by_fd[fd]
        now = time.monotonic()
        for output in self._outputs:
            if output.held_since is not None and now >= output.held_since + HOLD_S:
                output.flush()
        if self._log.lossy:
            self._log.confess()
        if self._spool is not None:
            self._mirror()
            if self._launch.report and self._log.size():
                self._reporting().grown()
        if self._launch.report:
            self._report()
            if self._pod is not None and now > self._ask_from:
                self._reporting()

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
        seen = _stamp(self._folder)
        if seen is None or seen == self._progress_seen:
            return
        progress = read_progress(self._folder)
        if progress is None:
            return
        self._progress_seen = seen
        self._reporting().offer(progress)

    def _reporting(self) -> Reporter:
        if self._reporter is None:
            from .reporting import Reporter  # http.client costs 40 ms: only for workers that have something to say

            # The node agent is beside its workers and stops them itself.
            on_stop = None if self._pod is None else self._told_to_stop
            self._reporter = Reporter(self._folder, self._launch, self._spool, on_stop)
        return self._reporter

    def _told_to_stop(self, why: str) -> None:
        """Called by the reporter's thread: from here on it is a stop signal like any other."""
        self._told_why = why
        os.kill(os.getpid(), _signal.SIGTERM)

    def _finish(self) -> int:
        for output in self._outputs:
            # Nobody of ours is left to write; a stranger that was handed the pipe does not hold us up.
            for _turn in range(64):
                if not (output.open and output.pump(time.monotonic())):
                    break
            output.close()
        self._log.finish()
        record = self._ending.record(read_progress(self._folder), self._log.size())
        stands = write_exit(self._folder, record)
        if self._pod is not None:
            stands = write_termination(self._pod.termination_log, record) or stands
        if not stands:
            self._log.say("the exit record could not be written: the disk takes nothing")
        if self._launch.report:
            self._report()
        if self._spool is not None:
            self._ship_the_rest(self._spool)
        elif self._reporter is not None:
            self._reporter.finish(LAST_REPORT_S, LAST_REPORT_S)
        return int(record["exitCode"]) if stands else BROKEN

    def _ship_the_rest(self, spool: Spool) -> None:
        """What is left for stdout and for the api, for as long as each goes on taking it and the kubelet lets us."""
        began = time.monotonic()
        limit_s = LAST_SHIPPING_S
        if self._stop_at is not None and self._pod is not None and self._pod.termination_grace_s:
            kubelet_kills_at = self._stop_at + self._pod.termination_grace_s
            limit_s = max(0.5, min(limit_s, kubelet_kills_at - KUBELET_MARGIN_S / 2 - began))
        reporter = self._reporting() if self._launch.report and spool.size() else self._reporter
        if reporter is not None:
            reporter.grown()
        self._mirror()
        while spool.mirror.waiting and time.monotonic() < began + min(limit_s, LAST_MIRROR_S):
            for fd, _event in self._poll.poll(100):
                if fd == self._wake_fd:
                    _drain_wakeups(fd)
                elif fd == spool.mirror.fd:
                    self._mirror(flush=True)
        if reporter is not None:
            reporter.finish(max(0.5, began + limit_s - time.monotonic()), SHIPPING_PATIENCE_S)


def _spool(folder: str, pod: PodOrder) -> Spool:
    from .mirror import Mirror
    from .spool import Spool

    return Spool(folder + "/" + LOG_FILE, Mirror(1), pod.spool_bytes, pod.launch.report is not None)


def _stamp(folder: str) -> object:
    try:
        stat = os.stat(folder + "/" + PROGRESS_FILE)
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size)


def _drain_wakeups(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
