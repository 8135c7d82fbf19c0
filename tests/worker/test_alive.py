"""A worker that is not wanted any more stops by itself; nothing else that an api may answer stops one."""

import json
import os
import signal
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_worker import alive, reporting
from stoker_worker.alive import AliveLane
from stoker_worker.folder import Launch
from stoker_worker.link import Answer
from stoker_worker.reporting import Reporter

STOP = {"stop": True, "why": "attempt 2 of job one has begun"}
SAYS = b"[stoker] asked to stop by the api: attempt 2 of job one has begun\n"
SAVES = """
import os, signal, sys, time
def stop(*_):
    open(os.environ['STOKER_CHECKPOINT_DIR'] + '/saved', 'w').close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
if len(sys.argv) > 1: print('up', flush=True)
time.sleep(60)
"""
GOES_ON = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
for i in range(int(sys.argv[1])): print(i, flush=True); time.sleep(1)
"""
ORDER = {
    "podUid": "uid", "project": "p", "jobName": "one", "jobUid": "job", "attempt": 1, "worker": 0, "workers": 1,
    "ranks": 1, "argv": ["x"], "workingDir": "/", "graceS": 1, "masterPort": 1,
}  # fmt: skip


def assert_saved_and_said(pod_worker, log_api):
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested, record.grace_exceeded) == (75, True, False)
    assert (pod_worker.folder / "volume" / "checkpoints" / "saved").exists()
    assert log_api.log.endswith(SAYS)


def test_a_silent_worker_asks_and_stops(pod_worker, log_api, wait_until):
    """It has nothing to report, and asks nevertheless."""
    began = time.monotonic()
    pod_worker.python(SAVES, api=log_api)
    wait_until(lambda: log_api.asked, what="the question")
    at, said = log_api.asked[0]
    assert 4.5 < at - began < 20, "the start pays nothing for it"
    assert said.pop("podUid") == pod_worker.uid
    assert said == {"jobUid": "job-uid", "project": "default", "jobName": "job", "attempt": 1, "worker": 0}
    assert pod_worker.process.poll() is None, "it is still wanted"
    log_api.word = STOP
    assert_saved_and_said(pod_worker, log_api)
    assert log_api.log == SAYS


def test_the_answer_to_a_piece_of_log_counts_too(pod_worker, log_api):
    log_api.word = STOP
    began = time.monotonic()
    pod_worker.python(SAVES, "prints", api=log_api)
    assert_saved_and_said(pod_worker, log_api)
    assert time.monotonic() - began < 10


def test_a_worker_that_prints_needs_not_ask(pod_worker, log_api):
    pod_worker.python(GOES_ON, 9, api=log_api)
    assert pod_worker.finish().exit_code == 0
    assert len(log_api.asked) <= 1, "before its first piece of log"


def test_a_deaf_process_is_killed_when_the_grace_ends(pod_worker, log_api):
    log_api.word = STOP
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    pod_worker.python(script, api=log_api, env={"STOKER_GRACE_SECONDS": 1})
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested, record.grace_exceeded) == (137, True, True)


@pytest.mark.parametrize("word", [500, {"stop": 1, "why": "x"}], ids=str)
def test_anything_else_stops_no_worker(pod_worker, log_api, word):
    log_api.word = word
    pod_worker.python(GOES_ON, 7, api=log_api)
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested) == (0, False)
    assert log_api.log == b"".join(b"%d\n" % i for i in range(7))
    assert log_api.asked


def test_output_after_a_silence_is_not_held_up_by_a_request(pod_worker, log_api, wait_until):
    """The api knows no such question, so the next one is minutes away: output that waited for it would not come."""
    log_api.word = 404
    go = pod_worker.folder / "go"
    script = (
        "import os, sys, time\nprint('first', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
        "time.sleep(1)\nprint('second', flush=True)\ntime.sleep(60)"
    )
    pod_worker.python(script, go, api=log_api)
    wait_until(lambda: log_api.asked, what="the question")
    go.touch()
    wait_until(lambda: log_api.log.endswith(b"second\n"), what="the second line at the api")
    os.kill(pod_worker.process.pid, signal.SIGTERM)
    assert pod_worker.finish().stop_requested


# The lane alone.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["stop", "why", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
BODIES = st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()) | st.just(b"[" * 60_000)


@given(st.sampled_from([200, 200, 200, 204, 302, 401, 404, 500, 999]), BODIES)
def test_only_an_explicit_true_stops(status, body):
    reasons = []
    heard = AliveLane(Launch(ORDER), reasons.append).take(Answer(status, body, 0.0), 0.1)
    try:
        document = json.loads(body) if len(body) < 10_000 else None
    except ValueError:
        document = None
    word = document.get("stop") if status == 200 and isinstance(document, dict) else None
    assert heard == isinstance(word, bool)
    assert len(reasons) == (word is True)
    for reason in reasons:
        assert reason.isprintable() and 0 < len(reason) <= 300


@given(
    BODIES | st.fixed_dictionaries({"stop": st.booleans(), "sessions": VALUES}).map(lambda d: json.dumps(d).encode())
)
def test_sessions_are_strings_in_a_list_or_nothing(body):
    heard = []
    AliveLane(Launch(ORDER), lambda why: None, heard.append).take(Answer(200, body, 0.0), 0.1)
    try:
        document = json.loads(body) if len(body) < 10_000 else None
    except ValueError:
        document = None
    asked = document.get("sessions") if isinstance(document, dict) and isinstance(document.get("stop"), bool) else None
    ids = [one for one in asked if isinstance(one, str)] if isinstance(asked, list) else []
    assert heard == ([ids] if ids else [])


def test_a_busy_api_is_asked_less_often():
    lane = AliveLane(Launch(ORDER), lambda why: None)
    for took_s, least, most in [(0.001, 4, 6.1), (0.3, 12, 18.1), (4.0, 24, 36.1)]:
        assert lane.take(Answer(200, b'{"stop": false}', 0.0), took_s)
        assert least - 0.1 < lane.ready_in(time.monotonic(), False) < most


class Babbler:
    """Answers each request with the next of `answers`, byte by byte as they stand, then closes; the last for ever."""

    def __init__(self, answers):
        self.answers, self.asked = list(answers), 0
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            try:
                connection, _ = self.sock.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                if connection.recv(65_536):
                    answer = self.answers[min(self.asked, len(self.answers) - 1)]
                    self.asked += 1
                    connection.sendall(answer)

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self.thread.join()


def http(status, body, *headers):
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"", body])


GARBAGE = [
    b"",
    b"\0\xff" * 5000,
    b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"HTTP/1.1 -1 \r\n\r\n",
    http(b"200 OK", b"stop"),
    http(b"200 OK", b'{"stop": "true"}', "Retry-After: ²".encode("latin-1")),
    http(b"200 OK", b"[" * 65_000),
    http(b"302 Found", b'{"stop": true}', b"Location: http://127.0.0.1:9/"),
    http(b"500 Oops", b'{"stop": true}', b"Retry-After: 99999999999999999999"),
    http(b"401 Who", b""),
    http(b"503 Later", b"<html>"),
]


def test_the_reporter_outlives_every_answer(tmp_path, monkeypatch, wait_until):
    """And still hears the word when it comes."""
    monkeypatch.setattr(alive, "ASK_EVERY_S", 0.01)
    monkeypatch.setattr(reporting, "BACKOFF_S", (0.01,))
    babbler = Babbler([*GARBAGE, http(b"200 OK", b'{"stop": true, "why": "a\\nb"}')])
    reasons = []
    try:
        reporter = Reporter(
            str(tmp_path), Launch({**ORDER, "report": {"url": babbler.url, "token": "t"}}), None, reasons.append
        )
        wait_until(lambda: reasons, what="the word")
        assert babbler.asked == len(GARBAGE) + 1
        assert reasons == ["a b"]
        assert reporter.finish(2, 2), "nothing is owed"
        assert len(reasons) == 1
    finally:
        babbler.close()


def test_an_older_api_is_left_in_peace(tmp_path, monkeypatch, wait_until):
    monkeypatch.setattr(alive, "ASK_EVERY_S", 0.01)
    babbler = Babbler([http(b"404 Not Found", b"{}")])
    try:
        reporter = Reporter(str(tmp_path), Launch({**ORDER, "report": {"url": babbler.url, "token": "t"}}), None, print)
        wait_until(lambda: babbler.asked, what="the question")
        lane = reporter._alive_turn.lane
        wait_until(lambda: lane.ready_in(time.monotonic(), False) > 200, what="a long pause")
        assert babbler.asked == 1 and reporter.finish(2, 2)
    finally:
        babbler.close()
