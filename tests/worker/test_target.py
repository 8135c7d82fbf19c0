"""A command that reports the metric it was to reach is asked to end, and its work is done: real processes."""

import json
import time

import pytest

from tests.support.harness import SHOWS_PROGRESS

SHOWS = (
    SHOWS_PROGRESS
    + """
def metric(value, name="score"):
    path = os.environ["STOKER_PROGRESS_FILE"]
    with open(path + ".new", "w") as file: file.write('{"step": 1, "metrics": {"%s": %s}}' % (name, value))
    os.replace(path + ".new", path)
"""
)


@pytest.fixture
def order(worker):
    def start(script, *, target, **fields):
        env = {"STOKER_STOP_TARGET": json.dumps(target), "STOKER_PROGRESS_FILE": str(worker.folder / "progress.json")}
        return worker.python(SHOWS + script, env=env, mode="once", **fields)

    return start


RISES = {"metric": "score", "value": 0.9, "mode": "max"}
FALLS = {"metric": "score", "value": -110, "mode": "min"}


@pytest.mark.parametrize(
    ("target", "values", "says"),
    [
        (RISES, ["0.5", "0.95"], "target reached: score 0.95 is at least 0.9"),
        (FALLS, ["-100.5", "-110"], "target reached: score -110 is at most -110"),
    ],
)
def test_a_command_that_is_good_enough_ends_well_whatever_it_exits_with(worker, order, target, values, says):
    first, last = values
    order(f"metric({first})\nprint('up', flush=True)\ntime.sleep(1.5)\nmetric({last})\ntime.sleep(600)", target=target)
    record = worker.finish()
    assert (record.exit_code, record.message) == (0, says), "it was ended by SIGTERM"
    assert record.ranks[0].signal == 15 and not record.stop_requested and not record.grace_exceeded
    assert f"[stoker] {says}; asking the command to end" in worker.log.decode()
    assert record.progress.metrics == {"score": float(last)}


def test_it_may_save_first_and_what_outlives_the_grace_is_killed(worker, order):
    saves = """
def save(*_):
    open(os.environ["STOKER_PROGRESS_FILE"] + ".saved", "w").close()
    if len(sys.argv) > 9: sys.exit(75)
signal.signal(signal.SIGTERM, save)
metric(0.99)
while True: time.sleep(600)
"""
    order(saves, target=RISES, graceS=1.0)
    record = worker.finish()
    assert (worker.folder / "progress.json.saved").exists(), "it was asked first"
    assert record.exit_code == 0 and record.ranks[0].signal == 9 and record.message.startswith("target reached")


@pytest.mark.parametrize(
    "value", ["0.89", "NaN", "Infinity", "1" + "0" * 400, '"0.99"', "true", "null"],
    ids=["not yet", "nan", "inf", "huge", "text", "bool", "null"],
)  # fmt: skip
def test_what_does_not_reach_it_ends_nothing(worker, order, value):
    order(f"metric({value!r})\ntime.sleep(2.5)\nsys.exit(3)", target=RISES)
    began = time.monotonic()
    record = worker.finish()
    assert record.exit_code == 3 and time.monotonic() - began > 2 and "target" not in record.message


def test_a_failure_before_stays_one_and_another_metric_counts_for_nothing(worker, order):
    order("metric(0.99, 'other')\ntime.sleep(1.5)\nsys.exit(4)", target=RISES)
    assert worker.finish().exit_code == 4
