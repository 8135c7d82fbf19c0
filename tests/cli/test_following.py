"""Streams across cut connections: nothing lost, nothing twice, ended by `end`."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.client import Client
from stoker.client.errors import ApiError, TimedOut, Unreachable
from stoker.client.following import Following
from stoker.client.job import JobFailed
from stoker.client.sse import SseFrame, frames
from stoker.client.updates import EventSeen, JobChanged, JobEnded

JOB = "/v1/projects/default/jobs/a"


def _wire(frame: SseFrame) -> bytes:
    lines = [f"event: {frame.event}"] + ([f"id: {frame.id}"] if frame.id is not None else [])
    return ("\n".join(lines + [f"data: {line}" for line in frame.data.split("\n")]) + "\n\n").encode()


_words = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1).filter(
    lambda text: not text.endswith("\r")
)
_frames = st.builds(
    SseFrame,
    event=st.sampled_from(["log", "job", "end"]),
    data=st.lists(_words | st.just(""), min_size=1, max_size=3).map("\n".join),
    id=st.none() | st.integers(0, 99).map(str),
)


@given(st.lists(_frames, max_size=5), st.lists(st.integers(1, 7), min_size=1))
def test_frames_come_out_as_they_went_in_however_they_were_cut_into_chunks(
    sent: list[SseFrame], sizes: list[int]
) -> None:
    data = b": heartbeat\n\n".join(_wire(frame) for frame in sent)
    chunks, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        chunks.append(data[at : at + size])
        at, turn = at + size, turn + 1
    assert list(frames(chunks)) == sent


def test_a_half_sent_frame_is_dropped() -> None:
    assert list(frames([b"event: log\ndata: one\n\nevent: log\ndata: tw"])) == [SseFrame("log", "one")]


def test_a_log_is_resumed_at_the_very_byte(script: Any, sse: Any) -> None:
    script.on(
        "GET",
        f"{JOB}/logs",
        script.text(sse("log", "one\ntwo", "1.8") + b"event: log\nid: 1.14\ndata: thr"),
        script.cut,
        script.text(sse("log", "three", "1.14") + sse("attempt", {"attempt": 2}) + sse("log", "again", "2.6")),
        script.text(sse("end", {})),
    )
    with Client(script.url) as client, client.logs("a", tail=5, worker=1) as log:
        chunks = list(log)
    assert "".join(chunk.text for chunk in chunks) == "one\ntwo\nthree\nagain\n"
    assert [(chunk.attempt, chunk.offset) for chunk in chunks] == [(1, 8), (1, 14), (2, 6)]
    assert [request.headers.get("last-event-id") for request in script.requests] == [None, "1.8", "1.8", "2.6"]
    assert script.requests[0].query == {"worker": "1", "follow": "true", "tailLines": "5"}
    assert script.requests[1].query == {"worker": "1", "follow": "true"}, "a resume must not tail again"


def test_events_go_on_over_a_busy_restart(script: Any, sse: Any, make_job: Any) -> None:
    event = {
        "metadata": {"name": "e1"},
        "involvedObject": {"kind": "TrainingJob", "name": "a"},
        "reason": "Placed",
        "firstTimestamp": "2026-01-01T00:00:00Z",
    }
    script.on(
        "GET",
        f"{JOB}/events",
        script.text(sse("job", make_job("a")) + sse("event", event, "41")),
        script.problem(503, "Starting", "starting", Retry_After="0"),
        script.text(sse("job", make_job("a", "Succeeded")) + sse("novelty", {}) + sse("end", {"phase": "Succeeded"})),
    )
    with Client(script.url) as client:
        kinds = [type(update) for update in client.events("a")]
    assert kinds == [JobChanged, EventSeen, JobChanged, JobEnded]
    assert script.requests[-1].headers["last-event-id"] == "41"


def test_a_refusal_ends_it_at_once(script: Any) -> None:
    with Client(script.url) as client, pytest.raises(ApiError, match="nothing at"):
        list(client.events("a"))
    assert len(script.requests) == 1


def test_it_gives_up_after_its_patience(script: Any, sse: Any) -> None:
    script.on("GET", "/s", script.text(sse("x", "1", "1")), script.cut)
    with Client(script.url) as client:
        following = Following(client.calls.wire, "/s", lambda frame: frame.data, patience_s=0.3)
        assert next(following) == "1"
        with pytest.raises(Unreachable, match="can't reach"):
            next(following)


@pytest.mark.parametrize("how", ["left to fall", "closed"])
def test_one_that_is_left_early_gives_its_connection_back_without_the_garbage_collector(
    script: Any, sse: Any, how: str
) -> None:
    """Collected at some later moment, inside httpcore's own lock, it would wait for that lock forever."""
    hold = threading.Event()
    script.on("GET", f"{JOB}/logs", script.text(sse("log", "one", "1.4"), hold=hold))
    gc.collect()
    gc.disable()
    try:
        with Client(script.url) as client:
            following = client.logs("a")
            next(following)
            state = weakref.ref(following._state)
            if how == "closed":
                following.close()
                assert state().stream is None
            else:
                del following
                assert state() is None
    finally:
        gc.enable()
        hold.set()


def test_close_wakes_a_reader_in_another_thread(script: Any, sse: Any) -> None:
    hold = threading.Event()
    script.on("GET", f"{JOB}/logs", script.text(sse("log", "one", "1.4"), hold=hold))
    seen: list[str] = []
    first = threading.Event()
    with Client(script.url) as client:
        log = client.logs("a")

        def read() -> None:
            for chunk in log:
                seen.append(chunk.text)
                first.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert first.wait(5)
        log.close()
        thread.join(5)
        hold.set()
        assert not thread.is_alive() and seen == ["one\n"]


def test_wait_returns_at_a_phase_at_the_end_or_in_time(script: Any, sse: Any, make_job: Any) -> None:
    hold = threading.Event()
    running = sse("job", make_job("a", "Queued")) + sse("job", make_job("a", "Running"))
    script.on("GET", f"{JOB}/events", script.text(running, hold=hold))
    with Client(script.url) as client:
        assert client.wait("a", until=["Running"]).status.phase == "Running"
        began = time.monotonic()
        with pytest.raises(TimedOut, match=r"after 0\.2 s; it goes on"):
            client.wait("a", timeout=0.2)
        assert 0.2 <= time.monotonic() - began < 3
        hold.set()
        script.on("GET", f"{JOB}/events", script.text(sse("job", make_job("a", "Failed"))))
        with pytest.raises(JobFailed, match="a is Failed") as met:
            client.wait("a", until=["Running"], timeout=5)
        assert met.value.job.status.phase == "Failed"
        assert client.wait("a", until=["Failed"], timeout=5).status.phase == "Failed"


def test_overlong_lines_and_a_last_line_without_end_come_as_printed(script: Any, sse: Any) -> None:
    script.on(
        "GET",
        f"{JOB}/logs",
        script.text(sse("log", "aaaa", "1.4") + sse("log", "bb", "1.7") + sse("log", "ü", "1.10")),
        script.text(sse("log", "no end", "1.16") + sse("end", {})),
    )
    with Client(script.url) as client:
        assert "".join(chunk.text for chunk in client.logs("a")) == "aaaabb\nü\nno end"


def test_a_log_up_to_now_ends_with_its_stream(script: Any, sse: Any) -> None:
    data = sse("log", "one", "1.4")

    def whole(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    script.on("GET", f"{JOB}/logs", script.cut, whole)
    with Client(script.url) as client:
        assert [chunk.text for chunk in client.logs("a", follow=False)] == ["one\n"]
    assert len(script.requests) == 2
