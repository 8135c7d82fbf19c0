"""A worker whose command failed is kept for a look inside, says so, and ends by itself, by a stop, or by the api."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from stoker.spec.worker import Held, Progress

FAILS = "import sys; print('it broke here', flush=True); sys.exit(3)"


def held_reports(api):
    return [report["progress"] for report in api.progress if "held" in report["progress"]]


def hold(seconds):
    return {"STOKER_HOLD_SECONDS": seconds}


def test_it_is_held_says_so_and_ends_by_itself(pod_worker, log_api):
    script = "import os; open(os.environ['STOKER_PROGRESS_FILE'], 'w').write('{\"at\": 5, \"step\": 7}')\n" + FAILS
    pod_worker.python(script, api=log_api, env=hold(1))
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested, record.message) == (3, False, "it broke here")
    assert 1.0 <= record.held_s < 2 and record.finished_at - record.failed_at >= 1.0
    assert record.progress.step == 7 and record.progress.at == 5 and record.progress.held is None
    first, *others = held_reports(log_api)
    assert others == [] and first["step"] == 7 and first["at"] > 5, "an older time would be taken for a stale report"
    held = Held.model_validate(first["held"])
    assert first["held"].keys() == {"since", "until", "exitCode", "message"}, "the worker's number is the api's"
    assert (held.exit_code, held.message) == (3, "it broke here")
    assert held.until - held.since == pytest.approx(1) and abs(held.since - record.failed_at) < 1
    last = log_api.progress[-1]["progress"]
    assert "held" not in last and last["step"] == 7 and last["at"] > first["at"], "afterwards it is held no more"
    until = time.strftime("%H:%M:%SZ", time.gmtime(held.until))
    line = f"[stoker] held for 1s after exit code 3: `stoker exec job` enters, it ends at {until}\n"
    assert log_api.log.decode() == "it broke here\n" + line


def test_a_stop_ends_it_and_the_record_is_the_failures(pod_worker, log_api, wait_until):
    pod_worker.python(FAILS, api=log_api, env=hold(600))
    wait_until(lambda: held_reports(log_api), what="the hold")
    wait_until(lambda: b"held for 10m after exit code 3" in log_api.log, what="the log, readable meanwhile")
    assert log_api.log.startswith(b"it broke here\n")
    (report,) = held_reports(log_api)
    assert Progress.model_validate(report).step == 0, "there was no progress of its own"
    os.kill(pod_worker.process.pid, signal.SIGTERM)
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested, record.grace_exceeded) == (3, False, False)
    assert 0 < record.held_s < 30


def test_the_apis_word_ends_it(pod_worker, log_api, wait_until):
    pod_worker.python(FAILS, api=log_api, env=hold(600))
    wait_until(lambda: held_reports(log_api), what="the hold")
    log_api.word = {"stop": True, "why": "job job is being deleted"}
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested) == (3, False) and record.held_s > 0
    assert log_api.log.endswith(b"asked to stop by the api: job job is being deleted\n")


def test_on_one_machine_too_and_without_an_api(worker):
    record = worker.run(["sh", "-c", "echo no; exit 5"], env=hold("1"))
    assert record.exit_code == 5 and 1 <= record.held_s < 2
    assert b"held for 1s after exit code 5" in worker.log


def test_in_a_gang_the_line_names_the_worker(worker):
    worker.run(["false"], env=hold("1"), worker=2, workers=3)
    assert b"`stoker exec job --worker 2` enters" in worker.log


def test_a_command_that_can_not_be_started_is_worth_a_look(worker):
    record = worker.run(["no-such-command"], env=hold("1"))
    assert record.exit_code == 127 and record.held_s >= 1


def test_what_a_rank_leaves_is_ended_before(worker):
    script = """
import os, signal, sys, time
if os.fork():
    while not os.path.exists('left'): time.sleep(0.01)
    sys.exit(4)
signal.signal(signal.SIGTERM, lambda *_: (open('termed', 'w').close(), os._exit(0)))
open('left', 'w').close()
time.sleep(60)
"""
    worker.python(script, env=hold("600"))
    worker.says("held for")
    assert (worker.folder / "termed").exists()
    assert worker.family == [], "the supervisor alone is left"
    assert worker.process.poll() is None
    worker.stop()
    assert worker.finish().exit_code == 4


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["true"], 0), (["sh", "-c", "exit 75"], 75)],
    ids=["done", "stopped: its gang knew before it did"],
)
def test_no_failure_is_not_held(worker, argv, code):
    record = worker.run(argv, env=hold("600"))
    assert (record.exit_code, record.held_s) == (code, 0)


def test_a_failure_after_a_stop_is_not_held(worker):
    worker.python("import time; print('up', flush=True); time.sleep(60)", env=hold("600"))
    worker.says("up")
    worker.stop()
    record = worker.finish()
    assert record.stop_requested and record.signal == 15 and record.held_s == 0


def test_a_checkpoint_folder_that_can_not_be_made_ends_it_with_a_record_and_is_not_held(pod_worker, tmp_path):
    (tmp_path / "file").touch()
    pod_worker.start(["true"], env={"STOKER_CHECKPOINT_DIR": tmp_path / "file" / "c", **hold(600)})
    record = pod_worker.finish()
    assert record.exit_code == 126 and record.held_s == 0 and "STOKER_CHECKPOINT_DIR" in record.message
    assert pod_worker.stdout.startswith(b"[stoker] can't use ")


def test_a_held_worker_costs_no_cpu(worker):
    worker.order([sys.executable, "-c", FAILS], env=hold("600")).start()
    worker.says("held for")

    def ticks():
        stat = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(stat[11]) + int(stat[12])

    before, began = ticks(), time.monotonic()
    time.sleep(1.0)
    assert ticks() - before <= 2, f"ticks of 10 ms in {time.monotonic() - began:.1f} s"
    worker.stop()
    worker.finish()
