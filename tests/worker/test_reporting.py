"""Progress on its way to the api: newest wins, the last is delivered, and a dead api disturbs nothing."""

import json
import threading
import time

import pytest

from tests.support.testbed.webhook import Answer, Webhook


@pytest.fixture
def api():
    with Webhook(lambda _: Answer(204)) as hook:
        yield hook


def progress_script(steps, until=""):
    return f"""
import json, os, time
for step in range({steps}):
    open('p', 'w').write(json.dumps({{'at': time.time(), 'step': step + 1}}))
    os.rename('p', 'progress.json')
{until}
"""


def target(api):
    return {"url": api.url.rstrip("/"), "token": "wkr.x.y"}


def test_the_last_progress_is_delivered_after_the_end(worker, api):
    worker.python(progress_script(50), report=target(api))
    record = worker.finish()
    assert record.progress.step == 50
    last = api.posted[-1]
    body = last.json()
    assert (last.path, last.headers["authorization"]) == ("/v1/report/progress", "Bearer wkr.x.y")
    assert body["progress"]["step"] == 50
    assert {name: body[name] for name in ("podUid", "jobUid", "project", "jobName", "attempt", "worker")} == {
        "podUid": worker.uid,
        "jobUid": "job-uid",
        "project": "default",
        "jobName": "job",
        "attempt": 1,
        "worker": 0,
    }
    assert len(api.posted) <= 2  # not one a step


def test_progress_is_posted_while_the_rank_lives(worker, api, wait_until):
    worker.python(progress_script(1, "while not os.path.exists('go'): time.sleep(0.01)"), report=target(api))
    wait_until(lambda: api.posted, what="a post")
    assert worker.process.poll() is None
    (worker.folder / "go").touch()
    worker.finish()
    assert len(api.posted) == 1  # nothing new, nothing posted


SOON_S = 20.0
"""Without a limit of the supervisor's own the end would wait for the api for ever; a busy machine adds seconds."""


def test_an_api_that_is_not_there_delays_the_end_by_two_seconds_at_most(worker):
    report = {"url": "http://127.0.0.1:9", "token": "t"}
    worker.python(progress_script(1), report=report)
    record = worker.finish()
    assert record.exit_code == 0 and time.time() - record.finished_at < SOON_S


def test_an_api_that_never_answers_delays_the_end_by_two_seconds_at_most(worker, api):
    released = threading.Event()
    api.answer = lambda _: released.wait(30) and Answer(204)
    worker.python(progress_script(1), report=target(api))
    record = worker.finish()
    released.set()
    assert record.exit_code == 0 and record.finished_at - record.started_at < SOON_S
    assert time.time() - record.finished_at < SOON_S


def test_a_refusing_api_is_not_pestered(worker, api):
    api.answer = lambda _: Answer(422)
    worker.python(progress_script(1), report=target(api))
    worker.finish()
    assert len(api.posted) == 1


def test_the_api_is_found_again_where_launch_json_says(worker, api, wait_until):
    """`stoker up` came back on another port and rewrote the order."""
    dead = {"url": "http://127.0.0.1:9", "token": "t"}
    worker.python(progress_script(1, "while not os.path.exists('go'): time.sleep(0.01)"), report=dead)
    wait_until((worker.folder / "progress.json").exists)
    launch = json.loads((worker.folder / "launch.json").read_text())
    launch["report"] = target(api)
    (worker.folder / "launch.json.new").write_text(json.dumps(launch))
    (worker.folder / "launch.json.new").rename(worker.folder / "launch.json")
    wait_until(lambda: api.posted, what="a post to the new address")
    (worker.folder / "go").touch()
    assert worker.finish().exit_code == 0


def test_a_worker_without_progress_posts_nothing(worker, api):
    assert worker.run(["true"], report=target(api)).exit_code == 0
    assert api.posted == []
