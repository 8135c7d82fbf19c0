"""What makes each alert fire: on a real `stoker up` under the fake NVML as far as that can be done. In stages, since
some causes hide others' series.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.client.client import Client
from tests.support.harness import SHOWS_PROGRESS, Server, until
from tests.support.nvml_scenario import GPU_IS_LOST, Scenario

from .alert_stages import Case, Served

GIB = 1 << 30
GPUS = 12
LOST, XID, APP_XID, ECC, REMAP, PENDING, RECOVERY, HOT, WARM, STRAY, FULL = range(1, 12)
_STUCK = "for number in (6, 15): signal.signal(number, signal.SIG_IGN)\nshow(step=3)\ntime.sleep(600)"
_SAVES = (
    "from pathlib import Path\nn = 0\nwhile True:\n    n += 1; time.sleep(0.5)\n"
    "    if n < 6 or Path(sys.argv[1]).exists(): saved = {'step': n, 'at': time.time()}\n"
    "    show(step=n, checkpoint=saved)\n"
)


@dataclass
class World:
    server: Server
    client: Client
    scenario: Scenario
    served: Served
    folder: Path
    disk: Path | None = None
    """The data folder's own small disk; None: not root."""
    _locked: list[int] = field(default_factory=list)

    # Stages

    def stages(self) -> Iterator[tuple[str, list[Case]]]:
        yield "hardware", self.hardware()
        yield "the jobs", self.jobs()
        what = "a living worker's launch.json can't be read"
        yield "attribution", [Case("StokerGpuAttributionFailing", what, self.add_broken_worker, self.end_broken_worker)]
        stop, go_on = signal.SIGSTOP, signal.SIGCONT
        what = "the exporter is stopped (SIGSTOP)"
        hangs = Case("StokerExporterDown", what, self.exporter(stop), self.exporter(go_on))
        yield "an exporter that hangs", [hangs]
        what = "the exporter was stopped for 10 s (SIGSTOP), with a job on its GPU"
        yield "an exporter that hung", [Case("StokerJobUnobserved", what, self.pause)]
        if self.disk is not None:
            yield "a full disk", [Case("StokerDiskFull", "a file fills the data folder's disk", self.fill, self.empty)]
        up = Case("StokerNoLeader", "`stoker up` is stopped (SIGSTOP)", self.up(stop), self.up(go_on))
        receipts = Case("StokerReceiptsNotSent", "the same; the exporter goes on, with a job on its GPU")
        yield "a server that hangs", [up, Case("StokerApiAbsent", "the same"), receipts]
        yield "served series", self.of_served()

    def hardware(self) -> list[Case]:
        def step(alert: str, cause: str, gpu: int, wrong: dict[str, float], right: dict[str, float]) -> Case:
            return Case(alert, cause, lambda: self.step(gpu, **wrong), lambda: self.step(gpu, **right))

        def down(alert: str, gpu: int, what: str, bit: int) -> Case:
            return step(alert, f"clocks held down: {what}", gpu, {"reasons": bit}, {"reasons": 1})

        def flag(alert: str, cause: str, gpu: int, name: str) -> Case:
            return step(alert, f"NVML: {cause}", gpu, {name: 1}, {name: 0})

        ecc = {"ecc_uncorrected_volatile": 2}
        stray = "a process on a GPU that no job holds"
        return [
            Case("StokerGpuLost", "NVML: GPU is lost", self.lose, self.find),
            Case("StokerGpuXidCritical", "XID 79", self.xid(XID, 79)),
            Case("StokerGpuXidApplication", "XID 94", self.xid(APP_XID, 94)),
            Case("StokerGpuEccUncorrectable", "two uncorrected errors", lambda: self.step(ECC, **ecc)),
            flag("StokerGpuRowRemapFailed", "remapping failed", REMAP, "remap_failed"),
            flag("StokerGpuSick", "remapping pends", PENDING, "remap_pending"),
            flag("StokerGpuRecoveryAction", "action 1, reset", RECOVERY, "recovery"),
            down("StokerGpuThermalHardware", HOT, "hw_thermal", 0x40),
            down("StokerGpuSlow", WARM, "sw_thermal", 0x20),
            Case("StokerGpuUnallocatedUse", stray, self.stray(True), self.stray(False)),
            Case("StokerGpuMemoryGrowing", "memory in use grows to 97 %", self.grow, self.shrink),
        ]

    def jobs(self) -> list[Case]:
        saves = self.folder / "saves"

        def idle() -> None:
            self.submit("idle", "import time; time.sleep(9999)")

        def crash() -> None:
            rule = {"categories": ["UserError"], "limit": 3, "backoff": "1s"}
            self.submit("crashes", SHOWS_PROGRESS + "sys.exit(3)", retry={"rules": [rule]})

        def stall() -> None:
            once = {"rules": [{"categories": ["Stalled"], "limit": 0}]}
            self.submit(
                "stuck", SHOWS_PROGRESS + _STUCK, stall={"after": "3s"}, retry=once, checkpoint={"grace": "25s"}
            )

        def overdue() -> None:
            self.submit("unsaved", SHOWS_PROGRESS + _SAVES, str(saves), checkpoint={"every": "2s"})

        return [
            Case("StokerGpuIdle", "a job that holds a GPU and sleeps", idle, self.wake),
            Case("StokerJobIdle", "the same"),
            Case("StokerJobStalled", "a job whose step does not change, deaf to signals", stall, lambda: None),
            Case("StokerJobCheckpointOverdue", "a job that no longer saves", overdue, saves.touch),
            Case("StokerJobFailsRepeatedly", "a job that exits with 3, four times", crash),
        ]

    def of_served(self) -> list[Case]:
        case = self.served.case
        blind = 'stoker_exporter_collect_success{node="other"}'
        gpu = '{node="other",gpu="0"'
        lanes, most = (f'stoker_gpu_pcie_link_width{gpu},kind="{kind}"}}' for kind in ("current", "max"))

        def gauge(alert: str, name: str, wrong: float) -> Case:
            return case(alert, {name: wrong}, {name: 0.0})

        return [
            gauge("StokerTwoLeaders", 'stoker_operator_leader{pod="other"}', 2),
            self._counter("StokerReconcileErrors", "stoker_operator_reconcile_errors_total", 2),
            gauge("StokerBacklog", "stoker_operator_queue_depth", 2000),
            gauge("StokerUnreadableJobs", "stoker_operator_unreadable_jobs", 1),
            self._counter("StokerApiServerRefuses", "stoker_operator_api_refusals_total", 5),
            gauge("StokerWatchStale", 'stoker_operator_watch_stale_seconds{kind="pods"}', 400),
            gauge("StokerJobNotStarted", 'stoker_queue_startable_seconds{queue="other"}', 600),
            self._counter("StokerGangsWithdrawn", 'stoker_gangs_withdrawn_total{queue="other"}', 1),
            self._counter("StokerApiErrors", 'stoker_api_request_seconds_count{code="503"}', 50),
            self._counter(
                "StokerPushDropping", 'stoker_exporter_push_samples_total{node="other",outcome="dropped"}', 10
            ),
            case(
                "StokerGpuMissing",
                {'stoker_exporter_gpus_expected{node="other"}': 8, 'stoker_exporter_gpus_visible{node="other"}': 7},
                {'stoker_exporter_gpus_visible{node="other"}': 8},
            ),
            case("StokerExporterBlind", {blind: 0}, {blind: 1}),
            case("StokerGpuLinkDegraded", {lanes: 4, most: 16, f"stoker_gpu_busy_ratio{gpu}}}": 0.5}, {lanes: 16}),
            gauge("StokerExporterAbsent", 'stoker_node_gpus{node="bare",state="ready"}', 8),
            gauge("StokerNodeLost", 'stoker_node_gpus{node="other",state="lost"}', 8),
            gauge("StokerExporterStuck", 'stoker_exporter_child_stuck{node="other"}', 1),
        ]

    def _counter(self, alert: str, name: str, by: float) -> Case:
        return self.served.case(alert, {name: by}, {name: 0.0}, (name,))

    # Causes

    def step(self, gpu: int, **values: float) -> None:
        self.scenario.gpus[gpu].step(time.time() + 0.2, processes=None, **values)
        self.scenario.write()

    def lose(self) -> None:
        self.scenario.fault(gpu=LOST, code=GPU_IS_LOST, begin=time.time())
        self.scenario.write()

    def find(self) -> None:
        self.scenario.clear_faults()
        self.scenario.write()

    def xid(self, gpu: int, number: int) -> Callable[[], None]:
        def act() -> None:
            self.scenario.xid(gpu, time.time() + 0.5, number)
            self.scenario.write()

        return act

    def stray(self, there: bool) -> Callable[[], None]:
        def act() -> None:
            found = [(1, 9 * GIB, 0.0)] if there else []
            self.scenario.gpus[STRAY].step(time.time() + 0.2, processes=found, used=9 * GIB if there else 0)
            self.scenario.write()

        return act

    def grow(self) -> None:
        gpu, now = self.scenario.gpus[FULL], time.time()
        for second in range(80):
            gpu.step(now + second, used=gpu.memory * (0.85 + min(0.12, 0.005 * second)))
        self.scenario.write()

    def shrink(self) -> None:
        gpu, now = self.scenario.gpus[FULL], time.time()
        gpu.later = [one for one in gpu.later if one[0] <= now]
        self.step(FULL, used=0)

    def wake(self) -> None:
        """The idle job's GPU works."""
        self.step(0, busy=90, sm=60, used=9 * GIB)

    def add_broken_worker(self) -> None:
        folder = self.server.data / "workers" / "00000000-0000-4000-8000-000000000000"
        folder.mkdir()
        (folder / "launch.json").write_text("{")
        (folder / "started.json").write_text("{}")
        self._locked.append(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(self._locked[-1], fcntl.LOCK_EX)

    def end_broken_worker(self) -> None:
        os.close(self._locked.pop())

    def exporter(self, number: signal.Signals) -> Callable[[], None]:
        def act() -> None:
            (pid,) = self.server.exporters()
            os.kill(pid, number)

        return act

    def pause(self) -> None:
        self.exporter(signal.SIGSTOP)()
        time.sleep(10)
        self.exporter(signal.SIGCONT)()

    def up(self, number: signal.Signals) -> Callable[[], None]:
        def act() -> None:
            assert self.server.process is not None
            self.server.process.send_signal(number)

        return act

    def fill(self) -> None:
        space = os.statvfs(self.server.data)
        with (self.server.data.parent / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, int(space.f_bavail * space.f_frsize * 0.96))

    def empty(self) -> None:
        (self.server.data.parent / "filler").unlink()

    def submit(self, name: str, script: str, *arguments: str, **spec: Any) -> None:
        trainer = {"command": [sys.executable, "-c", script, *arguments], "workingDir": "/"}
        small = {"gpusPerWorker": 1, "cpu": "100m", "memory": "64Mi"}
        self.client.submit({"trainer": trainer, **small, **spec}, name=name)
        if name == "idle":
            found = until(
                lambda: [one.gpus for one in self.server.workers() if one.job == name and one.gpus], "its GPU", 60
            )
            assert found[0] == (self.scenario.gpus[0].uuid,), json.dumps(found)
