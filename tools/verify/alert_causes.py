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
from tests.support.harness import Server, until
from tests.support.nvml_scenario import GPU_IS_LOST, Scenario

from .alert_stages import Case, Served

GIB = 1 << 30
GPUS = 14
LOST, XID, APP_XID, ECC, REMAP, PENDING, RECOVERY, HOT, WARM, BRAKE, MARGIN, STRAY, FULL = range(1, 14)
_TELL = """
import json, os, signal, sys, time
def tell(step, **more):
    path = os.environ['STOKER_PROGRESS_FILE']
    with open(path + '.new', 'w') as file: json.dump({'step': step, **more}, file)
    os.replace(path + '.new', path)
"""
_STUCK = "for number in (6, 15): signal.signal(number, signal.SIG_IGN)\ntell(3)\ntime.sleep(600)"
_SAVES = (
    "from pathlib import Path\nn = 0\nwhile True:\n    n += 1; time.sleep(0.5)\n"
    "    if n < 6 or Path(sys.argv[1]).exists(): saved = {'step': n, 'at': time.time()}\n"
    "    tell(n, checkpoint=saved)\n"
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
        yield (
            "a driver that is slow",
            [
                Case("StokerExporterSlow", "every call into the driver takes 4 ms", self.slow, self.fast),
            ],
        )
        yield (
            "attribution",
            [
                Case(
                    "StokerGpuAttributionFailing", "a living worker's launch.json can't be read", self.garble, self.mend
                )
            ],
        )
        yield (
            "an exporter that hangs",
            [
                Case(
                    "StokerExporterDown",
                    "the exporter is stopped (SIGSTOP)",
                    self.exporter(signal.SIGSTOP),
                    self.exporter(signal.SIGCONT),
                ),
            ],
        )
        yield (
            "an exporter that hung",
            [
                Case(
                    "StokerJobUnobserved",
                    "the exporter was stopped for 10 s (SIGSTOP), with a job on its GPU",
                    self.pause,
                )
            ],
        )
        if self.disk is not None:
            yield "a full disk", [Case("StokerDiskFull", "a file fills the data folder's disk", self.fill, self.empty)]
        yield (
            "a server that hangs",
            [
                Case(
                    "StokerNoLeader",
                    "`stoker up` is stopped (SIGSTOP)",
                    self.up(signal.SIGSTOP),
                    self.up(signal.SIGCONT),
                ),
                Case("StokerApiAbsent", "the same"),
                Case("StokerReceiptsNotSent", "the same; the exporter goes on, with a job on its GPU"),
            ],
        )
        yield "served series", self.of_served()

    def hardware(self) -> list[Case]:
        def step(
            gpu: int, wrong: dict[str, float], right: dict[str, float]
        ) -> tuple[Callable[[], None], Callable[[], None]]:
            return lambda: self.step(gpu, **wrong), lambda: self.step(gpu, **right)

        def down(gpu: int, bit: int) -> tuple[Callable[[], None], Callable[[], None]]:
            return step(gpu, {"reasons": bit}, {"reasons": 1})

        fills = Case("StokerGpuMemoryGrowing", "memory in use grows to 97 %", self.grow, self.shrink)
        return [
            Case("StokerGpuLost", "NVML: GPU is lost", self.lose, self.find),
            Case("StokerGpuMissing", "the same"),
            Case("StokerExporterBlind", "the same"),
            Case("StokerGpuXidCritical", "XID 79", self.xid(XID, 79)),
            Case("StokerGpuXidApplication", "XID 94", self.xid(APP_XID, 94)),
            Case(
                "StokerGpuEccUncorrectable",
                "two uncorrected errors",
                lambda: self.step(ECC, ecc_uncorrected_volatile=2),
            ),
            Case(
                "StokerGpuRowRemapFailed",
                "NVML: remapping failed",
                *step(REMAP, {"remap_failed": 1}, {"remap_failed": 0}),
            ),
            Case(
                "StokerGpuRowRemapPending",
                "NVML: remapping pends",
                *step(PENDING, {"remap_pending": 1}, {"remap_pending": 0}),
            ),
            Case("StokerGpuRecoveryAction", "NVML: action 1, reset", *step(RECOVERY, {"recovery": 1}, {"recovery": 0})),
            Case("StokerGpuThermalHardware", "clocks held down: hw_thermal", *down(HOT, 0x40)),
            Case("StokerGpuThermalSoftware", "clocks held down: sw_thermal", *down(WARM, 0x20)),
            Case("StokerGpuPowerBrake", "clocks held down: hw_power_brake", *down(BRAKE, 0x80)),
            Case(
                "StokerGpuTemperatureMargin",
                "margin 0 while busy",
                *step(MARGIN, {"margin": 0, "busy": 90, "sm": 50}, {"margin": 50, "busy": 0, "sm": 0}),
            ),
            Case(
                "StokerGpuUnallocatedUse", "a process on a GPU that nobody holds", self.stray(True), self.stray(False)
            ),
            fills,
        ]

    def jobs(self) -> list[Case]:
        saves = self.folder / "saves"

        def crash() -> None:
            rule = {"categories": ["UserError"], "limit": 3, "backoff": "1s"}
            self.submit("crashes", _TELL + "sys.exit(3)", retry={"rules": [rule]})

        def stall() -> None:
            once = {"rules": [{"categories": ["Stalled"], "limit": 0}]}
            self.submit("stuck", _TELL + _STUCK, stall={"after": "3s"}, retry=once, checkpoint={"grace": "25s"})

        def overdue() -> None:
            self.submit("unsaved", _TELL + _SAVES, str(saves), checkpoint={"every": "2s"})

        return [
            Case(
                "StokerGpuIdle",
                "a job that holds a GPU and sleeps",
                lambda: self.submit("idle", "import time; time.sleep(9999)"),
                self.wake,
            ),
            Case("StokerJobIdle", "the same"),
            Case("StokerJobStalled", "a job whose step does not change, deaf to signals", stall, lambda: None),
            Case("StokerJobCheckpointOverdue", "a job that saves no more", overdue, saves.touch),
            Case("StokerJobFailsRepeatedly", "a job that exits with 3, four times", crash),
        ]

    def of_served(self) -> list[Case]:
        case = self.served.case
        slow: dict[str, float] = {
            f'stoker_api_request_seconds_bucket{{le="{le}"}}': rise
            for le, rise in (("2.5", 1), ("10", 50), ("+Inf", 50))
        }
        page = 'stoker_api_request_seconds_count{code="%s"}'
        return [
            case(
                "StokerTwoLeaders",
                {'stoker_operator_leader{pod="other"}': 2},
                {'stoker_operator_leader{pod="other"}': 0.0},
            ),
            self._counter("StokerReconcileErrors", "stoker_operator_reconcile_errors_total", 2),
            case("StokerBacklog", {"stoker_operator_queue_depth": 2000}, {"stoker_operator_queue_depth": 0}),
            case(
                "StokerUnreadableJobs", {"stoker_operator_unreadable_jobs": 1}, {"stoker_operator_unreadable_jobs": 0}
            ),
            self._counter("StokerApiServerRefuses", "stoker_operator_api_refusals_total", 5),
            case(
                "StokerWatchStale",
                {'stoker_operator_watch_stale_seconds{kind="pods"}': 400},
                {'stoker_operator_watch_stale_seconds{kind="pods"}': 0.0},
            ),
            case(
                "StokerJobNotStarted",
                {'stoker_queue_startable_seconds{queue="other"}': 600.0},
                {'stoker_queue_startable_seconds{queue="other"}': 0.0},
            ),
            self._counter("StokerGangsWithdrawn", 'stoker_gangs_withdrawn_total{queue="other"}', 1),
            self._counter("StokerApiErrors", page % 503, 50),
            case("StokerApiSlow", slow, dict.fromkeys(slow, 0.0), tuple(slow)),
            self._counter("StokerLogsFull", 'stoker_api_log_posts_total{outcome="full"}', 1),
            self._counter(
                "StokerPushDropping", 'stoker_exporter_push_samples_total{node="other",outcome="dropped"}', 10
            ),
            case(
                "StokerExporterStuck",
                {'stoker_exporter_child_stuck{node="other"}': 1},
                {'stoker_exporter_child_stuck{node="other"}': 0.0},
            ),
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
        def happens() -> None:
            self.scenario.xid(gpu, time.time() + 0.5, number)
            self.scenario.write()

        return happens

    def stray(self, there: bool) -> Callable[[], None]:
        def happens() -> None:
            found = [(1, 9 * GIB, 0.0)] if there else []
            self.scenario.gpus[STRAY].step(time.time() + 0.2, processes=found, used=9 * GIB if there else 0)
            self.scenario.write()

        return happens

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

    def slow(self) -> None:
        self.scenario.latency(4000)
        self.scenario.write()

    def fast(self) -> None:
        self.scenario.clear_latencies()
        self.scenario.write()

    def garble(self) -> None:
        folder = self.server.data / "workers" / "00000000-0000-4000-8000-000000000000"
        folder.mkdir()
        (folder / "launch.json").write_text("{")
        (folder / "started.json").write_text("{}")
        self._locked.append(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(self._locked[-1], fcntl.LOCK_EX)

    def mend(self) -> None:
        os.close(self._locked.pop())

    def exporter(self, number: signal.Signals) -> Callable[[], None]:
        return lambda: os.kill(int((self.server.data / "exporter" / "pid").read_text()), number)

    def pause(self) -> None:
        self.exporter(signal.SIGSTOP)()
        time.sleep(10)
        self.exporter(signal.SIGCONT)()

    def up(self, number: signal.Signals) -> Callable[[], None]:
        def happens() -> None:
            assert self.server.process is not None
            self.server.process.send_signal(number)

        return happens

    def fill(self) -> None:
        space = os.statvfs(self.server.data)
        with (self.server.data.parent / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, int(space.f_bavail * space.f_frsize * 0.96))

    def empty(self) -> None:
        (self.server.data.parent / "filler").unlink()

    def submit(self, name: str, script: str, *words: str, **spec: Any) -> None:
        trainer = {"command": [sys.executable, "-c", script, *words], "workingDir": "/"}
        small = {"gpusPerWorker": 1, "cpu": "100m", "memory": "64Mi"}
        self.client.submit({"trainer": trainer, **small, **spec}, name=name)
        if name == "idle":
            found = until(
                lambda: [one.gpus for one in self.server.workers() if one.job == name and one.gpus], "its GPU", 60
            )
            assert found[0] == (self.scenario.gpus[0].uuid,), json.dumps(found)
