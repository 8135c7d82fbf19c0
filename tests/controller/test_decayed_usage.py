"""What queues held of late: an average whose weights halve, written seldom, known from the objects alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.controller import decayed_usage, queues
from stoker.controller.decayed_usage import MovingAverage
from stoker.spec.job import Phase
from stoker.spec.meta import Key
from stoker.spec.queue import DecayedUsage

from .conftest import World
from .test_admission import queue

BEGIN = datetime(2026, 11, 23, tzinfo=UTC)
DAY_S = 86400.0

histories = st.lists(st.tuples(st.floats(1, 1e5), st.integers(0, 64)), min_size=1, max_size=20)


@given(history=histories, half_life_s=st.floats(60, 1e6))
def test_it_is_the_integral_of_what_was_held(history: list[tuple[float, int]], half_life_s: float) -> None:
    at, average, spans = BEGIN, MovingAverage(DecayedUsage(), {}, BEGIN), []
    for seconds, gpus in history:
        average.advance(at, {"gpus": gpus, "gpus.h100": gpus}, half_life_s)
        spans.append((at, at + timedelta(seconds=seconds), gpus))
        at = spans[-1][1]
    average.advance(at, {}, half_life_s)

    def weight(then: datetime) -> float:
        return 0.5 ** ((at - then).total_seconds() / half_life_s)

    wanted = sum(gpus * (weight(end) - weight(begin)) for begin, end, gpus in spans)
    written = average.written(DecayedUsage())
    assert written.gpus == written.gpu_types.get("h100", 0.0) == pytest.approx(wanted, rel=0.011, abs=0.002)


def test_half_is_left_after_a_half_life_and_is_written_once_a_minute_at_most() -> None:
    held = DecayedUsage(gpus=8.0, cpu="16", memory="64Gi", gpu_types={"h100": 8.0, "t4": 0.0008}, at=BEGIN)
    average = MovingAverage(held, {}, BEGIN)
    average.advance(BEGIN + timedelta(seconds=59), {}, 60.0)
    assert average.written(held) is held
    average.advance(BEGIN + timedelta(seconds=60), {}, 60.0)
    half = DecayedUsage(gpus=4.0, cpu="8", memory="32Gi", gpu_types={"h100": 4.0}, at=BEGIN + timedelta(seconds=60))
    assert average.written(held) == half
    average.advance(BEGIN + timedelta(seconds=70), {}, DAY_S)
    half = average.written(held)
    average.advance(BEGIN + timedelta(seconds=170), {}, DAY_S)
    assert average.written(half) is half, "less than a hundredth of it has gone"


def test_a_clock_that_steps_back_changes_nothing() -> None:
    average = MovingAverage(DecayedUsage(gpus=8.0, at=BEGIN), {}, BEGIN)
    average.advance(BEGIN - timedelta(days=1), {}, 60.0)
    assert average.written(DecayedUsage()).gpus == 8.0


def test_what_a_leader_wrote_whose_clock_was_ahead_is_written_anew() -> None:
    ahead = DecayedUsage(gpus=8.0, at=BEGIN + timedelta(days=1))
    average = MovingAverage(ahead, {}, BEGIN)
    average.advance(BEGIN, {}, 3600.0)
    average.advance(BEGIN + timedelta(hours=1), {}, 3600.0)
    assert average.written(ahead) == DecayedUsage(gpus=4.0, at=BEGIN + timedelta(hours=1))


async def test_of_two_queues_the_one_that_held_less_of_late_goes_first_for_a_next_leader_too(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(queues, "STATUS_EVERY_S", 0.05)
    monkeypatch.setattr(queues, "WRITE_EVERY_S", 0.1)
    monkeypatch.setattr(decayed_usage, "WRITE_EVERY_S", 0.0)
    monkeypatch.setattr(world.operator._queue_keeper, "_half_life_s", 5.0)
    for name in ("busy", "calm"):
        await queue(world, name)
    await world.node(gpus=2)
    world.kubelet.script = lambda pod: None
    await world.submit("long", queue="busy", gpus_per_worker=2)

    def lately(name: str) -> float:
        return world.queues.get(Key("", name)).status.decayed_usage.gpus  # type: ignore[union-attr]

    await world.until(lambda: lately("busy") > 0.2, "what 'busy' holds to count")
    await world.stop()  # the next leader knows what the objects say
    world.start()
    await world.submit("again", queue="busy", gpus_per_worker=2)
    await world.submit("first", queue="calm", gpus_per_worker=2)  # younger
    await world.change("long", cancel=True)
    await world.phase("first", Phase.RUNNING)
    assert world.job("again").status.phase is Phase.QUEUED
    assert lately("calm") < lately("busy")
