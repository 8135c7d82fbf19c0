"""The supervisor's life: fetch the code, start the ranks, carry their output, stop them on request, hold a failed
worker for a look inside, reap everything, keep what was written beside the code, report how it ended.

Owns the one loop and its deadlines. Called by `entry` with the list that the signal handlers append to. Everything
before the exit record is written happens on one thread; nothing here polls while nothing happens.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

from .descendants import descendants, send, send_group
from .ending import STALLED, STOPPED, Ending
from .failure_hold import FailureHold
from .folder import Launch, read_progress, reserve_exit, write_exit, write_started, write_termination
from .fork_exec import NOT_STARTABLE, CannotFork
from .light_stdlib import PR_SET_CHILD_SUBREAPER, prctl
from .output import HOLD_S, RankOutput
from .ranks import start_rank
from .reporter_side import KUBELET_MARGIN_S, ReporterSide
from .wake_pipe import WakePipe

MYPY = False
if MYPY:
    from .installing import Installing
    from .masking import Masking
    from .pod import PodOrder
    from .sessions import WorkerSessions
    from .stall import Stall
    from .usercode import CodeFetch

FAILURE_GRACE_S = 5.0
"""What the other ranks get after the first failure: TERM, then KILL."""
LEFTOVER_GRACE_S = 2.0
"""What is left when all ranks are done gets TERM, then KILL."""
KILL_AGAIN_S = 0.05
LONGEST_WAIT_S = 3600.0
LOOK_EVERY_S = 1.0
"""For the target of a command."""

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
        self._poll = select.poll()
        self._wake = WakePipe()
        self._poll.register(self._wake.fd, select.POLLIN)
        self._reporter_side = ReporterSide(folder, launch, pod, self._poll, self._wake)
        self._log = self._reporter_side.log
        self._ending = Ending(launch)
        self._fetch: CodeFetch | None = None
        """The user's code on its way; nothing is started before it is there."""
        self._installing: Installing | None = None
        """The job's own packages on their way; after the code, before the ranks."""
        self._outputs: list[RankOutput] = []
        self._by_fd: dict[int, RankOutput] = {}
        self._live: dict[int, int] = {}  # pid -> rank's number in this worker
        self._signalled: set[int] = set()  # process groups that got the stop signal with their rank
        self._childless = True
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._leftovers_kill_at: float | None = None
        self._termed: set[int] = set()
        self._hold = FailureHold(launch)
        self._sessions: WorkerSessions | None = None
        self._killed_before = self._memory_kills()
        self._stall: Stall | None = None
        if launch.stall_s > 0:
            from .stall import Stall

            self._stall = Stall(folder, launch, self._reporter_side.steps, self._log)

    def run(self) -> int:
        """The worker's exit code, when all its processes are gone and the exit record stands. Raises: OSError."""
        reserve_exit(self._folder)
        write_started(self._folder, self._ending.started_at)
        if self._ready_fd >= 0:
            try:
                os.write(self._ready_fd, b"S")
            except OSError:
                pass  # the reader is gone; the next one reads started.json
            os.close(self._ready_fd)
        if os.getpid() != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._begin()
        while True:
            self._reap()
            now = time.monotonic()
            if self._stop_requests and self._stop_at is None:
                self._begin_stop(now)
            if self._fetch is not None:
                self._see_code(self._fetch)
            if self._stall is not None:
                self._see_stall(self._stall, now)
            if self._launch.target is not None:
                self._see_target(self._launch.target, now)
            if self._is_over(now):
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

    def _begin(self) -> None:
        if self._pod is not None and self._pod.refusal:
            self._refuse(self._pod.refusal)
        elif self._launch.code:
            from .usercode import CodeFetch

            self._fetch = CodeFetch(self._folder, self._launch, self._wake.poke)
        else:
            self._start_ranks()

    def _see_code(self, fetch: CodeFetch) -> None:
        """Go on once the code is there, or is not wanted any more."""
        for line in fetch.lines():
            self._log.say(line)
        if self._stop_at is not None:
            fetch.cancel()
            self._fetch = None
        elif fetch.done:
            self._fetch = None
            if fetch.refusal:
                self._refuse(fetch.refusal)
            elif self._launch.requirements and not self._stop_requests:
                self._install()
            else:
                self._start_ranks()

    def _install(self) -> None:
        from .installing import Installing

        output = RankOutput(-1, self._log, False, _masking(self._launch))
        try:
            self._installing = Installing(self._folder, self._launch, output)
        except OSError as error:
            self._refuse("can't install %s: %s" % (self._launch.requirements, error))
            return
        self._childless = False
        self._carry(output)

    def _installed(self, installing: Installing, status: int) -> None:
        """Go on with the environment, if it is there and still wanted."""
        self._installing = None
        output = installing.output
        while output.open and output.pump(time.monotonic()):
            pass
        if not output.open and self._by_fd.get(output.read_fd) is output:
            self._poll.unregister(output.read_fd)
            del self._by_fd[output.read_fd]
        why = installing.ended(status)
        if self._stop_at is not None:
            return
        if why:
            self._refuse(why)
        else:
            self._start_ranks()

    def _carry(self, output: RankOutput) -> None:
        self._by_fd[output.read_fd] = output
        self._poll.register(output.read_fd, select.POLLIN)

    def _refuse(self, why: str) -> None:
        self._log.say(why)
        self._ending.refuse(NOT_STARTABLE, why)

    def _start_ranks(self) -> None:
        launch = self._launch
        for local_rank in range(launch.ranks):
            if self._stop_requests or self._ending.failed:
                break
            rank, masking = launch.worker * launch.ranks + local_rank, _masking(launch)
            output = RankOutput(rank, self._log, launch.ranks > 1, masking)
            self._outputs.append(output)
            try:
                pid = start_rank(launch, local_rank, output.write_fd)
            except CannotFork as error:
                self._log.say(str(error))
                self._ending.rank_ended(local_rank, error.exit_code, None, str(error))
                self._end_others()
            else:
                self._live[pid] = local_rank
                self._childless = False
                self._carry(output)
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
            elif self._installing is not None and pid == self._installing.pid:
                self._installed(self._installing, status)
            elif self._sessions is not None:
                self._sessions.pids.discard(pid)

    def _rank_ended(self, local_rank: int, status: int) -> None:
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if signum is None else None
        output = self._outputs[local_rank]
        if code != 0:
            while output.open and output.pump(time.monotonic()):  # its last line may still be in the pipe
                pass
            if self._memory_kills() > self._killed_before:  # its memory was taken, or a child's of it
                self._ending.memory_killed()
        first = not self._ending.failed
        self._ending.rank_ended(local_rank, code, signum, output.last_line() if code != 0 else "")
        if first and self._ending.failed and self._live and self._stop_at is None:
            if code == STALLED and self._launch.own_trainer and self._stall is not None:
                # Its own watchdog was faster: where its neighbours stand is wanted nevertheless.
                self._begin_stall(self._stall, self._ending.message)
            elif code == STOPPED:  # stopped by its gang, not by us: its neighbours are saving, leave them be
                self._kill_at = time.monotonic() + self._launch.grace_s
            else:
                self._end_others()

    def _end_others(self) -> None:
        self._kill_at = time.monotonic() + FAILURE_GRACE_S
        for pid in self._live:
            send_group(pid, _signal.SIGTERM)

    def _begin_stop(self, now: float) -> None:
        """The first stop request counts; later ones change nothing."""
        self._stop_at = now
        self._ending.stop_requested()
        if self._installing is not None:  # there is nothing that it could save
            send_group(self._installing.pid, _signal.SIGKILL)
        if self._reporter_side.why_stop:
            self._log.say("asked to stop by the api: " + self._reporter_side.why_stop)
        if self._stall is not None and self._stall.began:
            self._end_stalled(self._stall, now)
        else:
            for pid in self._live:
                send_group(pid, _signal.SIGTERM)
                self._signalled.add(pid)
        grace_s = self._launch.grace_s
        if self._pod is not None and self._pod.termination_grace_s:
            kubelets_s = self._pod.termination_grace_s
            grace_s = min(grace_s, max(kubelets_s - KUBELET_MARGIN_S, kubelets_s / 2))
        stop_kill_at = now + grace_s
        self._kill_at = stop_kill_at if self._kill_at is None else min(self._kill_at, stop_kill_at)

    def _see_target(self, target: tuple[str, float, bool], now: float) -> None:
        """End the ranks of a command once it reports that it is good enough."""
        idle = self._stop_at is None and not self._ending.failed and not self._ending.reached
        if not self._live or not idle or self._launch.own_trainer:
            return
        metric, value, at_most = target
        found = ((self._reporter_side.steps.progress or {}).get("metrics") or {}).get(metric)
        if found is None or not (found <= value if at_most else found >= value):
            return
        why = "target reached: %s %g is at %s %g" % (metric, found, "most" if at_most else "least", value)
        self._log.say(why + "; asking the command to end")
        self._ending.reach(why)
        for pid in self._live:
            send_group(pid, _signal.SIGTERM)
            self._signalled.add(pid)
        self._kill_at = now + self._launch.grace_s

    def _see_stall(self, stall: Stall, now: float) -> None:
        """End ranks that make no progress, once it is saved where they stand."""
        if stall.began:
            if not self._live:
                stall.collect(self._outputs)
            elif stall.is_time(now):
                self._end_stalled(stall, now)
        elif self._live and self._stop_at is None and not self._ending.failed and not self._ending.reached:
            gang = self._reporter_side.stalled
            why = stall.overdue(now) if gang is None else gang[1]
            if why:
                self._begin_stall(stall, why)

    def _begin_stall(self, stall: Stall, why: str) -> None:
        gang, family = self._reporter_side.stalled, descendants(self._session_pids())
        report = stall.begin(why, None if gang is None else gang[0], family, self._live, self._outputs)
        self._ending.stall(why)
        if not self._launch.worker:
            self._reporter_side.add(stalled=report)

    def _end_stalled(self, stall: Stall, now: float) -> None:
        stall.end(descendants(self._session_pids()), self._live, self._outputs)
        if self._kill_at is None:
            self._kill_at = now + self._launch.grace_s

    @property
    def _prepares(self) -> bool:
        """Something must be there before the ranks can start."""
        return self._fetch is not None or self._installing is not None

    def _is_over(self, now: float) -> bool:
        """Whether nothing is left to wait for."""
        if self._live or self._prepares:
            return False
        held = self._hold.active
        if self._hold.waits(self._ending, self._stop_at is not None) and not (held and now >= self._hold.until):
            if not held and (self._childless or not descendants(self._session_pids())):
                state, line = self._hold.begin(now, self._ending)
                self._log.say(line)
                self._reporter_side.add(held=state)
            return False
        if held:
            self._ending.held_s = self._hold.end(now)
            self._leftovers_kill_at = None  # who was in a session has a moment of its own
            self._termed.clear()
        return self._childless

    def _enforce(self, now: float) -> None:
        """Kill what outlived a deadline."""
        if self._live:
            if self._kill_at is not None and now >= self._kill_at:
                if self._stop_at is not None:
                    self._ending.grace_exceeded = True
                self._kill_family()
        elif not self._prepares and not self._hold.active:
            self._clear_leftovers(now)

    def _clear_leftovers(self, now: float) -> None:
        """All ranks are done, something of theirs is not: a daemon, a data loader's child.

        A process of a rank's group got the stop signal with it and may be saving (`sh -c "python …"`): it
        has the rest of the grace. All others get TERM and a short while; sessions last while the worker is held.
        """
        holding = self._hold.waits(self._ending, self._stop_at is not None)
        saving = self._kill_at is not None and now < self._kill_at
        if self._leftovers_kill_at is None:
            self._leftovers_kill_at = now + LEFTOVER_GRACE_S
        expired = now >= self._leftovers_kill_at
        for member in descendants(self._session_pids() if holding else frozenset()):
            if saving and member.group in self._signalled:
                continue
            if expired:
                send(member.pid, _signal.SIGKILL)
            elif member.pid not in self._termed:
                self._termed.add(member.pid)
                send(member.pid, _signal.SIGTERM)

    def _kill_family(self) -> None:
        for pid in self._live:
            send_group(pid, _signal.SIGKILL)
        for member in descendants(self._session_pids()):
            send(member.pid, _signal.SIGKILL)

    def _session_pids(self) -> frozenset[int]:
        return frozenset() if self._sessions is None else frozenset(self._sessions.pids)

    def _wait(self, now: float) -> None:
        """Sleep until something happens or is due, and carry what the ranks printed."""
        due = [output.held_since + HOLD_S for output in self._outputs if output.held_since is not None]
        if self._live:
            if self._kill_at is not None:
                due.append(max(self._kill_at, now + KILL_AGAIN_S))
            if self._launch.target is not None:
                due.append(now + LOOK_EVERY_S)
        elif self._hold.active:
            due.append(self._hold.until)
        elif not self._prepares:
            due.append(now + KILL_AGAIN_S)
        due += self._reporter_side.due(now)
        if self._stall is not None:
            due += self._stall.due(now, bool(self._live))
        timeout_ms = None if not due else max(0.0, min(min(due) - now, LONGEST_WAIT_S) * 1000 + 1)
        for fd, _event in self._poll.poll(timeout_ms):
            if fd == self._wake.fd:
                self._wake.drain()
            elif fd not in self._by_fd:
                self._reporter_side.stdout_ready()
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
        self._reporter_side.turn(now)
        if self._live or self._hold.active:
            for session_id in self._reporter_side.session_ids():
                self._start_session(session_id)

    def _start_session(self, session_id: str) -> None:
        if self._sessions is None:
            from .sessions import WorkerSessions

            self._sessions = WorkerSessions(self._folder, self._launch)
        trouble = self._sessions.start(session_id)
        if trouble:
            self._log.say(trouble)
        self._childless = self._childless and not self._sessions.pids

    def _finish(self) -> int:
        for output in self._outputs:
            # No process of ours is left to write; a stranger that was handed the pipe does not hold us up.
            for _turn in range(64):
                if not (output.open and output.pump(time.monotonic())):
                    break
            output.close()
        if self._launch.code:
            from .kept_files import keep_files

            for line in keep_files(self._folder, self._launch):
                self._log.say(line)
        self._log.finish()
        record = self._ending.record(read_progress(self._folder), self._log.size(), self._memory_peak_bytes())
        stands = write_exit(self._folder, record)
        if self._pod is not None:
            stands = write_termination(self._pod.termination_log, record) or stands
        if not stands:
            self._log.say("the exit record could not be written: the disk takes nothing")
        self._reporter_side.finish(self._stop_at)
        return int(record["exitCode"]) if stands else BROKEN

    def _memory_kills(self) -> int:
        """How many processes the kernel has ended so far for lack of memory."""
        if not self._launch.memory_group:
            return 0
        from .memory_group import kills

        return kills(self._launch.memory_group)

    def _memory_peak_bytes(self) -> int | None:
        if not self._launch.memory_group:
            return None
        from .memory_group import peak_bytes

        return peak_bytes(self._launch.memory_group)


def _masking(launch: Launch) -> Masking | None:
    values = [launch.env[name] for name in launch.secret_names if name in launch.env]
    if not values:
        return None
    from .masking import Masking, patterns

    return Masking(patterns(values))
