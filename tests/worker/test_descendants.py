"""Nothing is left of a worker: children, daemons, holders of the pipe, and what a killed supervisor leaves."""

import os
import signal
import sys
import time

import pytest

DAEMON = """
import os, signal, sys, time
kind, deaf = sys.argv[1], sys.argv[2] == 'deaf'
if kind == 'child':
    parent = os.fork()
elif kind == 'setsid':
    parent = os.fork()
    if not parent: os.setsid()
elif kind == 'double-fork':
    parent = os.fork()
    if not parent:
        os.setsid()
        if os.fork(): os._exit(0)
elif kind == 'closed-pipe':
    parent = os.fork()
    if not parent:
        os.setsid()
        null = os.open('/dev/null', os.O_RDWR)
        for fd in (0, 1, 2): os.dup2(null, fd)
if parent:
    while not os.path.exists('daemon'): time.sleep(0.01)
    print('rank done', flush=True)
    sys.exit(4)
if deaf: signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, lambda *_: (open('termed', 'w').close(), os._exit(0)))
open('daemon', 'w').close()
time.sleep(100)
"""


@pytest.mark.parametrize("kind", ["child", "setsid", "double-fork", "closed-pipe"])
@pytest.mark.parametrize("manners", ["polite", "deaf"])
def test_what_a_rank_leaves_behind_is_ended(worker, kind, manners):
    worker.python(DAEMON, kind, manners)
    record = worker.finish()
    assert worker.family == []
    assert (record.exit_code, record.message) == (4, "rank done")
    assert worker.log == b"rank done\n"
    assert (worker.folder / "termed").exists() == (manners == "polite")
    took_s = record.finished_at - record.ranks[0].at
    assert took_s < 1.5 if manners == "polite" else 1.5 < took_s < 5


def test_what_a_leftover_still_says_is_in_the_log(worker):
    script = """
import os, signal, time
if os.fork():
    while not os.path.exists('up'): time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'goodbye\\n'), os._exit(0)))
os.write(1, b'up\\n')
open('up', 'w').close()
time.sleep(60)
"""
    worker.python(script)
    worker.finish()
    assert worker.log == b"up\ngoodbye\n"


def test_a_fork_storm_is_ended(worker):
    """Processes that keep forking and ignore TERM: the killing is repeated until none is left."""
    storm = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
for _ in range(4): os.fork()
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork() == 0: time.sleep(0.1); os._exit(0)
    time.sleep(0.05)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
"""
    worker.python(storm)
    assert worker.finish().exit_code == 0
    assert worker.family == []


def test_no_zombie_stays_while_the_rank_lives(worker, wait_until):
    script = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os._exit(0)
    os.wait()
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
"""
    worker.python(script)
    worker.says("up")
    supervisor = worker.process.pid
    wait_until(lambda: len(_children(supervisor)) == 1, what="all orphans to be reaped")
    (worker.folder / "go").touch()
    assert worker.finish().exit_code == 0


def test_a_killed_supervisor_takes_its_ranks_along(worker, wait_until):
    worker.python("import time; print('up', flush=True); time.sleep(100)", ranks=2, mode="perGpu")
    worker.says("[rank 0] up")
    worker.says("[rank 1] up")
    assert len(worker.family) == 2
    os.kill(worker.process.pid, signal.SIGKILL)
    wait_until(lambda: worker.family == [], timeout_s=5, what="the ranks to die with their supervisor")
    assert not (worker.folder / "exit.json").exists()


def test_an_idle_supervisor_sleeps(worker):
    """No polling: no CPU at all while the rank is silent."""
    worker.order(["sh", "-c", "echo up; while ! test -e go; do sleep 0.2; done"]).start()
    worker.says("up")
    before = _switches(worker.process.pid)
    time.sleep(1.0)
    assert _switches(worker.process.pid) - before <= 2
    (worker.folder / "go").touch()
    worker.finish()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_trivial_worker_costs_little_cpu(worker):
    """Measured 11 ms with its child on the build machine; the limit leaves room for slow ones, not for an import."""
    worker.order(["true"])
    best_s = 9.0
    for _ in range(8):
        before = worker.cpu_s
        worker.start().process.wait(20)
        best_s = min(best_s, worker.cpu_s - before)
    assert best_s < 0.040


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def _switches(pid):
    with open(f"/proc/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
