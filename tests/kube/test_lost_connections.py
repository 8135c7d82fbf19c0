"""A lost connection or a refusal leaves nothing in memory that only a full collection would find: such are rare."""

from __future__ import annotations

import asyncio
import gc
from types import FrameType

import pytest

from stoker.kube.client import Call, KubeClient
from stoker.store.clock import SystemClock
from stoker.store.port import Conflict, Unavailable

from .fake_server import kubeconfig

WATCH = Call("watch", "Pod")


async def read(client):
    await client.request(Call("get", "Pod", "p/a", tries=1), "GET", "/a")


async def follow(client):
    with await client.stream(WATCH, "/a", {}, silence_s=10) as stream:
        while await stream.read():
            pass


async def follow_in_silence(client):
    with await client.stream(WATCH, "/a", {}, silence_s=0.01) as stream:
        while await stream.read():
            pass


@pytest.mark.parametrize(
    ("asks", "then"),
    [
        (read, "refuse"),
        (read, "cut"),
        (read, "conflict"),
        (follow, "refuse"),
        (follow, "cut"),
        (follow, "conflict"),
        (follow_in_silence, "hang"),
    ],
)
async def test_what_was_lost_is_freed_at_once(asks, then, tmp_path):
    async def half_an_answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        if then == "conflict":
            writer.write(b"HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\n\r\nbusy")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        await (reader.read() if then == "hang" else asyncio.sleep(0))
        writer.transport.abort()

    server = await asyncio.start_server(half_an_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if then == "refuse":
        server.close()
    config = kubeconfig(tmp_path, f"http://127.0.0.1:{port}")
    async with server, KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
        for _ in range(2):  # the first fills caches
            gc.collect()
            gc.disable()
            with pytest.raises(Conflict if then == "conflict" else Unavailable):
                await asks(client)
            await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            left = [one for one in gc.garbage if isinstance(one, FrameType | BaseException) or _of_aiohttp(one)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not left


def _of_aiohttp(thing):
    return type(thing).__module__.startswith("aiohttp.")
