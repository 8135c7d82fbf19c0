"""Ranks that make no progress are ended, and where they stood is saved before: real processes, wedged in earnest."""

import json
import os
import re
import signal
import time

import pytest

from tests.support.harness import SHOWS_PROGRESS

from .pod_worker import PYTHONS

WEDGES = {
    "in a C function that holds the interpreter's lock": "ctypes.PyDLL(None).sleep(600)",
    "in a C function": "time.sleep(600)",
    "in a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "in a busy loop": "\n    while True: pass",
}
LIMIT = {"STOKER_STALL_AFTER_SECONDS": "1"}


@pytest.fixture
def order(worker):
    """Starts a script as the rank, with a limit of a second by default."""

    def start(script, *args, env=None, **fields):
        env = {**LIMIT, "STOKER_PROGRESS_FILE": str(worker.folder / "progress.json"), **(env or {})}
        return worker.python(SHOWS_PROGRESS + script, *args, env=env, **fields)

    return start


def stacks(worker):
    return (worker.folder / "stacks.txt").read_text()


@pytest.mark.parametrize("wedge", WEDGES.values(), ids=WEDGES.keys())
def test_a_wedged_python_is_ended_and_says_where_it_stood(worker, order, wedge):
    order(f"show(step=3)\ndef wedged_here():\n    {wedge}\nprint('up', flush=True)\nwedged_here()")
    record = worker.finish()
    assert record.stalled and record.signal == signal.SIGABRT and record.exit_code == 128 + signal.SIGABRT
    assert record.message.startswith("step 3 since ") and not record.stop_requested
    log, saved = worker.log.decode(), stacks(worker)
    assert "in wedged_here" in log and "in wedged_here" in saved
    assert log.index("[stoker] no progress: step 3") < log.index("[stoker] | rank 0, pid") < log.index("in wedged_here")
    assert saved.index("rank 0, pid") < saved.index("printed by rank 0:") < saved.index("in wedged_here")
    assert f": {'running' if 'while True' in wedge else 'sleeping'}" in saved.partition("printed by")[0]


def test_the_kernels_view_is_saved_before_anything_is_signalled(worker, order):
    """A shell prints no stacks; that it finds them already there when it is signalled is the proof of the order."""
    shell = 'trap "cp stacks.txt at-the-end; exit 0" TERM; touch ready; while :; do sleep 0.05; done'
    worker.order(["sh", "-c", shell], env={**LIMIT, "STOKER_PROGRESS_FILE": str(worker.folder / "progress.json")})
    (worker.folder / "progress.json").write_text(json.dumps({"step": 12}))
    worker.start()
    record = worker.finish()
    assert record.stalled and record.exit_code == 78, "a good end of the program's own does not hide it"
    seen = (worker.folder / "at-the-end").read_text()
    assert "no progress: step 12" in seen and "rank 0, pid" in seen and "sh " in seen


def test_what_outlives_the_grace_is_killed(worker, order):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nshow(step=1)\ntime.sleep(600)"
    order(deaf, env={"PYTHONFAULTHANDLER": ""}, graceS=0.5)
    record = worker.finish()
    assert record.stalled and (record.exit_code, record.signal) == (137, 9)
    assert "sleeping" in stacks(worker)


def test_no_memory_is_dumped(worker, order):
    """Whatever the limits of the one who started us say."""
    script = """
import resource
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
show(step=1)
os.chdir(os.path.dirname(os.environ['STOKER_PROGRESS_FILE']))
time.sleep(600)"""
    order(script)
    assert worker.finish().stalled
    assert not [name for name in os.listdir(worker.folder) if name.startswith("core")]


SAID = re.compile(
    r'|Fatal Python error: Aborted|Current thread 0x.* \(most recent call first\):|  File ".*", line \d+ in \S+'
)


def test_every_process_below_is_in_it_line_by_line(worker, order):
    """They print into one pipe, piece by piece."""
    script = """
import subprocess
def waits_here(depth): waits_here(depth - 1) if depth else time.sleep(600)
if len(sys.argv) > 1:
    print('up', flush=True)
    waits_here(50)
program = [sys.executable, '-c', os.environ['SCRIPT'], 'child']
below = [subprocess.Popen(program, stdout=subprocess.PIPE) for _ in range(4)]
for one in below: one.stdout.readline()
show(step=1)
below[0].wait()
"""
    order(script, env={"SCRIPT": SHOWS_PROGRESS + script})
    assert worker.finish().stalled
    seen, _, printed = stacks(worker).partition("printed by rank 0:\n")
    assert "rank 0, pid" in seen and seen.count("below, pid") == 4
    assert printed.count(" in waits_here\n") == 4 * 51 and printed.count(" in wait\n") == 1
    assert not [line for line in printed.splitlines() if not SAID.fullmatch(line)]


@pytest.mark.parametrize(
    ("script", "env"),
    [
        ("for step in range(8): show(step=step); time.sleep(0.5)", {"STOKER_STALL_AFTER_SECONDS": "3"}),
        ("time.sleep(2.5)", {}),
        ("show(at=1.0, metrics={'loss': 1.0})\ntime.sleep(2.5)", {}),
        ("show(step=1)\ntime.sleep(2.5)", {"STOKER_STALL_AFTER_SECONDS": "0"}),
    ],
    ids=["slow but steady", "no progress file", "a progress file without a step", "no limit"],
)
def test_who_is_left_alone(worker, order, script, env):
    order(script, env=env)
    record = worker.finish()
    assert (record.exit_code, record.stalled) == (0, False)
    assert not (worker.folder / "stacks.txt").exists() and b"[stoker]" not in worker.log


def test_only_worker_0_is_watched(worker, order):
    order("show(step=1)\ntime.sleep(2.5)", worker=1, workers=2)
    assert worker.finish().exit_code == 0


def test_a_report_without_another_step_is_no_progress(worker, order):
    order("n = 0\nwhile True: n += 1; show(step=5, samples=n, metrics={'loss': 1 / n}); time.sleep(0.1)")
    record = worker.finish()
    assert record.stalled and record.progress is not None and record.progress.step == 5


RANKS = """
import faulthandler
faulthandler.register(signal.SIGUSR1, all_threads=True)
def waits_for_the_others(): time.sleep(600)
def never_comes():
    while True: pass
open(f"up-{os.environ['RANK']}", 'w').close()
if os.environ['RANK'] == '0': show(step=9)
never_comes() if os.environ['RANK'] == '1' else waits_for_the_others()
"""


def test_our_trainers_ranks_show_their_stacks_while_they_live(worker, order):
    order(RANKS, mode="perGpu", ranks=2)
    record = worker.finish()
    assert record.stalled
    saved = stacks(worker)
    before_the_end = saved.index("printed by rank 0:"), saved.index("printed by rank 1:")
    assert "in waits_for_the_others" in saved[before_the_end[0] : before_the_end[1]]
    assert "in never_comes" in saved[before_the_end[1] :]
    assert saved.count("Fatal Python error: Aborted") == 2, "and once more as they end"
    assert saved.index("Fatal Python error") > max(before_the_end)


def test_the_trainers_own_watchdog_is_faster(worker, order):
    """Its neighbours' stacks are saved all the same."""
    script = RANKS.replace(
        "while True: pass",
        "    time.sleep(1); sys.stderr.write('stoker-trainer: error: no progress for 1 s\\n'); os._exit(78)",
    )
    order(script, mode="perGpu", ranks=2, env={"STOKER_STALL_AFTER_SECONDS": "60"})
    record = worker.finish()
    assert (record.exit_code, record.failed_rank, record.stalled) == (78, 1, True)
    assert "stoker-trainer: error: no progress for 1 s" in record.message
    assert "in waits_for_the_others" in stacks(worker)


def test_a_stalled_worker_is_held(worker, order):
    order("show(step=1)\ntime.sleep(600)", env={"STOKER_HOLD_SECONDS": "1"})
    record = worker.finish()
    assert record.stalled and record.held_s > 0.5
    assert b"held for 1s after exit code 134" in worker.log


@pytest.mark.parametrize("python", PYTHONS)
def test_with_every_python(worker, order, python):
    (worker.folder / "progress.json").write_text("{}")
    env = {"PATH": os.environ["PATH"], **LIMIT, "STOKER_PROGRESS_FILE": str(worker.folder / "progress.json")}
    script = SHOWS_PROGRESS + "show(step=1)\ndef wedged_here(): threading.Event().wait()\nwedged_here()"
    worker.order([python, "-c", script], env=env).start(python=python)
    assert worker.finish().stalled
    assert "wedged_here" in stacks(worker)


# A gang


def test_worker_0_reports_to_the_api_and_waits_for_the_others(pod_worker, log_api, wait_until):
    script = SHOWS_PROGRESS + "show(step=4)\ndef wedged_here(): time.sleep(600)\nwedged_here()"
    pod_worker.python(script, api=log_api, env={**LIMIT, "STOKER_WORKERS": "2"})
    wait_until(lambda: [p for p in log_api.progress if p["progress"].get("stalled")], what="the report")
    progress = log_api.progress[-1]["progress"]
    assert (progress["step"], progress["stalled"]["step"], progress["stalled"]["attempt"]) == (4, 4, 1)
    assert 5 < progress["stalled"]["until"] - time.time() <= 15 and progress["stalled"]["since"] == pytest.approx(
        progress["stepAt"], abs=1.5
    )
    assert pod_worker.process.poll() is None, "the others must hear of it first"
    pod_worker.process.send_signal(signal.SIGTERM)  # its pod is deleted meanwhile: its last words come all the same
    record = pod_worker.finish()
    assert record.stalled and record.signal == signal.SIGABRT
    assert b"in wedged_here" in log_api.log
    assert "stalled" not in log_api.progress[-1]["progress"]


def test_the_others_hear_of_it_and_save_their_stacks(pod_worker, log_api):
    log_api.word = {"stop": False, "why": "", "stalled": {"inS": 0.5, "why": "worker 0: step 4 since 60 s"}}
    script = (
        SHOWS_PROGRESS
        + "print('up', flush=True)\ndef the_wedged_rank(): ctypes.PyDLL(None).sleep(600)\nthe_wedged_rank()"
    )
    pod_worker.python(script, api=log_api, env={**LIMIT, "STOKER_WORKER": "1", "STOKER_WORKERS": "2"})
    record = pod_worker.finish()
    assert record.stalled and record.message == "worker 0: step 4 since 60 s"
    assert b"in the_wedged_rank" in log_api.log
    assert "in the_wedged_rank" in (pod_worker.run_dir / "stacks.txt").read_text()
    assert not any("stalled" in p["progress"] for p in log_api.progress), "worker 0 speaks for the gang"


def test_the_last_change_of_step_and_checkpoint_is_reported(pod_worker, log_api, wait_until):
    script = (
        SHOWS_PROGRESS
        + """
show(at=1000.0, step=1, checkpoint={'step': 1})
time.sleep(1.5)
show(at=2000.0, step=1, checkpoint={'step': 1})
time.sleep(1.5)
show(at=3000.0, step=2, checkpoint={'step': 1})
time.sleep(600)
"""
    )
    pod_worker.python(script, api=log_api)
    wait_until(lambda: any(p["progress"].get("step") == 2 for p in log_api.progress), what="the last report")
    seen = {(p["progress"]["at"], p["progress"]["stepAt"], p["progress"]["checkpoint"]["at"]) for p in log_api.progress}
    assert seen <= {(1000.0, 1000.0, 1000.0), (2000.0, 1000.0, 1000.0), (3000.0, 3000.0, 1000.0)} and len(seen) > 1
    pod_worker.process.send_signal(signal.SIGTERM)
    pod_worker.finish()


def test_stacks_are_bounded(worker, order):
    """A thousand threads at two places are two lines and a number."""
    script = """
threading.stack_size(65536)
stop = threading.Event()
for _ in range(700): threading.Thread(target=stop.wait, daemon=True).start()
show(step=1)
time.sleep(600)"""
    order(script, env={"PYTHONFAULTHANDLER": ""})
    assert worker.finish().stalled
    saved = stacks(worker)
    assert "701 threads" in saved and "more threads are left out" in saved and len(saved) < 4000
