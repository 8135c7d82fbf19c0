"""What happens to the GPUs of one node: the cases in which the exporter's endpoint has to stay, and stay true.

A table: how each is prepared, struck and healed. `endpoint_stage` plays a case,
`tests/exporter/test_endpoint_scenarios.py` judges what was scraped, `tools.generate.exporter_endpoint` prints it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

from tests.support.endpoint_stage import Case, Scrape, Stage, children, energy_counted
from tests.support.nvml_child import HOLDER
from tests.support.nvml_scenario import GPU_IS_LOST, NOT_SUPPORTED, SOURCES, Gpu

# Each value differs from the others, and none is 0: a 0 on the page was made up.
RICH: dict[str, object] = {
    "watts": 251.5, "busy": 80, "mem_busy": 21, "enc": 5, "dec": 6, "used": 2 << 30, "sm": 40, "occ": 31,
    "tensor": 22, "dram": 13, "gfx": 81, "fp16": 3, "fp32": 17, "fp64": 1, "temp": 61, "mem_temp": 72, "margin": 24,
    "fan": 44, "sm_clock": 1755, "mem_clock": 3201, "gr_clock": 1740, "video_clock": 1485, "pstate": 2,
    "reasons": 5, "limit": 650, "limit_default": 700, "pcie_tx": 1e8, "pcie_rx": 2e8, "pcie_replay": 3,
    "pcie_gen": 4, "pcie_width": 8, "nvlink_tx": 3e8, "nvlink_rx": 4e8, "nvlinks_up": 17,
    "ecc_corrected_volatile": 7, "ecc_uncorrected_volatile": 1, "ecc_corrected_aggregate": 9,
    "ecc_uncorrected_aggregate": 2, "remap_corrected": 4, "remap_uncorrected": 1, "remap_pending": 1,
    "remap_failed": 1, "retired_pending": 1, "fabric_state": 3, "fabric_status": 1, "banks_max": 630, "banks_high": 5,
    "banks_partial": 2, "banks_low": 1, "banks_none": 2, "sram_corrected": 3, "sram_parity": 2, "sram_secded": 1,
    "sram_threshold": 1,
}  # fmt: skip


def _rich(stage: Stage) -> Gpu:
    return stage.scenario.add_gpu(**RICH)


def _fault(stage: Stage, **fields: object) -> None:
    stage.scenario.fault(**fields)  # type: ignore[arg-type]
    stage.scenario.write()


def _well_again(stage: Stage) -> None:
    stage.scenario.clear_faults()
    stage.scenario.write()


def _not_supported(stage: Stage) -> None:
    _rich(stage)
    for call in _device_calls():
        stage.scenario.fault(call, code=NOT_SUPPORTED)


_IDENTITY = (
    *("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlInitWithFlags", "nvmlSystemGetDriverVersion"),
    *("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlShutdown"),
)


def _device_calls() -> set[str]:
    """Every call about a device that the fake library has, but those that name it."""
    sources = "".join(path.read_text() for path in SOURCES.glob("nvml_*.c"))
    return set(re.findall(r"^(?:int |READING\()(nvml\w+)", sources, re.MULTILINE)) - set(_IDENTITY)


def _two(stage: Stage) -> None:
    _rich(stage)
    _rich(stage)


def _lose(stage: Stage) -> Scrape:
    _fault(stage, gpu=0, code=GPU_IS_LOST)
    return stage.until(lambda now: now.one("stoker_gpu_up", gpu="0") == 0, "the loss")


def _hang(stage: Stage) -> Scrape:
    """Until SIGKILL, or for 7 s: the child after the first hangs as it begins."""
    now = time.time()
    _fault(stage, call="nvmlDeviceGetTotalEnergyConsumption", do="hang", begin=now, end=now + 7)
    return stage.counted("stuck")


class CanNotTrace(Exception):
    """This machine does not let processes be traced."""


def _hang_for_good(stage: Stage) -> Scrape:
    """As in uninterruptible sleep: a killed child whose tracer does not reap it is still there."""
    (child,) = children(stage.exporter.process.pid)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(child)], stdout=subprocess.PIPE)
    stage.cleanup.callback(_free, holder)
    assert holder.stdout is not None
    if holder.stdout.readline() != b"held\n":
        raise CanNotTrace
    now = time.time()
    _fault(stage, call="nvmlDeviceGetTotalEnergyConsumption", do="hang", begin=now, end=now + 60)
    stage.until(lambda now: now.one("stoker_exporter_child_stuck") == 1, "a stuck child")
    begin_s = time.monotonic()
    return stage.until(lambda _: time.monotonic() > begin_s + 2, "time for a restart that must not come")


def _free(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait(30)
    if holder.stdout is not None:
        holder.stdout.close()


def _let_go(stage: Stage) -> None:
    _well_again(stage)
    stage.cleanup.close()
    stage.counted("stuck")


def _crash(stage: Stage) -> Scrape:
    _fault(stage, call="nvmlDeviceGetTotalEnergyConsumption", do="segv")
    return stage.counted("crashed", 2)


def _restart_driver(stage: Stage) -> Scrape:
    stage.scenario.restart(time.time(), 2.0)
    stage.scenario.write()
    return stage.until(lambda now: now.one("stoker_exporter_collect_success") == 0, "the driver's absence")


def _mig(stage: Stage) -> None:
    gpu = _rich(stage)
    for _ in range(2):
        gpu.add_mig(slices=3, used=3 << 30, sm=50, tensor=23, dram=14)


def _remove_mig(stage: Stage) -> Scrape:
    """The device that the job does not hold."""
    device = stage.gpus[0].devices[1]
    device.end = time.time()
    stage.scenario.write()

    def settled(now: Scrape) -> bool:
        """Activity counters of the devices that stay begin anew with each change."""
        return not now.of("stoker_mig_info", mig_uuid=device.uuid) and bool(now.of("stoker_mig_sm_active_ratio"))

    return stage.until(settled, "the device to go")


def _return_mig(stage: Stage) -> None:
    device = stage.gpus[0].devices[1]
    device.end = 1e18
    stage.scenario.write()
    # Its activity takes two samples more than it does itself.
    stage.until(lambda now: now.of("stoker_mig_sm_active_ratio", mig_uuid=device.uuid), "the device to come")


def _full_link(stage: Stage) -> None:
    stage.scenario.add_gpu(**{**RICH, "pcie_tx": 26e9, "pcie_rx": 50e9})


def _move_much(stage: Stage) -> Scrape:
    """Many times what a counter of 32 bits holds."""
    first = stage.scrapes[0].one("stoker_gpu_pcie_bytes_total", direction="tx") or 0.0

    def moved(now: Scrape) -> bool:
        return (now.one("stoker_gpu_pcie_bytes_total", direction="tx") or 0.0) > first + 20 * (1 << 32)

    return stage.until(moved, "80 GiB sent")


def _xid(stage: Stage) -> Scrape:
    for times in (1, 2):
        stage.scenario.xid(0, time.time() + 2.0, 79)  # read before it strikes, also on a busy machine
        stage.scenario.write()
        found = stage.until(lambda now: now.one("stoker_gpu_xid_errors_total", xid="79") == times, "an XID")  # noqa: B023
    return found


def _no_library(stage: Stage) -> None:
    """An empty folder on the library path; the driver is installed later."""
    stage.environment = {"LD_LIBRARY_PATH": str(stage.scenario.path.parent)}
    _rich(stage)


def _install(stage: Stage) -> None:
    stage.scenario.write().env()
    stage.until(lambda now: now.one("stoker_gpu_up") == 1, "the GPU")


def _eight_expected(stage: Stage) -> None:
    for _ in range(8):
        stage.scenario.add_gpu(**RICH, begin=1e17)


def _appear(stage: Stage) -> None:
    for gpu in stage.gpus:
        gpu.begin = 0.0
    stage.scenario.write()
    stage.until(lambda now: now.one("stoker_exporter_gpus_visible") == 8, "8 GPUs")


def _powered(stage: Stage) -> None:
    """Eight GPUs; every second each draws something else, for 90 s."""
    begin_at = time.time()
    for number in range(8):
        gpu = stage.scenario.add_gpu(**{**RICH, "watts": 100.0 + number})
        for second in range(90):
            gpu.step(begin_at + second, watts=100.0 + number + 10 * ((second * 7 + number * 3) % 60))


def _powers_seen(stage: Stage) -> Scrape:
    power: set[float] = set()

    def enough(now: Scrape) -> bool:
        power.update(now.of("stoker_gpu_power_watts", gpu="7"))
        return len(power) >= 6

    return stage.until(enough, "six powers of a GPU")


def _without_functions(stage: Stage) -> None:
    """And without the time counters of thermal reasons and of the power brake."""
    stage.scenario.add_gpu(**{**RICH, "reasons": 0x4 | 0x40})
    for number in (269, 270, 271):
        stage.scenario.fault("nvmlDeviceGetFieldValues", field=number, code=NOT_SUPPORTED)
    stage.scenario.missing = (
        *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature"),
        *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetSamples"),
    )


def _be_throttled(stage: Stage) -> Scrape:
    return stage.until(
        lambda now: (now.one("stoker_job_gpu_throttled_seconds_total", reason="hw_thermal") or 0.0) > 1, "a second"
    )


def _slow(stage: Stage) -> None:
    _rich(stage)
    stage.scenario.latency(50_000)


def _blind(now: Scrape) -> bool:
    return now.one("stoker_exporter_collect_success") == 0


def _both_active(now: Scrape) -> object:
    return energy_counted(now) and len(now.of("stoker_mig_sm_active_ratio")) == 2


def _time_counted(now: Scrape) -> object:
    return now.of("stoker_gpu_up") and now.one("stoker_job_gpu_unobserved_seconds_total")


CASES = (
    Case("well", "all is supported", _rich),
    Case("bare", "every call but identity is NOT_SUPPORTED", _not_supported, begins=_time_counted),
    Case("old lib", "a library without newer functions", _without_functions, _be_throttled, begins=energy_counted),
    Case("slow", "each call takes 50 ms", _slow, options=("--interval", "3s", "--stuck-after", "20s")),
    Case("lost", "GPU_IS_LOST, then it is back", _two, _lose, _well_again, outage=True),
    Case("hang", "a call does not return", _rich, _hang, outage=True),
    Case(*("unkillable", "a call does not return, and SIGKILL does not end the child"), _rich, _hang_for_good, _let_go,
         outage=True),
    Case("segfault", "the child crashes at each poll", _rich, _crash, _well_again, outage=True),
    Case("restart", "the driver is loaded anew: its counters begin at 0", _rich, _restart_driver, begins_anew=True,
         outage=True),
    Case("MIG", "a MIG device vanishes and comes again", _mig, _remove_mig, _return_mig, begins=_both_active),
    Case("PCIe", "26 and 50 GB/s: NVML's counters of 32 bits wrap every tenth of a second", _full_link, _move_much),
    Case("XID", "XID 79, twice", _rich, _xid),
    Case("no library", "the driver is installed while the exporter runs", _no_library, heal=_install, begins=_blind),
    Case(
        *("no GPUs", "8 are expected, none is there; then they come", _eight_expected),
        heal=_appear,
        begins=_blind,
        options=("--expected-gpus", "8"),
    ),
    Case("8 GPUs", "powers that change each second", _powered, _powers_seen),
)  # fmt: skip
