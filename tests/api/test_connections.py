"""Before there is a request: heads that are too long or never end, too many connections, and who goes then."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import Counter
from typing import Any

import httpx
import pytest

from stoker_api.connection import MAX_HEAD_BYTES, Connection
from stoker_api.listener import ConnectionLimits
from stoker_api.serve import bind, serve, serving

from .test_main import certificate

pytestmark = pytest.mark.parametrize("new_world", ["embedded"], indirect=True)
LIVEZ = "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
JOBS = "POST /v1/projects/alpha/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Peer:
    """A bare connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Peer:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aenter__(self) -> Peer:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def send(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)
        await self.writer.drain()

    async def answer(self) -> tuple[int, Any]:
        """The status and the JSON (or text) of the next answer. Raises: IncompleteReadError when there is none."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:"))
            body = (await self.reader.readexactly(length)).decode()
        return int(head[9:12]), json.loads(body) if body.startswith("{") else body

    async def is_closed(self) -> bool:
        """The server ends it; what it sent before is left out."""
        async with asyncio.timeout(10):
            try:
                while await self.reader.read(4096):
                    pass
            except ConnectionResetError:
                pass
        return True


HEADS = [
    ("64 KiB and more in one header", LIVEZ + "X: " + "a" * (MAX_HEAD_BYTES + 1), 431, "HeadersTooLarge"),
    ("a whole head of 200 KB", LIVEZ + "X: " + "a" * 200_000 + "\r\n\r\n", 431, "HeadersTooLarge"),
    ("5,000 headers", LIVEZ + "X: y\r\n" * 5000 + "\r\n", 431, "HeadersTooLarge"),
    ("a path without an end", "GET /" + "a" * (2 * MAX_HEAD_BYTES), 431, "HeadersTooLarge"),
    ("an upgrade with a long header", LIVEZ + "Connection: upgrade\r\nUpgrade: websocket\r\nX: " + "a" * 70_000
     + "\r\n\r\n", 431, "HeadersTooLarge"),
    ("a trailer without an end",
     JOBS + "Authorization: TOKEN\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + "a" * 400_000, 431,
     "HeadersTooLarge"),
    ("half a head", LIVEZ + "X: a", 408, "RequestTimeout"),
    ("no HTTP", "\x16\x03\x01\x02\x00\x01\x00", 400, "BadRequest"),
    ("half a head after a request", LIVEZ + "\r\n" + LIVEZ, 200, None),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "status", "code"), [case[1:] for case in HEADS], ids=[case[0] for case in HEADS])
async def test_a_head_is_bounded_in_bytes_and_time(new_world, sent, status, code):
    async with new_world() as world, serving(world.app, limits=ConnectionLimits(head_s=0.2)) as port:
        async with Peer(port) as peer:
            await peer.send(sent.replace("TOKEN", world.auth()["Authorization"]))
            found, said = await peer.answer()
            assert (found, code and said["code"]) == (status, code), said
            if code is None:  # the next head comes and does not end
                await peer.send("X: y\r\n")
                found, said = await peer.answer()
                assert (found, said["code"]) == (408, "RequestTimeout")
            assert await peer.is_closed()
        async with Peer(port) as peer:
            await peer.send(LIVEZ + "\r\n")
            assert (await peer.answer())[0] == 200


async def test_what_a_wave_of_connections_sends_is_taken_a_few_at_a_time(new_world, monkeypatch):
    taken: Counter[int] = Counter()
    turn = 0
    take = Connection._take

    def counted(connection: Connection, data: bytes) -> None:
        taken[turn] += 1
        take(connection, data)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    monkeypatch.setattr(Connection, "_take", counted)
    async with new_world() as world, serving(world.app) as port:
        peers = [await Peer(port).open() for _ in range(100)]
        next_turn()
        for peer in peers:
            await peer.send(LIVEZ + "\r\n")
        peers.pop().writer.close()
        for peer in peers:
            assert (await peer.answer())[0] == 200
            await peer.send(LIVEZ + "\r\n")
            assert (await peer.answer())[0] == 200
            peer.writer.close()
        assert max(taken.values()) <= 8 + 1, "and what an older connection sends"


async def test_a_drip_buys_no_time(new_world):
    async with new_world() as world, serving(world.app, limits=ConnectionLimits(head_s=0.3)) as port:
        early = JOBS + f"Authorization: Bearer x\r\nContent-Length: {10**6}\r\n\r\n"  # 401 before the body is there
        for begun, drop in ((LIVEZ, "X: y\r\n"), ("", "\r\n"), (LIVEZ + "\r\n", "\r\n"), (early, "a")):
            async with Peer(port) as peer:
                await peer.send(begun)
                closed = asyncio.create_task(peer.is_closed())
                while not closed.done():
                    peer.writer.write(drop.encode())
                    await asyncio.sleep(0.02)
                assert await closed


async def test_full_of_peers_without_a_token_it_still_answers(new_world, caplog):
    async with new_world() as world, serving(world.app, limits=ConnectionLimits(most=8)) as port:
        async with Peer(port) as known:
            await known.send("GET /v1/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: "
                             f"{world.auth()['Authorization']}\r\n\r\n")  # fmt: skip
            assert (await known.answer())[0] == 200
            idle = []
            for number in range(20):
                idle.append(peer := await Peer(port).open())
                if number % 2:  # half of them say nothing, half rest after an answer that needs no token
                    await peer.send(LIVEZ + "\r\n")
                    assert (await peer.answer())[0] == 200
            await known.send(LIVEZ + "\r\n")
            assert (await known.answer())[0] == 200, "one with a token stays"
            for peer in idle:
                peer.writer.close()
        assert 'refused_total{reason="Evicted"}' in world.services.metrics.text().decode()
        assert len([line for line in caplog.messages if "connections are open" in line]) == 1


async def test_bodies_that_never_come_hold_no_connection_without_a_token(new_world):
    async with new_world() as world, serving(world.app, limits=ConnectionLimits(most=8)) as port:
        peers = []
        for _ in range(20):  # longer than any route takes: refused before the token is looked at
            peers.append(peer := await Peer(port).open())
            await peer.send(JOBS + f"Content-Length: {10**9}\r\n\r\n{{")
            assert (await peer.answer())[0] == 413
        async with Peer(port) as other:
            await other.send(LIVEZ + "\r\n")
            assert (await other.answer())[0] == 200
        for peer in peers:
            peer.writer.close()


async def test_peers_that_take_no_answers_hold_no_connection(new_world):
    asked = f"GET /{'x' * 200} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 100
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    listening = bind("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of each accepted one too: soon full
    async with new_world() as world:
        limits = ConnectionLimits(most=2)
        server = asyncio.create_task(serve(world.app, sock=listening, on_ready=lambda _: ready.set(), limits=limits))
        await ready.wait()
        port = listening.getsockname()[1]
        labels = {"route": "none", "method": "GET", "code": "404"}

        def answered() -> float | None:
            return world.services.metrics.registry.get_sample_value("stoker_api_request_seconds_count", labels)

        async def ask(sock: socket.socket) -> None:
            while True:
                await loop.sock_sendall(sock, asked)

        peers = [socket.socket() for _ in range(2)]
        for peer in peers:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
        asking = [asyncio.create_task(ask(peer)) for peer in peers]
        try:
            before, still = answered(), 0
            async with asyncio.timeout(100):
                while before is None or still < 100:  # until the server can send no more
                    await asyncio.sleep(0.002)
                    before, still = answered(), still + 1 if answered() == before else 0
            async with Peer(port) as other:
                await other.send(LIVEZ + "\r\n")
                assert (await other.answer())[0] == 200
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            for peer in peers:
                peer.close()
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)


async def test_one_callers_slow_bodies_leave_connections_to_others(new_world):
    most, share = 80, 10
    async with new_world() as world, serving(world.app, limits=ConnectionLimits(most=most, head_s=100)) as port:
        head, half, rest = JOBS + "Content-Length: 8\r\nAuthorization: ", "\r\n\r\n{", '"a": 1}'
        alice = head + world.auth("alice")["Authorization"] + half
        bob = head.replace("alpha", "beta") + world.auth("bob")["Authorization"] + half
        peers = [await Peer(port).open() for _ in range(most)]
        for peer in peers:
            await peer.send(alice)
        for peer in peers[share:]:
            said = (await peer.reader.read()).decode()  # to the end: the connection is closed
            assert said.startswith("HTTP/1.1 429") and "retry-after: 5" in said and "TooManyOwnBodies" in said
        for first, then in ((bob, rest), (alice + rest, "")):  # a neighbour; a body that holds nothing
            async with Peer(port) as peer:
                await peer.send(first)
                await peer.send(then)
                assert (await peer.answer())[0] == 422
        await peers[0].send(rest)  # one that goes on is heard, and makes room
        assert (await peers[0].answer())[0] == 422
        async with Peer(port) as peer:
            await peer.send(alice)
            await peer.send(rest)
            assert (await peer.answer())[0] == 422
        for peer in peers:
            peer.writer.close()


async def test_where_all_are_at_work_the_new_one_is_turned_away(new_world):
    async with new_world() as world, serving(world.app, limits=ConnectionLimits(most=2)) as port:
        busy = [await Peer(port).open() for _ in range(2)]
        for peer in busy:
            await peer.send(JOBS + f"Authorization: {world.auth()['Authorization']}\r\nContent-Length: 8\r\n\r\n{{")
        async with asyncio.timeout(10):
            while world.services.metrics.registry.get_sample_value("stoker_api_connections") != 2:
                await asyncio.sleep(0.01)
        async with Peer(port) as new:
            found, said = await new.answer()
            assert (found, said["code"], said["retryable"]) == (503, "Unavailable", True)
        for peer in busy:
            await peer.send('"a": 1}')
            assert (await peer.answer())[0] == 422
            peer.writer.close()


async def test_tls_handshakes_count_and_give_way(new_world, tmp_path):
    cert, key = certificate(tmp_path, "first")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    verify = ssl.create_default_context(cafile=cert)
    limits = ConnectionLimits(most=8, head_s=0.5)
    async with new_world() as world, serving(world.app, tls=context, limits=limits) as port:
        silent = [await Peer(port).open() for _ in range(20)]
        peer = Peer(port)
        peer.reader, peer.writer = await asyncio.open_connection("127.0.0.1", port, ssl=verify)
        await peer.send(LIVEZ + "X: " + "a" * 70_000)
        assert (await peer.answer())[0] == 431
        peer.writer.close()
        assert all([await one.is_closed() for one in silent])
        for one in silent:
            one.writer.close()


async def test_a_log_is_followed_over_tls(new_world, tmp_path):
    cert, key = certificate(tmp_path, "first")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    verify = ssl.create_default_context(cafile=cert)
    async with (
        new_world() as world,
        world.services.running(),
        serving(world.app, tls=context) as port,
        httpx.AsyncClient(verify=verify, base_url=f"https://127.0.0.1:{port}", timeout=20) as world.client,
    ):
        job = await world.status(await world.job("one"), phase="Running", attempt=1)
        pod = await world.pod(job)
        await world.logs.append(pod.uid, b"line\n" * 100_000)
        answer = await world.call("GET", "/v1/projects/alpha/jobs/one/logs?follow=false")
        assert (answer.status_code, len(answer.content)) == (200, 500_000)
