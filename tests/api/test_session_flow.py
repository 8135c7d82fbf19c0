"""What a session carries: much, both ways, at the slower side's pace; and who is taken for dead."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from stoker_api import serve

from .session_world import gone, running, served_with

CHUNK = 64 << 10


# What is carried never meets the store: one mode will do.
pytestmark = pytest.mark.parametrize("new_world", ["embedded"], indirect=True)


async def push(sender: Any, total: int, channel: bytes) -> str:
    """Send so many random bytes; their checksum."""
    digest = hashlib.sha256()
    for _ in range(total // CHUNK):
        data = os.urandom(CHUNK)
        digest.update(data)
        await sender.send(channel + data)
    return digest.hexdigest()


async def pull(receiver: Any, total: int, channel: bytes) -> str:
    digest, taken = hashlib.sha256(), 0
    while taken < total:
        message = await receiver.recv()
        assert message[:1] == channel
        digest.update(message[1:])
        taken += len(message) - 1
    return digest.hexdigest()


async def test_much_is_carried_both_ways_at_once(served):
    total = 10 << 20
    worker = await running(served)
    async with worker.session() as (client, side):
        sent_in, taken_out, sent_out, taken_in = await asyncio.gather(
            push(client, total, b"\x00"), pull(client, total, b"\x01"),
            push(side, total, b"\x01"), pull(side, total, b"\x00"),
        )  # fmt: skip
        assert sent_in == taken_in and sent_out == taken_out


@contextlib.asynccontextmanager
async def narrow(world: Any) -> AsyncIterator[dict[str, Any]]:
    """A connection with small buffers of its own, which soon takes no more if no one reads."""
    host, _, port = world.base.removeprefix("http://").rpartition(":")
    with socket.socket() as sock:  # a session that fails before it takes the socket leaves it open
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        yield {"sock": sock, "max_queue": 1}


async def stalled(sender: Any, counted: list[int]) -> None:
    """Push until nothing was taken for half a second."""

    async def go_on() -> None:
        while True:
            await sender.send(b"\x01" + bytes(CHUNK))
            counted.append(CHUNK)

    pushing = asyncio.create_task(go_on())
    before = -1
    while before != len(counted):
        before = len(counted)
        await asyncio.sleep(0.5)
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)


@pytest.fixture
def quick_pings(monkeypatch):
    """Five a second, each to be answered within a second."""
    monkeypatch.setattr(serve, "PING_EVERY_S", 0.2)
    monkeypatch.setattr(serve, "PONG_WITHIN_S", 1.0)


async def take(receiver: Any, total: int) -> None:
    """Read so many bytes, and not one more."""
    taken = 0
    while taken < total:
        taken += len(await receiver.recv()) - 1
    assert taken == total


async def test_a_slow_reader_slows_the_writer(served):
    """What is on its way lies in the sockets' buffers, of which the api's own part is small."""
    worker = await running(served)
    async with narrow(served) as small, worker.session(caller=small) as (client, side):
        counted: list[int] = []
        await stalled(side, counted)
        assert sum(counted) < 24 << 20, "the kernel's buffers, two sockets of them"
        await take(client, sum(counted))


async def test_a_slow_reader_is_not_dead(new_world, quick_pings):
    """It answers no ping while it does not read."""
    async with served_with(new_world) as world:
        worker = await running(world)
        async with narrow(world) as small, worker.session(caller=small) as (client, side):
            counted: list[int] = []
            await stalled(side, counted)
            await asyncio.sleep(1.6)  # longer than a peer has that owes nothing but its pong
            await take(client, sum(counted))
            await client.send(b"\x00still here")
            assert await side.recv() == b"\x00still here"


async def test_a_peer_that_stands_still_is_cut_off(new_world, quick_pings):
    async with served_with(new_world) as world:
        worker = await running(world)
        async with worker.session() as (client, side):
            await client.send(b"\x00all read")  # nothing is owed to the caller
            assert await side.recv() == b"\x00all read"
            client.transport.pause_reading()
            with pytest.raises(ConnectionClosed) as info:
                await asyncio.wait_for(side.recv(), 20)
            assert info.value.rcvd.reason == "the caller has left"
        await gone(world)


async def test_a_caller_who_dies_before_a_worker_that_takes_nothing(new_world, quick_pings):
    """Nothing is read from the caller then; that it is gone is seen all the same."""
    async with served_with(new_world) as world:
        worker = await running(world)
        async with narrow(world) as small, worker.session(worker=small) as (client, side):
            counted: list[int] = []
            await stalled(client, counted)
            client.transport.abort()
            await gone(world)
            while True:
                try:
                    await side.recv()
                except ConnectionClosed:
                    break


async def test_a_stop_does_not_wait_for_who_reads_nothing(new_world):
    async with contextlib.AsyncExitStack() as held:
        async with served_with(new_world) as world:
            worker = await running(world)
            small = await held.enter_async_context(narrow(world))
            _, side = await held.enter_async_context(worker.session(caller=small))
            await stalled(side, [])
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 6
