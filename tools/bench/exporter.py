"""Prints what the exporter costs on this machine: memory of both processes, CPU, scrapes. Nothing is asserted.

python -m tools.bench.exporter [seconds of CPU, default 60] [minutes of memory slope, default 0] [--peer FOLDER]

The real program over the fake NVML (tests/nvml) with 8 GPUs, a kubelet's socket with 50 pods that share them and an api
that takes receipts (both in this process). Budget on a quiet machine: both processes < 60 MB PSS, < 2 % of a core,
scrape p99 < 80 ms. --peer: afterwards PyPI's nvitop-exporter, which reads the same library by the same packages; FOLDER
is where `pip install --target FOLDER nvitop-exporter` put it.

Each NVML call takes as much CPU as it took on an H100 (docs/gpu-check).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import grpc

from tests.support.harness import cpu_s
from tests.support.local_server import LocalServer
from tests.support.nvml_scenario import Scenario
from tools.bench.record import record

GPUS, PODS = 8, 50
CALLS_US = {
    "*": 15,
    "nvmlDeviceGetTotalEnergyConsumption": 3100,
    "nvmlDeviceGetSamples": 2500,
    "nvmlDeviceGetProcessUtilization": 2200,
    "nvmlGpmMetricsGet": 1700,
    "nvmlDeviceGetMaxClockInfo": 1550,
    "nvmlDeviceGetMarginTemperature": 1250,
    "nvmlDeviceGetMigMode": 400,
    "nvmlDeviceGetEccMode": 335,
    "nvmlDeviceGetTemperatureThreshold": 230,
    "nvmlDeviceGetPcieReplayCounter": 195,
    "nvmlGpmSampleGet": 140,
    "nvmlDeviceGetFieldValues": 100,
    "nvmlDeviceGetComputeRunningProcesses_v3": 100,
}
HW_THERMAL_FIELD, HW_THERMAL_US = 270, 950
SCRAPES = 500
PROMETHEUS = {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3"}
"""As it asks."""
FORMATS = {"text": {}, "text, gzip": {"Accept-Encoding": "gzip"}, "OpenMetrics, gzip": PROMETHEUS}


def main(cpu_s: float, slope_min: float, peer: Path | None) -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {GPUS} GPUs, {PODS} pods")
    with tempfile.TemporaryDirectory(prefix="stoker-bench-exporter-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        scenario = _scenario(folder)
        socket_path = serve_kubelet([gpu.uuid for gpu in scenario.gpus], folder, stack)
        exporter, port = start(folder, scenario.env(), socket_path, serve_api(stack))
        with _ended("the exporter", exporter):
            _wait_for_jobs(port)
            pids = {"parent": exporter.pid, "child": child_of(exporter.pid)}
            _measure("", port, pids, cpu_s)
            if slope_min:
                _slope(slope_min, port, tuple(pids.values()))
        if peer is not None:
            other, port = _start_peer(peer, scenario)
            with _ended("the peer", other):
                _measure("peer: ", port, {"peer": other.pid}, cpu_s)


@contextlib.contextmanager
def _ended(name: str, process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        began = time.monotonic()
        process.wait(10)
        print(f"{name} ended after SIGTERM in {time.monotonic() - began:.3f} s")


def _measure(of: str, port: int, pids: dict[str, int], cpu_s: float) -> None:
    """Size of the page, memory, CPU over so many seconds, latency of scrapes."""
    page = _scrape(_open(port), {})[1]
    record(what=f"{of}page", series=page.count(b"}"), bytes=len(page))
    print(f"\n{of}{len(page):,} bytes, {page.count(b'}'):,} series")
    _memory(f"{of}memory at the begin", pids)
    used = cpu_shares(pids, cpu_s, port)
    record(what=f"{of}CPU of a core", seconds=cpu_s, **used)
    print(f"{of}CPU over {cpu_s:.0f} s, a scrape every 15 s: {_each(used, '.2%')} of a core")
    for name, headers in FORMATS.items():
        _scrapes(port, of + name, headers)
    _memory(f"{of}memory at the end", pids)


def _each(figures: dict[str, float], form: str) -> str:
    named = ", ".join(f"{name} {one:{form}}" for name, one in figures.items())
    return f"{named}, together {sum(figures.values()):{form}}"


def _scenario(folder: Path) -> Scenario:
    scenario = Scenario(folder)
    for index in range(GPUS):
        scenario.add_gpu(
            watts=300.0 + 50 * index,
            busy=90.0,
            sm=45.0,
            tensor=20.0,
            dram=30.0,
            used=float(40 << 30),
            pcie_tx=1e9,
            nvlink_tx=5e9,
            processes=[(4000 + index, 40 << 30, 45.0)],
        )
    for call, us in CALLS_US.items():
        scenario.latency(us, call, busy=True)
    scenario.latency(HW_THERMAL_US, "nvmlDeviceGetFieldValues", field=HW_THERMAL_FIELD, busy=True)
    scenario.write()
    return scenario


def serve_kubelet(uuids: list[str], folder: Path, stack: contextlib.ExitStack) -> Path:
    """A PodResources server: time-sliced devices, a slice to each pod."""

    def field(number: int, value: bytes) -> bytes:
        size, length = b"", len(value)
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + value

    answer = b""
    for number in range(PODS):
        device = f"{uuids[number % len(uuids)]}::{number // len(uuids)}".encode()
        devices = field(1, b"nvidia.com/gpu") + field(2, device)
        container = field(1, b"worker") + field(2, devices)
        pod = field(1, f"resnet-{number}-1-0".encode()) + field(2, b"vision") + field(3, container)
        answer += field(1, pod)
    lists = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": lists}),))
    path = folder / "kubelet.sock"
    server.add_insecure_port(f"unix:{path}")
    server.start()
    stack.callback(server.stop, 0)
    return path


class _Api(BaseHTTPRequestHandler):
    """Knows every pod's job and takes every receipt."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owners = [
            {
                "namespace": pod["namespace"],
                "name": pod["name"],
                "podUid": f"uid-{pod['name']}",
                "jobUid": f"00000000-0000-4000-8000-{int(pod['name'].split('-')[1]):012}",
                "project": pod["namespace"],
                "jobName": pod["name"].rsplit("-", 2)[0],
                "attempt": 1,
                "worker": 0,
            }
            for pod in body.get("pods", ())
        ]
        answer = json.dumps({"owners": owners, "taken": len(body.get("receipts", ())), "refused": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name there)
        return


def serve_api(stack: contextlib.ExitStack) -> str:
    server = stack.enter_context(LocalServer(_Api))
    stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.url


def start(folder: Path, library: Mapping[str, str], kubelet: Path, api: str) -> tuple[subprocess.Popen[str], int]:
    """The exporter and its port. `library`: variables that name the NVML to read."""
    command = [sys.executable, "-m", "stoker.exporter", "--host", "127.0.0.1", "--port", "0", "--node", "bench"]
    command += ["--state", str(folder / "state"), "--allocation", "kubelet", "--kubelet-socket", str(kubelet)]
    command += ["--api-url", api]
    process = subprocess.Popen(command, env={**os.environ, **library}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"on port (\d+)", line):
            return process, int(found[1])
    raise SystemExit("the exporter did not start")


def _start_peer(folder: Path, scenario: Scenario) -> tuple[subprocess.Popen[str], int]:
    """Ready once it has found its GPUs. Its log is a warning a poll for each call that the fake NVML lacks."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, **scenario.env(), "PYTHONPATH": str(folder)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            if _scrape(_open(port), {})[1].count(b"gpu_power_usage") > GPUS:
                return process, port
        time.sleep(1)
    process.kill()
    raise SystemExit(f"the peer shows no {GPUS} GPUs after a minute; is nvitop-exporter in {folder}?")


def _wait_for_jobs(port: int) -> None:
    """A kubelet that has just started is not asked for ten seconds."""
    until = time.monotonic() + 60
    while _scrape(_open(port), {})[1].count(b"stoker_job_gpu_energy_joules_total{") < PODS:
        if time.monotonic() > until:
            raise SystemExit("the jobs are not known after a minute")
        time.sleep(1)


def child_of(pid: int) -> int:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.name.isdecimal() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                return int(entry.name)
    raise SystemExit("the exporter has no child")


def pss_mb(pid: int) -> float:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def _memory(what: str, pids: dict[str, int]) -> None:
    found = {name: pss_mb(pid) for name, pid in pids.items()}
    record(what=what, **{f"{name}_mib": one for name, one in found.items()}, together_mib=sum(found.values()))
    print(f"{what}, PSS in MiB: {_each(found, '.1f')}")


def cpu_shares(pids: Mapping[str, int], seconds: float, port: int) -> dict[str, float]:
    """Of a core, with a scrape every 15 s."""
    before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    _scrape_for(seconds, port)
    took_s = time.monotonic() - began
    return {name: (cpu_s(pid) - before[name]) / took_s for name, pid in pids.items()}


def _scrape_for(seconds: float, port: int) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        _scrape(_open(port), PROMETHEUS)  # a connection of its own: the server keeps none open for so long
        time.sleep(min(15.0, left))


def _open(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=10)


def _scrape(connection: http.client.HTTPConnection, headers: Mapping[str, str]) -> tuple[float, bytes]:
    began = time.perf_counter()
    connection.request("GET", "/metrics", headers=headers)
    body = connection.getresponse().read()
    return time.perf_counter() - began, body


def _scrapes(port: int, name: str, headers: dict[str, str]) -> None:
    took_ms = scrapes_ms(port, headers)
    cuts = statistics.quantiles(took_ms, n=100)
    record(what=f"scrape, {name}", p50_ms=cuts[49], p99_ms=cuts[98], most_ms=max(took_ms))
    print(f"{SCRAPES} scrapes, {name}: p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, most {max(took_ms):.2f} ms")


def scrapes_ms(port: int, headers: Mapping[str, str]) -> list[float]:
    """Spread over polls, so that pages are packed again and rendering gets in the way as it does."""
    connection = _open(port)
    took_ms = []
    for _ in range(SCRAPES):
        took_ms.append(_scrape(connection, headers)[0] * 1000)
        time.sleep(0.03)
    return took_ms


def _slope(minutes: float, port: int, pids: tuple[int, ...]) -> None:
    """Least squares over one reading a 10 s."""
    points: list[tuple[float, float]] = []
    began = time.monotonic()
    for turn in _every(10.0, minutes * 60):
        if turn % 2 == 0:
            _scrape(_open(port), PROMETHEUS)
        points.append(((time.monotonic() - began) / 60, sum(map(pss_mb, pids))))
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    print(
        f"memory over {minutes:g} min: {slope * 1024:+.1f} KiB a minute, {points[0][1]:.1f} → {points[-1][1]:.1f} MiB"
    )


def _every(seconds: float, whole_s: float) -> Iterator[int]:
    for turn in range(int(whole_s / seconds)):
        yield turn
        time.sleep(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cpu_s", type=float, nargs="?", default=60.0)
    parser.add_argument("slope_min", type=float, nargs="?", default=0.0)
    parser.add_argument("--peer", type=Path)
    main(**vars(parser.parse_args()))
