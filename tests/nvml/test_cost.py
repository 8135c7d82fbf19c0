"""What takes the driver milliseconds of CPU a call is read only as often as it says something new."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.nvml.calls import CallErrors, DeviceCalls
from stoker.nvml.frames import Frame
from stoker.nvml.load import EnergyCounter
from tests.support.nvml_child import listening

UNKNOWN = 999
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
DEAR = {ENERGY, "nvmlGpmSampleGet", "nvmlDeviceGetSamples"}


class Driver(DeviceCalls):
    """Has only an energy counter."""

    def __init__(self) -> None:
        super().__init__(None, CallErrors())
        self.joules: float | None = 1000.0
        self.asked = 0

    def ask(self, name: str, *args: Any, about: object = None) -> Any:
        assert name == ENERGY
        self.asked += 1
        return None if self.joules is None else self.joules * 1000


@given(
    seconds=st.lists(
        st.tuples(st.floats(0.0, 700.0), st.floats(0.99, 1.0101), st.booleans(), st.floats(0.9, 1.1)), max_size=60
    )
)
def test_energy_between_two_readings_is_by_power_never_falls_and_never_drifts(
    seconds: list[tuple[float, float, bool, float]],
) -> None:
    """Of each second: its power, how wrong the driver's mean is, whether the counter is read, how long it is."""
    driver = Driver()
    counter, now_s = EnergyCounter(driver), 100.0
    shown, behind_j = counter.read(now_s, 75.0, True), 0.0
    assert shown == 1000.0 and driver.joules is not None
    for watts, wrong, anew, span_s in seconds:
        now_s, driver.joules = now_s + span_s, driver.joules + watts * span_s
        behind_j = 0.0 if anew else behind_j + abs(wrong - 1) * watts * span_s
        before, shown = shown, counter.read(now_s, watts * wrong, anew)
        assert shown is not None and before is not None and shown >= before
        # It may still be ahead after a reading, for as long as no power has made up for it.
        most_ahead_j = 0.0101 * 700 * 1.1 * len(seconds)
        assert driver.joules - behind_j - 1e-6 <= shown <= driver.joules + most_ahead_j


def test_the_counter_is_read_where_no_mean_fits_and_where_it_began_anew() -> None:
    driver = Driver()
    counter = EnergyCounter(driver)
    assert counter.read(0.0, 500.0, False) == 1000.0, "the first"
    driver.joules = 1490.0
    assert (counter.read(1.0, 500.0, False), driver.asked) == (1500.0, 1)
    assert (counter.read(2.0, 500.0, True), driver.asked) == (1500.0, 2), "it was ahead: it stands still"
    driver.joules = 3500.0
    assert (counter.read(6.0, 500.0, False), driver.asked) == (3500.0, 3), "a poll hung"
    assert (counter.read(7.0, None, False), driver.asked) == (3500.0, 4), "no mean is known"
    driver.joules = 5.0
    assert counter.read(8.0, 500.0, True) == 5.0, "the driver was loaded anew"
    driver.joules = None
    assert counter.read(9.0, 500.0, True) is None and counter.read(10.0, 500.0, False) is None
    driver.joules = 700.0
    assert counter.read(11.0, 500.0, False) == 700.0


def test_a_steady_gpu_is_asked_for_what_is_dear_rarely(scenario: Any) -> None:
    gpu = scenario.add_gpu(watts=300, busy=50, sm=50, used=1 << 30, reasons=0x1)
    with listening(scenario.write().env(), "--interval", "0.5") as heard:
        heard.frames(11)
        for call in DEAR:
            scenario.fault(call, code=UNKNOWN)
        for field in (270, 271):
            scenario.fault("nvmlDeviceGetFieldValues", field=field, code=UNKNOWN)
        scenario.write()
        *_, steady = heard.frames(3)
        gpu.step(0.0, used=3 << 30)  # something begins
        scenario.write()
        changed = heard.wait(Frame, lambda frame: frame.gpus[0].values["memory_used_bytes"] == 3 << 30)
        scenario.clear_faults()
        scenario.write()
        back = heard.wait(Frame, lambda frame: "energy_joules_total" in frame.gpus[0].values, new=True)
    values = steady.gpus[0].values
    assert values["sm_active_ratio"] == pytest.approx(0.5) and "energy_joules_total" in values
    assert values["busy_ratio"] == 0.5 and not DEAR & {name.partition(":")[0] for name in steady.refused}
    assert "energy_joules_total" not in changed.gpus[0].values and "sm_active_ratio" not in changed.gpus[0].values
    joules = back.gpus[0].values["energy_joules_total"]
    assert abs(joules - gpu.integral("watts", gpu.energy_since, back.at)) < 300 * 1.0


def test_another_power_is_another_activity(scenario: Any) -> None:
    gpu = scenario.add_gpu(watts=300, sm=50)
    with listening(scenario.write().env(), "--interval", "0.5") as heard:
        number = heard.frames(12)[-1].number
        gpu.step(0.0, watts=600, sm=90)
        scenario.write()
        frame = heard.wait(Frame, lambda frame: frame.gpus[0].values["sm_active_ratio"] > 0.8, new=True)
    assert frame.number - number <= 4


def test_a_hardware_slowdown_is_counted_from_the_poll_that_finds_it(scenario: Any) -> None:
    gpu = scenario.add_gpu(reasons=0x1)
    held = "throttle_seconds_total|hw_thermal"
    with listening(scenario.write().env()) as heard:
        heard.frames(2)
        gpu.step(heard.frames(1)[0].at, reasons=0x40)
        scenario.write()
        first, second = [
            heard.wait(Frame, lambda frame: frame.gpus[0].values["throttle_active|hw_thermal"] == 1, new=True)
            for _ in range(2)
        ]
    assert 0 < first.gpus[0].values[held] < second.gpus[0].values[held]


def test_the_only_process_of_a_gpu_does_what_the_gpu_does(scenario: Any) -> None:
    scenario.add_gpu(busy=70, processes=((os.getpid(), 1 << 30, 60.0),))
    scenario.fault("nvmlDeviceGetProcessUtilization", code=UNKNOWN)
    with listening(scenario.write().env(), "--pids", "all") as heard:
        frame = heard.wait(Frame, lambda frame: frame.gpus[0].processes)
    assert frame.gpus[0].processes[0].sm_ratio == pytest.approx(0.7) and not frame.refused
