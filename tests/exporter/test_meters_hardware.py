"""Counters that wrap and counters that begin anew."""

import pytest

from stoker.exporter.meters.hardware import WRAP, DeviceValues

TX, ENERGY, ECC = "pcie_bytes_total|tx", "energy_joules_total", "ecc_errors_total|corrected|volatile"


@pytest.mark.parametrize(
    ("steps", "shown", "risen"),
    [
        pytest.param([(1.0, {TX: 100.0}), (1.0, {TX: 350.0})], 350.0, 250.0, id="it rises"),
        pytest.param([(1.0, {TX: WRAP - 10.0}), (1.0, {TX: 30.0})], WRAP + 30.0, 40.0, id="it wraps"),
        pytest.param(
            [(1.0, {TX: WRAP - 10.0}), (1.0, {TX: 30.0}), (1.0, {TX: 20.0})], 2 * WRAP + 20.0, WRAP - 10, id="twice"
        ),
        pytest.param([(1.0, {TX: WRAP - 10.0}), (None, {TX: 30.0})], 30.0, 30.0, id="after a gap it began anew"),
        pytest.param(
            [(1.0, {TX: WRAP - 10.0, ENERGY: 900.0}), (1.0, {TX: 30.0, ENERGY: 5.0})], 30.0, 30.0, id="all began anew"
        ),
        pytest.param(
            [(1.0, {TX: WRAP - 10.0, ENERGY: 900.0}), (None, {TX: 30.0, ENERGY: 950.0})],
            *(WRAP + 30.0, 40.0),
            id="after a gap over which the driver went on it wraps",
        ),
        pytest.param([(1.0, {TX: WRAP - 10.0, ENERGY: 900.0}), (None, {TX: 30.0})], 30.0, 30.0, id="not known"),
        pytest.param([(1.0, {TX: WRAP + 90.0}), (1.0, {TX: 30.0})], 30.0, 30.0, id="more than 32 bits never wrap"),
    ],
)
def test_pcie_bytes(steps, shown, risen):
    device = DeviceValues()
    for observed_s, values in steps:
        shown_values = device.read(values, observed_s)
    assert shown_values[TX] == shown and device.deltas[TX] == risen


def test_other_counters_begin_anew_as_they_are():
    device = DeviceValues()
    device.read({ECC: 7.0}, 1.0)
    assert device.read({ECC: 2.0}, 1.0)[ECC] == 2.0 and device.deltas[ECC] == 2.0


def test_integrals_know_only_what_was_observed():
    device = DeviceValues()
    assert device.read({"busy_ratio": 1.0}, None)["busy_seconds_total"] == 0
    assert device.read({"busy_ratio": 0.5}, 2.0)["busy_seconds_total"] == 1
    assert device.read({"busy_ratio": 1.0}, None)["busy_seconds_total"] == 1
    assert device.read({}, 1.0)["busy_seconds_total"] == 1
    assert "sm_active_seconds_total" not in device.read({"busy_ratio": 7.0}, 1.0)
    assert device.read({"busy_ratio": 7.0}, 1.0)["busy_seconds_total"] == 3  # a share is never above one
