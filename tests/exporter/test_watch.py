"""The watch over the NVML child: a child that hangs, crashes, ends, babbles or can't be killed is replaced, once."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from stoker.exporter.watch import ReaderWatch, child_environment
from stoker.nvml.frames import Frame, Trouble
from tests.support.harness import until
from tests.support.nvml_child import HOLDER, command

FRAME = Frame(number=1, at=0.0, mono_s=0.0, took_s=0.0).line()


class Listener:
    """What was said, and a watch that ends with the test."""

    def __init__(self):
        self.said = []
        self.news = threading.Event()

    def __call__(self, said):
        self.said.append(said)

    def frames(self):
        return [said for said in self.said if isinstance(said, Frame)]


@pytest.fixture
def watch():
    """Starts watches; all are stopped with the test."""
    started = []

    def start(args, **options):
        listener = Listener()
        one = ReaderWatch(args, listener, first_wait_s=0.05, max_wait_s=0.2, **options)
        started.append(one)
        one.start()
        return one, listener

    yield start
    assert all(one.stop(within_s=10) for one in started)


def program(text):
    """A child in Python that writes what it is given."""
    return [sys.executable, "-u", "-c", f"frame = {FRAME!r}\nimport os, sys, time, signal\n{textwrap.dedent(text)}"]


def test_a_child_that_works_is_left_alone(scenario, watch):
    scenario.add_gpu(watts=123)
    scenario.write()
    one, listener = watch(command(), environment={**os.environ, **scenario.env()})
    until(lambda: len(listener.frames()) >= 5)
    assert [frame.number for frame in listener.frames()[:5]] == [0, 1, 2, 3, 4]
    assert not any(one.restarts.values()) and not one.stuck and one.last_message_mono_s > 0


@pytest.mark.parametrize(("do", "reason"), [("hang", "stuck"), ("segv", "crashed"), ("exit", "exited")])
def test_a_call_that_never_returns_well_costs_a_restart(scenario, watch, do, reason):
    scenario.add_gpu()
    scenario.write()
    one, listener = watch(command(), environment={**os.environ, **scenario.env()}, stuck_after_s=2.0)
    until(lambda: len(listener.frames()) >= 2)
    first, seen = one.pid, len(listener.said)
    scenario.fault("nvmlDeviceGetTotalEnergyConsumption", do=do)
    scenario.write()
    until(lambda: one.restarts[reason] >= 1)
    scenario.clear_faults()
    scenario.write()
    until(lambda: [frame for frame in listener.said[seen:] if isinstance(frame, Frame) and frame.number == 0])
    until(lambda: one.pid not in (None, first))
    assert {name for name, count in one.restarts.items() if count} == {reason} and not one.stuck
    assert not Path(f"/proc/{first}").exists()


def test_trouble_is_handed_on_and_the_child_lives_on(tmp_path, watch):
    one, listener = watch(command(), environment={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    until(lambda: len(listener.said) >= 2)
    assert all(isinstance(said, Trouble) for said in listener.said) and not any(one.restarts.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print(frame); sys.exit(0)", "exited"),
        ("print(frame); os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
        ("print(frame); time.sleep(60)", "stuck"),
        ("print('Segmentation fault'); time.sleep(60)", "garbled"),
        ("print('x' * 5_000_000, end=''); time.sleep(60)", "garbled"),
        ("os.close(1); time.sleep(60)", "crashed"),
    ],
    ids=["ends", "crashes", "falls silent", "babbles", "has no end of line", "closes its output"],
)
def test_why_a_child_is_replaced(watch, text, reason):
    one, _ = watch(program(text), stuck_after_s=0.3)
    until(lambda: one.restarts[reason] >= 2)
    assert {name for name, count in one.restarts.items() if count} == {reason}


def test_a_program_that_is_not_there_is_tried_again(watch):
    one, _ = watch(["/no/such/program"])
    until(lambda: one.restarts["unstartable"] >= 2)


def test_the_first_line_may_take_longer(watch):
    """The driver may take seconds for each GPU to begin."""
    one, listener = watch(
        program("time.sleep(1); print(frame); time.sleep(60)"), stuck_after_s=0.3, start_within_s=60.0
    )
    until(lambda: listener.frames())
    until(lambda: one.restarts["stuck"] == 1)


def test_a_listener_that_fails_does_not_end_the_watch(watch):
    heard = []

    def listener(said):
        heard.append(said)
        raise RuntimeError("a fault of the listener's")

    one = ReaderWatch(program("print(frame); print(frame); time.sleep(60)"), listener)
    one.start()
    until(lambda: len(heard) == 2)
    assert one.stop(within_s=10) and not any(one.restarts.values())


def test_waits_double_while_children_fail_and_not_after_one_that_worked():
    failing = ReaderWatch([sys.executable, "-c", ""], lambda _: None, first_wait_s=0.01, max_wait_s=0.08)
    failing.start()
    until(lambda: failing.restarts["exited"] >= 5)
    assert failing.stop(within_s=10) and failing._wait_s == 0.08
    working = ReaderWatch(program("print(frame)"), lambda _: None, first_wait_s=0.01, max_wait_s=0.08)
    working.start()
    until(lambda: working.restarts["exited"] >= 5)
    assert working.stop(within_s=10) and working._wait_s < 0.08


def test_a_child_that_can_not_be_killed_is_shown_and_no_other_is_started(watch):
    """As one in uninterruptible sleep: to its parent a killed child whose tracer does not reap it is still there."""
    one, listener = watch(program("print(frame); time.sleep(600)"), stuck_after_s=1.5)
    until(lambda: listener.frames())
    child = one.pid
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(child)], stdout=subprocess.PIPE) as holder:
        if holder.stdout.readline() != b"held\n":
            pytest.skip("this machine does not let processes be traced")
        try:
            until(lambda: one.stuck)
            begin, said = time.monotonic(), len(listener.said)
            until(lambda: time.monotonic() > begin + 1.5)  # longer than any wait for a restart
            assert one.stuck and one.pid == child and not any(one.restarts.values()) and len(listener.said) == said
        finally:
            holder.kill()
    until(lambda: one.restarts["stuck"] == 1 and not one.stuck and one.pid not in (None, child))


def test_the_parent_ends_at_once_though_a_child_hangs_unkillable(tmp_path):
    """The whole process: a stuck child is left behind, never waited for."""
    text = f"""
        import subprocess, sys, time
        from stoker.exporter.watch import ReaderWatch
        frame = {FRAME!r}
        child = [sys.executable, "-u", "-c", "import time; print(" + repr(frame) + "); time.sleep(600)"]
        said = []
        watch = ReaderWatch(child, said.append, stuck_after_s=1.0)
        watch.start()
        while not said:
            time.sleep(0.01)
        pid = watch.pid
        quiet = {{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}}
        holder = subprocess.Popen([sys.executable, "-c", {HOLDER!r}, str(pid)], **quiet)
        held = holder.stdout.readline()
        while held and not watch.stuck:
            time.sleep(0.01)
        begin = time.monotonic()
        gone = watch.stop(within_s=0.2)
        print(bool(held), gone, time.monotonic() - begin < 5, holder.pid, flush=True)
    """
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True, timeout=60
    )
    held, gone, quick, holder = ran.stdout.split()
    os.kill(int(holder), signal.SIGKILL)
    if held == "False":
        pytest.skip("this machine does not let processes be traced")
    assert (gone, quick, ran.returncode) == ("False", "True", 0)


def test_the_childs_environment_holds_no_secrets():
    mine = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/lib",
        "STOKER_EXPORTER_API_TOKEN": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "k",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    }
    assert child_environment(mine) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib", "MALLOC_ARENA_MAX": "1"}


def test_the_child_gets_that_environment(watch, monkeypatch):
    monkeypatch.setenv("STOKER_EXPORTER_PUSH_TOKEN", "s3cret")
    text = """
        from stoker.nvml.frames import Trouble
        print(Trouble(0.0, "ENVIRONMENT", " ".join(os.environ)).line()); time.sleep(60)
    """
    _, listener = watch(program(text))
    until(lambda: listener.said)
    names = listener.said[0].text.split()
    assert "PATH" in names and not [name for name in names if "TOKEN" in name]


def test_the_watch_does_not_import_nvml():
    code = "import sys, stoker.exporter.watch; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
