"""What others notice of many followers, and of peers without a token: `python -m tools.bench.followers [count ...]`.

A `stoker up` with one job that has written 20 MB and goes on with 200 kB/s. Load comes from a process of its own (this
file with `--load`); /livez and submits are timed meanwhile, each on a connection that is kept, from the load's first
connection on. Called by `make bench`; docs/benchmarks.md keeps the figures.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from stoker_api.tokens import TokenFile
from tests.support.harness import Server, machine, running, until

LOG = "import time\nline = 'x' * 99 + '\\n'\nprint(line * 200_000, end='', flush=True)\n" \
      "while True:\n    print(line * 200, end='', flush=True)\n    time.sleep(0.1)"  # fmt: skip
JOBS = "/v1/projects/default/jobs"
PER_TOKEN = 90
SECONDS = 12.0
HALF_HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


# The load, in its own process.


async def follow(port: int, token: str, job: str, reads: bool, taken: list[int]) -> None:
    loop = asyncio.get_running_loop()
    head = f"GET {JOBS}/{job}/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        taken.append(int((await loop.sock_recv(sock, 12))[9:]))
        buffer = bytearray(1 << 16)
        while reads and (count := await loop.sock_recv_into(sock, buffer)):
            taken[0] += count
        await asyncio.Event().wait()


async def half_a_head(port: int, taken: list[int]) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, HALF_HEAD)
        taken.append(200)
        await asyncio.Event().wait()


async def load(kind: str, count: int, port: int, job: str, tokens: list[str]) -> None:
    """Until standard input ends; then what it took, as JSON."""
    taken = [0]
    if kind == "half":
        tasks = [asyncio.create_task(half_a_head(port, taken)) for _ in range(count)]
    else:
        tasks = [
            asyncio.create_task(follow(port, tokens[n // PER_TOKEN], job, kind == "read", taken)) for n in range(count)
        ]
    async with asyncio.timeout(300):
        while len(taken) <= count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    print("all there", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"accepted": taken.count(200), "mb": taken[0] >> 20, "cpu": used.ru_utime + used.ru_stime}))


# What others notice.


class Prober:
    """Times one call again and again until it is stopped."""

    def __init__(self, server: Server, every_s: float, *call: object, fresh: bool = False) -> None:
        self.times: list[float] = []
        self.failed = 0
        self._server, self._every_s, self._call, self._fresh = server, every_s, call, fresh
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection = None
        while not self._stop.wait(self._every_s):
            begun = time.perf_counter()
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
                connection.request(*self._call)  # type: ignore[arg-type]
                answer = connection.getresponse()
                answer.read()
                self.failed += answer.status >= 300
            except OSError:
                self.failed += 1
                connection = None
            self.times.append(time.perf_counter() - begun)
            if self._fresh and connection is not None:
                connection.close()
                connection = None

    def so_far(self) -> str:
        """Since the last time; then it begins anew."""
        times, self.times = sorted(self.times), []
        failed, self.failed = f", {self.failed} failed" if self.failed else "", 0
        if not times:
            return "nothing was answered"
        p50, p99 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.99))
        return f"p50 {p50:6.1f}  p99 {p99:7.1f}  max {times[-1] * 1000:7.1f} ms{failed}"

    def stop(self) -> str:
        self._stop.set()
        self._thread.join()
        return self.so_far()


def rss_mib(server: Server) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


def cpu_s(server: Server) -> float:
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server: Server, what: str, kind: str, count: int, job: str, tokens: list[str]) -> None:
    before, cpu_before, begun = rss_mib(server), cpu_s(server), time.monotonic()
    bearer = {"Authorization": f"Bearer {tokens[0]}", "Content-Type": "application/json"}
    body = json.dumps({"spec": {"suspend": True, "trainer": {"command": ["true"]}}})
    livez = Prober(server, 0.01, "GET", "/livez", fresh=kind == "half")
    submit = Prober(server, 0.05, "POST", JOBS, body, bearer)
    process = subprocess.Popen(
        [sys.executable, __file__, "--load", kind, str(count), str(server.port), job],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write("\n".join(tokens) + "\n\n")
        process.stdin.flush()
        assert process.stdout.readline() == "all there\n"
        there_s = time.monotonic() - begun
        opening = [livez.so_far(), submit.so_far()]
        peak = 0
        while time.monotonic() - begun < there_s + SECONDS:
            peak = max(peak, rss_mib(server))
            time.sleep(0.2)
        said = [livez.stop(), submit.stop()]
        cpu, wall = cpu_s(server) - cpu_before, time.monotonic() - begun
        process.stdin.close()
        took = json.loads(process.stdout.read())
    time.sleep(3)
    print(f"{what}: {took['accepted']} accepted after {there_s:.1f} s, {took['mb']} MB read")
    if count:
        print(f"  livez  {opening[0]} while they come\n  submit {opening[1]} while they come")
    print(f"  livez  {said[0]}\n  submit {said[1]}\n  CPU: server {cpu:.1f} of {wall:.1f} s, load {took['cpu']:.1f} s")
    print(f"  memory: {before} MiB, {peak} during, {rss_mib(server)} after", flush=True)


def endless_header(server: Server) -> None:
    livez = Prober(server, 0.01, "GET", "/livez")
    sent, begun, before = 0, time.monotonic(), rss_mib(server)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(HALF_HEAD)
        try:
            while time.monotonic() - begun < SECONDS:
                sent += sock.send(b"a" * 65_536)
        except OSError:
            pass
    time.sleep(2)
    print(f"endless header: {sent >> 10} KiB taken in {time.monotonic() - begun:.1f} s; memory {before} MiB, "
          f"{rss_mib(server)} after\n  livez  {livez.stop()}", flush=True)  # fmt: skip


def main(counts: list[int]) -> None:
    print(machine())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as most machines have it
        with running(data) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            file = TokenFile.open(data)
            tokens = [file.add(f"bench-{n}", "user", ["default"]) for n in range(max(counts) // PER_TOKEN + 1)]
            client = server.client()
            command = [sys.executable, "-c", LOG]
            job = client.submit({"spec": {"trainer": {"command": command}}}, project="default").metadata.name
            log = data / "workers"
            until(lambda: any(p.stat().st_size > 20_000_000 for p in log.glob("*/log")), "20 MB of log")
            measure(server, "no follower", "hold", 0, job, tokens)
            for count in counts:
                measure(server, f"{count} followers that never read", "hold", count, job, tokens)
                measure(server, f"{count} followers that read", "read", count, job, tokens)
            endless_header(server)
            measure(server, "3,000 half heads, soft limit of 1,024 files", "half", 3000, job, tokens)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        given = [line.strip() for line in iter(sys.stdin.readline, "\n")]
        asyncio.run(load(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], given))
    else:
        main([int(word) for word in sys.argv[1:]] or [300, 1000])
