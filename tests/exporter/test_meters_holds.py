"""Whose a GPU's time and energy are as holders come, go, are in doubt, or were not seen: one rule a test."""

from stoker.exporter.meters.ledger import parse, resume
from stoker.exporter.owners import Allocation, Holding

from .metering import (
    BEGIN_S,
    SEVEN,
    WORKING,
    accounts,
    energy,
    frame,
    held,
    job,
    meters,
    moment,
    owner,
    reading,
    run,
)


def test_two_jobs_back_to_back_and_the_firsts_final_receipt():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2, 3], WORKING)
    assert node.allocation(held(Holding("GPU-0", owner("b")), s=3), moment(3)) is True
    run(node, [4, 5], WORKING)
    first, second = sorted(node.receipts(), key=lambda receipt: receipt.job_name)
    assert (first.final, first.allocated_s, first.at) == (True, 3, moment(3).at)
    assert (second.final, second.allocated_s, second.begin_at) == (False, 2, moment(3).at)
    assert node.receipts()[0] == first  # the same once more: the number stays
    node.tick(moment(300))
    assert job(node)["allocated_seconds_total"] == 3
    node.tick(moment(3 + 361))
    assert [one.owner.job_name for one in node.books().jobs] == ["b"]


def test_a_hold_begins_and_ends_when_the_pod_says_and_not_when_that_was_seen():
    """Between two polls: the parts of one interval, each to the pod that held the GPU."""
    node = meters()
    first, second = owner("a"), owner("b")
    node.allocation(held(Holding("GPU-0", first)), moment(0))
    run(node, SEVEN[:4], WORKING)
    after = Holding("GPU-0", second, since_s=BEGIN_S + 3.75)
    node.allocation(held(after, s=3.9, ended_s={first.pod_uid: BEGIN_S + 3.25}), moment(3.9))
    run(node, SEVEN[4:], WORKING)
    assert (job(node)["allocated_seconds_total"], energy(job(node))) == (3.25, 325)
    assert (job(node, "b")["allocated_seconds_total"], energy(job(node, "b"))) == (3.25, 325)
    assert accounts(node)["account_seconds_total|unallocated"] == 0.5
    assert [(one.job_name, one.final) for one in node.receipts()] == [("a", True), ("b", False)]


def test_time_from_the_exporters_start_to_its_first_poll_is_unobserved_and_its_holders():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"), since_s=BEGIN_S + 0.25), s=0.5), moment(0.5))
    run(node, SEVEN[2:], WORKING)
    values = job(node)
    assert (values["allocated_seconds_total"], values["unobserved_seconds_total"]) == (6.75, 1.75)
    assert energy(values) == 500, "what it used before is not known"
    assert sum(accounts(node)[f"account_seconds_total|{name}"] for name in ("attributed", "unobserved")) == 7


def test_one_that_came_and_went_between_two_looks_has_its_time_and_energy():
    node = meters()
    node.allocation(held(), moment(0))
    run(node, SEVEN[:4], WORKING)
    first, second = (Holding("GPU-0", owner(name), since_s=BEGIN_S + s) for name, s in (("a", 3.25), ("b", 3.5)))
    ends = {owner("a").pod_uid: BEGIN_S + 3.5, owner("b").pod_uid: BEGIN_S + 3.75}
    node.allocation(held(s=3.9, brief=(first, second), ended_s=ends), moment(3.9))
    run(node, SEVEN[4:5], WORKING)
    node.allocation(held(s=4.9, ended_s=ends), moment(4.9))
    run(node, SEVEN[5:], WORKING)
    for name in ("a", "b"):
        assert (job(node, name)["allocated_seconds_total"], energy(job(node, name))) == (0.25, 25)
    assert [(one.job_name, one.final) for one in node.receipts()] == [("a", True), ("b", True)]
    assert accounts(node)["account_seconds_total|unallocated"] == 6.5


def test_a_gpu_that_is_there_later_has_no_time_before():
    node = meters()
    node.failed()
    run(node, [600, 601], WORKING)
    assert accounts(node)["account_seconds_total|unobserved"] == 1


def test_what_pods_held_while_the_exporter_was_away_is_theirs():
    """One ended, another began: the energy of the gap is divided by their own times."""
    node = meters()
    first, second = owner("a"), owner("b")
    node.allocation(held(Holding("GPU-0", first)), moment(0))
    run(node, SEVEN[:3], WORKING)
    node = meters(resume(parse(node.ledger.as_json(moment(2))), moment(20), "boot-1"), 20)
    node.allocation(
        held(Holding("GPU-0", second, since_s=BEGIN_S + 14), s=20, ended_s={first.pod_uid: BEGIN_S + 10}), moment(20)
    )
    run(node, [22, 23], WORKING)
    assert (job(node)["allocated_seconds_total"], energy(job(node))) == (10, 1000)
    assert (job(node, "b")["allocated_seconds_total"], energy(job(node, "b"))) == (9, 900)
    assert accounts(node)["account_seconds_total|unobserved"] == 20
    assert [(one.job_name, one.final) for one in node.receipts()] == [("a", True), ("b", False)]


def test_a_pod_can_not_choose_when_it_held_a_gpu():
    """Files of its folder are its own: before what was accounted and after now counts nothing."""
    node = meters()
    first, second = owner("a"), owner("b")
    node.allocation(held(Holding("GPU-0", first)), moment(0))
    run(node, SEVEN[:4], WORKING)
    late = Holding("GPU-0", second, since_s=BEGIN_S + 1e6)
    node.allocation(held(late, s=3.5, ended_s={first.pod_uid: BEGIN_S - 1e6}), moment(3.5))
    run(node, SEVEN[4:], WORKING)
    assert job(node)["allocated_seconds_total"] == 3 and job(node, "b")["allocated_seconds_total"] == 3.5


def test_the_end_of_a_hold_does_not_wait_for_ever_for_its_energy():
    node = meters()
    first = owner("a")
    node.allocation(held(Holding("GPU-0", first)), moment(0))
    run(node, SEVEN[:4], WORKING)
    node.allocation(held(s=3.5, ended_s={first.pod_uid: BEGIN_S + 3.5}), moment(3.5))
    node.frame(frame(4, reading(WORKING, lost="GPU_IS_LOST")))
    assert [one.final for one in node.receipts()] == [False]
    node.tick(moment(40))
    assert [(one.final, one.allocated_s) for one in node.receipts()] == [(True, 3.5)]


def test_a_holder_in_doubt_gets_what_is_its_once_that_is_known():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2], WORKING)
    node.allocation(Allocation(BEGIN_S + 2, known=False), moment(2))
    run(node, [3, 4, 5], WORKING)
    assert job(node)["allocated_seconds_total"] == 2
    node.allocation(held(Holding("GPU-0", owner("a")), s=5), moment(5))
    values = job(node)
    assert (values["allocated_seconds_total"], values["unobserved_seconds_total"]) == (5, 3)
    assert values["unobserved_energy_joules_total"] == 300
    assert accounts(node)["account_seconds_total|unobserved"] == 3


def test_a_holder_in_doubt_that_is_gone_gets_nothing():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2], WORKING)
    node.allocation(held(doubtful=("GPU-0",), s=2), moment(2))
    run(node, [3, 4, 5], WORKING)
    node.allocation(held(s=5), moment(5))
    assert job(node)["allocated_seconds_total"] == 2 and node.receipts()[0].final


def test_an_allocation_that_is_not_renewed_is_none():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, range(120), WORKING)
    assert 85 < job(node)["allocated_seconds_total"] < 95
    assert accounts(node)["account_seconds_total|unobserved"] > 25
