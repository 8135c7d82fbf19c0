"""Jobs whose GPUs are idle: who hears of it, when, once per period, and what a suspend leaves; both modes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.spec.event import EVENTS, Event
from stoker.spec.job import JOBS, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.job_parts import IdleAction
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import ANNOTATION_IDLE_REPORTED, ANNOTATION_IDLE_SUSPENDED
from stoker.spec.usage import GpuReceipt
from stoker.spec.worker import Held, Progress
from stoker.store.port import Invalid
from stoker_api.usage.idle import IdleRule, IdleWatch, due, rule_of

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RULE = IdleRule(1800.0, IdleAction.NOTIFY)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def receipt(
    uid: str = "u1", *, attempt: int = 1, at: datetime = NOW, idle: datetime | None = None, **given: Any
) -> Any:
    made = {
        "ledger": "l", "node": "node-a", "uuid": "GPU-0", "job_uid": uid, "attempt": attempt, "worker": 0,
        "project": "alpha", "job_name": "one", "seq": int(at.timestamp()), "begin_at": at.timestamp() - 7200,
        "at": at.timestamp(), "allocated_s": 7200, "idle_s": {"no_process": 1860.0, "no_activity": 0.0},
        "idle_since": None if idle is None else idle.timestamp(),
    }  # fmt: skip
    return GpuReceipt(**(made | given))


def job(annotations: dict[str, str] | None = None, spec: dict[str, Any] | None = None, **status: Any) -> TrainingJob:
    wanted: dict[str, Any] = {"trainer": {"command": ["x"]}, "gpus_per_worker": 1, **(spec or {})}
    state: dict[str, Any] = {"phase": Phase.RUNNING, "attempt": 1, "started_at": ago(120), **status}
    meta = ObjectMeta(name="one", namespace="alpha", uid="u1", annotations=annotations or {})
    return TrainingJob(metadata=meta, spec=wanted, status=TrainingJobStatus(**state))  # type: ignore[arg-type]


HELD = Progress(at=0, held=Held(since=0, until=9e9, exit_code=1))
TABLE = [
    # name, job, idle since, receipts, due
    ("idle for longer than the limit", job(), ago(31), [receipt()], True),
    ("idle for less", job(), ago(29), [receipt()], False),
    ("not idle, or that is not known", job(), None, [receipt()], False),
    ("no receipts", job(), ago(31), [], False),
    ("only those of an attempt before", job(attempt=2), ago(31), [receipt()], False),
    ("simulated GPUs", job(), ago(31), [receipt(simulated=True)], False),
    ("one of two simulated", job(), ago(31), [receipt(), receipt(uuid="GPU-1", simulated=True)], False),
    ("held after a failure", job(progress=HELD), ago(31), [receipt()], False),
    ("younger than the limit", job(started_at=ago(20)), ago(31), [receipt()], False),
    ("still starting", job(phase=Phase.STARTING, started_at=None), ago(31), [receipt()], False),
    ("being stopped", job(phase=Phase.STOPPING), ago(31), [receipt()], False),
    ("a suspend is on its way", job(spec={"suspend": True}), ago(31), [receipt()], False),
    ("a cancel is on its way", job(spec={"cancel": True}), ago(31), [receipt()], False),
    ("no GPUs", job(spec={"gpus_per_worker": 0}), ago(31), [receipt()], False),
    ("reported in this period", job({ANNOTATION_IDLE_REPORTED: ago(1).isoformat()}), ago(31), [receipt()], False),
    ("reported in a period before", job({ANNOTATION_IDLE_REPORTED: ago(60).isoformat()}), ago(31), [receipt()], True),
    ("reported at no time", job({ANNOTATION_IDLE_REPORTED: "yes"}), ago(31), [receipt()], True),
    ("its own limit is longer", job(spec={"idle": {"after": "2h"}}), ago(31), [receipt()], False),
    ("its own limit is shorter", job(spec={"idle": {"after": "1m"}}), ago(2), [receipt()], True),
    ("it wants no word", job(spec={"idle": {"action": "None"}}), ago(31), [receipt()], False),
]


@pytest.mark.parametrize(("subject", "since", "receipts", "wanted"), [case[1:] for case in TABLE],
                         ids=[case[0] for case in TABLE])  # fmt: skip
def test_which_jobs_are_due(subject, since, receipts, wanted):
    assert due(subject, since, receipts, rule_of(subject, RULE), NOW) is wanted


def test_what_a_job_does_not_say_is_the_servers():
    server = IdleRule(600.0, IdleAction.SUSPEND)
    assert rule_of(job(), server) == server
    assert rule_of(job(spec={"idle": {"after": "1h"}}), server) == IdleRule(3600.0, IdleAction.SUSPEND)
    assert rule_of(job(spec={"idle": {"action": "Notify"}}), server) == IdleRule(600.0, IdleAction.NOTIFY)


class Bench:
    """A job that runs on one GPU, and the watch over it at a time of our choice."""

    def __init__(self, world: Any, subject: TrainingJob) -> None:
        self.world, self.uid, self.now = world, subject.uid, NOW
        self.key, self.seq = subject.key, 0

    def watch(self) -> IdleWatch:
        """A new one each time: as after a restart of the api."""
        found = self.world.services
        clock = SimpleNamespace(now=lambda: self.now)
        return IdleWatch(found.deps.store, found.index.placed, lambda one: one, found.usage_board, clock, RULE)

    def report(self, idle: datetime | None) -> None:
        self.seq += 1
        self.world.services.usage_board.take([receipt(self.uid, at=self.now, idle=idle, seq=self.seq)], 0.0)

    async def look(self) -> None:
        await self.watch().look()
        stored = await self.world.deps.store.get(JOBS, self.key)
        await self.world.deps.jobs.at_least(stored.metadata.resource_version, timeout_s=5)

    async def events(self) -> list[Event]:
        listed = (await self.world.deps.store.list(EVENTS)).items
        return [event for event in listed if event.reason == "Idle" and event.involved_object.uid == self.uid]

    async def job(self) -> TrainingJob:
        return await self.world.deps.store.get(JOBS, self.key)  # type: ignore[no-any-return]


async def on_bench(world: Any, name: str = "one", **spec: Any) -> Bench:
    subject = await world.job(name, gpusPerWorker=1, **spec)
    subject = await world.status(subject, phase="Running", attempt=1, startedAt=ago(120).isoformat())
    return Bench(world, subject)


async def test_once_per_period_whatever_restarts(world):
    bench = await on_bench(world)
    bench.report(ago(29))
    await bench.look()
    assert await bench.events() == []
    bench.report(ago(31))
    for _ in range(3):
        await bench.look()
    (event,) = await bench.events()
    assert event.message.startswith(
        f"{world.name('alice')}: its GPU has been idle for 31m (in this attempt: no_process"
    )
    assert "GPUs: node-a/GPU-0" in event.message and "`stoker suspend one`" in event.message
    bench.now += timedelta(minutes=1)
    bench.report(None)  # it works again
    await bench.look()
    bench.now += timedelta(minutes=40)
    bench.report(bench.now - timedelta(minutes=30))  # and is idle again
    await bench.look()
    assert len(await bench.events()) == 2
    assert not (await bench.job()).spec.suspend


async def test_an_event_that_was_written_by_one_that_died_is_not_written_again(world):
    bench = await on_bench(world)
    bench.report(ago(31))
    stored = await bench.job()
    await bench.watch()._report(stored, ago(31), "reported, and then it died", NOW)
    await bench.look()
    (event,) = await bench.events()
    assert event.message == "reported, and then it died"
    assert ANNOTATION_IDLE_REPORTED in (await bench.job()).metadata.annotations


async def test_suspended_where_that_is_wanted_and_resumed(world):
    bench = await on_bench(world, idle={"after": "10m", "action": "Suspend"})
    bench.report(ago(11))
    await bench.look()
    stored = await bench.job()
    assert stored.spec.suspend and ANNOTATION_IDLE_SUSPENDED in stored.metadata.annotations
    (event,) = await bench.events()
    assert "suspended by Stoker (idle.action Suspend); `stoker resume one` goes on" in event.message
    answer = await world.call("POST", "/v1/projects/alpha/jobs/one/resume")
    assert answer.status_code == 202
    stored = await bench.job()
    assert not stored.spec.suspend and ANNOTATION_IDLE_SUSPENDED not in stored.metadata.annotations
    await bench.look()
    assert not (await bench.job()).spec.suspend, "not again for what was before"


async def test_who_changed_the_job_meanwhile_is_not_overruled(world):
    bench = await on_bench(world, idle={"after": "10m", "action": "Suspend"})
    bench.report(ago(11))
    (old,) = list(world.services.index.placed())
    stored = await bench.job()
    await world.deps.store.update(
        JOBS, stored.model_copy(update={"spec": stored.spec.model_copy(update={"cancel": True})})
    )
    watch = IdleWatch(
        world.deps.store, lambda: [old], lambda one: one, world.services.usage_board,
        SimpleNamespace(now=lambda: NOW), RULE,
    )  # fmt: skip
    await watch.look()
    assert not (await bench.job()).spec.suspend


async def test_one_job_that_the_store_refuses_to_change_keeps_no_other_from_being_suspended(world, monkeypatch):
    both = [await on_bench(world, name, idle={"after": "10m", "action": "Suspend"}) for name in ("bad", "good")]
    for bench in both:
        bench.report(ago(11))
    update = world.deps.store.update

    async def refuse(kind: Any, obj: Any) -> Any:
        if obj.key == both[0].key:
            raise Invalid(["the object is larger than the store takes"])
        return await update(kind, obj)

    monkeypatch.setattr(world.deps.store, "update", refuse)
    await both[0].look()
    assert [(await bench.job()).spec.suspend for bench in both] == [False, True]
