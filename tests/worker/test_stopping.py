"""A stop in every stage of a worker's life."""

import os
import signal
import time
from pathlib import Path

import pytest

WAITS = "import time; print('up', flush=True); time.sleep(60)"
SAVES = """
import os, signal, sys, time
def stop(*_):
    os.write(1, b'saving\\n')
    time.sleep(float(sys.argv[1]))
    os.write(1, b'saved\\n')
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print('up', flush=True)
while True: time.sleep(1)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def test_a_stop_before_the_ranks_are_started_is_honoured(worker):
    worker.order(["touch", "ran"])
    # Blocked until the supervisor has its handlers: the signal waits for it, however early it comes.
    worker.start(preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))
    worker.stop()
    record = worker.finish()
    if not (worker.folder / "ran").exists():
        assert (record.exit_code, record.stop_requested, record.ranks) == (75, True, ())
        assert record.message == "stopped before it was started"
    assert record.stop_requested


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_forwarded_and_the_rank_saves(worker, signum):
    worker.python(SAVES, "0.2")
    worker.says("up")
    worker.stop(signum)
    record = worker.finish()
    assert (record.exit_code, record.stop_requested, record.grace_exceeded) == (75, True, False)
    assert worker.log == b"up\nsaving\nsaved\n"


def test_a_rank_that_dies_of_the_stop_signal(worker):
    worker.python(WAITS)
    worker.says("up")
    worker.stop()
    record = worker.finish()
    assert (record.exit_code, record.signal, record.stop_requested) == (143, 15, True)


def test_a_rank_that_ignores_the_stop_is_killed_when_the_grace_ends(worker):
    worker.python(DEAF, graceS=1.0)
    worker.says("up")
    began = time.time()
    worker.stop()
    record = worker.finish()
    assert (record.exit_code, record.signal) == (137, 9)
    assert record.stop_requested and record.grace_exceeded
    assert 0.9 < record.finished_at - began < 3


def test_a_second_stop_does_not_shorten_the_grace(worker):
    worker.python(SAVES, "1.0", graceS=8.0)
    worker.says("up")
    worker.stop()
    worker.says("saving")
    for _ in range(3):
        worker.stop()
    record = worker.finish()
    assert (record.exit_code, record.grace_exceeded) == (75, False)
    assert worker.log == b"up\nsaving\nsaved\n"


def test_a_stop_reaches_every_rank_and_their_children(worker):
    script = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; print("child up", flush=True); time.sleep(60)'])
print('up', flush=True)
sys.exit(child.wait() == -15 and 75)
"""
    worker.python("import signal; signal.signal(signal.SIGTERM, lambda *_: None)\n" + script, ranks=2, mode="perGpu")
    worker.says("[rank 0] child up")
    worker.says("[rank 1] child up")
    worker.stop()
    record = worker.finish()
    assert [end.exit_code for end in record.ranks] == [75, 75]


def test_a_shells_child_that_is_saving_keeps_the_grace(worker):
    """`sh -c "python …; true"`: the shell dies of TERM at once, the training below it is not done yet."""
    (worker.folder / "save.py").write_text(SAVES)
    worker.order(["sh", "-c", "python3 save.py 3; true"], graceS=20.0).start()
    worker.says("up")
    worker.stop()
    record = worker.finish()
    assert b"saved" in worker.log
    assert record.stop_requested and record.signal == 15


def test_a_stop_after_the_failure_explains_nothing(worker, wait_until):
    """The failure came first; the stop comes while what it left is being cleared."""
    script = """
import os, signal, sys, time
print('rank is', os.getpid(), flush=True)
if os.fork():
    while not os.path.exists('left'): time.sleep(0.01)
    sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open('left', 'w').close()
time.sleep(60)
"""
    worker.python(script)
    wait_until((worker.folder / "left").exists)
    wait_until(lambda: b"rank is" in worker.log and worker.log.endswith(b"\n"), what="the rank's line")
    rank = worker.log.decode().split()[2]
    wait_until(lambda: not Path("/proc", rank).exists(), what="the rank's end to be seen by the supervisor")
    worker.stop()
    record = worker.finish()
    assert (record.exit_code, record.stop_requested) == (5, False)
    assert record.finished_at - record.failed_at < 5  # nor does it give what is left a grace


def test_a_stopped_process_is_killed_too(worker, wait_until):
    """SIGSTOP: such a process takes no TERM."""
    worker.python(WAITS, graceS=0.5)
    worker.says("up")
    (rank,) = worker.family
    os.kill(rank, signal.SIGSTOP)
    stat = Path(f"/proc/{rank}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the rank to stand still")
    worker.stop()
    record = worker.finish()
    assert record.signal == 9 and record.grace_exceeded
