"""Streams behind a real server: events, logs, resuming, heartbeats, slow followers, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import weakref

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from stoker_api.connection import Connection
from stoker_api.serve import BindError, bind, serving
from stoker_api.streams.line_times import timed_parts
from stoker_api.streams.log_stream import CHUNK
from tests.support.examples import examples

ONE = "/v1/projects/alpha/jobs/one"
OF_CALLER = 40


async def take(stream, count):
    async with asyncio.timeout(10):
        return [await anext(stream) for _ in range(count)]


async def rest(stream):
    async with asyncio.timeout(10):
        return [frame async for frame in stream]


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def running_job(world, name="one"):
    job = await world.status(await world.job(name), phase="Running", attempt=1)
    return job, await world.pod(job)


async def test_events_are_followed_to_the_end(served, follow):
    job = await served.job("one")
    first = await served.event(job, "Submitted")
    stream = follow(served, f"{ONE}/events")
    seen = await take(stream, 2)
    assert [frame.event for frame in seen] == ["event", "job"]
    assert seen[0].id == first.metadata.resource_version and seen[0].json["reason"] == "Submitted"
    assert seen[1].id is None and seen[1].json["status"]["phase"] == "Queued"
    await served.status(job, phase="Running", attempt=1)
    (changed,) = await take(stream, 1)
    assert changed.json["status"]["phase"] == "Running"
    await served.event(job, "Started")
    await served.status(job, phase="Failed", reason="RetriesExhausted", message="no luck")
    late = asyncio.create_task(served.event(job, "Ended"))  # the operator writes events behind the status
    last = await rest(stream)
    await late
    assert [frame.json["reason"] for frame in last if frame.event == "event"] == ["Started", "Ended"]
    assert last[-1].event == "end"
    assert last[-1].json == {"phase": "Failed", "reason": "RetriesExhausted", "message": "no luck"}
    resumed = await rest(follow(served, f"{ONE}/events", last_id=first.metadata.resource_version))
    assert [frame.json["reason"] for frame in resumed if frame.event == "event"] == ["Started", "Ended"]
    listed = (await served.call("GET", f"{ONE}/events")).json()["items"]
    assert [event["reason"] for event in listed] == ["Submitted", "Started", "Ended"]
    bad = {"Accept": "text/event-stream", "Last-Event-ID": "x"}
    assert (await served.call("GET", f"{ONE}/events", headers=bad)).status_code == 422


async def test_live_progress_is_paced(served, follow):
    job, pod = await running_job(served)
    stream = follow(served, f"{ONE}/events")
    await take(stream, 1)
    begun = time.monotonic()
    headers = {"Authorization": f"Bearer {await served.worker_token(pod)}"}
    for step in range(1, 41):
        said = {"podUid": pod.uid, "jobUid": job.uid, "project": "alpha", "jobName": "one", "attempt": 1, "worker": 0,
                "progress": {"at": float(step), "step": step}}  # fmt: skip
        assert (await served.client.post("/v1/report/progress", headers=headers, json=said)).status_code == 204
    steps = []
    while not steps or steps[-1] < 40:
        (frame,) = await take(stream, 1)
        steps.append(frame.json["status"].get("progress", {}).get("step", 0))
    spent = time.monotonic() - begun
    assert steps == sorted(steps) and len(steps) <= spent / 0.5 + 3, "twice a second, and one per stored change"
    await stream.aclose()


async def test_a_quiet_stream_has_a_heartbeat_and_leaves_nothing_behind(served):
    await served.job("one")
    headers = {**served.auth(), "Accept": "text/event-stream"}
    for path in (f"{ONE}/events", f"{ONE}/logs?follow=true"):
        async with served.client.stream("GET", path, headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            text = ""
            async with asyncio.timeout(10):
                async for part in answer.aiter_text():
                    text += part
                    if text.count(": still here\n\n") >= 2:
                        break
            assert len(served.services.hub) == 1
        await until(lambda: len(served.services.hub) == 0 and len(served.services.followers) == 0)


async def test_logs_by_sse(served, follow):
    job, pod = await running_job(served)
    await served.logs.append(pod.uid, b"one\ntwo\n\nhal")
    stream = follow(served, f"{ONE}/logs?follow=true")
    (first,) = await take(stream, 1)
    assert (first.event, first.data, first.id) == ("log", "one\ntwo\n", "1.9")
    await served.logs.append(pod.uid, b"f\r\n10%\r20%\rbad \xff utf\nno end", end=True)
    (second,) = await take(stream, 1)
    assert second.data == "half\n10%\n20%\nbad \ufffd utf"
    await served.status(job, phase="Succeeded", reason="Completed")
    last = await rest(stream)
    assert [frame.event for frame in last] == ["log", "end"] and last[0].data == "no end"
    assert last[1].json["phase"] == "Succeeded"
    total = int(last[0].id.partition(".")[2])
    assert total == len((served.logs.folder / pod.uid).read_bytes())
    again = await rest(follow(served, f"{ONE}/logs?follow=true", last_id=first.id))
    assert "\n".join(frame.data for frame in again if frame.event == "log") == second.data + "\nno end"
    assert [frame.event for frame in await rest(follow(served, f"{ONE}/logs", last_id=f"1.{total}"))] == ["end"]


async def test_following_over_to_a_new_attempt(served, follow):
    job = await served.job("one")
    stream = follow(served, f"{ONE}/logs?follow=true")
    waiting = asyncio.create_task(take(stream, 1))
    job = await served.status(job, phase="Running", attempt=1)
    pod = await served.pod(job)
    await served.logs.append(pod.uid, b"first\n")
    assert (await waiting)[0].data == "first"
    await served.logs.append(pod.uid, b"bye\n", end=True)
    over = {"number": 1, "endedAt": "2026-01-01T00:00:00Z", "workers": [{"worker": 0, "node": "n", "podUid": pod.uid}]}
    await served.status(job, phase="Queued", attempts=[over])
    assert (await take(stream, 1))[0].data == "bye"
    await served.status(job, phase="Running", attempt=2)
    second = await served.pod(job, attempt=2)
    await served.logs.append(second.uid, b"again\n", end=True)
    switched, log = await take(stream, 2)
    assert (switched.event, switched.json) == ("attempt", {"attempt": 2})
    assert (log.data, log.id) == ("again", "2.6")
    # One attempt asked for: it ends there, although the job goes on.
    alone = await rest(follow(served, f"{ONE}/logs?follow=true&attempt=1"))
    assert (alone[0].event, alone[0].data) == ("log", "first\nbye") and alone[-1].event == "end"
    await served.status(job, phase="Succeeded")
    assert (await rest(stream))[-1].event == "end"
    # A resume in the first attempt still gets what came later.
    resumed = await rest(follow(served, f"{ONE}/logs?follow=true", last_id="1.6"))
    assert [frame.event for frame in resumed] == ["log", "attempt", "log", "end"] and resumed[0].data == "bye"


async def test_a_worker_whose_supervisor_was_lost(served, follow):
    """Its log never says that it has ended; the job does."""
    job, pod = await running_job(served)
    await served.logs.append(pod.uid, b"half a line")
    await served.status(job, phase="Failed")
    frames = await rest(follow(served, f"{ONE}/logs?follow=true"))
    assert (frames[0].event, frames[0].data) == ("log", "half a line")
    assert frames[-1].event == "end"


async def test_raw_logs_are_byte_for_byte(served):
    job, pod = await running_job(served)
    data = bytes(range(256)) * 1000 + b"\nlast line"
    await served.logs.append(pod.uid, data)
    answer = await served.call("GET", f"{ONE}/logs", headers={"Accept": "text/plain"})
    assert answer.content == data and answer.headers["content-type"].startswith("text/plain")
    assert (await served.call("GET", f"{ONE}/logs?tailLines=1")).content == b"last line"
    assert (await served.call("GET", f"{ONE}/logs?tailLines=0")).content == b""
    assert (await served.call("GET", f"{ONE}/logs?tailLines=1000000")).content == data
    following = asyncio.create_task(served.call("GET", f"{ONE}/logs?follow=true"))
    await served.logs.append(pod.uid, b"more\n", end=True)
    await served.status(job, phase="Succeeded")
    assert (await following).content == data + b"more\n"


async def test_logs_with_times_and_since_one(served, follow):
    job, pod = await running_job(served)
    await served.logs.append(pod.uid, b"one\ntwo\nthr")
    for offset, at_s in ((0, 1_000_000), (6, 1_000_060), (8, 1_000_120)):  # the second in the middle of a line
        served.logs.note(pod.uid, offset, at_s)
    first, third = "1970-01-12T13:46:40Z", "1970-01-12T13:48:40Z"
    answer = await served.call("GET", f"{ONE}/logs?timestamps=true")
    assert answer.text == f"{first} one\n{first} two\n{third} thr"
    assert (await served.call("GET", f"{ONE}/logs?timestamps=true&tailLines=2")).text == f"{first} two\n{third} thr"
    for since, text in (
        ("1970-01-12T13:46:00Z", "one\ntwo\nthr"),
        ("1970-01-12T13:47:40Z", "thr"),
        (third, "thr"),
        ("2999-01-01", ""),
    ):
        assert (await served.call("GET", f"{ONE}/logs?since={since}")).text == text, since
    stream = follow(served, f"{ONE}/logs?follow=true&timestamps=true")
    frames = await take(stream, 3)
    assert [(frame.event, frame.data) for frame in frames[:2]] == [
        ("time", f'{{"at": "{first}"}}'),
        ("log", "one\ntwo"),
    ]
    assert frames[1].id == "1.8" and frames[2].json == {"at": third}
    await served.logs.append(pod.uid, b"ee\n", end=True)
    served.logs.note(pod.uid, 11, 1_000_180)
    await served.status(job, phase="Succeeded")
    assert [frame.data for frame in await rest(stream) if frame.event == "log"] == ["three"]
    resumed = await rest(follow(served, f"{ONE}/logs?follow=true&timestamps=true", last_id="1.8"))
    assert [(frame.event, frame.data) for frame in resumed[:2]] == [("time", f'{{"at": "{third}"}}'), ("log", "three")]
    assert (await served.call("GET", f"{ONE}/logs?since=soon")).json()["errors"][0]["pointer"] == "/since"


@examples(200)
@given(
    data=st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")),
    begin=st.integers(0, 20),
    marks=st.lists(st.integers(1, 80), max_size=6, unique=True).map(sorted),
)
def test_parts_by_time_are_the_whole_and_begin_where_lines_do(data, begin, marks):
    times = [(begin, 0.0), *((begin + mark, float(mark)) for mark in marks if mark < len(data))]
    parts = timed_parts(data, begin, times)
    assert b"".join(part.data for part in parts) == data and all(part.data for part in parts)
    at = 0
    for part in parts:
        assert at == 0 or data[at - 1 : at] == b"\n"
        for line in range(at, at + len(part.data)):
            if line == 0 or data[line - 1 : line] == b"\n":
                assert part.at_s == max(at_s for offset, at_s in times if offset <= begin + line)
        at += len(part.data)
    assert timed_parts(data, begin, []) == ([(None, data)] if data else [])


async def test_logs_that_are_not_there(served):
    await served.job("one")
    for path, code in (("logs", "NoLog"), ("logs?worker=1", "InvalidFields"), ("logs?attempt=0", "InvalidFields")):
        assert (await served.call("GET", f"{ONE}/{path}")).json()["code"] == code
    for last_id in ("x", "1", "1.", "1.x", "-1.0", "1.0.0"):
        bad = {"Accept": "text/event-stream", "Last-Event-ID": last_id}
        assert (await served.call("GET", f"{ONE}/logs", headers=bad)).status_code == 422, last_id


async def test_a_follower_that_does_not_read_is_cut_off_and_hurts_no_other(served, follow, caplog):
    job, pod = await running_job(served)
    line = b"x" * 1023 + b"\n"
    await served.logs.append(pod.uid, line * 16_384)  # more than any socket buffer
    host, port = "127.0.0.1", int(served.base.rpartition(":")[2])
    lazy = socket.create_connection((host, port))
    request = f"GET {ONE}/logs?follow=true HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n"
    lazy.sendall((request + f"Authorization: {served.auth()['Authorization']}\r\n\r\n").encode())
    try:
        await until(lambda: len(served.services.hub) == 1)
        good = follow(served, f"{ONE}/events")
        await take(good, 1)
        begun = time.monotonic()
        await served.status(job, message="news")
        await take(good, 1)
        assert time.monotonic() - begun < 5
        await good.aclose()
        await until(lambda: len(served.services.hub) == 0)
        assert 'stoker_api_streams_shed_total{kind="logs"} 1.0' in served.services.metrics.text().decode()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
    finally:
        lazy.close()


def test_a_peer_that_left_before_its_stream_began():
    """uvloop refuses the settings of a closed connection; asyncio does not."""

    async def main(near):
        line = object.__new__(Connection)
        line.transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
        line.transport.abort()
        await until(line.transport.is_closing)
        await asyncio.sleep(0)
        line.limit_buffers()

    near, far = socket.socketpair()
    with far:
        uvloop.run(main(near))


async def test_what_a_follower_held_does_not_wait_for_the_collector(served, follow):
    """The loop's threshold for it is high, and thousands of followers come and go."""
    await running_job(served)
    gc.collect()
    gc.disable()
    try:
        streams = [follow(served, f"{ONE}/{path}") for path in ("events", "logs?follow=true")]
        first = [asyncio.create_task(take(stream, 1)) for stream in streams]
        await first[0]
        await until(lambda: len(served.services.hub) == 2)
        held = [weakref.ref(found) for found in gc.get_objects() if type(found) is Connection]
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        await asyncio.gather(*(stream.aclose() for stream in streams))
        assert held
        await served.client.aclose()
        await until(lambda: not any(found() for found in held))
    finally:
        gc.enable()


async def test_forty_followers(served, follow):
    job, _ = await running_job(served)
    streams = [follow(served, f"{ONE}/events") for _ in range(OF_CALLER)]
    await asyncio.gather(*(take(stream, 1) for stream in streams))
    assert len(served.services.hub) == OF_CALLER
    await served.status(job, message="to all")
    got = await asyncio.gather(*(take(stream, 1) for stream in streams))
    assert all(frames[0].json["status"]["message"] == "to all" for frames in got)
    await asyncio.gather(*(stream.aclose() for stream in streams))
    await until(lambda: len(served.services.hub) == 0)


async def test_followers_of_one_log_share_its_reading(served, follow, monkeypatch):
    job, pod = await running_job(served)
    lines = "".join(f"line {n}\n" for n in range(12_000))  # parts that are cut anywhere
    await served.logs.append(pod.uid, lines.encode(), end=True)
    await served.status(job, phase="Succeeded")
    reads = []
    read = served.logs.read

    async def counted(pod_uid, offset, limit):
        reads.append(offset)
        return await read(pod_uid, offset, limit)

    monkeypatch.setattr(served.logs, "read", counted)
    middle = lines.index("line 5432\n") + 3
    begins = [None] * 4 + [f"1.{middle}"]
    followed = [follow(served, f"{ONE}/logs?follow=true", last_id=begin) for begin in begins]
    for begin, frames in zip(begins, await asyncio.gather(*map(rest, followed)), strict=True):
        text = "\n".join(frame.data for frame in frames if frame.event == "log") + "\n"
        assert text == (lines if begin is None else lines[middle:])
    whole = [offset for offset in reads if offset < len(lines) // CHUNK * CHUNK and offset % CHUNK == 0 and offset]
    assert len(whole) == len(set(whole)), "a whole part is read once for all"


async def test_a_caller_has_so_many_streams_and_others_have_theirs(served, follow):
    await served.job("one")
    streams = [follow(served, f"{ONE}/events") for _ in range(OF_CALLER)]
    await asyncio.gather(*(take(stream, 1) for stream in streams))
    answer = await served.call("GET", f"{ONE}/events", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.json()["code"]) == (429, "TooManyOwnStreams")
    assert answer.headers["retry-after"] and f"{OF_CALLER} streams open" in answer.json()["detail"]
    await take(other := follow(served, f"{ONE}/events", who="reader"), 1)
    await streams[0].aclose()
    await until(lambda: len(served.services.hub) == OF_CALLER)
    await take(again := follow(served, f"{ONE}/events"), 1)
    await asyncio.gather(*(stream.aclose() for stream in (*streams, other, again)))


async def test_a_change_wakes_the_followers_of_its_job_only(world):
    job, _ = await running_job(world)
    with contextlib.ExitStack() as stack:
        followers = [stack.enter_context(world.services.followers.follow(job.uid)) for _ in range(1000)]
        other, _ = await running_job(world, "two")
        await world.event(other, "Placed")
        assert not any([await follower.wait(0) for follower in followers])
        await world.event(job, "Placed")
        assert all([await follower.wait(0) for follower in followers])


async def test_stopping_does_not_wait_for_streams(served, follow):
    await served.job("one")
    async with serving(served.app) as port:
        served.client.base_url = f"http://127.0.0.1:{port}"
        stream = follow(served, f"{ONE}/events")
        await take(stream, 1)
        begun = time.monotonic()
    assert time.monotonic() - begun < 4.5, "a graceful stop that waited would take five seconds and more"
    assert await rest(stream) == [], "closed cleanly, without an end: the follower comes back and resumes"


def test_a_taken_port_is_a_clear_error():
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindError, match=f"{port} is in use"):
            bind("127.0.0.1", port)
    with pytest.raises(BindError, match="no address of this machine"):
        bind("192.0.2.1", 0)
