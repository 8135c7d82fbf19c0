"""Counters that rise and begin anew; ratios that are integrated."""

import pytest

from stoker.exporter.meters.hardware import DeviceValues

ECC = "ecc_errors_total|corrected|volatile"


@pytest.mark.parametrize(("before", "value", "risen"), [(7.0, 9.0, 2.0), (7.0, 7.0, 0.0), (7.0, 2.0, 2.0)])
def test_a_counter_is_shown_as_it_is_and_one_that_fell_began_anew(before, value, risen):
    device = DeviceValues()
    device.read({ECC: before}, 1.0)
    assert device.read({ECC: value}, 1.0)[ECC] == value and device.deltas[ECC] == risen


def test_a_counter_of_the_child_goes_on_with_the_next_child():
    device = DeviceValues()
    shown = [device.read({"pcie_bytes_total|tx": value}, 1.0) for value in (5e9, 9e9, 2e9, 4e9, 1e9)]
    assert [values["pcie_bytes_total|tx"] for values in shown] == [5e9, 9e9, 11e9, 13e9, 14e9]


HELD, THROTTLED = "throttle_active|hw_thermal", "throttle_seconds_total|hw_thermal"


def test_without_a_time_counter_the_reasons_are_integrated():
    device, risen = DeviceValues(), []
    for observed_s, active in ((None, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 0.0), (None, 1.0)):
        shown = device.read({HELD: active}, observed_s)
        risen.append(device.deltas.get(THROTTLED))
    assert shown[THROTTLED] == 2 and risen == [None, 1, 1, 0, 0]
    assert device.read({}, 1.0)[THROTTLED] == 2


def test_a_time_counter_that_comes_later_goes_on_from_the_integral_and_one_that_pauses_is_not_replaced():
    device = DeviceValues()
    device.read({HELD: 1.0}, None)
    assert device.read({HELD: 1.0}, 1.0)[THROTTLED] == 1
    assert device.read({HELD: 1.0, THROTTLED: 5000.0}, 1.0)[THROTTLED] == 1
    assert device.read({HELD: 1.0, THROTTLED: 5001.0}, 1.0)[THROTTLED] == 2 and device.deltas[THROTTLED] == 1
    assert THROTTLED not in device.read({HELD: 1.0}, 1.0)
    assert device.read({HELD: 1.0, THROTTLED: 5003.0}, 1.0)[THROTTLED] == 4 and device.deltas[THROTTLED] == 2
    assert device.read({HELD: 0.0, THROTTLED: 0.5}, 1.0)[THROTTLED] == 0.5  # the driver began anew


def test_integrals_know_only_what_was_observed():
    device = DeviceValues()
    assert device.read({"busy_ratio": 1.0}, None)["busy_seconds_total"] == 0
    assert device.read({"busy_ratio": 0.5}, 2.0)["busy_seconds_total"] == 1
    assert device.read({"busy_ratio": 1.0}, None)["busy_seconds_total"] == 1
    assert device.read({}, 1.0)["busy_seconds_total"] == 1
    assert "sm_active_seconds_total" not in device.read({"busy_ratio": 7.0}, 1.0)
    assert device.read({"busy_ratio": 7.0}, 1.0)["busy_seconds_total"] == 3  # a share is never above one
