"""Live progress: what the board takes, shows and writes, and what a worker may report."""

from __future__ import annotations

import asyncio
import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.job import JOBS, AttemptEnd, Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.worker import Checkpoint, Held, Progress, Stalled
from stoker.store.cache import Change
from stoker_api.jobs.progress import ProgressBoard, replacing
from tests.support.examples import examples

SPEC = TrainingJobSpec(trainer=Trainer(command=("x",)))


def running(attempt: int = 1, phase: Phase = Phase.RUNNING, **status: Any) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="one", namespace="alpha", uid="uid-1"),
        spec=SPEC,
        status=TrainingJobStatus(phase=phase, attempt=attempt, **status),
    )


def at(time: float, step: int = 0, checkpoint: int | None = None) -> Progress:
    return Progress(at=time, step=step, checkpoint=None if checkpoint is None else Checkpoint(step=checkpoint))


def test_the_newest_report_is_shown():
    board, job = ProgressBoard(), running()
    assert board.newest(job) is None
    assert board.report(job, 1, at(10, 5), now_s=0)
    assert not board.report(job, 1, at(9, 4), now_s=1), "out of order"
    assert not board.report(job, 1, at(10, 5), now_s=1), "twice"
    assert not board.report(running(attempt=2), 1, at(20, 9), now_s=2), "of an attempt that is over"
    assert board.newest(job) == at(10, 5)


def test_without_reports_the_store_is_believed():
    end = AttemptEnd(number=1, ended_at="2026-01-01T00:00:00Z", progress=at(30, 3))  # type: ignore[arg-type]
    assert ProgressBoard().newest(running(progress=at(20, 2), attempts=(end,))) == at(30, 3)
    assert ProgressBoard().newest(running(progress=at(40, 4), attempts=(end,))) == at(40, 4)


def test_writes_are_one_a_minute_and_one_per_checkpoint():
    board, job = ProgressBoard(), running()
    written = []
    for second in range(181):
        board.report(job, 1, at(second + 1, second, checkpoint=100 if second >= 90 else None), now_s=second)
        for write in board.take_due(second):
            written.append((second, write.progress.step))
            board.written(write, second)
    assert written == [(0, 0), (60, 60), (90, 90), (150, 150)]


def test_the_end_of_an_attempt_is_written_once_and_forgotten():
    board, job = ProgressBoard(), running()
    board.report(job, 1, at(1, 1), 0.0)
    (first,) = board.take_due(0.0)
    board.written(first, 0.0)
    board.report(job, 1, at(2, 2), 1.0)
    over = running(phase=Phase.SUCCEEDED)
    assert board.observe(Change(job, over), 2.0)
    (last,) = board.take_due(2.0)
    assert last.progress.step == 2
    board.written(last, 2.0)
    assert len(board) == 0 and board.take_due(1000.0) == []


def held(since: float, worker: int = 0) -> Held:
    return Held(worker=worker, since=since, until=since + 600, exit_code=1)


def test_a_hold_is_written_at_once_and_so_is_its_end():
    board, job = ProgressBoard(), running()
    written = []
    for second in range(40):
        hold = held(30) if second >= 30 else None
        board.report(job, 1, at(second + 1).model_copy(update={"held": hold}), now_s=second)
        for write in board.take_due(second):
            written.append((second, write.progress.held))
            board.written(write, second)
    assert written == [(0, None), (30, held(30))]
    job = running(progress=board.newest(job))
    assert job.status.held == held(30)
    over = running(phase=Phase.FAILED, progress=job.status.progress)
    assert board.observe(Change(job, over), 41)
    assert board.newest(over).held is None, "shown no more, whatever is stored"
    (last,) = board.take_due(41)
    assert last.progress == at(40)
    board.written(last, 41)
    assert not board.report(over, 1, at(30).model_copy(update={"held": held(30)}), now_s=42), "a late report"
    assert len(board) == 0


def test_a_stall_is_written_at_once_and_ends_with_its_attempt():
    board, job = ProgressBoard(), running()
    board.report(job, 1, at(1, 5), 0.0)
    board.written(board.take_due(0.0)[0], 0.0)
    stalled = Stalled(attempt=1, since=1, until=20, step=5)
    board.report(job, 1, at(3, 5).model_copy(update={"stalled": stalled}), 5.0)
    (write,) = board.take_due(5.0)
    assert write.progress.stalled == stalled, "though a minute is not over"
    board.written(write, 5.0)
    over = running(phase=Phase.QUEUED, progress=write.progress)
    assert board.observe(Change(job, over), 6.0)
    assert board.newest(over).stalled is None
    (last,) = board.take_due(6.0)
    assert last.progress == at(3, 5)
    fresh = ProgressBoard()
    assert fresh.observe(Change(None, over), 0.0), "an api process before this one wrote that it was stalled"
    assert fresh.take_due(2.0)[0].progress == at(3, 5)


def test_a_hold_that_an_api_process_before_this_one_wrote_is_cleared():
    board = ProgressBoard()
    stored = at(5).model_copy(update={"held": held(4)})
    assert not board.observe(Change(None, running(progress=stored)), 0.0), "it lasts"
    over = running(phase=Phase.QUEUED, progress=stored)
    assert board.observe(Change(None, over), 1.0)
    (write,) = board.take_due(2.0)
    assert write.progress == at(5)
    board.written(write, 2.0)
    assert len(board) == 0
    assert not board.observe(Change(over, running(phase=Phase.QUEUED, progress=at(5))), 3.0)


def test_of_a_gang_the_first_to_fail_is_shown():
    board, job = ProgressBoard(), running()
    board.report(job, 1, at(100, 7), 0.0)

    def heard(worker: int, time: float, since: float | None, step: int = 7) -> bool:
        hold = None if since is None else held(since)
        return board.report(job, 1, at(time, step).model_copy(update={"held": hold}), 1.0, worker)

    assert not heard(1, 101, None), "worker 0 speaks for its gang"
    assert heard(2, 90, 90), "but its own hold each reports itself, whatever its node's clock says"
    assert (board.newest(job).held, board.newest(job).step) == (held(90, 2), 7)
    assert not heard(2, 91, 90), "twice"
    assert not heard(1, 101, 95), "another that failed later"
    assert board.newest(job).held == held(90, 2)
    assert heard(0, 102, None, 8), "the others may go on"
    assert (board.newest(job).held, board.newest(job).step) == (held(90, 2), 8)
    assert heard(0, 103, 80) and board.newest(job).held == held(80, 0)
    again = ProgressBoard()
    stored = running(progress=board.newest(job))
    assert again.report(stored, 1, at(104, 9), 5.0), "another api process"
    assert again.newest(stored).held is None and again.newest(stored).step == 9, "worker 0 is not held any more"
    assert board.report(running(attempt=2), 2, at(200, 1), 6.0)
    assert board.newest(running(attempt=2)) == at(200, 1), "nothing of an earlier attempt's hold"


def test_a_hold_before_any_progress():
    board, job = ProgressBoard(), running()
    assert board.report(job, 1, Progress(at=9, held=held(8)), 0.0, worker=3)
    assert board.newest(job) == Progress(at=9, held=held(8, 3))


def test_a_failed_write_is_tried_again():
    board, job = ProgressBoard(), running()
    board.report(job, 1, at(1, 1), 0.0)
    (write,) = board.take_due(0.0)
    board.retry(write, 0.0)
    assert board.take_due(1.0) == [] and board.take_due(10.0) == [write]


@examples(100)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("report"),
                st.integers(1, 3),
                st.integers(0, 40),
                st.none() | st.integers(0, 3),
                st.integers(0, 1),
                st.booleans(),
            ),
            st.tuples(st.just("attempt"), st.integers(1, 3)),
            st.tuples(st.just("end")),
            st.tuples(st.just("delete")),
        ),
        max_size=40,
    )
)
def test_whatever_happens_the_board_empties_and_paces_itself(steps):
    board, job = ProgressBoard(), running()
    writes: list[tuple[float, int | None]] = []
    now = 0.0
    for kind, *args in steps:
        now += 1.0
        if kind == "report":
            attempt, time, checkpoint, worker, holds = args
            reported = at(time, time, checkpoint).model_copy(update={"held": held(time) if holds else None})
            board.report(job, attempt, reported, now, worker)
        else:
            status: dict[str, Any] = {"phase": Phase.SUCCEEDED} if kind != "attempt" else {
                "phase": Phase.RUNNING, "attempt": max(job.status.attempt, args[0])
            }  # fmt: skip
            old, job = job, job.model_copy(update={"status": job.status.model_copy(update=status)})
            board.observe(Change(old, None if kind == "delete" else job), now)
        for write in board.take_due(now):
            writes.append((now, None))
            board.written(write, now)
    ended = job.model_copy(update={"status": job.status.model_copy(update={"phase": Phase.FAILED})})
    board.observe(Change(job, ended), now)
    assert (shown := board.newest(ended)) is None or shown.held is None
    for _ in range(3):
        for write in board.take_due(now + 2):
            assert write.progress.held is None
            board.written(write, now + 2)
    assert len(board) == 0
    assert len(writes) <= len(steps)


PLAIN = st.recursive(
    st.integers() | st.text("xy", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3)


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_replaces_the_whole(old, new):
    def merge(target: Any, patch: Any) -> Any:  # RFC 7396 §2
        if not isinstance(patch, dict):
            return patch
        merged = dict(target) if isinstance(target, dict) else {}
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = merge(merged.get(name), value)
        return merged

    assert merge(old, replacing(old, new)) == new


async def report(world: Any, job: TrainingJob, pod: Any, newest: dict[str, Any], **change: Any) -> Any:
    said = {
        "podUid": pod.uid, "jobUid": job.uid, "project": "alpha", "jobName": job.metadata.name,
        "attempt": 1, "worker": 0, "progress": newest, **change,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {await world.worker_token(pod)}", "Content-Type": "application/json"}
    text = json.dumps(said).replace("Infinity", "1e999")  # JSON, unlike the word
    return await world.client.post("/v1/report/progress", headers=headers, content=text)


@pytest.mark.parametrize(
    "newest",
    [
        {"at": inf},
        {"at": 5.0, "step": 1, "totalSteps": 10**400},
        {"at": 5.0, "checkpoint": {"step": 1, "at": inf}},
        {"at": 5.0, "checkpoint": {"step": 2**63}},
        {"at": 5.0, "summary": {"x": [{"y": -inf}]}},
    ],
)
async def test_numbers_that_no_store_takes_are_refused(world, newest):
    """An elastic job grows by how far it is."""
    job = await world.status(await world.job("odd"), phase="Running", attempt=1)
    answer = await report(world, job, await world.pod(job), newest)
    assert answer.status_code == 422 and not len(world.services.board)
    assert (await world.call("GET", "/v1/projects/alpha/jobs/odd")).status_code == 200


async def test_a_report_is_seen_and_stored(world):
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    pod = await world.pod(job)
    answer = await report(world, job, pod, {"at": 5.0, "step": 7, "metrics": {"loss": 0.5, "bad": float("nan")}})
    assert answer.status_code == 204 and answer.content == b""
    shown = (await world.call("GET", "/v1/projects/alpha/jobs/one")).json()
    assert shown["status"]["progress"] == {"at": 5.0, "step": 7, "metrics": {"loss": 0.5}, "summary": {}}
    listed = (await world.call("GET", "/v1/projects/alpha/jobs")).json()["items"]
    assert listed == [(await world.call("GET", "/v1/projects/alpha/jobs/one")).json()]
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key).status.progress is not None, timeout_s=5)
    await report(world, job, pod, {"at": 6.0, "step": 8, "metrics": {"accuracy": 0.9}})
    tag = {"If-None-Match": (await world.call("GET", "/v1/projects/alpha/jobs/one")).headers["etag"]}
    assert (await world.call("GET", "/v1/projects/alpha/jobs/one", headers=tag)).status_code == 200, "live news"
    await world.status(job, phase="Succeeded")
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key).status.progress.step == 8, timeout_s=5)
    stored = (await world.store.get(JOBS, Key("alpha", "one"))).status.progress
    assert stored.metrics == {"accuracy": 0.9}, "replaced as a whole"
    async with asyncio.timeout(5):
        while len(world.services.board):
            await asyncio.sleep(0.01)


async def test_a_hold_is_seen_stored_and_cleared(world):
    job = await world.status(await world.job("one", workers=2), phase="Running", attempt=1)
    first, second = await world.pod(job), await world.pod(job, worker=1)
    hold = {"since": 5.0, "until": 605.0, "exitCode": 1, "message": "KeyError"}
    assert (await report(world, job, first, {"at": 4.0, "step": 7})).status_code == 204
    assert (await report(world, job, second, {"at": 5.0, "held": hold}, worker=1)).status_code == 204
    shown = (await world.call("GET", "/v1/projects/alpha/jobs/one")).json()["status"]["progress"]
    assert (shown["held"], shown["step"]) == ({**hold, "worker": 1}, 7)
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key).status.held is not None, timeout_s=5)
    why = (await world.call("GET", "/v1/projects/alpha/jobs/one/explain")).json()
    assert "worker 1 failed (exit 1) and is held until 00:10:05 UTC: KeyError" in why["summary"]
    assert why["hints"][0]["message"] == "`stoker exec one --worker 1` opens a shell in the worker"
    await world.status(job, phase="Failed")
    await world.deps.jobs.wait_for(lambda jobs: jobs.get(job.key).status.progress.held is None, timeout_s=5)
    assert (await world.store.get(JOBS, job.key)).status.progress.step == 7
    too_late = {"at": 9.0, "held": {**hold, "until": 1e300}}
    assert (await report(world, job, first, too_late)).status_code == 422, "a day that no calendar knows"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"podUid": "other"}, 403),
        ({"jobUid": "other"}, 403),
        ({"jobName": "two"}, 403),
        ({"project": "beta"}, 403),
        ({"attempt": 2}, 403),
        ({"worker": 1}, 403),
        ({"progress": {"step": 3}}, 422),
        ({"progress": {"at": "x" * 70_000}}, 413),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_worker_speaks_only_for_itself(world, change, status):
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    pod = await world.pod(job)
    answer = await report(world, job, pod, {"at": 5.0}, **change)
    assert answer.status_code == status, answer.text
    assert len(world.services.board) == 0


async def test_a_report_of_an_unknown_pod_is_not_found(world):
    job = await world.status(await world.job("one"), phase="Running", attempt=1)
    assert (await report(world, job, await world.strange_pod(), {"at": 5.0})).status_code == 404
