"""What the api gets of a GPU: what is known, and no more often than it changes."""

from __future__ import annotations

from itertools import pairwise

from stoker.exporter.clock import Moment
from stoker.exporter.gpu_readings import EVERY_S, GpuReadings
from stoker.exporter.meters.snapshot import GpuState
from stoker.spec.reports import GpusReport

INFO = {"model": "NVIDIA H200", "compute_capability": "9.0"}
VALUES = {
    "up": 1.0,
    "memory_total_bytes": 141.0 * 2**30,
    "power_limit_watts|enforced": 699.6,
    "recovery_action": 1.0,
    "row_remap_pending": 1.0,
    "row_remap_failed": 0.0,
    "ecc_errors_total|uncorrected|volatile": 2.0,
    "xid_last_timestamp_seconds|79": 1000.5,
    "xid_last_timestamp_seconds|31": 1001.0,
    "temperature_celsius|core": 61.0,
}


def at(second: float) -> Moment:
    return Moment(1_700_000_000.0 + second, second)


def test_it_is_what_the_api_reads() -> None:
    gpus = GpuReadings().of([GpuState(3, "GPU-a", INFO, VALUES)], at(0))
    (gpu,) = GpusReport.model_validate({"node": "n", "gpus": gpus}).gpus
    assert (gpu.uuid, gpu.index, gpu.model, gpu.compute_capability) == ("GPU-a", 3, "NVIDIA H200", "9.0")
    assert (gpu.memory_bytes, gpu.power_limit_watts, gpu.lost) == (141 * 2**30, 700, False)
    assert (gpu.recovery_action, gpu.row_remap_pending, gpu.row_remap_failed, gpu.uncorrected_errors) == (
        1,
        True,
        False,
        2,
    )
    assert [(xid.code, xid.at) for xid in gpu.xids] == [(79, 1000.5)], "31 is a program's own mistake"


def test_pages_of_older_gpus_wait_for_a_reset_as_rows_do() -> None:
    pages = GpuState(0, "GPU-a", INFO, {"up": 1.0, "retired_pages_pending": 1.0})
    (gpu,) = GpuReadings().of([pages], at(0))
    assert gpu["rowRemapPending"]


def test_what_is_not_known_is_absent() -> None:
    lost, unknown = GpuState(0, "GPU-a", {}, {"up": 0.0}), GpuState(1, "GPU-b", {}, {})
    simulated = GpuState(2, "SIM-0", {"simulated": "true"}, {"up": 1.0})
    (gpu,) = GpuReadings().of([lost, unknown, simulated], at(0))
    assert gpu["uuid"] == "GPU-a" and gpu["lost"] and not {"model", "memoryBytes", "powerLimitWatts"} & gpu.keys()


def test_what_changes_all_the_time_changes_nothing() -> None:
    readings = GpuReadings()
    first = readings.of([GpuState(0, "GPU-a", INFO, VALUES)], at(0))
    warmer = VALUES | {"temperature_celsius|core": 62.0, "xid_last_timestamp_seconds|31": 1002.0}
    assert readings.of([GpuState(0, "GPU-a", INFO, warmer)], at(1)) == first


def held_down(share: float, readings: GpuReadings, begin: float, seconds: float) -> bool:
    """After so long in which the hardware held it down for this share of the time."""
    is_held = False
    for step in range(int(seconds / EVERY_S) + 1):
        second = begin + step * EVERY_S
        values = {"up": 1.0, "throttle_seconds_total|hw_thermal": share * step * EVERY_S}
        (gpu,) = readings.of([GpuState(0, "GPU-a", {}, values)], at(second))
        is_held = gpu["throttled"]
    return is_held


def test_a_gpu_that_its_hardware_holds_down_counts_as_throttled_for_as_long_as_it_lasts() -> None:
    readings = GpuReadings()
    assert not held_down(0.5, readings, 0, 60), "a minute is not enough"
    assert held_down(0.5, readings, 100, 400)
    assert held_down(0.1, readings, 600, 400) is False, "its counter began anew: the time before says nothing"
    assert not held_down(0.15, readings, 1200, 600)


def test_it_goes_on_counting_until_it_is_clearly_over() -> None:
    readings = GpuReadings()
    total, is_held = 0.0, []
    for step in range(120):
        total += (0.5 if step < 40 else 0.08 if step < 80 else 0.0) * EVERY_S
        values = {
            "up": 1.0,
            "throttle_seconds_total|hw_thermal": total,
            "throttle_seconds_total|hw_power_brake": 2.0 * step,
        }
        (gpu,) = readings.of([GpuState(0, "GPU-a", {}, values)], at(step * EVERY_S))
        is_held.append(gpu["throttled"])
    assert is_held[39] and is_held[79] and not is_held[119]
    assert sum(one != other for one, other in pairwise(is_held)) == 2
