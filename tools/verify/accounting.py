"""Every GPU-second and joule is in one account, whatever is killed: `stoker up` with its exporter under a fake driver.

    python -m tools.verify.accounting

Three GPUs of known, changing power; one job holds two of them, two hold the third one after the other. Meanwhile NVML's
child, the exporter and `stoker up` are killed, a GPU is lost, the driver restarts. After each of these the exporter's
ledger is compared with the exact integral of the scenario's power, which is what NVML's own counter shows. At the end
what the api reports of each job is compared with the counters on /metrics, and with the power's integral between its
worker's first and last act. Exits 1 if an account is off by more than max(1 %, two polls), or a job by more than 1 %
and one poll.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from stoker.client.client import Client
from stoker.exporter.clock import NS, UJ
from stoker.exporter.meters.ledger import Ledger, parse
from stoker.spec.job import ENDED, Phase
from stoker.spec.usage import UsageState
from tests.support.endpoint_stage import children
from tests.support.harness import Server, until
from tests.support.nvml_scenario import GPU_IS_LOST, Scenario

GPUS = 3
POLL_S = 1.0
POLLS_S = 2 * POLL_S
MOST_WATTS = 540.0
OBSERVED_S = 3.0
LOST_S, DOWN_S, SERVER_AWAY_S = 3.0, 2.0, 2.0
SCRIPT = """
import pathlib, sys, time
begin = time.monotonic()
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)
pathlib.Path(sys.argv[1] + "-ran").write_text(str(time.monotonic() - begin))
"""


@dataclass(frozen=True)
class Row:
    """One GPU's books at one moment, and what NVML says."""

    after: str
    gpu: int
    attributed_s: float
    unallocated_s: float
    unobserved_s: float
    elapsed_s: float
    attributed_j: float
    unallocated_j: float
    unobserved_j: float
    nvml_j: float

    @property
    def off_s(self) -> float:
        return self.attributed_s + self.unallocated_s + self.unobserved_s - self.elapsed_s

    @property
    def off_j(self) -> float:
        return self.attributed_j + self.unallocated_j + self.unobserved_j - self.nvml_j


@dataclass(frozen=True)
class JobRow:
    """What one job had of one GPU: by the last counters, by the api; how long its script ran, and its worker lived by
    its own files; what NVML's counter rose by in that time."""

    job: str
    gpu: int
    counted_s: float
    receipt_s: float
    unobserved_s: float
    script_s: float
    lived_s: float
    counted_j: float
    receipt_j: float
    unobserved_j: float
    true_j: float

    @property
    def off_s(self) -> float:
        return self.receipt_s - self.lived_s

    @property
    def off_j(self) -> float:
        return self.receipt_j - self.true_j


@dataclass
class Run:
    server: Server
    scenario: Scenario
    rows: list[Row] = field(default_factory=list)
    downs: list[tuple[float, float]] = field(default_factory=list)
    """When the driver was gone: from, to."""

    def ledger(self) -> Ledger:
        return parse((self.server.data / "exporter" / "ledger.json").read_bytes())

    def exporter(self) -> int | None:
        """Its pid."""
        return next(iter(self.server.exporters()), None)

    def note(self, after: str) -> None:
        """Once every GPU was read for a while after now, what is on disk."""
        since = time.time() + OBSERVED_S

        def settled() -> Ledger | None:
            try:
                ledger = self.ledger()
            except FileNotFoundError:
                return None  # the exporter has just been started for the first time
            read = [_unix(ledger, one.energy.at_ns) > since for one in ledger.accounts.values()]
            return ledger if len(read) == GPUS and all(read) else None

        self.take(after, until(settled, f"the ledger after: {after}", every_s=0.2))

    def take(self, after: str, ledger: Ledger) -> None:
        for account in sorted(ledger.accounts.values(), key=lambda one: one.index):
            seconds = {name: ns / NS for name, ns in account.time_ns.items()}
            joules = {name: uj / UJ for name, uj in account.energy_uj.items()}
            elapsed_s = _unix(ledger, account.accounted_ns) - account.begin_at
            nvml_j = self.counter_rise(account.index, account.begin_at, _unix(ledger, account.energy.at_ns))
            names = ("attributed", "unallocated", "unobserved")
            figures = [*(seconds[name] for name in names), elapsed_s, *(joules[name] for name in names), nvml_j]
            self.rows.append(Row(after, account.index, *figures))

    def counter_rise(self, index: int, begin: float, end: float) -> float:
        """Joules; a driver that is not loaded counts nothing."""
        gpu, rise = self.scenario.gpus[index], 0.0
        for down_at, up_at in [*self.downs, (end, end)]:
            rise += gpu.integral("watts", begin, max(begin, min(down_at, end)))
            begin = max(begin, up_at)
        return rise


def _unix(ledger: Ledger, ns: int) -> float:
    """A moment of CLOCK_BOOTTIME on the wall clock."""
    return ledger.written.at - (ledger.written.mono_ns - ns) / NS


def _driver(folder: Path) -> Scenario:
    """Power that changes every three seconds, for ten minutes; each GPU's otherwise."""
    folder.mkdir(parents=True)
    scenario = Scenario(folder)
    now = time.time()
    for number in range(GPUS):
        gpu = scenario.add_gpu(watts=140.0, busy=80, sm=50, used=20 << 30)
        for step in range(200):
            gpu.step(now + 3 * step, watts=140.0 + 40.0 * ((7 * step + 3 * number) % 11))
    return scenario.write()


def check(folder: Path) -> tuple[list[Row], list[JobRow]]:
    """Play it; returns the figures. Raises: AssertionError naming what is off, TimeoutError."""
    scenario = _driver(folder / "nvml")
    # Its jobs stay on a GPU that is lost, and get it again: they are what is counted.
    server = Server(folder / "data", "--sick-gpu", "Lost=stay", "--no-burn-in", env=scenario.env())
    run = Run(server, scenario)
    try:
        server.start()
        ends = {name: folder / f"{name}-may-end" for name in ("pair", "first", "second")}
        run.note("no job yet")
        with server.client() as client:
            _submit(client, "pair", 2, ends["pair"])
            _submit(client, "first", 1, ends["first"])
        run.note("jobs run")
        for after, happen in _disturbances(run):
            happen()
            run.note(after)
        with server.client() as client:
            ends["first"].touch()
            _submit(client, "second", 1, ends["second"])  # it waits for the GPU, and starts when that is free
            run.note("the next job on a GPU")
            for name in ("pair", "second"):
                ends[name].touch()
            jobs = _job_rows(client, run)
        exporter = run.exporter()
        server.stop()
        until(lambda: run.exporter() != exporter, "the exporter's end")
        run.take("all over", run.ledger())
    finally:
        server.close()
    _hold(run.rows, jobs, run.ledger())
    return run.rows, jobs


def _submit(client: Client, name: str, gpus: int, end: Path) -> None:
    trainer = {"command": [sys.executable, "-c", SCRIPT, str(end)], "workingDir": "/"}
    client.submit({"gpusPerWorker": gpus, "cpu": "100m", "memory": "64Mi", "trainer": trainer}, name=name)
    client.wait(name, [Phase.RUNNING], 180)


def _disturbances(run: Run) -> list[tuple[str, Callable[[], None]]]:
    server, scenario = run.server, run.scenario

    def exporter() -> int:
        return until(run.exporter, "the exporter")

    def kill_child() -> None:
        (child,) = until(lambda: list(children(exporter())), "NVML's child")
        os.kill(child, signal.SIGKILL)

    def end_exporter(number: int) -> None:
        before = exporter()
        os.kill(before, number)
        until(lambda: run.exporter() not in (None, before), "another exporter")

    def kill_server() -> None:
        lived = {worker.pid for worker in server.workers()}
        server.kill()
        until(lambda: run.exporter() is None, "the exporter's end with its server")
        time.sleep(SERVER_AWAY_S)
        server.start()
        assert lived <= {worker.pid for worker in server.workers()}, "workers did not outlive the server"

    def lose_gpu() -> None:
        now = time.time()
        scenario.fault(gpu=0, code=GPU_IS_LOST, begin=now, end=now + LOST_S)
        scenario.write()
        time.sleep(LOST_S)

    def restart_driver() -> None:
        now = time.time()
        run.downs.append((now, now + DOWN_S))
        scenario.restart(now, DOWN_S)
        scenario.write()
        time.sleep(DOWN_S)

    return [
        ("NVML's child killed", kill_child),
        ("the exporter killed", lambda: end_exporter(signal.SIGKILL)),
        ("the exporter ended (SIGTERM)", lambda: end_exporter(signal.SIGTERM)),
        ("`stoker up` killed", kill_server),
        ("GPU 0 lost and back", lose_gpu),
        ("the driver restarted", restart_driver),
    ]


def _job_rows(client: Client, run: Run) -> list[JobRow]:
    """Once every job's usage is final."""
    rows = []
    for name in ("first", "pair", "second"):

        def final(name: str = name) -> bool:
            job = client.get(name)
            usage = job.status.usage
            return job.status.phase in ENDED and usage is not None and usage.state is UsageState.FINAL

        until(final, f"the last receipts of {name}")
        job, report = client.get(name), client.job_usage(name)
        script_s = float((run.server.data.parent / f"{name}-may-end-ran").read_text())
        for one in report.gpus:
            index = next(number for number, gpu in enumerate(run.scenario.gpus) if gpu.uuid == one.uuid)
            usage = one.usage
            assert usage.energy_joules is not None, f"{name}: no energy"

            def shown(
                job_uid: str = job.uid, uuid: str = one.uuid, has_s: float = usage.gpu_seconds
            ) -> dict[str, float]:
                """A page is as old as its last poll."""
                page = _counters(run, job_uid, uuid)
                return page if page["allocated_seconds_total"] + 0.01 >= has_s else {}

            counted = until(shown, f"the last counters of {name}")
            seconds = (counted["allocated_seconds_total"], usage.gpu_seconds, usage.unobserved_seconds)
            joules = (counted["energy_joules_total"], usage.energy_joules, counted["unobserved_energy_joules_total"])
            begun_at, ended_at = _lived(run.server.data / "workers", job.uid, one.attempt)
            true_j = run.counter_rise(index, begun_at, ended_at)
            rows.append(JobRow(name, index, *seconds, script_s, ended_at - begun_at, *joules, true_j))
    return rows


def _lived(workers: Path, job_uid: str, attempt: int) -> tuple[float, float]:
    """Unix seconds of the first and the last act of the attempt's worker."""
    orders = {path.parent: json.loads(path.read_bytes()) for path in workers.glob("[!.]*/launch.json")}
    (folder,) = [path for path, one in orders.items() if (one["jobUid"], one["attempt"]) == (job_uid, attempt)]
    return (folder / "started.json").stat().st_mtime, (folder / "exit.json").stat().st_mtime


def _counters(run: Run, job_uid: str, uuid: str) -> dict[str, float]:
    """The job's, as they are shown; over their own labels, the methods of energy among them."""
    token = (run.server.data / "scrape.token").read_text().strip()
    arguments = Path(f"/proc/{run.exporter()}/cmdline").read_bytes().decode().split("\0")
    url = f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}/metrics"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=10
    ) as answer:
        text = answer.read().decode()
    counters: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("job_uid") == job_uid and sample.labels["uuid"] == uuid:
                counters[sample.name.removeprefix("stoker_job_gpu_")] += sample.value
    return counters


def _hold(rows: list[Row], jobs: list[JobRow], ledger: Ledger) -> None:
    """Raises: AssertionError."""
    for row in rows:
        where = f"GPU {row.gpu} after: {row.after}"
        assert abs(row.off_s) <= max(0.01 * row.elapsed_s, POLLS_S), f"{where}: {row.off_s:.3f} s off"
        most_j = max(0.01 * row.nvml_j, POLLS_S * MOST_WATTS)
        assert abs(row.off_j) <= most_j, f"{where}: {row.off_j:.1f} J off"
    for earlier, later in zip(rows, rows[GPUS:], strict=False):
        for name in ("attributed_s", "unallocated_s", "unobserved_s", "attributed_j", "unallocated_j", "unobserved_j"):
            assert getattr(later, name) >= getattr(earlier, name), f"GPU {later.gpu}: {name} fell"
    assert len(jobs) == GPUS + 1, f"{len(jobs)} receipts"
    for job in jobs:
        where = f"{job.job} on GPU {job.gpu}"
        assert abs(job.counted_s - job.receipt_s) < 0.01, f"{where}: {job.counted_s} s, api {job.receipt_s}"
        assert abs(job.counted_j - job.receipt_j) < 0.01, f"{where}: {job.counted_j} J, api {job.receipt_j}"
        assert abs(job.off_s) <= 0.01 * job.lived_s + POLL_S, f"{where}: {job.off_s:+.3f} s off"
        assert abs(job.off_j) <= 0.01 * job.true_j + POLL_S * MOST_WATTS, f"{where}: {job.off_j:+.1f} J off"
    for account in ledger.accounts.values():  # nothing double, nothing lost between jobs and accounts
        holds = [hold for hold in ledger.holds if hold.gpu == account.uuid]
        observed_ns = sum(hold.allocated_ns - hold.unobserved_ns for hold in holds)
        assert observed_ns == account.time_ns["attributed"], f"{account.uuid}: {observed_ns} ns in the jobs' counters"
        energy_uj = sum(sum(hold.energy_uj.values()) for hold in holds)
        assert energy_uj == account.energy_uj["attributed"], f"{account.uuid}: {energy_uj} µJ in the jobs' counters"


def print_tables(rows: list[Row], jobs: list[JobRow]) -> None:
    print(
        "| after | GPU | attributed s | unallocated s | unobserved s | off s | attributed J | unallocated J |", end=""
    )
    print(" unobserved J | NVML's counter J | off J |")
    print("|---|---|" + "---:|" * 9)
    for row in rows:
        print(f"| {row.after} | {row.gpu} | {row.attributed_s:.1f} | {row.unallocated_s:.1f} ", end="")
        print(f"| {row.unobserved_s:.1f} | {row.off_s:+.4f} | {row.attributed_j:,.0f} ", end="")
        print(f"| {row.unallocated_j:,.0f} | {row.unobserved_j:,.0f} | {row.nvml_j:,.0f} | {row.off_j:+.1f} |")
    print(
        "\n| job | GPU | counter s | api s | of it unobserved s | its script ran s | its worker lived s | off s ",
        end="",
    )
    print("| counter J | api J | of it unobserved J | NVML's counter J | off J | off % |")
    print("|---|---|" + "---:|" * 12)
    for job in sorted(jobs, key=lambda one: (one.gpu, one.job)):
        print(f"| {job.job} | {job.gpu} | {job.counted_s:.3f} | {job.receipt_s:.3f} | {job.unobserved_s:.1f} ", end="")
        print(f"| {job.script_s:.1f} | {job.lived_s:.2f} | {job.off_s:+.2f} | {job.counted_j:,.2f} ", end="")
        print(f"| {job.receipt_j:,.2f} | {job.unobserved_j:,.1f} | {job.true_j:,.1f} | {job.off_j:+.1f} ", end="")
        print(f"| {100 * job.off_j / job.true_j:+.2f} |")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print_tables(*check(Path(name)))
