"""Metrics of jobs over the api: what of the reports is kept, in ranges, after a restart and after the job."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.job import JOBS, Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.rest import JobCurves
from stoker.spec.worker import Progress
from stoker.store.cache import WatchCache
from stoker.store.clock import ManualClock
from stoker_api.curves import feed as feeding
from stoker_api.curves.feed import CurveFeed
from stoker_api.curves.gpu_points import MOST_GPUS
from stoker_api.curves.history import Range, curves
from stoker_api.curves.store import CurveStore
from stoker_api.kept_file import FileUnavailable
from stoker_api.metrics import ApiMetrics
from tests.support.examples import examples

from .receipts import body as receipts_body
from .receipts import receipt
from .test_streams import rest, take

ROUTE = "/v1/projects/alpha/jobs/one/metrics"
RUNNING = TrainingJob(
    metadata=ObjectMeta(name="one", namespace="alpha", uid="uid-1"),
    spec=TrainingJobSpec(trainer=Trainer(command=("x",))),
    status=TrainingJobStatus(phase=Phase.RUNNING, attempt=1),
)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report counts, however soon it follows."""
    monkeypatch.setattr(feeding, "LEAST_S", 0.0)


async def report(world: Any, job: TrainingJob, pod: Any, newest: dict[str, Any], **change: Any) -> None:
    said = {
        "podUid": pod.uid, "jobUid": job.uid, "project": "alpha", "jobName": job.metadata.name,
        "attempt": 1, "worker": 0, "progress": newest, **change,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {await world.worker_token(pod)}", "Content-Type": "application/json"}
    answer = await world.client.post("/v1/report/progress", headers=headers, content=json.dumps(said))
    assert answer.status_code == 204, answer.text


async def read(world: Any, **query: Any) -> JobCurves:
    answer = await world.call("GET", ROUTE, params=query)
    assert answer.status_code == 200, answer.text
    return JobCurves.model_validate(answer.json())


@pytest.mark.usefixtures("at_once")
async def test_what_workers_report_is_kept_by_attempt_and_outlives_the_job(world):
    now_s = world.deps.clock.now().timestamp()
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    assert "no metrics" in (await read(world)).note
    first = await world.pod(job)
    for step in range(1, 6):
        metrics = {"loss": 1 / step, "lr": 0.1}
        await report(world, job, first, {"at": now_s + step / 1e3, "step": step, "metrics": metrics})
    second = await world.pod(job, attempt=2)
    job = await world.status(job, attempt=2)
    for step in range(3, 5):
        newest = {"at": now_s + step, "step": step, "metrics": {"loss": 2 / step}}
        await report(world, job, second, newest, attempt=2)
    found = await read(world)
    assert [(curve.metric, curve.attempt, curve.steps) for curve in found.curves] == [
        ("loss", 1, (1, 2, 3, 4, 5)),
        ("loss", 2, (3, 4)),
        ("lr", 1, (1, 2, 3, 4, 5)),
    ], "steps that were rolled back stay under their attempt"
    assert found.curves[0].values == (1.0, 0.5, 1 / 3, 0.25, 0.2)
    assert all(now_s - 1 < at < now_s + 60 for curve in found.curves for at in curve.times), "no later than it came"
    (part,) = (await read(world, metric="loss", attempt="1", firstStep="2", lastStep="4")).curves
    assert part.steps == (2, 3, 4)
    assert (await read(world, since="1d", points="2", metric="lr")).curves[0].steps == (1, 5)
    assert (await read(world, until="1d")).curves == () and (await read(world, metric="other")).curves == ()
    await world.status(job, phase="Succeeded")
    assert (await world.call("DELETE", "/v1/projects/alpha/jobs/one")).status_code == 204
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key) is None, timeout_s=20)
    gone = await read(world)
    assert gone.deleted and gone.curves == found.curves and gone.job_uid == job.uid
    again = await world.job("one")
    assert (await read(world)).job_uid == again.uid and (await read(world)).curves == ()


@pytest.mark.usefixtures("at_once")
async def test_checkpoints_are_points_of_a_curve_of_their_own(world):
    now_s = world.deps.clock.now().timestamp()
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    pod = await world.pod(job)
    for step, saved in ((1, None), (2, 2), (3, 2), (4, 4), (5, 2**60)):
        checkpoint = {} if saved is None else {"checkpoint": {"step": saved, "path": "x"}}
        newest = {"at": now_s + step / 1e3, "step": step, "metrics": {"stoker/checkpoint": 9.0}, **checkpoint}
        await report(world, job, pod, newest)
    (curve,) = (await read(world)).curves
    assert (curve.metric, curve.steps, curve.values) == ("stoker/checkpoint", (2, 4), (2.0, 4.0)), (
        "no job says it itself"
    )


async def test_who_may_not_read_the_job_gets_the_answer_of_a_missing_one(world):
    await world.job("one")
    for who in ("bob", "garbage"):
        answer = await world.call("GET", ROUTE, who=who)
        assert answer.status_code == (404 if who == "bob" else 401)
    missing = (await world.call("GET", ROUTE.replace("one", "two"))).json()
    hidden = (await world.call("GET", ROUTE, who="bob")).json()
    assert missing["code"] == hidden["code"] == "NotFound"
    for query in ("points=1", "points=2001", "firstStep=-1", "since=x", "metric=a&metric=b", "other=1"):
        assert (await world.call("GET", f"{ROUTE}?{query}")).status_code == 422, query


@pytest.mark.usefixtures("at_once")
async def test_what_a_tenant_may_write_costs_only_itself(world):
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    pod = await world.pod(job)
    far = {
        "good": 1.0,
        "nan": float("nan"),
        "huge": 10**400,
        "up\u001b[2Jdown": 1.0,
        "\u202eevil": 1.0,
        "line\nend": 1.0,
        "": 1.0,
        "x" * 129: 1.0,
        "x" * 128: 2.0,
        "a, b; 'c' \"d\" <e> ü 日": 3.0,
    }
    await report(world, job, pod, {"at": 1e300, "step": 7, "metrics": far})
    await report(world, job, pod, {"at": 2e300, "step": 2**63 - 1, "metrics": {"good": 2.0}})
    await report(world, job, pod, {"at": 3e300, "step": -5, "metrics": {"good": 3.0}})
    await report(world, job, pod, {"at": 4e300, "step": 3, "metrics": {f"m{n}": 4.0 for n in range(1000)}})
    now_s = world.deps.clock.now().timestamp()
    found = await read(world)
    names = {curve.metric for curve in found.curves}
    assert {"good", "x" * 128, "a, b; 'c' \"d\" <e> ü 日"} < names and len(names) == 64 and found.left_out
    assert next(curve for curve in found.curves if curve.metric == "good").steps == (7,)
    assert all(at <= now_s + 1 for curve in found.curves for at in curve.times)


@pytest.fixture
async def store(tmp_path):
    with CurveStore(tmp_path / "curves.db", ManualClock()) as found:
        yield found


def feed_of(store: CurveStore, clock: ManualClock, *jobs: TrainingJob) -> CurveFeed:
    cache = WatchCache(None, JOBS, clock=clock)  # type: ignore[arg-type]
    cache._uids.update({job.uid: job for job in jobs})
    return CurveFeed(store, cache, clock, ApiMetrics().curve_samples)


def kept(store: CurveStore) -> Any:
    return store.read(lambda reader: [point for curve in curves(reader, "uid-1", Range()) for point in curve.points])


async def test_a_flood_is_thinned_to_two_a_second_and_the_newest_stays(store):
    clock = ManualClock()
    feed = feed_of(store, clock, RUNNING)
    for step in range(10_000):
        clock.advance(0.001)
        feed.take(RUNNING, 1, Progress(at=clock.now().timestamp(), step=step, metrics={"loss": float(step)}))
    assert sum(len(live.waiting) for live in feed._live.values()) <= feeding.MOST_WAITING
    await feed.written("uid-1")
    points = await kept(store)
    assert 15 < len(points) <= 25 and points[-1].step == 9_999


async def test_while_the_file_takes_nothing_little_waits_and_nothing_is_lost_but_density(store):
    clock = ManualClock()
    feed = feed_of(store, clock, RUNNING)

    def limit(pages: int) -> Any:
        return store.write(lambda file: file._run.execute(f"PRAGMA max_page_count = {pages}").fetchone())

    await limit(1)
    for step in range(3_000):
        clock.advance(1.0)
        metrics = {f"m{n}": float(step) for n in range(10)}
        feed.take(RUNNING, 1, Progress(at=clock.now().timestamp(), step=step, metrics=metrics))
        if step % 10 == 9:
            await feed.write_all()
    with pytest.raises(FileUnavailable):
        await feed.written("uid-1")
    assert sum(len(live.waiting) for live in feed._live.values()) <= feeding.MOST_WAITING
    await limit(1_000_000)
    await feed.write_all()
    steps = [point.step for point in await kept(store)]
    assert steps[-1] == 2_999 and min(steps) < 1_500


@examples(30)
@given(st.lists(st.tuples(st.floats(), st.integers(-5, 2**60), st.floats()), max_size=20))
def test_whatever_is_reported_times_go_on_and_values_are_numbers(reports):
    async def run(folder: str) -> None:
        clock = ManualClock()
        with CurveStore(Path(folder) / "curves.db", clock) as store:
            feed = feed_of(store, clock, RUNNING)
            for at, step, value in reports:
                clock.advance(1.0)
                feed.take(RUNNING, 1, Progress.model_construct(at=at, step=step, metrics={"loss": value}))
            await feed.written("uid-1")
            times = [point.at for point in await kept(store)]
            assert times == sorted(set(times)) and all(at <= clock.now().timestamp() + 1 for at in times)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(folder))


async def test_a_job_that_is_over_is_held_no_longer_than_until_it_is_written(store):
    clock = ManualClock()
    feed = feed_of(store, clock, RUNNING)
    feed.take(RUNNING, 1, Progress(at=1.0, step=1, metrics={"loss": 1.0}))
    await feed.write_all()
    assert len(feed) == 1, "it runs"
    feed._jobs._uids.clear()
    clock.advance(1.0)
    feed.take(RUNNING, 1, Progress(at=2.0, step=2, metrics={"loss": 0.5}))
    await feed.write_all()
    assert len(feed) == 0 and [point.step for point in await kept(store)] == [1, 2]


async def test_the_same_again_is_no_point(store):
    clock = ManualClock()
    feed = feed_of(store, clock, RUNNING)
    for _ in range(5):
        clock.advance(1.0)
        feed.take(RUNNING, 1, Progress(at=clock.now().timestamp(), step=1, metrics={"loss": 1.0}))
    await feed.written("uid-1")
    assert len(await kept(store)) == 1


async def test_each_gpu_has_a_point_a_minute_beside_what_the_job_reports(store):
    clock = ManualClock()
    feed = feed_of(store, clock, RUNNING)
    for seq in range(1, 9):  # every 30 s of four minutes
        clock.advance(30.0)
        feed.take(RUNNING, 1, Progress(at=clock.now().timestamp(), step=seq, metrics={"loss": 1.0, "gpu/0/own": 1.0}))
        sums = {
            "allocated_s": 30.0 * seq,
            "unobserved_s": 3.0 * seq,
            "sm_active_s": 13.5 * seq,
            "energy_j": 8100.0 * seq,
        }
        feed.take_receipts(receipt(seq, uuid=uuid, **sums) for uuid in ("GPU-0", "GPU-1"))
    await feed.written("uid-1")
    found = await store.read(lambda reader: {one.metric: one.points for one in curves(reader, "uid-1", Range())})
    for uuid in ("GPU-0", "GPU-1"):
        assert [point.value for point in found[f"gpu/0/{uuid}/smActive"]] == [0.5] * 3, "of the observed time"
        assert [point.value for point in found[f"gpu/0/{uuid}/powerWatts"]] == [300.0] * 3
        assert [point.step for point in found[f"gpu/0/{uuid}/memoryPeakBytes"]] == [3, 5, 7]
    assert "gpu/0/own" not in found, "no job says what its GPUs did"
    assert [point.step for point in found["loss"]] == list(range(1, 9))


async def test_what_a_gpu_does_not_report_is_absent_and_few_gpus_are_drawn(store):
    clock = ManualClock()
    feed = feed_of(store, clock, RUNNING)
    for seq in (1, 3, 5):
        clock.advance(60.0)
        blind = {"sm_active_s": None, "energy_j": None, "memory_peak_bytes": None, "busy_s": None}
        many = [receipt(seq, uuid=f"GPU-{n:02}", worker=n) for n in range(MOST_GPUS + 5)]
        feed.take_receipts([receipt(seq, uuid="GPU-99", **blind), *many])
        feed.take_receipts([receipt(seq, uuid="GPU-00", ledger=f"l{seq}", job_uid="gone")])
    await feed.written("uid-1")
    names = {
        metric for (metric,) in await store.read(lambda reader: reader.execute("SELECT metric FROM curves").fetchall())
    }
    assert len(names) == 4 * (MOST_GPUS - 1) and not [name for name in names if "GPU-99" in name]


async def test_receipts_that_are_taken_become_curves(world):
    job = await world.job("one", gpusPerWorker=1)
    job = await world.status(job, phase="Running", attempt=1, placement=[{"worker": 0, "node": "node-a"}])
    begin_at = time.time() - 600
    headers = {"Authorization": f"Bearer {await world.exporter_token()}", "Content-Type": "application/json"}
    for seq in (1, 2, 2, 3):
        one = receipt(seq, job_uid=job.uid, begin_at=begin_at)
        answer = await world.client.post("/v1/report/usage", headers=headers, json=receipts_body(one))
        assert answer.status_code == 200, answer.text
    found = {curve.metric: curve.values for curve in (await read(world)).curves}
    assert found["gpu/0/GPU-0/powerWatts"] == (300.0, 300.0) and found["gpu/0/GPU-0/busy"] == (0.75, 0.75)


def points_of(frames: list[Any], metric: str = "loss") -> list[tuple[int, int]]:
    """(attempt, step) of every point that a follower was sent, in order."""
    found = []
    for frame in frames:
        if frame.event == "sample" and metric in frame.json["values"]:
            found.append((frame.json["attempt"], frame.json["step"]))
        elif frame.event == "curves":
            for curve in JobCurves.model_validate({**HEAD, **frame.json}).curves:
                found += [(curve.attempt, step) for step in curve.steps if curve.metric == metric]
    return found


HEAD = {"project": "alpha", "job": "one", "jobUid": "u", "deleted": False}


@pytest.mark.usefixtures("at_once")
async def test_metrics_are_followed_to_the_end_and_resumed_without_gap_or_double(served, follow):
    now_s = served.deps.clock.now().timestamp() - 50
    job = await served.status(await served.job("one"), phase="Running", attempt=1)
    pod = await served.pod(job)

    async def step(number: int) -> None:
        metrics = {"loss": 1 / number, "lr": 0.1}
        await report(served, job, pod, {"at": now_s + number, "step": number, "metrics": metrics})

    await step(1)
    stream = follow(served, ROUTE)
    only_lr = follow(served, f"{ROUTE}?metric=lr")
    (past,) = await take(stream, 1)
    assert past.event == "curves" and points_of([past]) == [(1, 1)]
    assert points_of(await take(only_lr, 1), "loss") == []
    seen = []
    for number in range(2, 5):
        await step(number)
        seen += await take(stream, 1)
        (narrow,) = await take(only_lr, 1)
        assert narrow.event == "sample" and narrow.json["values"] == {"lr": 0.1}
    assert [frame.event for frame in seen] == ["sample"] * 3 and points_of(seen) == [(1, 2), (1, 3), (1, 4)]
    await stream.aclose()
    for number in range(5, 40):
        await step(number)
    again = follow(served, ROUTE, last_id=seen[1].id)
    begun = await take(again, 1)
    await step(40)
    await served.status(job, phase="Succeeded")
    last = await rest(again)
    assert points_of([*begun, *last]) == [(1, number) for number in range(4, 41)], "behind the one it had"
    assert last[-1].event == "end" and last[-1].json["phase"] == "Succeeded"
    ended = await rest(follow(served, ROUTE))
    assert [frame.event for frame in ended] == ["curves", "end"] and len(points_of(ended)) == 40
    narrow = await rest(only_lr)
    assert points_of(narrow, "lr") == [(1, number) for number in range(5, 41)] and points_of(narrow) == []
    ids = [int(frame.id) for frame in [past, *seen, *begun, *last] if frame.id]
    assert max(ids) == ids[-1]
    for wrong in ("until=1h", "firstStep=1", "lastStep=2"):
        headers = {"Accept": "text/event-stream"}
        assert (await served.call("GET", f"{ROUTE}?{wrong}", headers=headers)).status_code == 422


@pytest.mark.usefixtures("at_once")
async def test_a_follower_of_a_job_that_goes_on_later_misses_nothing(served, follow):
    job = await served.status(await served.job("one"), phase="Running", attempt=1)
    first = await served.pod(job)
    stream = follow(served, ROUTE)
    assert points_of(await take(stream, 1)) == []
    await report(served, job, first, {"at": 1.0, "step": 1, "metrics": {"loss": 1.0}})
    seen = await take(stream, 1)
    job = await served.status(job, phase="Suspended")
    await served.services.curves.write_all()
    job = await served.status(job, phase="Running", attempt=2)
    second = await served.pod(job, attempt=2)
    for step in (1, 2):
        newest = {"at": 1.0 + step, "step": step, "metrics": {"loss": 1.0}}
        await report(served, job, second, newest, attempt=2)
    while len(points_of(seen)) < 3:
        seen += await take(stream, 1)
    assert points_of(seen) == [(1, 1), (2, 1), (2, 2)]
    await stream.aclose()
