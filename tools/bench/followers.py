"""What others notice of many followers, and of peers without a token: `python -m tools.bench.followers [count ...]`.

A `stoker up` with one job that has written 20 MB and goes on with 200 kB/s. Load comes from a process of its own (this
file with `--load`); /livez and submits are timed meanwhile, each on a connection that is kept, from the load's first
connection on. Called by `make bench`; docs/benchmarks.md keeps the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from stoker_api.tokens import TokenFile
from tests.support.harness import Server, cpu_s, machine, rss_mib, running, until
from tools.bench.record import record

LOG = "import time\nline = 'x' * 99 + '\\n'\nprint(line * 200_000, end='', flush=True)\n" \
      "while True:\n    print(line * 200, end='', flush=True)\n    time.sleep(0.1)"  # fmt: skip
JOBS = "/v1/projects/default/jobs"
PER_TOKEN = 90
SECONDS = 6.0
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
    print("coming", flush=True)
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
        self._times: list[float] = []
        self._failed = 0
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
                self._failed += answer.status >= 300
            except OSError:
                self._failed += 1
                connection = None
            self._times.append(time.perf_counter() - begun)
            if self._fresh and connection is not None:
                connection.close()
                connection = None

    def taken(self) -> tuple[list[float], int]:
        """The times (s) and the failures since the last call."""
        times, self._times = self._times, []
        failed, self._failed = self._failed, 0
        return times, failed

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


NAMES = ("p50_s", "p99_s", "median_p99_s")


class Phases:
    """What a call took in each phase, over all rounds."""

    def __init__(self, server: Server, tokens: list[str], *, fresh: bool = False) -> None:
        bearer = {"Authorization": f"Bearer {tokens[0]}", "Content-Type": "application/json"}
        body = json.dumps({"spec": {"suspend": True, "trainer": {"command": ["true"]}}})
        self._probers = {
            "livez": Prober(server, 0.01, "GET", "/livez", fresh=fresh),
            "submit": Prober(server, 0.05, "POST", JOBS, body, bearer),
        }
        self._rounds: dict[tuple[str, str], list[list[float]]] = {}
        self._failed = 0

    def begin(self) -> None:
        for prober in self._probers.values():
            prober.taken()

    def end(self, phase: str) -> None:
        for call, prober in self._probers.items():
            times, failed = prober.taken()
            self._rounds.setdefault((call, phase), []).append(sorted(times))
            self._failed += failed

    def close(self) -> None:
        for prober in self._probers.values():
            prober.stop()

    def show(self, what: str) -> None:
        """By call and phase: p50 and p99 of all rounds' times, the median of the rounds' p99s; and against none."""
        for call in self._probers:
            alone = self._of(call, "alone")
            for phase in ("alone", "coming", "there", "leaving"):
                if (call, phase) in self._rounds:
                    here = self._of(call, phase)
                    against = [mine / theirs for mine, theirs in zip(here, alone, strict=True)]
                    names = (*NAMES, *(f"{name}_ratio" for name in NAMES))
                    record(what=what, call=call, phase=phase, **dict(zip(names, (*here, *against), strict=True)))
                    ratios = "  ".join(f"{ratio:4.1f}x" for ratio in against)
                    print("  {:6} {:8} p50 {:6.1f}  p99 {:6.1f}  median p99 {:6.1f} ms   {}".format(
                        call, phase, *(1000 * value for value in here), ratios))  # fmt: skip
        if self._failed:
            print(f"  {self._failed} calls failed")

    def _of(self, call: str, phase: str) -> tuple[float, float, float]:
        rounds = self._rounds[call, phase]
        times = sorted(itertools.chain(*rounds))
        return (
            quantile(times, 0.5),
            quantile(times, 0.99),
            statistics.median(quantile(each, 0.99) for each in rounds),
        )


def quantile(times: list[float], share: float) -> float:
    return times[int(len(times) * share)]


def measure(server: Server, what: str, kind: str, count: int, job: str, tokens: list[str], rounds: int) -> None:
    """In turns without the load and with it: what the machine's other work costs is then in both."""
    assert server.process is not None
    pid = server.process.pid
    phases = Phases(server, tokens, fresh=kind == "half")
    loads, memory = [], [f"{int(rss_mib(pid))}"]
    cpus = {"alone": 0.0, "coming": 0.0, "there": 0.0, "leaving": 0.0}

    def phase(name: str, begun: float) -> None:
        phases.end(name)
        cpus[name] += cpu_s(pid) - begun

    for _ in range(rounds):
        phases.begin()
        begun = cpu_s(pid)
        time.sleep(SECONDS)
        phase("alone", begun)
        begun, began_s = cpu_s(pid), time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.followers", "--load", kind, str(count), str(server.port), job],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with process:
            process.stdin.write("\n".join(tokens) + "\n\n")
            process.stdin.flush()
            assert process.stdout.readline() == "coming\n"
            phases.begin()
            assert process.stdout.readline() == "all there\n"
            phase("coming", begun)
            there_s, begun = time.monotonic() - began_s, cpu_s(pid)
            time.sleep(SECONDS)
            phase("there", begun)
            memory.append(f"{int(rss_mib(pid))}")
            begun = cpu_s(pid)
            process.stdin.close()
            loads.append(json.loads(process.stdout.read()) | {"s": there_s})
        time.sleep(3)
        phase("leaving", begun)
        memory.append(f"{int(rss_mib(pid))}")
    phases.close()
    print(f"{what}: {min(load['accepted'] for load in loads)} accepted after "
          f"{statistics.median(load['s'] for load in loads):.1f} s, {sum(load['mb'] for load in loads)} MB read in "
          f"{rounds} rounds, load's CPU {sum(load['cpu'] for load in loads) / rounds:.1f} s a round")  # fmt: skip
    phases.show(what)
    print("  server's CPU a round: " + ", ".join(f"{name} {spent / rounds:.2f} s" for name, spent in cpus.items()))
    print(f"  memory before, with and after each round's load: {', '.join(memory)} MiB", flush=True)


def endless_header(server: Server) -> None:
    assert server.process is not None
    pid = server.process.pid
    livez = Prober(server, 0.01, "GET", "/livez")
    sent, begun, before = 0, time.monotonic(), int(rss_mib(pid))
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(HALF_HEAD)
        try:
            while time.monotonic() - begun < SECONDS:
                sent += sock.send(b"a" * 65_536)
        except OSError:
            pass
    time.sleep(2)
    livez.stop()
    times = sorted(livez.taken()[0])
    print(f"endless header: {sent >> 10} KiB taken in {time.monotonic() - begun:.1f} s; memory {before} MiB, "
          f"{int(rss_mib(pid))} after; livez p99 {1000 * quantile(times, 0.99):.1f} ms", flush=True)  # fmt: skip


def main(counts: list[int], rounds: int, pin: bool) -> None:
    print(machine() + (", server on the first CPU, load and probes on the others" if pin else ""))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    cpus = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as most machines have it
        if pin:
            os.sched_setaffinity(0, {min(cpus)})
        with running(data) as server:
            os.sched_setaffinity(0, cpus - {min(cpus)} if pin else cpus)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            file = TokenFile.open(data)
            tokens = [file.add(f"bench-{n}", "user", ["default"]) for n in range(max(counts) // PER_TOKEN + 1)]
            client = server.client()
            command = [sys.executable, "-c", LOG]
            job = client.submit({"spec": {"trainer": {"command": command}}}, project="default").metadata.name
            log = data / "workers"
            until(lambda: any(p.stat().st_size > 20_000_000 for p in log.glob("*/log")), "20 MB of log")
            for count in counts:
                measure(server, f"{count} followers that never read", "hold", count, job, tokens, rounds)
                measure(server, f"{count} followers that read", "read", count, job, tokens, rounds)
            endless_header(server)
            measure(server, "3,000 half heads, soft limit of 1,024 files", "half", 3000, job, tokens, 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        given = [line.strip() for line in iter(sys.stdin.readline, "\n")]
        asyncio.run(load(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], given))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("counts", nargs="*", type=int, default=[300, 1000])
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--pin", action="store_true", help="the server alone on the first CPU")
        options = parser.parse_args()
        main(options.counts, options.rounds, options.pin)
