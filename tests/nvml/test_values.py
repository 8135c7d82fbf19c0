"""What the child says of GPUs that answer: each value, its unit, what is asked when the first choice is missing."""

import os
import time

import pytest

from stoker.exporter.catalogue import COUNTER, HARDWARE, MIG
from stoker.nvml.frames import Frame, GpuEvent
from tests.support.nvml_child import INTERVAL_S, listening
from tests.support.nvml_scenario import FOREVER, NO_PERMISSION, NOT_SUPPORTED

GIB = 1 << 30


def read(scenario, *options, enough=lambda gpu: True):
    """The first reading of GPU 0 that is `enough`."""
    with listening(scenario.write().env(), *options) as heard:
        return heard.wait(Frame, lambda frame: frame.gpus and enough(frame.gpus[0])).gpus[0]


def has(key):
    return lambda gpu: key in gpu.values


VALUES = [
    ({"busy": 50}, "busy_ratio", 0.5),
    ({"mem_busy": 7}, "memory_controller_busy_ratio", 0.07),
    ({"enc": 20}, "encoder_busy_ratio", 0.2),
    ({"dec": 10}, "decoder_busy_ratio", 0.1),
    ({"used": 3 * GIB}, "memory_used_bytes", 3 * GIB),
    ({"watts": 627.5}, "power_watts", 627.5),
    ({"temp": 61}, "temperature_celsius|core", 61),
    ({"mem_temp": 75}, "temperature_celsius|memory", 75),
    ({"margin": 3}, "temperature_margin_celsius", 3),
    ({"t_slowdown": 87}, "temperature_limit_celsius|slowdown", 87),
    ({"tl_shutdown": -8}, "temperature_margin_limit_celsius|shutdown", -8),
    ({"fan": 30}, "fan_ratio", 0.3),
    ({"sm_clock": 1755}, "clock_hertz|sm", 1.755e9),
    ({"mem_clock_max": 3201}, "clock_max_hertz|memory", 3.201e9),
    ({"pstate": 2}, "pstate", 2),
    ({"limit": 650}, "power_limit_watts|enforced", 650),
    ({"limit_min": 200}, "power_limit_watts|min", 200),
    ({"reasons": 0x20}, "throttle_active|sw_thermal", 1),
    ({"reasons": 0x20}, "throttle_active|hw_thermal", 0),
    ({"pcie_replay": 4}, "pcie_replays_total", 4),
    ({"pcie_gen": 4}, "pcie_link_generation|current", 4),
    ({"pcie_width": 8}, "pcie_link_width|current", 8),
    ({"nvlinks_up": 17}, "nvlink_links_active", 17),
    ({"nvlink_replay": 5}, "nvlink_errors_total|replay", 5),
    ({"ecc_uncorrected_volatile": 2}, "ecc_errors_total|uncorrected|volatile", 2),
    ({"ecc_corrected_aggregate": 9}, "ecc_errors_total|corrected|aggregate", 9),
    ({"remap_uncorrected": 1}, "remapped_rows|uncorrectable", 1),
    ({"remap_pending": 1}, "row_remap_pending", 1),
    ({"retired_pending": 1}, "retired_pages_pending", 1),
    ({"recovery": 2}, "recovery_action", 2),
    ({"fabric_state": 3}, "fabric_state", 3),
    ({"fabric_status": 15}, "fabric_failed", 1),
    ({"banks_max": 637}, "remap_banks|max", 637),
    ({"banks_none": 1}, "remap_banks|none", 1),
    ({"sram_corrected": 12}, "sram_errors_total|corrected", 12),
    ({"sram_parity": 3}, "sram_errors_total|uncorrected_parity", 3),
    ({"sram_secded": 2}, "sram_errors_total|uncorrected_secded", 2),
    ({"sram_sm": 5}, "sram_uncorrected_total|sm", 5),
    ({"sram_threshold": 1}, "sram_threshold_exceeded", 1),
    ({"ecc_mode_pending": 0}, "mode|ecc|pending", 0),
    ({"ecc_mode": 1}, "mode|ecc|current", 1),
    ({"persistence": 1}, "mode|persistence|current", 1),
    ({"sm": 33}, "sm_active_ratio", 0.33),
    ({"occ": 40}, "sm_occupancy_ratio", 0.4),
    ({"tensor": 21}, "tensor_active_ratio", 0.21),
    ({"dram": 55}, "dram_active_ratio", 0.55),
    ({"gfx": 99}, "graphics_active_ratio", 0.99),
    ({"fp16": 5}, "pipe_active_ratio|fp16", 0.05),
]
"""What the scenario sets, the value's key, what comes out. No two of them set one thing differently."""


@pytest.fixture(scope="module")
def reading(fake_nvml, tmp_path_factory):
    """Of one GPU that has all of VALUES."""
    given = {name: value for values, _, _ in VALUES for name, value in values.items()}
    scenario = fake_nvml(tmp_path_factory.mktemp("values"))
    scenario.add_gpu(**given)
    return read(scenario, enough=has("sm_active_ratio"))


@pytest.mark.parametrize(("given", "key", "value"), VALUES, ids=[key for _, key, _ in VALUES])
def test_value(reading, given, key, value):
    assert reading.values[key] == pytest.approx(value), given


def test_identity(scenario):
    scenario.add_gpu(name="NVIDIA H100 80GB HBM3", bus="00000000:5D:00.0", cc="9.0")
    reading = read(scenario)
    assert reading.uuid == scenario.gpus[0].uuid and reading.index == 0
    wanted = {"model": "NVIDIA H100 80GB HBM3", "pci_bus_id": "00000000:5D:00.0", "compute_capability": "9.0"}
    wanted |= {"serial": "1650923000000", "vbios": "96.00.99.00.01"}
    assert reading.info.items() >= {**wanted, "mig": "none", "minor": "0", "power_source": "counter"}.items()


def test_every_value_is_of_the_catalogue(scenario):
    """Names and numbers of labels; a name that the parent does not know would be lost silently."""
    scenario.add_gpu(t_slowdown=90, fan=1, retired_pending=0).add_mig()
    reading = read(scenario, enough=lambda gpu: gpu.mig and "sm_active_ratio" in gpu.mig[0].values)
    for table, values in ((HARDWARE, reading.values), (MIG, reading.mig[0].values)):
        labels = {family.name: len(family.labels) for family in table}
        for key in values:
            name, *its = key.split("|")
            assert labels.get(name) == len(its), key


OF_THE_PARENT = {
    "stoker_gpu": {
        *("info", "up", "busy_seconds_total", "memory_controller_busy_seconds_total", "sm_active_seconds_total"),
        *("tensor_active_seconds_total", "dram_active_seconds_total", "energy_source_info", "xid_errors_total"),
        *("xid_last_timestamp_seconds", "allocation_share_ratio", "account_seconds_total", "account_joules_total"),
        *("idle_seconds", "unallocated_use", "unowned_processes"),
    },
    "stoker_mig": {"info", "sm_active_seconds_total", "tensor_active_seconds_total"},
}
"""Made by the meters, of readings and allocations (tests/exporter/test_meters*.py)."""


def test_every_family_of_the_hardware_is_filled(reading, scenario):
    """One that the child fills no more, or never did, would be a gap on a dashboard that goes unnoticed."""
    scenario.add_gpu(t_slowdown=90, fan=1, retired_pending=0).add_mig()
    split = read(scenario, enough=lambda gpu: gpu.mig and "sm_active_ratio" in gpu.mig[0].values)
    filled = {
        "stoker_gpu": {key.partition("|")[0] for one in (reading, split) for key in one.values},
        "stoker_mig": {key.partition("|")[0] for key in split.mig[0].values},
    }
    for prefix, table in (("stoker_gpu", HARDWARE), ("stoker_mig", MIG)):
        families = {family.name for family in table}
        assert families - filled[prefix] == OF_THE_PARENT[prefix], prefix


def test_energy_is_the_integral_of_the_power_trace_on_8_gpus(scenario):
    begin = time.time()
    for index in range(8):
        gpu = scenario.add_gpu(watts=75 + index)
        for n in range(40):
            gpu.step(begin + n * 0.15, watts=75 + 80 * ((n + index) % 9))
    with listening(scenario.write().env()) as heard:
        first, *_, last = heard.frames(10)
    for index, gpu in enumerate(scenario.gpus):
        joules = last.gpus[index].values["energy_joules_total"] - first.gpus[index].values["energy_joules_total"]
        # The counter was read somewhere between a poll's begin and its end.
        least = gpu.integral("watts", first.at + first.took_s, last.at)
        most = gpu.integral("watts", first.at, last.at + last.took_s)
        assert least - 0.01 <= joules <= most + 0.01
        assert last.gpus[index].uuid == gpu.uuid


def test_counters_are_read_at_each_poll_and_gauges_at_every_fifth(scenario):
    begin = time.time()
    gpu = scenario.add_gpu(temp=0, watts=100)
    for n in range(200):
        gpu.step(begin + n * 0.1, temp=n)
    with listening(scenario.write().env()) as heard:
        frames = heard.frames(11)
    for frame in frames:
        now = gpu.value("temp", frame.at + frame.took_s)
        assert now - frame.gpus[0].values["temperature_celsius|core"] <= 5 * INTERVAL_S / 0.1 + 5
    assert len({frame.gpus[0].values["temperature_celsius|core"] for frame in frames}) == 3
    assert len({frame.gpus[0].values["energy_joules_total"] for frame in frames}) == 11


def test_throttled_time_is_read_in_seconds(scenario):
    begin = time.time()
    gpu = scenario.add_gpu(reasons=0x1, energy_since=begin)
    gpu.step(begin, reasons=0x4 | 0x40)
    gpu.step(begin + 0.5, reasons=0x80)
    gpu.step(begin + 0.75, reasons=0x1)
    brake = "throttle_seconds_total|hw_power_brake"
    values = read(scenario, enough=lambda gpu: gpu.values.get(brake, 0) >= 0.2499).values
    assert values["throttle_seconds_total|sw_power_cap"] == pytest.approx(0.5, abs=1e-6)
    assert values["throttle_seconds_total|hw_thermal"] == pytest.approx(0.5, abs=1e-6)
    assert values[brake] == pytest.approx(0.25, abs=1e-6)
    assert values["throttle_seconds_total|sync_boost"] == 0


def test_busy_is_the_mean_since_the_poll_before(scenario):
    """By the driver's samples: a change between two polls shows in the mean, not only in the newest window."""
    scenario.missing = ("nvmlDeviceGetUtilizationRates",)
    gpu = scenario.add_gpu(busy=0)
    with listening(scenario.write().env()) as heard:
        heard.wait(Frame)
        gpu.step(round(time.time(), 1) + 0.55, busy=100)  # in the middle of a sample of 0.1 s
        scenario.write()
        mixed = heard.wait(Frame, lambda frame: 0 < frame.gpus[0].values["busy_ratio"] < 1)
        after = heard.wait(Frame, lambda frame: frame.gpus[0].values["busy_ratio"] == 1)
    assert mixed.number < after.number


@pytest.mark.parametrize(
    ("missing", "given", "key", "value"),
    [
        (["nvmlDeviceGetSamples"], {"busy": 50}, "busy_ratio", 0.5),
        (["nvmlDeviceGetMemoryInfo_v2"], {"used": GIB}, "memory_used_bytes", GIB + 687_865_856),
        (["nvmlDeviceGetTemperatureV"], {"temp": 61}, "temperature_celsius|core", 61),
        (["nvmlDeviceGetCurrentClocksEventReasons"], {"reasons": 4}, "throttle_active|sw_power_cap", 1),
        (["nvmlDeviceGetFieldValues"], {"watts": 300}, "power_watts", 300),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_older_library_is_asked_otherwise(scenario, missing, given, key, value):
    scenario.missing = tuple(missing)
    scenario.add_gpu(**given)
    reading = read(scenario)
    assert reading.values[key] == pytest.approx(value)
    assert "memory_reserved_bytes" not in reading.values or missing != ["nvmlDeviceGetMemoryInfo_v2"]


def test_power_by_fields_is_of_the_gpu_not_the_module(scenario):
    """Where the average is not supported the older call has it."""
    scenario.add_gpu(watts=310)
    scenario.fault("nvmlDeviceGetFieldValues", field=185, code=NOT_SUPPORTED)
    assert read(scenario).values["power_watts"] == 310


@pytest.mark.parametrize("fifth", [False, True])
def test_nvlink_bytes_of_all_links(scenario, fifth):
    """Up to NVLink 4 one counter of KiB for all links, with NVLink 5 one of bytes each."""
    scenario.add_gpu(nvlink_tx=36e9, nvlink_rx=18e9, nvlink5=fifth, nvlinks=18)
    with listening(scenario.write().env()) as heard:
        first, *_, last = [frame for frame in heard.frames(6) if "nvlink_bytes_total|tx" in frame.gpus[0].values]
    for key, rate in (("nvlink_bytes_total|tx", 36e9), ("nvlink_bytes_total|rx", 18e9)):
        moved = last.gpus[0].values[key] - first.gpus[0].values[key]
        assert rate * (last.at - first.at - first.took_s) - 2e4 <= moved
        assert moved <= rate * (last.at + last.took_s - first.at) + 2e4


@pytest.mark.parametrize("rate", [1e9, 3.9e9, 6e9, 10e9, 26e9, 50e9])
def test_pcie_bytes_by_gpm(scenario, rate):
    """Whatever the rate: NVML's counters of 32 bits would show 1.41 of 10 GB/s."""
    scenario.add_gpu(pcie_tx=rate, pcie_rx=rate / 2)
    with listening(scenario.write().env()) as heard:
        first, *_, last = [frame for frame in heard.frames(5) if "pcie_bytes_total|tx" in frame.gpus[0].values]
    for direction, true in (("tx", rate), ("rx", rate / 2)):
        moved = (
            last.gpus[0].values[f"pcie_bytes_total|{direction}"] - first.gpus[0].values[f"pcie_bytes_total|{direction}"]
        )
        assert moved == pytest.approx(true * (last.mono_s - first.mono_s), rel=0.05)
        assert last.gpus[0].values[f"pcie_bytes_per_second|{direction}"] == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("without", ["GPM", "GPM's rates", "the collector gpm"])
def test_pcie_rate_without_gpm_is_a_gauge(scenario, without):
    """No counter: the one that NVML has can't be trusted."""
    scenario.add_gpu(pcie_tx=26e9, pcie_rx=2e9, gpm=without != "GPM")
    for metric in (20, 21) if without == "GPM's rates" else ():
        scenario.fault("nvmlGpmMetricsGet", field=metric, code=NOT_SUPPORTED)
    options = ("--collectors", "pcie") if without == "the collector gpm" else ()
    values = read(scenario, *options, enough=has("pcie_bytes_per_second|rx")).values
    assert values["pcie_bytes_per_second|tx"] == pytest.approx(26e9, rel=1e-6)
    assert not [key for key in values if key.startswith("pcie_bytes_total")]


def test_processes_with_their_share_of_sm_time(scenario):
    scenario.add_gpu(processes=((os.getpid(), 2 * GIB, 60.0), (1, GIB, 0.0)))
    reading = read(scenario, "--pids", "all", enough=lambda gpu: gpu.processes and gpu.processes[0].sm_ratio)
    mine, other = reading.processes
    assert (mine.pid, mine.memory_bytes, mine.sm_ratio) == (os.getpid(), 2 * GIB, pytest.approx(0.6))
    assert other.sm_ratio == 0 and reading.values["processes"] == 2


def test_no_process_is_known_only_where_all_can_be_seen(scenario):
    scenario.add_gpu()
    reading = read(scenario, "--pids", "all")
    assert reading.processes == () and reading.values["processes"] == 0


def test_what_moves_rarely_is_read_rarely_and_reported_always(scenario):
    scenario.add_gpu(pcie_replay=3)
    with listening(scenario.write().env()) as heard:
        heard.wait(Frame)
        scenario.fault("nvmlDeviceGetPcieReplayCounter", code=999)
        scenario.write()
        frames = heard.frames(8)
        failed = heard.wait(Frame, lambda frame: frame.refused)
    assert all(frame.gpus[0].values["pcie_replays_total"] == 3 and not frame.refused for frame in frames)
    assert "pcie_replays_total" not in failed.gpus[0].values  # its turn came, and it is not known any more


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 13, 26])
def test_what_a_gpu_does_not_have_is_absent_and_no_error(scenario, code):
    scenario.add_gpu()
    scenario.fault("nvmlDeviceGetMemoryInfo", code=code)
    scenario.fault("nvmlDeviceGetMemoryInfo_v2", code=code)
    with listening(scenario.write().env()) as heard:
        *_, frame = heard.frames(3)
    assert not [key for key in frame.gpus[0].values if key.startswith("memory_") and key.endswith("_bytes")]
    assert frame.refused == {} and frame.gpus[0].lost == ""


def test_what_fails_now_is_absent_now_and_counted(scenario):
    scenario.add_gpu(temp=50)
    with listening(scenario.write().env()) as heard:
        heard.wait(Frame)
        scenario.fault("nvmlDeviceGetTemperatureV", code=999)
        scenario.fault("nvmlDeviceGetTemperature", code=999)
        scenario.write()
        without = heard.wait(Frame, lambda frame: "temperature_celsius|core" not in frame.gpus[0].values)
        scenario.clear_faults()
        scenario.write()
        back = heard.wait(Frame, lambda frame: "temperature_celsius|core" in frame.gpus[0].values, new=True)
    assert without.refused["nvmlDeviceGetTemperatureV:UNKNOWN"] >= 1 and without.gpus[0].values["power_watts"] == 75
    assert back.gpus[0].values["temperature_celsius|core"] == 50


def test_memory_in_use_never_changes_its_meaning(scenario):
    """Where the newer call fails for once the older one, which counts the driver's reserve as used, is no answer."""
    scenario.add_gpu(used=GIB)
    with listening(scenario.write().env()) as heard:
        heard.wait(Frame)
        scenario.fault("nvmlDeviceGetMemoryInfo_v2", code=999)
        scenario.write()
        without = heard.wait(Frame, lambda frame: "memory_used_bytes" not in frame.gpus[0].values)
        scenario.clear_faults()
        scenario.write()
        heard.wait(Frame, lambda frame: "memory_used_bytes" in frame.gpus[0].values, new=True)
        frames = [one for one in heard.all if isinstance(one, Frame)]
    assert {frame.gpus[0].values.get("memory_used_bytes") for frame in frames} == {GIB, None}
    assert "memory_total_bytes" not in without.gpus[0].values


def test_a_driver_that_does_not_say_its_version_costs_a_label(scenario):
    scenario.add_gpu(watts=100)
    scenario.fault("nvmlSystemGetDriverVersion", code=999)
    with listening(scenario.write().env()) as heard:
        frame = heard.wait(Frame)
    assert frame.driver == "" and frame.gpus[0].values["power_watts"] == 100


def test_no_number_of_gpm_is_no_value(scenario):
    """A mean over less than 100 ms is NaN; a metric that the GPU does not have is left out alone."""
    scenario.add_gpu(sm=30, tensor=None)
    values = read(scenario, enough=has("sm_active_ratio")).values
    assert values["sm_active_ratio"] == pytest.approx(0.3) and "tensor_active_ratio" not in values


def test_collectors_that_are_off_ask_nothing(scenario):
    scenario.add_gpu(processes=((1, 1, 1.0),)).add_mig()
    off = [
        "nvmlDeviceGetClockInfo",
        "nvmlGpmSampleGet",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlEventSetCreate",
    ]
    for call in off:
        scenario.fault(call, do="exit")
    with listening(scenario.write().env(), "--collectors", "") as heard:
        *_, frame = heard.frames(3)
    core = {"busy_ratio", "power_watts", "energy_joules_total", "memory_used_bytes"}
    assert {key.partition("|")[0] for key in frame.gpus[0].values} & core == core - {"busy_ratio"}
    assert frame.gpus[0].processes is None and frame.gpus[0].mig == ()


def test_xids_are_reported_as_they_happen(scenario):
    scenario.add_gpu()
    scenario.add_gpu()
    scenario.xid(1, time.time() - 5, 13)  # before any listener
    with listening(scenario.write().env()) as heard:
        begin = heard.frames(2)[-1].at + 0.5
        scenario.xid(1, begin, 79)
        scenario.xid(0, begin + 0.1, 94)
        scenario.xid(1, begin + 0.2, 79)
        scenario.write()
        heard.wait(GpuEvent, lambda event: event.code == 79 and event.at > begin + 0.2)
        xids = [(said.uuid, said.index, said.code) for said in heard.all if isinstance(said, GpuEvent)]
    one, other = scenario.gpus[1].uuid, scenario.gpus[0].uuid
    assert xids == [(one, 1, 79), (other, 0, 94), (one, 1, 79)]


def test_mig_devices(scenario):
    gpu = scenario.add_gpu(watts=300, busy=90, sm=40, mig_slices=4)
    gpu.add_mig(slices=3, memory=71 * GIB, used=5 * GIB, sm=80, processes=((os.getpid(), 4 * GIB, 0.0),))
    gpu.add_mig(slices=1, memory=18 * GIB, sm=10)
    reading = read(
        scenario, "--pids", "all", enough=lambda gpu: all("sm_active_ratio" in one.values for one in gpu.mig)
    )
    big, small = reading.mig
    assert (big.uuid, big.profile, big.slices, big.gpu_instance) == (gpu.devices[0].uuid, "3g.71gb", 3, 1)
    assert (big.of_slices, big.part, small.part) == (4, 0.75, 0.25)
    assert big.values["memory_used_bytes"] == 5 * GIB and big.values["memory_total_bytes"] == 71 * GIB
    assert [one.values["sm_active_ratio"] for one in (big, small)] == pytest.approx([0.8, 0.1])
    assert [process.pid for process in big.processes] == [os.getpid()] and small.processes == ()
    assert reading.info["mig"] == "on" and "busy_ratio" not in reading.values and reading.values["power_watts"] == 300


def test_mig_reconfigured(scenario):
    gpu = scenario.add_gpu()
    old, new = gpu.add_mig(), gpu.add_mig(begin=FOREVER, slices=7, memory=140 * GIB)
    with listening(scenario.write().env()) as heard:
        first = heard.wait(Frame)
        old.end = new.begin = time.time()
        scenario.write()
        event = heard.wait(GpuEvent, lambda event: event.kind == "mig_changed")
        frame = heard.wait(Frame, lambda frame: [one.slices for one in frame.gpus[0].mig] == [7])
    assert [one.uuid for one in first.gpus[0].mig] == [old.uuid]
    assert event.uuid == gpu.uuid and frame.gpus[0].mig[0].uuid == gpu.devices[1].uuid


def test_counters_are_not_gauges():
    """What the parent takes for monotone is what NVML counts."""
    counters = {family.name for family in HARDWARE if family.type == COUNTER}
    assert {"energy_joules_total", "pcie_bytes_total", "throttle_seconds_total"} <= counters
