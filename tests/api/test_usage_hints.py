"""Prices, and what the hints say from which figures."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.spec.usage import GpuReceipt
from stoker_api.usage import hints
from stoker_api.usage.amounts import Amounts
from stoker_api.usage.hints import JobAmounts
from stoker_api.usage.prices import Prices
from stoker_api.usage.straggler import straggler

from .receipts import receipt


def had(**more: Any) -> GpuReceipt:
    """Twenty minutes of a GPU that is well used, but for what is said."""
    good: dict[str, Any] = {
        "allocated_s": 1200.0, "sm_active_s": 900.0, "busy_s": 1100.0, "idle_s": {},
        "memory_peak_bytes": 6 << 30, "memory_total_bytes": 8 << 30,
    }  # fmt: skip
    return receipt(1, **{**good, **more})


@pytest.mark.parametrize(
    ("receipts", "codes"),
    [
        ([had()], []),
        ([had(memory_peak_bytes=1 << 30)], ["Memory"]),
        ([had(memory_peak_bytes=2 << 30)], []),
        ([had(sm_active_s=300.0)], ["Compute"]),
        ([had(sm_active_s=None, busy_s=300.0)], ["Compute"]),
        ([had(sm_active_s=None, busy_s=None)], []),
        ([had(sm_active_s=300.0, unobserved_s=200.0)], []),
        ([had(idle_s={"no_process": 700.0}, sm_active_s=300.0)], ["Idle"]),
        ([had(), had(uuid="GPU-1", idle_s={"no_process": 1190.0}, sm_active_s=0.0)], ["UnusedGpus"]),
        ([had(attempt=2), had(uuid="GPU-1", idle_s={"no_process": 1190.0})], []),
        ([had(allocated_s=500.0, sm_active_s=0.0, busy_s=0.0)], []),
        ([had(sm_active_s=0.0, busy_s=0.0, simulated=True)], []),
        ([], []),
    ],
    ids=[
        "well used",
        "an eighth of the memory",
        "a quarter of it",
        "SMs active for a quarter",
        "no SM figures: busy for a quarter",
        "nothing known",
        "30 % of what was observed",
        "idle for most of it",
        "the second GPU without a process",
        "that was an attempt before",
        "less than ten minutes",
        "simulated",
        "no receipt",
    ],
)
def test_hints_of_a_job(receipts, codes):
    assert [hint.code for hint in hints.of_job(receipts, 2)] == codes


def test_hints_say_what_to_do_with_figures():
    unused = had(uuid="GPU-1", idle_s={"no_process": 1190.0}, sm_active_s=0.0, memory_peak_bytes=0)
    texts = [hint.text for hint in hints.of_job([had(memory_peak_bytes=1 << 30), unused], 2)]
    assert texts[0].startswith("1 of its 2 GPUs never ran a process. Ask for gpusPerWorker: 1, or ")
    assert "held at most 1Gi of 8Gi (12%)" in texts[1] and "gpu.minMemory of 2Gi is enough" in texts[1]
    (idle,) = hints.of_job([had(idle_s={"no_activity": 800.0})], 1)
    assert idle.text.startswith("Its GPUs were idle for 67% of the time; mostly a process held them without computing")
    (compute,) = hints.of_job([had(sm_active_s=240.0)], 1)
    assert "their SMs were active 20% of the time" in compute.text


def test_hints_of_a_queue_count_its_jobs():
    def one(**amounts: float) -> JobAmounts:
        base = {"allocated_s": 7200.0, "sm_active_s": 5000.0, "sm_active_of_s": 7200.0}
        return JobAmounts(Amounts(**{**base, **amounts}), 7200.0, 6 << 30, 8 << 30)

    short = JobAmounts(Amounts(allocated_s=60.0, sm_active_of_s=60.0), 60.0)
    found = hints.of_queue("default", [one(), one(sm_active_s=700.0), one(idle_no_process_s=6000.0), short])
    assert [hint.code for hint in found] == ["Idle", "Compute"]
    assert found[0].text.startswith("1 of 3 jobs of queue default (2.0 of 6.0 GPU-hours) had GPUs that were idle")
    assert "--queue default" in found[0].text
    assert hints.of_queue("default", [one(), short]) == [] == hints.of_queue("default", [])


@pytest.mark.parametrize(
    ("model", "price"),
    [("NVIDIA H200", 3.0), ("nvidia-h200-nvl", 4.0), ("NVIDIA A100-SXM4-80GB", 2.0), ("Tesla T4", 0.5), ("", 0.5)],
)
def test_the_longest_part_that_matches_is_the_price(model, price):
    assert Prices.parse(["*=0.5", "h200=3", "H200 NVL=4", "a100-sxm4=2"]).of(model) == price


def test_without_a_price_there_is_none():
    assert Prices.parse(["h200=3"]).of("Tesla T4") is None and not Prices()


@pytest.mark.parametrize(
    ("given", "currency", "why"),
    [
        (["h200"], "EUR", "no price; write MODEL=PRICE"),
        (["=3"], "EUR", "no price"),
        (["h200=much"], "EUR", "no price"),
        (["h200=-1"], "EUR", "no price"),
        (["h200=nan"], "EUR", "no price"),
        (["H-200=1", "h 200=2"], "EUR", "has two prices"),
        ([], "euro", "no currency"),
    ],
)
def test_wrong_prices_say_what_to_write(given, currency, why):
    with pytest.raises(ValueError, match=why):
        Prices.parse(given, currency)


def gang(*active_s: float | None, held_s: float = 0.0, **more: Any) -> list[GpuReceipt]:
    """Its GPUs, a worker each: what each was active of 1,200 s. The last is held down for `held_s`."""
    return [
        had(worker=number, uuid=f"GPU-{number}", node=f"n{number}", sm_active_s=seconds, **more)
        if number < len(active_s) - 1 or not held_s
        else had(worker=number, uuid=f"GPU-{number}", node=f"n{number}", sm_active_s=seconds,
                 throttled_s={"hw_thermal": held_s}, **more)
        for number, seconds in enumerate(active_s)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("receipts", "named", "lost_gpu_s"),
    [
        (gang(600, 600, 600, 600), None, None),
        (gang(600, 600, 610, 700), None, None),
        (gang(600, 900, 600, 600), 1, 4 * 1200 / 3),
        (gang(600, 600, 600, 900, held_s=600), 3, 4 * 1200 / 3),
        (gang(None, None, None, None, held_s=600), 3, 4 * 1200 / 2),
        (gang(600, 600, 600, 600, held_s=600), 3, 4 * 1200 / 2),
        (gang(600, 600, 600, 600, held_s=60), None, None),
        (gang(600, 600, 900), None, None),
        ([*gang(600, 900, 600, 600), *gang(600, 600, 600, 600, attempt=2)], None, None),
        ([*gang(600, 600, 600), had(worker=3, uuid="GPU-3", allocated_s=300.0, sm_active_s=290.0)], None, None),
    ],
    ids=[
        "alike", "nearly alike", "one is active most", "and held down", "no SM figures: held down", "SMs don't show it",
        "held down a little", "too few", "an attempt before", "one is not observed for long",
    ],
)  # fmt: skip
def test_the_slowest_gpu_of_a_gang_is_named_with_what_it_costs(
    receipts: list[GpuReceipt], named: int | None, lost_gpu_s: float | None
) -> None:
    found = straggler(receipts, hints.OBSERVED_S)
    assert (None if found is None else (found.worker, found.uuid, found.node)) == (
        None if named is None else (named, f"GPU-{named}", f"n{named}")
    )
    if found is not None:
        assert found.lost_gpu_s == pytest.approx(lost_gpu_s)
    said = [hint for hint in hints.of_job(receipts, 1) if hint.code == "Straggler"]
    assert bool(said) == (named is not None)


def test_a_straggler_as_text() -> None:
    (hint,) = [one for one in hints.of_job(gang(600, 600, 600, 900, held_s=600), 1) if one.code == "Straggler"]
    assert hint.text.startswith(
        "The other GPUs wait for worker 3's (GPU-3 on n3): its SMs were active 75% of the time (50%) and it was held "
        "down by heat or power 50% of it (0%), in brackets the gang's median. That cost about 0.4 GPU-hours."
    )
