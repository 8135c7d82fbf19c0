"""Curves on disk: their shape whatever their length, their limits, what a killed process leaves, what is forgotten."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.store.clock import ManualClock
from stoker_api.curves import thinning
from stoker_api.curves.file import MOST_METRICS, CurveFile, Sample
from stoker_api.curves.history import Range, curves, job
from stoker_api.curves.store import CurvesFull, CurveStore
from stoker_api.curves.thinning import MOST_POINTS, Point, Tail, added, halved, is_full, thinned
from stoker_api.kept_file import FileUnavailable
from stoker_api.usage.db import JobFacts
from tests.support.examples import examples

JOB = JobFacts("uid-1", "alpha", "one", "default", "alice", 0.0)
ROOM = 40
"""A small limit: the rules are the same."""


def kept(points: list[Point], most: int = ROOM) -> tuple[list[Point], int]:
    """What stays of the points; how many were looked at while it was thinned."""
    settled: list[Point] = []
    tail, looked = Tail(), 0
    for point in points:
        done, tail = added(tail, point)
        settled += done
        if is_full(len(settled), most):
            looked += len(settled)
            settled, bucket = halved(settled, tail.bucket)
            tail = tail._replace(bucket=bucket)
        assert len(settled) + len(tail.open) <= most
    return [*settled, *tail.open], looked


@st.composite
def lines(draw: st.DrawFn) -> list[Point]:
    """Points in the order in which they came; steps go on and back, attempts only on."""
    values = draw(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=400))
    steps = draw(st.lists(st.integers(0, 2**53), min_size=len(values), max_size=len(values)))
    ends = sorted(draw(st.lists(st.integers(0, len(values)), max_size=3)))
    return [
        Point(1 + sum(end <= place for end in ends), step, float(place), value)
        for place, (step, value) in enumerate(zip(steps, values, strict=True))
    ]


@examples(300)
@given(lines())
def test_first_newest_lowest_and_highest_stay_and_nothing_is_made_up(points: list[Point]) -> None:
    found, _ = kept(points)
    places = [points.index(point) for point in found]
    assert places == sorted(set(places)), "real points, in their order, each once"
    assert found[0] == points[0] and found[-1] == points[-1]
    values = [point.value for point in points]
    assert {min(values), max(values)} <= {point.value for point in found}
    if len(points) <= ROOM - 2 * thinning.OPEN_POINTS:
        assert found == points


@examples(100)
@given(lines(), st.integers(2, 50))
def test_fewer_points_for_a_question_are_points_of_the_curve(points: list[Point], most: int) -> None:
    found = thinned(points, most)
    assert len(found) <= max(most, 2) and found[-1] == points[-1] and found[0] == points[0]
    places = [points.index(point) for point in found]
    assert places == sorted(set(places))


def test_a_long_curve_keeps_its_shape_everywhere_and_costs_the_same_per_point() -> None:
    count = 300_000
    points = [Point(1, n, float(n), math.sin(n / 3000) + (5.0 if n == 77_777 else 0.0)) for n in range(count)]
    found, looked = kept(points, MOST_POINTS)
    assert MOST_POINTS / 3 < len(found) <= MOST_POINTS
    assert max(found, key=lambda point: point.value).step == 77_777, "a single peak is not smoothed away"
    gaps = [after.step - before.step for before, after in pairwise(found)]
    assert max(gaps) < 3 * 2 * count / len(found), "as dense at its beginning as at its end"
    for before, after in pairwise(found):
        middle = (before.step + after.step) // 2
        if 77_000 < middle < 78_500:
            continue
        share = (middle - before.step) / max(1, after.step - before.step)
        straight = before.value + share * (after.value - before.value)
        assert abs(straight - math.sin(middle / 3000)) < 0.15, f"at {middle}"
    assert looked < 40 * MOST_POINTS, "each halving doubles the buckets: a logarithm of them"


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines(), st.integers(1, 60))
def test_the_file_holds_what_the_rule_says_whatever_the_batches_and_restarts(
    tmp_path: Path, points: list[Point], batch: int
) -> None:
    path = tmp_path / "curves.db"
    path.unlink(missing_ok=True)
    samples = [Sample(point.attempt, point.step, point.at, {"loss": point.value}) for point in points]
    for begin in range(0, len(samples), batch):
        file = CurveFile(path)  # a restart between any two batches
        file.add([(JOB, samples[begin : begin + batch])])
        file.close()
    file = CurveFile(path)
    try:
        found = [point for curve in curves(file._run, JOB.uid, Range()) for point in curve.points]
        assert found == kept(points, MOST_POINTS)[0]
    finally:
        file.close()


def test_a_long_training_is_kept_in_two_thousand_points_and_rolled_back_steps_under_their_attempt(tmp_path) -> None:
    file = CurveFile(tmp_path / "curves.db")
    for begin in range(0, 30_000, 500):
        attempt = 1 if begin < 20_000 else 2
        steps = [step if attempt == 1 else step - 5_000 for step in range(begin, begin + 500)]
        file.add(
            [
                (
                    JOB,
                    [
                        Sample(attempt, step, 1000.0 + begin + n, {"loss": 1.0 / (1 + step)})
                        for n, step in enumerate(steps)
                    ],
                )
            ]
        )
    first, second = curves(file._run, JOB.uid, Range())
    assert {point.attempt for point in first.points} == {1} and {point.attempt for point in second.points} == {2}
    assert first.points[0].step == 0 and second.points[-1].step == 24_999
    assert second.points[0].step < first.points[-1].step, "steps that were rolled back are there twice"
    assert len(first.points) + len(second.points) <= MOST_POINTS
    part = list(curves(file._run, JOB.uid, Range(attempt=2, first_step=16_000, last_step=17_000, points=20)))
    assert len(part) == 1 and len(part[0].points) <= 20
    assert all(16_000 <= point.step <= 17_000 for point in part[0].points)
    late = list(curves(file._run, JOB.uid, Range(since=30_900.0)))
    assert late and all(point.at >= 30_900.0 for curve in late for point in curve.points)
    file.close()


def test_a_job_keeps_its_first_metrics_and_says_that_there_were_more(tmp_path) -> None:
    file = CurveFile(tmp_path / "curves.db")
    names = [f"m{n:03}" for n in range(MOST_METRICS + 5)]
    file.add([(JOB, [Sample(1, 1, 1.0, dict.fromkeys(names[:40], 1.0)), Sample(1, 2, 2.0, dict.fromkeys(names, 2.0))])])
    assert [curve.metric for curve in curves(file._run, JOB.uid, Range())] == names[:MOST_METRICS]
    known = job(file._run, "alpha", "one", None)
    assert known is not None and known.left_out and known.facts == JOB
    assert job(file._run, "alpha", "one", "another") is None and job(file._run, "beta", "one", None) is None
    file.close()


def test_what_was_added_survives_kill_9(tmp_path) -> None:
    program = f"""
import sys
from pathlib import Path
from stoker_api.curves.file import CurveFile, Sample
from stoker_api.usage.db import JobFacts
file = CurveFile(Path({str(tmp_path / "curves.db")!r}))
for n in range(1_000_000):
    file.add([(JobFacts(*{tuple(JOB)!r}), [Sample(1, n, float(n), {{"loss": float(n)}})])])
    print(n, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    newest = -1
    until = time.monotonic() + 30
    for line in child.stdout:
        newest = int(line)
        if newest >= 2500 or time.monotonic() > until:
            break
    os.kill(child.pid, signal.SIGKILL)
    newest = max([newest, *(int(line) for line in child.stdout.read().splitlines())])
    child.stdout.close()
    child.wait()
    file = CurveFile(tmp_path / "curves.db")
    (curve,) = curves(file._run, JOB.uid, Range())
    assert curve.points[-1].step >= newest > 2000 and curve.points[0].step == 0
    file.close()


def of(number: int, project: str = "alpha") -> JobFacts:
    return JobFacts(f"uid-{number}", project, f"job-{number}", "default", "alice", float(number))


def many(number: int, count: int = 200) -> tuple[JobFacts, list[Sample]]:
    return of(number), [Sample(1, n, number * 1000.0 + n, {"a": n / 7, "b": -n / 7}) for n in range(count)]


def never(uid: str) -> bool:
    return False


async def uids(store: CurveStore) -> list[str]:
    return await store.read(lambda reader: [uid for (uid,) in reader.execute("SELECT uid FROM jobs ORDER BY created")])


async def test_ended_jobs_make_room_the_oldest_first(tmp_path) -> None:
    with CurveStore(tmp_path / "curves.db", ManualClock(), most_bytes=200_000) as store:
        living = {"uid-0", "uid-30"}
        for number in range(31):
            await store.add([many(number)], living.__contains__)
        left = await uids(store)
        assert left[0] == "uid-0", "it has not ended"
        assert left[1:] == [f"uid-{n}" for n in range(31 - len(left) + 1, 31)], "the newest of the others"
        assert 5 < len(left) < 31 and await store.held_bytes() < 230_000


async def test_where_nothing_can_make_room_nothing_more_is_added(tmp_path) -> None:
    with CurveStore(tmp_path / "curves.db", ManualClock(), most_bytes=60_000) as store:
        living = {f"uid-{n}" for n in range(30)}
        for number in range(8):
            if await store.held_bytes() <= store.most_bytes:
                await store.add([many(number)], living.__contains__)
        held = await store.held_bytes()
        with pytest.raises(CurvesFull, match="60000"):
            await store.add([many(29)], living.__contains__)
        assert await store.held_bytes() == held
        await store.add([many(29)], {"uid-29"}.__contains__)
        left = await uids(store)
        assert "uid-29" in left and "uid-0" not in left, "the others have ended by now"


async def test_curves_of_ended_jobs_are_forgotten_after_a_while(tmp_path) -> None:
    clock = ManualClock()
    now_s = clock.now().timestamp()
    with CurveStore(tmp_path / "curves.db", clock, keep_s=90 * 86400.0) as store:
        for number, days in enumerate((91, 91, 89)):
            await store.add([(of(number), [Sample(1, 1, now_s - days * 86400.0, {"loss": 1.0})])], never)
        assert await store.forget_old({"uid-1"}.__contains__) == 1
        assert await uids(store) == ["uid-1", "uid-2"]
        assert await store.read(lambda reader: reader.execute("SELECT count(*) FROM points").fetchone()) == (2,)


async def test_a_full_disk_is_reported_and_what_was_there_stays(tmp_path) -> None:
    with CurveStore(tmp_path / "curves.db", ManualClock()) as store:
        await store.add([many(1)], never)
        await store.write(lambda file: file._run.execute("PRAGMA max_page_count = 1").fetchone())
        with pytest.raises(FileUnavailable, match="full"):
            await store.add([many(2, 2000)], never)
        assert await store.read(lambda reader: reader.execute("SELECT uid FROM jobs").fetchall()) == [("uid-1",)]
