"""What the sender does with each answer of a receiver: taken, refused, later; with a receiver of our own in front."""

from __future__ import annotations

import base64
import email.utils
import http.client
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.core import Sample

from stoker.push.buffer import Buffer, SampleBatch
from stoker.push.client import Receiver
from stoker.push.sender import Push, PushOptions, PushStats
from tests.support.testbed.parts import until
from tests.support.testbed.remote_write import Written, read_request
from tests.support.testbed.webhook import Answer, Posted, Webhook

Answers = Callable[[Posted], Answer]


def gpu_power(watts: float, gpu: int = 0) -> Sample:
    return Sample("stoker_gpu_power_watts", {"node": "n0", "gpu": str(gpu), "uuid": f"GPU-{gpu}"}, watts)


def options(receiver: str | Receiver, **more: object) -> PushOptions:
    to = Receiver(receiver) if isinstance(receiver, str) else receiver
    given = {"receiver": to, "first_pause_s": 0.02, "longest_pause_s": 0.1, **more}
    given["labels"] = {"job": "stoker-exporter", "instance": "n0", **given.get("labels", {})}  # type: ignore[dict-item]
    return PushOptions(**given)  # type: ignore[arg-type]


def settled(push: Push) -> PushStats:
    """The counts when nothing waits any more."""
    until(lambda: push.stats.buffered == 0, "everything to be sent", 20)
    return push.stats


def in_turn(*answers: Answer) -> Answers:
    """These answers, then 204."""
    left = itertools.chain(answers, itertools.repeat(Answer(204)))
    return lambda _: next(left)


def written(hook: Webhook) -> list[Written]:
    return [series for request in hook.posted for series in read_request(request.body)]


def watts(hook: Webhook) -> list[tuple[int, float | None]]:
    return [
        point for one in written(hook) if ("__name__", "stoker_gpu_power_watts") in one.labels for point in one.points
    ]


def test_series_end_though_the_end_is_asked_for_as_the_buffer_is_found_empty(
    pushes: Callable[[PushOptions], Push], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Buffer.take

    def slow_take(self: Buffer, most: int) -> SampleBatch | None:
        found = take(self, most)
        if found is None and push.stats.sent:
            empty.set()
            until(lambda: push._stop_by is not None, "the end is asked for", 20)
        return found

    with Webhook(in_turn()) as hook:
        push, empty = pushes(options(hook.url)), threading.Event()
        monkeypatch.setattr(Buffer, "take", slow_take)
        push.offer(1763768000.5, [gpu_power(312.5)])
        assert empty.wait(20)
        push.stop(timeout_s=10)
        assert [value for _, value in watts(hook)] == [312.5, None]


def test_a_poll_arrives_with_job_instance_and_its_own_time(pushes: Callable[[PushOptions], Push]) -> None:
    with Webhook(in_turn()) as hook:
        push = pushes(options(hook.url, labels={"cluster": "edge", "node": "never"}))
        assert push.offer(1763768000.5, [gpu_power(312.5)])
        assert settled(push) == PushStats(sent=2, refused=0, dropped=0, retries={}, buffered=0)
        up, power = written(hook)
        assert up.points == ((1763768000500, 1.0),)
        assert power.points == ((1763768000500, 312.5),)
        assert dict(power.labels) == {
            "__name__": "stoker_gpu_power_watts",
            "job": "stoker-exporter",
            "instance": "n0",
            "cluster": "edge",
            "node": "n0",  # a series' own label stays
            "gpu": "0",
            "uuid": "GPU-0",
        }
        headers = hook.posted[0].headers
        assert headers["content-encoding"] == "snappy"
        assert headers["content-type"] == "application/x-protobuf"
        assert headers["x-prometheus-remote-write-version"] == "0.1.0"
        assert headers["user-agent"].startswith("stoker/")
        assert "authorization" not in headers


def test_it_takes_a_poll_every_so_many_seconds(pushes: Callable[[PushOptions], Push]) -> None:
    with Webhook(in_turn()) as hook:
        push = pushes(options(hook.url, every_s=15.0))
        taken = [at for at in range(1000, 1050) if push.offer(float(at), [gpu_power(at)])]
        assert taken == [1000, 1015, 1030, 1045]
        assert push.offer(900.0, [])  # the clock was set back: better now than an hour later
        settled(push)
        assert watts(hook) == [(at * 1000, at) for at in taken] + [(900_000, None)]


@pytest.mark.parametrize(
    "answer",
    [Answer(500), Answer(503, b"busy"), Answer(429), Answer(429, headers={"Retry-After": "0"})],
    ids=["500", "503", "429", "429 at once"],
)
def test_what_may_be_taken_later_is_sent_again_as_it_was(pushes: Callable[[PushOptions], Push], answer: Answer) -> None:
    with Webhook(in_turn(answer, answer, answer)) as hook:
        push = pushes(options(hook.url))
        push.offer(1000.0, [gpu_power(1)])
        push.offer(1015.0, [gpu_power(2)])
        stats = settled(push)
        assert (stats.sent, stats.refused, stats.dropped) == (4, 0, 0)
        assert stats.retries == {str(answer.status): 3}
        assert len({request.body for request in hook.posted[:4]}) == 1
        assert watts(hook)[-1] == (1015_000, 2)


@pytest.mark.parametrize("as_date", [False, True])
def test_it_waits_as_long_as_it_is_asked_to(pushes: Callable[[PushOptions], Push], as_date: bool) -> None:
    moments: list[float] = []
    asked_s = 2 if as_date else 1  # dates are whole seconds: up to one is lost

    def answer(_: Posted) -> Answer:
        moments.append(time.time())
        if len(moments) > 1:
            return Answer(204)
        after = email.utils.formatdate(time.time() + asked_s, usegmt=True) if as_date else str(asked_s)
        return Answer(429, headers={"Retry-After": after})

    with Webhook(answer) as hook:
        push = pushes(options(hook.url, longest_pause_s=0.02))
        push.offer(1000.0, [gpu_power(1)])
        assert settled(push).retries == {"429": 1}
    assert moments[1] - moments[0] >= 0.99


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 301])
def test_what_is_refused_is_dropped_counted_and_logged_once(
    pushes: Callable[[PushOptions], Push], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Answer(status, b"out of order sample", {"Location": "http://127.0.0.1:1/"})
    with Webhook(in_turn(refusal, refusal)) as hook, caplog.at_level(logging.WARNING, "stoker.push"):
        push = pushes(options(hook.url))
        for number, at in enumerate((1000.0, 1015.0, 1030.0)):
            push.offer(at, [gpu_power(at)])
            until(lambda n=number: len(hook.posted) == n + 1, "one request for each poll", 10)
            settled(push)
        assert push.stats == PushStats(sent=2, refused=4, dropped=0, retries={}, buffered=0)
        assert watts(hook) == [(1000_000, 1000), (1015_000, 1015), (1030_000, 1030)]
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 1 and str(status) in logged[0] and "out of order sample" in logged[0]


def test_what_a_long_outage_does_not_leave_room_for_is_dropped_oldest_first(
    pushes: Callable[[PushOptions], Push], caplog: pytest.LogCaptureFixture
) -> None:
    down = threading.Event()
    down.set()
    with (
        Webhook(lambda _: Answer(503) if down.is_set() else Answer(204)) as hook,
        caplog.at_level(logging.WARNING, "stoker.push"),
    ):
        push = pushes(options(hook.url, most_samples=20))
        push.offer(0.0, [gpu_power(0)])
        until(lambda: hook.posted, "the first try", 10)
        for number in range(1, 21):
            push.offer(number * 15.0, [gpu_power(number)])
        # The first is under way and so never dropped; of the others the buffer holds ten.
        assert (push.stats.buffered, push.stats.dropped) == (22, 20)
        tried = len(hook.posted)
        down.clear()
        stats = settled(push)
        assert (stats.sent, stats.refused, stats.dropped) == (22, 0, 20)
        tries = [read_request(request.body) for request in hook.posted[tried - 1 :]]
        arrived = sorted({point for request in tries for one in request for point in one.points})
        assert arrived[0][0] == 0 and arrived[-1] == (300_000, 20)
        assert {at // 15_000 for at, _ in arrived} == {0, *range(11, 21)}
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2 and "503" in logged[0] and logged[1].endswith("again")


def test_an_absent_receiver_is_tried_again_until_it_is_there(pushes: Callable[[PushOptions], Push]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused, and no other process can take the port
        push = pushes(options(f"http://127.0.0.1:{closed.getsockname()[1]}/api/v1/write"))
        push.offer(1000.0, [gpu_power(1)])
        until(lambda: push.stats.retries.get("transport", 0) >= 3, "three tries", 10)
        assert push.stats.buffered == 2


def test_a_receiver_that_does_not_answer_is_given_up_in_time(pushes: Callable[[PushOptions], Push]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        receiver = Receiver(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.2)
        push = pushes(options(receiver))
        push.offer(1000.0, [gpu_power(1)])
        until(lambda: push.stats.retries.get("transport", 0) >= 2, "two tries", 10)


def test_a_connection_that_ends_between_requests_costs_nothing(pushes: Callable[[PushOptions], Push]) -> None:
    def answer(_: Posted) -> Answer:
        return Answer(204, headers={"Connection": "close"})

    with Webhook(answer) as hook:
        push = pushes(options(hook.url))
        for at in range(1000, 1100, 15):
            push.offer(float(at), [gpu_power(at)])
            settled(push)
        assert settled(push).retries == {} and [at for at, _ in watts(hook)] == [
            at * 1000 for at in range(1000, 1100, 15)
        ]


def test_the_token_is_read_anew_for_each_request(pushes: Callable[[PushOptions], Push], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    with Webhook(in_turn()) as hook:
        push = pushes(options(Receiver(hook.url, token_file=token, allow_http=True, headers={"X-Scope-OrgID": "team"})))
        push.offer(1000.0, [])
        settled(push)
        token.unlink()
        push.offer(1015.0, [])
        until(lambda: push.stats.retries.get("credentials", 0) >= 1, "no token to be found", 10)
        token.write_text("two")
        settled(push)
        assert [request.headers["authorization"] for request in hook.posted] == ["Bearer one", "Bearer two"]
        assert {request.headers["x-scope-orgid"] for request in hook.posted} == {"team"}


def test_a_user_and_password_from_a_file(pushes: Callable[[PushOptions], Push], tmp_path: Path) -> None:
    (tmp_path / "basic").write_text("grafana:s3cret:with:colons\n")
    with Webhook(in_turn()) as hook:
        push = pushes(options(Receiver(hook.url, basic_file=tmp_path / "basic", allow_http=True)))
        push.offer(1000.0, [])
        settled(push)
        scheme, _, encoded = hook.posted[0].headers["authorization"].partition(" ")
        assert scheme == "Basic" and base64.b64decode(encoded) == b"grafana:s3cret:with:colons"


def test_the_end_marks_every_series_and_sends_what_waits() -> None:
    with Webhook(in_turn()) as hook:
        push = Push(options(hook.url), unix=lambda: 1020.0)
        push.offer(1000.0, [gpu_power(1), gpu_power(2, gpu=1)])
        push.offer(1015.0, [gpu_power(3)])
        push.start()
        push.stop(timeout_s=10)
        found: dict[str | None, list[tuple[int, float | None]]] = {}
        for one in written(hook):
            found.setdefault(dict(one.labels).get("gpu"), []).extend(one.points)
        assert found == {
            None: [(1000_000, 1), (1015_000, 1), (1020_000, None)],
            "0": [(1000_000, 1), (1015_000, 3), (1020_000, None)],
            "1": [(1000_000, 2), (1015_000, None)],
        }
        assert push.stats.sent == 8


def test_the_end_waits_no_longer_than_allowed_for_a_receiver_that_is_away() -> None:
    with Webhook(lambda _: Answer(503, headers={"Retry-After": "3600"})) as hook:
        push = Push(options(hook.url))
        push.start()
        push.offer(1000.0, [gpu_power(1)])
        until(lambda: push.stats.retries, "the first try", 10)
        push.stop(timeout_s=0.3)
        until(lambda: not push._thread.is_alive(), "the thread's end, long before the hour is over", 10)
        assert len(hook.posted) >= 2  # once more at the end, whatever was asked


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"url": "prometheus:9090"}, r"no http\(s\) address"),
        ({"url": "http:///api/v1/write"}, r"no http\(s\) address"),
        ({"url": "https://me:secret@host/"}, "take user and password out"),
        ({"url": "https://host/", "token_file": Path("a"), "basic_file": Path("b")}, "not both"),
        ({"url": "http://host/", "token_file": Path("a")}, "plain text.*--push-allow-http"),
        ({"url": "http://host/", "basic_file": Path("b")}, "plain text"),
        ({"url": "https://host/", "headers": {"Authorization": "Bearer x"}}, "Authorization is not yours to set"),
        ({"url": "https://host/", "headers": {"content-encoding": "gzip"}}, "not yours to set"),
        ({"url": "https://host/", "headers": {"X-A": "b\r\nX-C: d"}}, "is no header"),
        ({"url": "https://host/", "headers": {"X A": "b"}}, "is no header"),
    ],
)
def test_a_receiver_that_is_none_is_refused(more: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Receiver(**more)  # type: ignore[arg-type]


def test_a_label_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'a-b' is no label"):
        options("http://host/", labels={"a-b": "c"})


def test_the_connection_is_kept_while_there_is_more_to_send() -> None:
    made: list[object] = []
    connect = http.client.HTTPConnection.connect

    def count(self: http.client.HTTPConnection) -> None:
        made.append(self)
        connect(self)

    with Webhook(in_turn()) as hook, pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.client.HTTPConnection, "connect", count)
        push = Push(options(hook.url))
        for at in range(40):
            push.offer(at * 15.0, [gpu_power(at, gpu) for gpu in range(500)])
        push.start()
        push.stop(timeout_s=20)
        assert len(hook.posted) > 4
    assert push.stats.sent == 40 * 501 + 501
    assert len(made) <= 2  # one more if all had been sent before the end was asked for
