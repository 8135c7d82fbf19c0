"""The endpoint never dies and never lies: the whole exporter, scraped all the while, in each scenario of the fake NVML.

Of every scrape: it was answered, it is exposition text, no counter fell (but the hardware's own at a driver restart),
and each value of the hardware is what the scenario says, never a 0 or an old value for what is not known.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.exporter.catalogue import by_name
from tests.support.endpoint_scenarios import CASES, RICH, CanNotTrace
from tests.support.endpoint_stage import play
from tools.generate.exporter_endpoint import AT_ONCE, column, marks

pytestmark = pytest.mark.slow

CATALOGUE = by_name()
# Family and its own label → the scenario's name for it, and what that is in base units.
SAID = {
    ("busy_ratio", ""): ("busy", 0.01),
    ("memory_controller_busy_ratio", ""): ("mem_busy", 0.01),
    ("encoder_busy_ratio", ""): ("enc", 0.01),
    ("decoder_busy_ratio", ""): ("dec", 0.01),
    ("memory_used_bytes", ""): ("used", 1),
    ("power_watts", ""): ("watts", 1),
    ("power_limit_watts", "enforced"): ("limit", 1),
    ("temperature_celsius", "core"): ("temp", 1),
    ("temperature_celsius", "memory"): ("mem_temp", 1),
    ("temperature_margin_celsius", ""): ("margin", 1),
    ("fan_ratio", ""): ("fan", 0.01),
    ("clock_hertz", "sm"): ("sm_clock", 1e6),
    ("clock_hertz", "memory"): ("mem_clock", 1e6),
    ("clock_hertz", "graphics"): ("gr_clock", 1e6),
    ("clock_hertz", "video"): ("video_clock", 1e6),
    ("pstate", ""): ("pstate", 1),
    ("pcie_replays_total", ""): ("pcie_replay", 1),
    ("pcie_link_generation", "current"): ("pcie_gen", 1),
    ("pcie_link_width", "current"): ("pcie_width", 1),
    ("nvlink_links_active", ""): ("nvlinks_up", 1),
    ("ecc_errors_total", "corrected,volatile"): ("ecc_corrected_volatile", 1),
    ("ecc_errors_total", "uncorrected,aggregate"): ("ecc_uncorrected_aggregate", 1),
    ("remapped_rows", "correctable"): ("remap_corrected", 1),
    ("row_remap_pending", ""): ("remap_pending", 1),
    ("sm_active_ratio", ""): ("sm", 0.01),
    ("sm_occupancy_ratio", ""): ("occ", 0.01),
    ("tensor_active_ratio", ""): ("tensor", 0.01),
    ("dram_active_ratio", ""): ("dram", 0.01),
    ("graphics_active_ratio", ""): ("gfx", 0.01),
    ("pipe_active_ratio", "fp32"): ("fp32", 0.01),
}
MOVES = {"up", "xid_last_timestamp_seconds", "idle_seconds", "unallocated_use", "allocation_share_ratio"}
"""Gauges of the hardware's table that are no readings."""
WINDOW_S = 3.0
"""A value on the page is of a poll that is not older: five intervals, and what a busy machine is late."""


def ordered(name, labels):
    """Own labels in the catalogue's order."""
    own = dict(labels)
    return ",".join(own[label] for label in CATALOGUE[name].labels if label in own)


@pytest.fixture(scope="module")
def plays(request, fake_nvml, tmp_path_factory):
    """Case → what became of it: several play at once, for mostly they wait."""
    chosen = [item.callspec.params["case"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {case.title: pool.submit(play, case, tmp_path_factory.mktemp("case")) for case in chosen}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_scenario(case, plays):
    try:
        played = plays[case.title].result()
    except CanNotTrace:
        pytest.skip("this machine does not let processes be traced")
    assert not played.stage.failures and len(played.all) >= 2
    answered(played)
    no_counter_falls(case, played)
    nothing_is_made_up(case, played)
    FURTHER[case.title](played)
    assert column(case.title) == marks(played), "run: python -m tools.generate.exporter_endpoint, and look at it"


def answered(played):
    for scrape in played.all:
        assert {name for name, _ in scrape.values} <= set(CATALOGUE)
        assert len(scrape.children) <= 1


def no_counter_falls(case, played):
    newest = {}
    for scrape in played.all:
        for key, value in scrape.values.items():
            if CATALOGUE[key[0]].type != "counter":
                continue
            driver_s = case.begins_anew and key[0].startswith("stoker_gpu_") and "account" not in key[0]
            assert driver_s or value >= newest.get(key, value), (key, newest[key], value)
            newest[key] = value


def nothing_is_made_up(case, played):
    gpus = {gpu.uuid: gpu for gpu in played.stage.gpus}
    settled = {**played.after.values, **played.before.values}
    for scrape in played.all:
        for (name, labels), value in scrape.values.items():
            family, own = name.removeprefix("stoker_gpu_"), dict(labels)
            if family == name or family in MOVES:
                continue
            key, factor = SAID.get((family, ordered(name, labels)), (None, 1))
            where = f"{name}{own} of {scrape.began_at}"
            if key is None:
                if CATALOGUE[name].type == "gauge":
                    assert value == settled[name, labels], where
                continue
            gpu = gpus[own["uuid"]]
            possible = {
                gpu.value(key, at) * factor
                for at in (scrape.ended_at, *newly(gpu, scrape), scrape.began_at - WINDOW_S)
                if key == "watts" or at == scrape.ended_at
            }
            if key == "used" and case.title == "old lib":  # which includes what the driver reserves
                possible = {value + gpu.reserved for value in possible}
            if key == "watts":  # a mean over a second
                assert min(possible) - 1e-3 <= value <= max(possible) + 1e-3, (where, value, possible)
            else:
                assert any(value == pytest.approx(one) for one in possible), (where, value, possible)


def newly(gpu, scrape):
    """Moments at which what could be on the page changed."""
    return [at for at, _, _ in gpu.later if scrape.began_at - WINDOW_S <= at <= scrape.ended_at]


def hardware(scrape, gpu="0"):
    """Families that only a reading gives."""
    unread = {"stoker_gpu_up", "stoker_gpu_allocation_share_ratio", "stoker_gpu_xid_errors_total"}
    named = {name for name in scrape.families(gpu) if re.match("stoker_(gpu|mig)_", name)}
    return {name for name in named - unread if "account" not in name}


def restarted(played, **reasons):
    own = {
        dict(labels)["reason"]: value
        for (name, labels), value in played.after.values.items()
        if name == "stoker_exporter_child_restarts_total" and value
    }
    assert own == reasons


def blind(played):
    """What nothing is known of is not there; the job's and the accounts' counters are."""
    assert not hardware(played.during)
    assert played.during.of("stoker_gpu_up") == []
    assert played.during.one("stoker_exporter_collect_success") == 0
    assert played.during.one("stoker_exporter_gpus_visible") == 0
    assert played.during.one("stoker_exporter_gpus_expected") == 1
    assert played.during.of("stoker_gpu_allocation_share_ratio") == [1.0]  # who holds it is known all the same
    for name, labels in {
        "stoker_gpu_account_seconds_total": {"account": "unobserved"},
        "stoker_job_gpu_unobserved_seconds_total": {},
    }.items():
        shown = [scrape.one(name, **labels) or 0.0 for scrape in (played.before, played.after)]
        assert shown[1] > shown[0]
    assert played.after.one("stoker_exporter_collect_success") == 1


def well(played):
    assert played.after.one("stoker_exporter_collect_success") == 1
    assert {key for key, _ in SAID.values()} <= set(RICH)
    shown = {(name.removeprefix("stoker_gpu_"), ordered(name, labels)) for name, labels in played.after.values}
    assert set(SAID) <= shown


def bare(played):
    assert hardware(played.after) == {"stoker_gpu_info"}
    assert played.after.one("stoker_gpu_up") == played.after.one("stoker_exporter_collect_success") == 1
    assert not played.after.of("stoker_job_gpu_busy_seconds_total")
    assert not played.after.of("stoker_job_gpu_energy_joules_total")
    assert not played.after.of("stoker_job_gpu_idle_seconds_total")


def old_library(played):
    """Throttled time without NVML's counter of it: as long as the reason is in force, so is the counter of another."""
    of_job, integrated = (
        {reason: played.during.one(f"{name}_seconds_total", reason=reason) for reason in ("sw_power_cap", "hw_thermal")}
        for name in ("stoker_job_gpu_throttled", "stoker_gpu_throttle")
    )
    assert of_job["hw_thermal"] == pytest.approx(of_job["sw_power_cap"], abs=0.25) and of_job["hw_thermal"] > 1
    assert integrated["hw_thermal"] >= of_job["hw_thermal"]
    assert played.during.one("stoker_gpu_throttle_seconds_total", reason="hw_power_brake") == 0
    assert not played.after.of("stoker_gpu_memory_reserved_bytes")
    assert not played.after.of("stoker_gpu_sm_active_ratio")
    assert not played.after.of("stoker_job_gpu_sm_active_seconds_total")


def slow(played):
    assert played.after.one("stoker_exporter_collect_seconds") > 0.3  # seven calls
    restarted(played)


def lost(played):
    assert played.during.one("stoker_gpu_up", gpu="0") == 0 and played.during.one("stoker_gpu_up", gpu="1") == 1
    assert not hardware(played.during, "0") and hardware(played.during, "1") >= hardware(played.before, "1")
    assert played.during.one("stoker_exporter_collect_success") == 0
    assert played.during.one("stoker_exporter_gpus_visible") == 1
    assert played.after.one("stoker_gpu_up", gpu="0") == played.after.one("stoker_exporter_collect_success") == 1
    restarted(played)


def hang(played):
    blind(played)
    restarted(played, stuck=1)


def unkillable(played):
    blind(played)
    assert played.during.one("stoker_exporter_child_stuck") == 1
    assert played.during.one("stoker_exporter_child_restarts_total", reason="stuck") == 0
    assert played.after.one("stoker_exporter_child_stuck") == 0
    restarted(played, stuck=1)


def segfault(played):
    blind(played)
    times = played.after.one("stoker_exporter_child_restarts_total", reason="crashed")
    assert times >= 2
    restarted(played, crashed=times)


def driver_restart(played):
    blind(played)
    restarted(played)
    joules = [scrape.one("stoker_gpu_energy_joules_total") for scrape in (played.before, played.after)]
    assert joules[1] < joules[0]


def mig(played):
    first, second = (device.uuid for device in played.stage.gpus[0].devices)
    for scrape in (played.before, played.after):
        assert scrape.one("stoker_mig_sm_active_ratio", mig_uuid=second) == pytest.approx(0.5)
    for scrape in played.all:
        assert scrape.one("stoker_mig_memory_used_bytes", mig_uuid=first) in (3 << 30, None)
        assert not scrape.of("stoker_gpu_busy_ratio")
    assert played.during.of("stoker_mig_info", mig_uuid=first)
    (share,) = played.during.of("stoker_gpu_allocation_share_ratio")
    assert share == 1.0
    assert played.during.of("stoker_job_gpu_energy_joules_total", uuid=first, method="mig_slices")


def pcie(played):
    """The bytes that the page rose by are those that were sent."""
    name = "stoker_gpu_pcie_bytes_total"
    for direction, rate in (("tx", 26e9), ("rx", 50e9)):
        assert played.during.one("stoker_gpu_pcie_bytes_per_second", direction=direction) == pytest.approx(rate)
        rise = played.during.one(name, direction=direction) - played.before.one(name, direction=direction)
        between_s = played.during.began_at - played.before.began_at
        assert rise == pytest.approx(rate * between_s, abs=rate * WINDOW_S)


def xid(played):
    assert played.after.one("stoker_gpu_xid_errors_total", xid="79") == 2
    assert played.stage.struck_at < played.after.one("stoker_gpu_xid_last_timestamp_seconds", xid="79")
    assert played.after.one("stoker_gpu_up") == 1


def nothing_before(played):
    assert not [name for name, _ in played.before.values if name.startswith(("stoker_gpu_", "stoker_job_"))]
    assert played.after.one("stoker_exporter_collect_success") == 1


def no_gpus(played):
    nothing_before(played)
    assert played.before.one("stoker_exporter_gpus_expected") == 8
    assert played.before.one("stoker_exporter_gpus_visible") == 0
    assert played.after.of("stoker_gpu_up") == [1.0] * 8


def eight(played):
    """Energy is the integral of a known power, exactly: of no moment but one within the last polls."""
    for scrape in played.all:
        for gpu in played.stage.gpus:
            joules = scrape.one("stoker_gpu_energy_joules_total", uuid=gpu.uuid)
            if joules is None:
                continue
            least, most = (
                gpu.integral("watts", gpu.energy_since, at) for at in (scrape.began_at - WINDOW_S, scrape.ended_at)
            )
            assert least - 0.002 <= joules <= most + 0.002
    assert played.after.one("stoker_exporter_gpus_visible") == 8


FURTHER = {
    "well": well,
    "bare": bare,
    "old lib": old_library,
    "slow": slow,
    "lost": lost,
    "hang": hang,
    "unkillable": unkillable,
    "segfault": segfault,
    "restart": driver_restart,
    "MIG": mig,
    "PCIe": pcie,
    "XID": xid,
    "no library": nothing_before,
    "no GPUs": no_gpus,
    "8 GPUs": eight,
}
