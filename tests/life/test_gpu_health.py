"""From an exporter's report to what is wrong with a GPU, for how long, and what ends it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from stoker.life.gpu_health import assessed, with_unhealthy
from stoker.spec.gpu_health import (
    MOST_GPUS,
    Cleared,
    GPUNodeHealth,
    GPUNodeHealthSpec,
    GPUNodeHealthStatus,
)
from stoker.spec.meta import ObjectMeta, OwnerReference
from stoker.spec.names import API_VERSION
from stoker.spec.pod import Container, Pod, PodSpec, PodStatus
from stoker.spec.reports import GpusReport

from .gang import NOW

T = NOW.timestamp()


def known(*after: dict[str, Any], cleared_at: datetime | None = None, at: datetime = NOW) -> GPUNodeHealth:
    """The node after these reports on its GPU, one a minute; cleared before the last."""
    health = GPUNodeHealth(metadata=ObjectMeta(name="n"))
    for number, facts in enumerate(after):
        if number == len(after) - 1 and cleared_at is not None:
            spec = GPUNodeHealthSpec(cleared=(Cleared(gpu="GPU-0", at=cleared_at),))
            health = health.model_copy(update={"spec": spec})
        report = GpusReport.model_validate({"node": "n", "gpus": [{"uuid": "GPU-0", "index": 0, **facts}]})
        status = GPUNodeHealthStatus(gpus=assessed(health, report, at + timedelta(minutes=number)))
        health = health.model_copy(update={"status": status})
    return health


def codes(health: GPUNodeHealth) -> list[str]:
    return [cause.code for _, causes in health.sick() for cause in causes]


def xid(code: int, at: float = T - 5) -> dict[str, Any]:
    return {"xids": [{"code": code, "at": at}]}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"lost": True}, ["Lost"]),
        (xid(79), ["OffTheBus"]),
        ({"lost": True, **xid(79)}, ["Lost", "OffTheBus"]),
        (xid(95), ["UncontainedError"]),
        (xid(48), ["UncontainedError"]),
        (xid(94), ["ContainedError"]),
        (xid(119), ["HardwareFault"]),
        (xid(31), []),
        (xid(13), []),
        ({"recoveryAction": 2}, ["RecoveryAction"]),
        ({"rowRemapPending": True}, ["RemapPending"]),
        ({"rowRemapFailed": True}, ["RemapFailed"]),
        ({"throttled": True}, ["Throttled"]),
        ({"uncorrectedErrors": 3}, ["ContainedError"]),
        ({"uncorrectedErrors": 3, **xid(95)}, ["UncontainedError"]),
        ({"rowRemapPending": True, **xid(94)}, ["ContainedError", "RemapPending"]),
    ],
)
def test_what_readings_mean(facts: dict[str, Any], expected: list[str]) -> None:
    assert codes(known(facts)) == expected


@pytest.mark.parametrize(
    ("facts", "stays"),
    [
        ({"lost": True}, False),
        (xid(79), True),
        (xid(94), True),
        ({"rowRemapFailed": True}, True),
        ({"uncorrectedErrors": 1}, True),
        ({"recoveryAction": 1}, False),
        ({"rowRemapPending": True}, False),
    ],
)
def test_faults_stay_until_an_administrator_clears_them_and_states_end(facts: dict[str, Any], stays: bool) -> None:
    assert bool(codes(known(facts, {}))) == stays, "the exporter may have begun anew: it has no XIDs then"
    assert codes(known(facts, facts)) == codes(known(facts)), "it goes on"
    assert codes(known(facts, facts, cleared_at=NOW + timedelta(seconds=30))) == [], "and is not found again"


def test_where_gpus_are_tested_a_state_that_is_over_stays_until_it_is_cleared() -> None:
    health = known({"recoveryAction": 1})
    well = GpusReport.model_validate({"node": "n", "gpus": [{"uuid": "GPU-0", "index": 0}]})

    def after(health: GPUNodeHealth, hours: int) -> GPUNodeHealth:
        status = GPUNodeHealthStatus(gpus=assessed(health, well, NOW + timedelta(hours=hours), burn_in=True))
        return health.model_copy(update={"status": status})

    over = after(after(health, 1), 2)
    assert over.status.gpus[0].causes[0].ends == NOW + timedelta(hours=1), "since it was first read to be well"
    passed = GPUNodeHealthSpec(cleared=(Cleared(gpu="GPU-0", at=NOW + timedelta(hours=2)),))
    assert after(over.model_copy(update={"spec": passed}), 3).status.gpus[0].causes == ()


def test_what_happens_again_after_it_was_cleared_counts() -> None:
    cleared_at = NOW + timedelta(seconds=30)
    again = known(xid(79), xid(79, T + 45), cleared_at=cleared_at)
    assert codes(again) == ["OffTheBus"]
    (cause,) = again.status.gpus[0].causes
    assert cause.since == NOW + timedelta(seconds=45) and cause.message == "XID 79"
    first, more = {"uncorrectedErrors": 2}, {"uncorrectedErrors": 3}
    assert codes(known(first, first, cleared_at=cleared_at)) == []
    assert codes(known(first, more, cleared_at=cleared_at)) == ["ContainedError"], "more errors, without an XID"
    assert codes(known(first, {"lost": True}, first, cleared_at=cleared_at + timedelta(minutes=1))) == [], "as before"
    status = known({"lost": True}, {"lost": True}, cleared_at=cleared_at)
    assert not codes(status) and status.status.gpus[0].causes, "it is still so, and known to be"


def test_the_first_time_counts_and_what_the_driver_asks_for_is_kept_current() -> None:
    (cause,) = known({"recoveryAction": 1}, {"recoveryAction": 2}).status.gpus[0].causes
    assert (cause.since, cause.message) == (NOW, "the driver asks for a reboot of the node")
    (cause,) = known(xid(79, T + 3600)).status.gpus[0].causes
    assert cause.since == NOW, "the node's clock is ahead"


def test_a_lost_gpu_is_still_what_it_was() -> None:
    facts = {"model": "NVIDIA\x1b H200", "memoryBytes": 5, "computeCapability": "9.0", "powerLimitWatts": 700}
    (gpu,) = known(facts, {"lost": True}).status.gpus
    assert (gpu.model, gpu.memory_bytes, gpu.compute_capability) == ("NVIDIA  H200", 5, "9.0")
    assert gpu.power_limit_watts is None, "what is not known is absent"
    assert known({"computeCapability": "<script>"}).status.gpus[0].compute_capability is None


def test_a_gpu_that_is_no_longer_reported_stays_only_with_what_is_to_be_cleared() -> None:
    health = known(xid(79))
    empty = GpusReport(node="n", gpus=())
    assert [gpu.uuid for gpu in assessed(health, empty, NOW)] == ["GPU-0"]
    assert assessed(known({}), empty, NOW) == () == assessed(known({"lost": True}), empty, NOW)
    cleared = health.model_copy(update={"spec": GPUNodeHealthSpec(cleared=(Cleared(gpu="GPU-0", at=NOW),))})
    assert assessed(cleared, empty, NOW) == ()
    many = [{"uuid": f"GPU-{n + 1}", "index": n} for n in range(MOST_GPUS)]
    full = GpusReport.model_validate({"node": "n", "gpus": many})
    assert len(assessed(health, full, NOW)) == MOST_GPUS


def test_a_gpu_that_was_throttled_rests_for_an_hour() -> None:
    hot, well = {"throttled": True}, dict[str, Any]()
    assert codes(known(hot, well)) == ["Throttled"]
    (cause,) = known(hot, well).status.gpus[0].causes
    assert cause.since == NOW and cause.ends == NOW + timedelta(minutes=61)
    assert known(hot, well, well) == known(hot, well), "nothing to write"
    assert codes(known(hot, *[well] * 60)) == ["Throttled"] and codes(known(hot, *[well] * 61)) == []
    (again,) = known(hot, well, hot).status.gpus[0].causes
    assert again.since == NOW and again.ends is None
    assert codes(known(hot, well, well, cleared_at=NOW + timedelta(seconds=90))) == []


def worker(*said: tuple[str, str], began: datetime | None = NOW) -> Pod:
    """The pod of attempt 2 of a job, as the kubelet reports its devices."""
    devices = [{"resourceID": name, "health": health, "message": "too\nhot"} for name, health in said]
    allocated = [{"name": "nvidia.com/gpu", "resources": devices}]
    status = {"startTime": began, "containerStatuses": [{"allocatedResourcesStatus": allocated}]}
    owner = OwnerReference(api_version=API_VERSION, kind="TrainingJob", name="j", uid="u", controller=True)
    return Pod(
        metadata=ObjectMeta(name="j-2-0", namespace="p", owner_references=(owner,)),
        spec=PodSpec(node_name="n", containers=(Container(),)),
        status=PodStatus.model_validate(status),
    )


def after_word(health: GPUNodeHealth, pod: Pod) -> GPUNodeHealth:
    status = GPUNodeHealthStatus(gpus=with_unhealthy(health, pod, NOW + timedelta(minutes=9)))
    return health.model_copy(update={"status": status})


@pytest.mark.parametrize("name", ["GPU-0", "GPU-0::3"])
def test_what_the_kubelet_calls_unhealthy_is_sick_and_its_workers_until_it_is_cleared(name: str) -> None:
    health = after_word(known({}), worker((name, "Unhealthy")))
    ((gpu, causes),) = health.sick()
    assert causes[0].message == "its device plug-in calls it unhealthy: too hot"
    assert [(one.job_uid, one.attempt) for one in gpu.holders] == [("u", 2)]
    assert after_word(health, worker((name, "Unhealthy"))) == health, "said once"
    report = GpusReport.model_validate({"node": "n", "gpus": [{"uuid": "GPU-0", "index": 0}]})
    assert assessed(health, report, NOW + timedelta(hours=9))[0].causes == causes, "a report does not end it"


@pytest.mark.parametrize("said", [("GPU-0", "Healthy"), ("GPU-0", "Unknown"), ("GPU-9", "Unhealthy"), ("MIG-0", "x")])
def test_other_values_and_other_devices_say_nothing(said: tuple[str, str]) -> None:
    assert after_word(known({}), worker(said)) == known({})


def test_a_pod_of_before_the_repair_says_nothing_new_and_one_of_after_does() -> None:
    cleared = known({}, cleared_at=NOW)
    for began in (None, NOW - timedelta(hours=1)):
        assert after_word(cleared, worker(("GPU-0", "Unhealthy"), began=began)) == cleared
    assert codes(after_word(cleared, worker(("GPU-0", "Unhealthy"), began=NOW + timedelta(1)))) == ["DeviceUnhealthy"]
