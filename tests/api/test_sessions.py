"""Sessions: how caller and worker meet, what is carried, what ends it and what is recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from stoker.spec.event import EVENTS
from stoker.spec.job import JOBS

from .session_world import EXEC, enter, gone, open_socket, refused, running, served_with

# How they meet.


async def test_a_command_and_its_end(served):
    worker = await running(served)
    assert await worker.reported() == []
    async with enter(served) as client:
        assert client.subprotocol == "v1.session.stoker.dev"
        await client.send('{"kind": "exec", "argv": ["bash", "-l"], "tty": true, "columns": 120, "rows": 40}')
        session = await worker.called()
        assert await worker.reported() == [session], "again, until it came"
        async with worker.come(session) as side:
            assert json.loads(await side.recv()) == {
                "kind": "exec", "argv": ["bash", "-l"], "tty": True, "columns": 120, "rows": 40, "term": "xterm",
            }  # fmt: skip
            assert await worker.reported() == []
            await side.send('{"ready":true}')
            assert await client.recv() == '{"ready":true}'
            await client.send(b"\x00input")
            assert await side.recv() == b"\x00input"
            await side.send(b"\x01output")
            await side.send(b'\x05{"exitCode":3,"message":""}')
            await side.close()
            assert [message async for message in client] == [b"\x01output", b'\x05{"exitCode":3,"message":""}']
            assert client.close_code == 1000
    await gone(served)


async def test_a_session_is_its_pods_alone_and_only_once(served):
    worker, other = await running(served), await running(served, "two")
    async with enter(served) as client:
        await client.send(json.dumps(EXEC))
        session = await worker.called()
        assert await other.reported() == []
        unknown = await refused(worker.come("0" * 32))
        for found in (await refused(other.come(session)), unknown):
            assert found[0] == 404 and found[1]["detail"] == unknown[1]["detail"]
        assert (await refused(open_socket(served, f"/v1/report/sessions/{session}", served.auth())))[0] == 401
        async with worker.come(session) as side:
            assert json.loads(await side.recv())["argv"] == ["cat"]
            assert (await refused(worker.come(session)))[0] == 404


async def test_a_worker_that_refuses_says_why(served):
    worker = await running(served)
    async with enter(served) as client:
        await client.send(json.dumps(EXEC))
        async with worker.come(await worker.called()) as side:
            await side.recv()
            await side.send('{"ready":false,"message":"no such program"}')
            await side.close()
        assert json.loads(await client.recv())["message"] == "no such program"
        with pytest.raises(ConnectionClosed):
            await client.recv()


async def test_a_worker_that_does_not_come(new_world):
    async with served_with(new_world, come_s=0.2) as world:
        await running(world)
        async with enter(world) as client:
            await client.send(json.dumps(EXEC))
            said = json.loads(await client.recv())
            assert said["ready"] is False and "did not come within 0.2 s" in said["message"]
            with pytest.raises(ConnectionClosed):
                await client.recv()
        await gone(world)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("{", "not valid"),
        (b"\x00binary", "text"),
        ('{"kind":"forward","port":1}', "kind"),
        ('{"kind":"exec","argv":"ls"}', "argv"),
        ('{"kind":"exec","argv":["a\\u0000b"]}', "argv"),
        ('{"kind":"exec","argv":[],"env":{}}', "env"),
        ('{"kind":"exec","tty":1}', "tty"),
        ('{"kind":"exec","tty":1,"rows":0}', "; /rows"),
        ('{"kind":"exec","rows":0}', "rows"),
        ('{"kind":"exec","term":"a b"}', "term"),
        (json.dumps({"kind": "exec", "argv": ["x"] * 1025}), "argv"),
        (json.dumps({"kind": "exec", "argv": ["x" * 70_000]}), "argv"),
        (None, "did not come"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_a_first_message_that_is_wrong(new_world, first, message):
    async with served_with(new_world, first_message_s=0.3 if first is None else 10) as world:
        worker = await running(world)
        async with enter(world) as client:
            if first is not None:
                await client.send(first)
            said = json.loads(await client.recv())
            assert said["ready"] is False and message in said["message"]
            with pytest.raises(ConnectionClosed) as info:
                await client.recv()
            assert info.value.rcvd.code == 1008
            assert await worker.reported() == []


async def test_a_command_can_not_be_smuggled_in_by_who_may_only_forward(served):
    worker = await running(served)
    async with enter(served, "portforward") as client:
        await client.send(json.dumps(EXEC))
        assert json.loads(await client.recv())["ready"] is False
    assert await worker.reported() == []


async def test_nothing_is_sent_ahead_of_the_answer(served):
    await running(served)
    async with enter(served) as client:
        await client.send(json.dumps(EXEC))
        await client.send(b"\x00early")
        assert "before" in json.loads(await client.recv())["message"]


async def test_a_caller_who_leaves_early_is_not_waited_for(served):
    worker = await running(served)
    async with enter(served) as client:
        await client.send(json.dumps(EXEC))
        session = await worker.called()
    await gone(served)
    assert await worker.reported() == [] and (await refused(worker.come(session)))[0] == 404


# Bounds.


async def test_a_worker_and_the_server_hold_so_many(new_world):
    async with served_with(new_world, per_pod=2, total=3) as world:
        await running(world)
        await running(world, "two")
        first, second = await enter(world), await enter(world)
        status, body = await refused(enter(world))
        assert (status, body["code"]) == (409, "TooManyWorkerSessions")
        third = await enter(world, name="two")
        status, body = await refused(enter(world, name="two"))
        assert (status, body["code"]) == (503, "TooManySessions")
        await first.close()
        await gone(world, left=2)
        again = await enter(world)
        for client in (second, third, again):
            await client.close()
        await gone(world)


async def test_one_caller_leaves_places_to_others(new_world):
    async with served_with(new_world, of_caller=2, total=3) as world:
        await running(world)
        own = [await enter(world), await enter(world)]
        status, body = await refused(enter(world))
        assert (status, body["code"], body["retryable"]) == (429, "TooManyOwnSessions", True)
        assert "alice' has 2 sessions open" in body["detail"]
        other = await enter(world, who="admin")
        await own[0].close()
        await gone(world, left=2)
        for client in (other, own[1], await enter(world)):
            await client.close()
        await gone(world)


async def test_a_message_over_the_limit_ends_the_session(served):
    worker = await running(served)
    async with worker.session() as (client, side):
        await client.send(b"\x00" + b"x" * (64 << 10))
        assert len(await side.recv()) == (64 << 10) + 1
        await client.send(b"\x00" + b"x" * (200 << 10))
        with pytest.raises(ConnectionClosed) as info:
            await client.recv()
        assert info.value.rcvd.code == 1009
    await gone(served)


async def test_a_session_in_which_nothing_is_sent_ends(new_world):
    async with served_with(new_world, idle_s=0.5) as world:
        worker = await running(world)
        async with worker.session() as (client, side):
            for _ in range(4):
                await asyncio.sleep(0.2)
                await client.send(b"\x00.")
                await side.recv()
            with pytest.raises(ConnectionClosed) as info:
                await client.recv()
            assert "nothing was sent" in info.value.rcvd.reason


# What ends it.


async def ends(client: Any, side: Any, reason: str) -> None:
    for one in (client, side):
        with pytest.raises(ConnectionClosed) as info:
            await asyncio.wait_for(one.recv(), 10)
        assert info.value.rcvd is not None and reason in info.value.rcvd.reason, info.value


async def test_the_end_of_its_pod(served):
    worker = await running(served)
    async with worker.session() as (client, side):
        await worker.phase("Failed")
        await ends(client, side, "worker 0 has ended")
    await gone(served)


async def test_the_last_reports_of_a_pod_that_ends_arrive(served):
    worker = await running(served)
    async with worker.session() as (client, side):
        await worker.phase("Succeeded")
        await side.send(b'\x05{"exitCode":0,"message":""}')
        await side.close()
        assert await client.recv() == b'\x05{"exitCode":0,"message":""}'
        with pytest.raises(ConnectionClosed) as info:
            await client.recv()
        assert info.value.rcvd.code == 1000


async def test_the_deletion_of_its_job(served):
    worker = await running(served)
    async with worker.session() as (client, side):
        await served.store.delete(JOBS, worker.job.key)
        await ends(client, side, "job one is deleted")


async def test_the_servers_stop(new_world):
    async with served_with(new_world) as world:
        worker = await running(world)
        held = worker.session()
        client, side = await held.__aenter__()
        waiting = await enter(world)
        await waiting.send(json.dumps(EXEC))
        await worker.called()
    await ends(client, side, "the server is stopping")
    assert json.loads(await waiting.recv()) == {"ready": False, "message": "the server is stopping"}
    await held.__aexit__(None, None, None)


async def test_either_side_that_is_cut_off(served):
    worker = await running(served)
    async with worker.session() as (client, side):
        side.transport.abort()
        with pytest.raises(ConnectionClosed) as info:
            await client.recv()
        assert info.value.rcvd.code == 1011 and "broke off" in info.value.rcvd.reason
    async with worker.session() as (client, side):
        client.transport.abort()
        with pytest.raises(ConnectionClosed) as info:
            await side.recv()
        assert info.value.rcvd.reason == "the caller has left"
    await gone(served)


# What is recorded.


async def test_sessions_are_recorded_on_the_job(served):
    worker = await running(served)
    alice = served.name("alice")
    async with worker.session():
        pass
    await gone(served)
    async with worker.session("portforward"):
        pass
    await gone(served)
    await served.services.audit.written()

    def said(events: Any) -> list[str]:
        return sorted(event.message for event in events.values() if event.involved_object.uid == worker.job.uid)

    await served.deps.events.wait_for(lambda events: len(said(events)) == 4, timeout_s=5)
    assert said(served.deps.events) == [
        f"{alice} exec'ed into worker 0",
        f"{alice} forwards port 6006 of worker 0",
        f"{alice}'s exec session in worker 0 ended after 1s",
        f"{alice}'s portforward session in worker 0 ended after 1s",
    ]
    listed = (await served.call("GET", "/v1/projects/alpha/jobs/one/events")).json()["items"]
    assert {event["reason"] for event in listed} == {"SessionOpened", "SessionClosed"}
    assert b'stoker_api_sessions_asked_total{kind="exec",outcome="opened"} 1.0' in served.services.metrics.text()
    assert b'stoker_api_sessions{kind="exec"} 0.0' in served.services.metrics.text()


async def test_an_event_that_can_not_be_written_keeps_no_caller_out(served, monkeypatch, caplog):
    from stoker.store.port import Unavailable

    worker = await running(served)
    create = served.deps.store.create

    async def away(kind: Any, what: Any) -> Any:
        if kind is EVENTS:
            raise Unavailable("no connection")
        return await create(kind, what)

    monkeypatch.setattr(served.deps.store, "create", away)
    async with worker.session() as (client, side):
        await client.send(b"\x00x")
        assert await side.recv() == b"\x00x"
    await gone(served)
    await served.services.audit.written()
    assert "could not be written" in caplog.text
