"""What counts as what: one rule a test, on a small node."""

from dataclasses import replace
from itertools import pairwise

import pytest

from stoker.exporter.meters.idle import ACTIVE, doing, in_use
from stoker.exporter.meters.ledger import parse, resume
from stoker.exporter.owners import Allocation, Holding, Owner
from stoker.nvml.frames import GpuEvent, MigReading, Process

from .metering import BEGIN_S, SEVEN, WORKING, accounts, energy, frame, held, job, meters, moment, owner, reading, run


def gpu(node, s):
    (found,) = node.gpus(moment(s))
    return found.values


def test_a_gpu_that_is_held_and_works():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, SEVEN, {**WORKING, "tensor_active_ratio": 0.25})
    values = job(node)
    assert values["allocated_seconds_total"] == 7 and values["unobserved_seconds_total"] == 0
    assert values["busy_seconds_total"] == 7 and values["sm_active_seconds_total"] == 3.5
    assert values["tensor_active_seconds_total"] == 1.75 and "dram_active_seconds_total" not in values
    assert values["energy_joules_total|exclusive"] == 700 and values["unobserved_energy_joules_total"] == 0
    assert values["memory_peak_bytes"] == 8e9
    assert all(values[f"idle_seconds_total|{name}"] == 0 for name in ("no_process", "no_activity", "low_activity"))
    assert accounts(node)["account_seconds_total|attributed"] == 7
    assert accounts(node)["account_joules_total|attributed"] == 700
    assert gpu(node, 7)["idle_seconds"] == 0 and gpu(node, 7)["busy_seconds_total"] == 7


def test_what_was_counted_before_the_job_was_known_is_the_jobs():
    node = meters()
    mine = owner("a")
    before = Owner(mine.pod_namespace, mine.pod_name)
    node.allocation(held(Holding("GPU-0", before)), moment(0))
    run(node, SEVEN[:4], WORKING)
    assert node.receipts() == () and accounts(node)["account_seconds_total|attributed"] == 3
    node.allocation(held(Holding("GPU-0", mine), s=3), moment(3))
    run(node, SEVEN[4:], WORKING)
    (receipt,) = node.receipts()
    assert (receipt.job_uid, receipt.allocated_s, receipt.energy_j) == (mine.job_uid, 7, 700)


def test_a_gpu_that_no_pod_holds():
    node = meters()
    node.allocation(held(), moment(0))
    run(node, SEVEN, WORKING)
    assert accounts(node)["account_seconds_total|unallocated"] == 7
    assert accounts(node)["account_joules_total|unallocated"] == 700
    assert gpu(node, 7)["unallocated_use"] == 1 and gpu(node, 7)["unowned_processes"] == 1
    assert "idle_seconds" not in gpu(node, 7)


def test_who_holds_it_is_not_known():
    node = meters()
    node.allocation(Allocation(BEGIN_S, known=False), moment(0))
    run(node, SEVEN, WORKING)
    assert accounts(node)["account_seconds_total|unobserved"] == 7
    assert accounts(node)["account_seconds_total|unallocated"] == 0
    assert not {"unallocated_use", "unowned_processes", "idle_seconds"} & gpu(node, 7).keys()


def test_it_is_not_known_who_holds_what():
    node = meters(tracks_allocation=False)
    run(node, SEVEN, WORKING)
    assert node.books().accounts == {} and "unallocated_use" not in gpu(node, 7)
    assert gpu(node, 7)["busy_seconds_total"] == 7


def test_a_gap_is_unobserved_as_a_whole_and_so_is_its_energy():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2, 5, 6], WORKING)  # 2 → 5 is further apart than 2.5 intervals
    values = job(node)
    assert (values["allocated_seconds_total"], values["unobserved_seconds_total"]) == (6, 3)
    assert (values["energy_joules_total|exclusive"], values["unobserved_energy_joules_total"]) == (300, 300)
    assert accounts(node)["account_seconds_total|unobserved"] == 3
    assert accounts(node)["account_joules_total|unobserved"] == 300
    assert values["busy_seconds_total"] == 3 and gpu(node, 6)["busy_seconds_total"] == 3


@pytest.mark.parametrize("late_s", [0.0, 6.0, 13.0], ids=["after the energy was read", "twice", "before"])
def test_a_poll_that_hangs_and_returns_loses_nothing(late_s):
    """The parent has long accounted its time as unobserved; the energy is still its sole holder's."""
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2], WORKING)
    for s in (9, 16):
        node.tick(moment(s))
    read = reading({**WORKING, "energy_joules_total": 1e6 + 100 * (3 + late_s)})
    node.frame(frame(3, replace(read, late_s=late_s)))  # it began at 3 and returned at 16
    run(node, [17, 18], WORKING)
    values = job(node)
    assert (values["allocated_seconds_total"], energy(values)) == (18, 1800)
    assert accounts(node)["account_joules_total|attributed"] == values["energy_joules_total|exclusive"]
    assert accounts(node)["account_joules_total|unobserved"] == values["unobserved_energy_joules_total"]
    (receipt,) = node.receipts()
    assert (receipt.energy_j, receipt.unobserved_energy_j) == (1800, values["unobserved_energy_joules_total"])


def test_of_a_shared_gpu_nothing_unobserved_is_a_jobs_energy():
    node = meters()
    node.allocation(held(*(Holding("GPU-0", owner(name), 0.5, "even") for name in "ab")), moment(0))
    run(node, [0, 1, 9], WORKING)
    assert (energy(job(node)), job(node)["unobserved_energy_joules_total"]) == (50, 400)
    assert {(one.energy_j, one.unobserved_energy_j) for one in node.receipts()} == {(50, 0)}


def test_a_silent_gpu_is_accounted_while_it_is_silent_and_not_shown():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1], WORKING)
    node.tick(moment(3))
    assert job(node)["unobserved_seconds_total"] == 0 and "power_watts" not in gpu(node, 3)
    assert gpu(node, 3)["up"] == 1  # a poll may take long
    node.tick(moment(8))
    assert job(node)["unobserved_seconds_total"] == 7
    assert gpu(node, 8) == {} and node.exporter_values(moment(8))["collect_success"] == 0


def test_a_lost_gpu_is_down_and_its_neighbour_is_not():
    node = meters()
    values = {**WORKING, "power_watts": 300.0}
    for s in (0, 1, 2):
        node.frame(frame(s, reading(values), reading(values, index=1)))
    node.frame(frame(3, reading(values), reading(values, index=1, lost="GPU_IS_LOST")))
    first, second = node.gpus(moment(3))
    assert first.values["power_watts"] == 300 and first.values["up"] == 1
    assert second.values == {"up": 0.0} and second.info == {}
    shown = node.exporter_values(moment(3))
    assert (shown["gpus_visible"], shown["gpus_expected"], shown["collect_success"]) == (1, 2, 0)
    node.frame(frame(4, reading(values)))  # not even listed any more
    assert node.gpus(moment(4))[1].values == {"up": 0.0}


def test_a_poll_that_failed_as_a_whole_shows_nothing_of_the_hardware_but_keeps_the_books():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, SEVEN, WORKING)
    node.event(GpuEvent(1.5, "GPU-0", 0, "xid", 79))
    node.failed()
    assert gpu(node, 7) == {"xid_errors_total|79": 1.0, "xid_last_timestamp_seconds|79": 1.5}
    assert job(node)["allocated_seconds_total"] == 7 and accounts(node)["account_seconds_total|attributed"] == 7
    assert node.gpus(moment(7))[0].shares[0].owner == owner("a")


@pytest.mark.parametrize(
    ("values", "processes", "what"),
    [
        pytest.param({"busy_ratio": 1.0, "sm_active_ratio": 0.6}, (Process(1),), ACTIVE, id="works"),
        pytest.param({"busy_ratio": 1.0, "sm_active_ratio": 0.05}, (Process(1),), "low_activity", id="SMs say more"),
        pytest.param({"busy_ratio": 0.05}, (Process(1),), "low_activity", id="duty cycle before Hopper"),
        pytest.param({"busy_ratio": 0.0, "sm_active_ratio": 0.004}, (Process(1),), "no_activity", id="no kernel"),
        pytest.param({"busy_ratio": 0.0, "sm_active_ratio": 0.6}, (Process(1),), "no_activity", id="no kernel now"),
        pytest.param({"busy_ratio": 0.0, "memory_used_bytes": 8e9}, (), "no_process", id="no process there"),
        pytest.param({"busy_ratio": 0.0, "memory_used_bytes": 1e6}, None, "no_process", id="unseen, no memory"),
        pytest.param({"busy_ratio": 0.0, "memory_used_bytes": 8e9}, None, "no_activity", id="unseen, with memory"),
        pytest.param({"busy_ratio": 0.9}, (), ACTIVE, id="a kernel without a process that we see"),
        pytest.param({"memory_used_bytes": 8e9}, None, None, id="nothing known"),
        pytest.param({}, None, None, id="nothing is known"),
        pytest.param({}, (), "no_process", id="only that no process is there"),
    ],
)
def test_what_a_gpu_does(values, processes, what):
    assert doing(values, processes) == what


@pytest.mark.parametrize(
    ("values", "processes", "use"),
    [
        ({"memory_used_bytes": 1e6, "busy_ratio": 0.0}, None, False),
        ({"memory_used_bytes": 8e9, "busy_ratio": 0.0}, None, True),
        ({"memory_used_bytes": 8e9, "busy_ratio": 0.0}, (), False),
        ({"memory_used_bytes": 1e6, "busy_ratio": 0.5}, (), True),
        ({}, (Process(1),), True),
        ({}, None, None),
    ],
)
def test_whether_it_is_used(values, processes, use):
    assert in_use(values, processes) is use


def test_idle_by_class_and_since_when():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2], WORKING)
    run(node, [3, 4], {"busy_ratio": 0.0})
    run(node, [5], {"busy_ratio": 0.04})
    values = job(node)
    assert values["idle_seconds_total|no_activity"] == 2 and values["idle_seconds_total|low_activity"] == 1
    assert gpu(node, 5)["idle_seconds"] == 3
    assert node.receipts()[0].idle_since == moment(2).at
    run(node, [6], WORKING)
    assert gpu(node, 6)["idle_seconds"] == 0 and node.receipts()[0].idle_since is None


def test_activity_that_is_not_known_is_unobserved_never_idle():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, SEVEN, {"memory_used_bytes": 8e9})
    values = job(node)
    assert values["unobserved_seconds_total"] == values["allocated_seconds_total"] == 7
    assert accounts(node)["account_seconds_total|attributed"] == 7  # whose it was is known
    assert "idle_seconds" not in gpu(node, SEVEN[-1])  # 0 would say: it works


def test_how_long_it_is_idle_is_not_known_at_the_end_of_a_gap():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 9], {"busy_ratio": 0.0})
    assert "idle_seconds" not in gpu(node, 9)
    run(node, [10], {"busy_ratio": 0.0})
    assert gpu(node, 10)["idle_seconds"] == 1


def test_a_mig_device_that_comes_again_counts_on():
    node = meters()

    def integral(s, *slices):
        node.frame(frame(s, reading({}, mig=slices)))
        return [one.values["sm_active_seconds_total"] for one in node.gpus(moment(s))[0].mig]

    one, other = (MigReading(f"MIG-{name}", "1g.10gb", 1, {"sm_active_ratio": 0.5}) for name in "ab")
    assert [integral(0, one, other), integral(1, one, other), integral(2, one)] == [[0, 0], [0.5, 0.5], [1]]
    assert integral(3, one, other) == [1.5, 0.5] and integral(4, one, other) == [2, 1]


def test_a_shared_gpu_is_split_and_its_memory_is_unattributed():
    node = meters()
    parts = [Holding("GPU-0", owner(name), 1 / 3, "even") for name in "abc"]
    node.allocation(held(*parts), moment(0))
    run(node, SEVEN, WORKING)
    for name in "abc":
        values = job(node, name)
        assert values["allocated_seconds_total"] == pytest.approx(7 / 3, abs=1e-6)
        assert values["energy_joules_total|even"] == pytest.approx(700 / 3, abs=1e-4)
        assert "memory_peak_bytes" not in values


SHARED = held(*(Holding("GPU-0", owner(name), 0.5, "even") for name in "ab"))
PODS = {1: "pod-a", 2: "pod-a", 3: "pod-b"}


def shared(node, seconds, *processes, pods=PODS):
    for s in seconds:
        values = {**WORKING, "energy_joules_total": 1e6 + 100 * s}
        node.frame(frame(s, reading(values, processes=processes)), pods)


def test_pods_that_share_a_gpu_have_the_energy_of_what_they_did():
    """Two processes of a, one of b, one of no pod; b is idle at last."""
    node = meters()
    node.allocation(SHARED, moment(0))
    foreign = Process(9, 1 << 30, 0.2)
    shared(node, [0, 1, 2], Process(1, 1 << 30, 0.4), Process(2, 1 << 30, 0.2), Process(3, 4 << 30, 0.2), foreign)
    shared(node, [3, 4], Process(1, 1 << 30, 0.4), Process(3, 4 << 30, 0.0), foreign)
    a, b = job(node), job(node, "b")
    assert (a["energy_joules_total|sm_share"], b["energy_joules_total|sm_share"]) == (350, 50)
    assert a["allocated_seconds_total"] == b["allocated_seconds_total"] == 2
    assert a["idle_seconds_total|no_activity"] == 0 and b["idle_seconds_total|no_activity"] == 1
    assert (a["sm_active_seconds_total"], b["sm_active_seconds_total"]) == (1, 0.5)
    assert (a["memory_peak_bytes"], b["memory_peak_bytes"]) == (2 << 30, 4 << 30)
    assert {one.method for one in node.receipts()} == {"sm_share"}
    assert accounts(node)["account_joules_total|attributed"] == 400


@pytest.mark.parametrize(
    ("processes", "pods"),
    [
        ((Process(1, 1 << 30, 0.4), Process(3, 1 << 30, None)), PODS),
        ((Process(1, 1 << 30, 0.4), Process(3, None, 0.1)), PODS),
        ((Process(1, 1 << 30, 0.4), Process(3, 1 << 30, 0.1)), {}),
        ((Process(1, 1 << 30, 0.0), Process(3, 1 << 30, 0.0)), PODS),
        (None, PODS),
    ],
    ids=["no use of one", "no memory of one", "pods not known", "none did anything", "processes can't be seen"],
)
def test_where_it_is_not_known_what_each_did_the_shares_are_even(processes, pods):
    node = meters()
    node.allocation(SHARED, moment(0))
    for s in (0, 1, 2):
        values = {**WORKING, "energy_joules_total": 1e6 + 100 * s}
        node.frame(frame(s, reading(values, processes=processes)), pods)
    assert job(node)["energy_joules_total|even"] == job(node, "b")["energy_joules_total|even"] == 100
    assert {one.method for one in node.receipts()} == {"even"}


def test_all_slices_of_a_gpu_with_fewer_are_all_of_it():
    node = meters()
    node.allocation(held(Holding("MIG-1", owner("a"))), moment(0))
    for s in SEVEN:
        mig = MigReading("MIG-1", "4g.24gb", 4, {"sm_active_ratio": 0.5}, of_slices=4)
        node.frame(frame(s, reading({"energy_joules_total": 700.0 * s}, mig=[mig], processes=None)))
    assert job(node)["energy_joules_total|mig_slices"] == pytest.approx(7 * 700)


def test_a_mig_device_has_its_slices_of_time_and_energy():
    node = meters()
    holding = Holding("MIG-1", owner("a"))
    node.allocation(held(holding), moment(0))
    for s in SEVEN:
        mig = MigReading("MIG-1", "3g.40gb", 3, {"sm_active_ratio": 0.5, "memory_used_bytes": 1e9}, (Process(1),))
        node.frame(frame(s, reading({"energy_joules_total": 700.0 * s}, mig=[mig], processes=None)))
    values = job(node)
    assert values["allocated_seconds_total"] == pytest.approx(3) and values["memory_peak_bytes"] == 1e9
    assert values["sm_active_seconds_total"] == pytest.approx(1.5)
    assert values["energy_joules_total|mig_slices"] == pytest.approx(7 * 300)
    assert accounts(node)["account_seconds_total|unallocated"] == pytest.approx(4)
    (shown,) = node.gpus(moment(7))
    assert shown.shares[0].share == 1.0 and shown.shares[0].uuid == "MIG-1"
    assert shown.mig[0].values["sm_active_seconds_total"] == 3.5


def test_over_a_restart_nothing_is_lost_but_what_was_not_seen():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2], WORKING)
    ledger = resume(parse(node.ledger.as_json(moment(2))), moment(10), "boot-1")
    node = meters(ledger, 10)
    assert job(node)["allocated_seconds_total"] == 2
    run(node, [10], WORKING)
    node.allocation(held(Holding("GPU-0", owner("a")), s=10), moment(10))
    run(node, [11], WORKING)
    values = job(node)
    assert (values["allocated_seconds_total"], values["unobserved_seconds_total"]) == (11, 8)
    assert (values["energy_joules_total|exclusive"], values["unobserved_energy_joules_total"]) == (300, 800)
    assert node.receipts()[0].ledger == "ledger-1"


def test_energy_by_power_where_there_is_no_counter():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    for s, watts in ((0, 100.0), (1, 300.0), (2, 300.0), (10, 300.0)):
        node.frame(frame(s, reading({**WORKING, "power_watts": watts})))
    values = gpu(node, 10)
    assert values["energy_joules_total"] == 500 and values["energy_source_info|power_integral"] == 1
    assert job(node)["energy_joules_total|exclusive"] == 500
    assert "account_joules_total|unobserved" not in accounts(node)  # 8 s of it: not known, which is no 0
    assert "unobserved_energy_joules_total" not in job(node)


def test_a_crash_adds_nothing_to_what_prometheus_makes_of_energy_by_power():
    """Falls are taken as resets to 0: to what is not 0 they would add all that the GPU ever used."""
    node, shown = meters(), []
    kept = node.ledger.as_json(moment(0))
    for s in range(100):
        if s in (30, 60, 90):  # killed; the newest ledger is of 2 s before
            node = meters(resume(parse(kept), moment(s), "boot-1"), s)
        node.frame(frame(s, reading({**WORKING, "power_watts": 300.0})))
        shown.append(gpu(node, s)["energy_joules_total"])
        if s % 30 == 27:
            kept = node.ledger.as_json(moment(s))
    increase = sum(now - before if now >= before else now for before, now in pairwise(shown))
    assert increase == 300.0 * (99 - 3)  # all but the second of each kill; with a saved one it was 77,400


def test_a_counter_that_jumps_beyond_all_power_is_no_energy():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    for s, joules in ((0, 1e6), (1, 1e6 + 100), (2, 9e12), (3, 1e6 + 300), (4, 1e6 + 400)):
        node.frame(frame(s, reading({**WORKING, "energy_joules_total": joules})))
    assert job(node)["energy_joules_total|exclusive"] == 200


def test_a_receipt_of_what_goes_on_waits_unless_it_is_the_first():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a")), Holding("GPU-1", owner("b"))), moment(0))
    node.frame(frame(0, reading(WORKING), reading(WORKING, index=1)))
    assert len(node.receipts(final_only=True)) == 2, "the first of each"
    node.frame(frame(1, reading(WORKING), reading(WORKING, index=1)))
    assert node.receipts(final_only=True) == ()
    node.allocation(held(Holding("GPU-1", owner("b")), s=1), moment(1))
    (ended,) = node.receipts(final_only=True)
    assert ended.final and ended.job_name == "a" and ended.allocated_s == 1
    both = node.receipts()
    assert both[0] == ended and both[1].allocated_s == 1, "nothing was lost meanwhile"


def test_a_gpu_that_does_not_come_back_after_a_reboot_is_missed_until_it_is_retired():
    before = meters()
    before.frame(frame(0, *(reading(WORKING, index=index) for index in range(8))))
    kept = before.ledger.as_json(moment(0))

    def booted(s, **options):
        node = meters(resume(parse(kept), moment(s), "boot-2"), s, **options)
        node.frame(frame(s, *(reading(WORKING, index=index) for index in range(7))))
        return node, node.exporter_values(moment(s))

    node, shown = booted(60)
    assert (shown["gpus_expected"], shown["gpus_visible"], shown["collect_success"]) == (8, 7, 0)
    assert [key for key in shown if key.startswith("gpu_missing")] == ["gpu_missing|GPU-7"]
    assert len(node.gpus(moment(60))) == 7
    node.frame(frame(61, *(reading(WORKING, index=index) for index in range(8))))
    assert node.exporter_values(moment(61))["collect_success"] == 1  # it is back
    for options, s in (({"retired_gpus": ["GPU-7"]}, 60), ({}, 31 * 86_400)):
        _, shown = booted(s, **options)
        assert (shown["gpus_expected"], shown["collect_success"], shown.get("gpu_missing|GPU-7")) == (7, 1, None)


def test_a_gpu_that_is_retired_while_it_is_lost_is_not_shown_any_more():
    node = meters()
    node.frame(frame(0, reading(WORKING), reading(WORKING, index=1)))
    ledger = resume(parse(node.ledger.as_json(moment(0))), moment(5), "boot-1")
    node = meters(ledger, 5, retired_gpus=["GPU-1"])
    node.frame(frame(5, reading(WORKING)))
    assert [one.uuid for one in node.gpus(moment(5))] == ["GPU-0"]
    assert node.exporter_values(moment(5))["gpus_expected"] == 1


def test_simulated_slots():
    node = meters(simulated_gpus=2)
    node.allocation(held(Holding("SIM-1", owner("a")), simulated=("SIM-1",)), moment(1))
    node.tick(moment(5))
    first, second = node.gpus(moment(5))
    assert first.info == {"model": "simulated", "simulated": "true"} and second.values == {"up": 1.0}
    assert job(node)["allocated_seconds_total"] == job(node)["unobserved_seconds_total"] == 4
    assert "energy_joules_total|exclusive" not in job(node) and "idle_seconds_total|no_process" not in job(node)
    assert accounts(node, "SIM-1")["account_seconds_total|attributed"] == 4
    assert accounts(node, "SIM-0")["account_seconds_total|unallocated"] == 4  # before the first allocation
    (receipt,) = node.receipts()
    assert receipt.simulated and receipt.energy_j is None and receipt.busy_s is None
    assert node.exporter_values(moment(5))["collect_success"] == 1


def test_refused_calls_add_up_over_children():
    node = meters()
    for s, number, refused in ((0, 0, {"a:X": 1}), (1, 1, {"a:X": 4}), (2, 0, {"a:X": 1, "f(74):Y": 2}), (3, 5, {})):
        node.frame(frame(s, reading(WORKING), number=number, refused=refused))
    shown = node.exporter_values(moment(3))
    assert shown["collect_errors_total|a|X"] == 5 and shown["collect_errors_total|f(74)|Y"] == 2
