"""A job's usage in memory: totals, whether its receipts are all there, since when it is idle, what is due in status."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.job import AttemptEnd, Phase, Placed, TrainingJob, TrainingJobSpec, TrainingJobStatus, WorkerEnd
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.usage import GpuReceipt, JobUsage, UsageState
from stoker.store.cache import Change
from stoker_api.due_writes import WRITE_EVERY_S
from stoker_api.usage.board import UsageBoard
from stoker_api.usage.totals import FRESH, LATE
from tests.support.examples import examples

from .receipts import receipt

SPEC = TrainingJobSpec(trainer=Trainer(command=("x",)), workers=2, gpus_per_worker=1)
START = datetime(1970, 1, 1, 2, tzinfo=UTC)  # 7200 s: where `receipt` begins
BOTH = (Placed(worker=0, node="node-a"), Placed(worker=1, node="node-b"))


def job(phase: Phase = Phase.RUNNING, attempt: int = 1, **status: Any) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="one", namespace="alpha", uid="uid-1"),
        spec=SPEC,
        status=TrainingJobStatus(phase=phase, attempt=attempt, placement=BOTH, **status),
    )


def ended(*, started: bool = True, number: int = 1) -> AttemptEnd:
    return AttemptEnd(
        number=number,
        started_at=START if started else None,
        ended_at=START + timedelta(minutes=5),
        workers=tuple(WorkerEnd(worker=one.worker, node=one.node) for one in BOTH),
    )


def done(*attempts: AttemptEnd) -> TrainingJob:
    return job(Phase.SUCCEEDED, finished_at=START + timedelta(minutes=5), attempts=attempts)


@dataclass
class World:
    """A board, and the job as the api knows it."""

    job: TrainingJob | None = field(default_factory=job)
    board: UsageBoard = field(init=False)

    def __post_init__(self) -> None:
        self.board = UsageBoard(lambda uid: self.job if uid == "uid-1" else None)

    def becomes(self, new: TrainingJob | None, now_s: float = 0.0) -> bool:
        old = self.job
        if new is not None and old is not None:
            new = new.model_copy(update={"status": new.status.model_copy(update={"usage": old.status.usage})})
        self.job = new
        return self.board.observe(Change(old, new), now_s)

    def usage(self, after: timedelta) -> JobUsage:
        assert self.job is not None
        found = self.board.usage_of(self.job, START + after)
        assert found is not None
        return found

    def write(self, now_s: float, after: timedelta = timedelta()) -> list[JobUsage]:
        """Carry out what is due, as the writer does: then status holds it."""
        found = []
        for write in self.board.take_due(now_s, START + after):
            found.append(write.usage)
            if self.job is not None:
                status = self.job.status.model_copy(update={"usage": write.usage})
                self.job = self.job.model_copy(update={"status": status})
            self.board.written(write, now_s)
        return found


def second(seq: int = 1, **more: Any) -> GpuReceipt:
    return receipt(seq, worker=1, uuid="GPU-1", node="node-b", **more)


MINUTE = timedelta(minutes=1)


def test_totals_are_over_gpus_ledgers_and_attempts():
    world = World()
    assert world.board.usage_of(job(), START) is None
    world.board.take([receipt(2), receipt(1), second(3), receipt(1, ledger="l2"), receipt(1, attempt=0)], 0.0)
    usage = world.usage(MINUTE)
    assert (usage.state, usage.gpu_seconds, usage.sm_active_seconds) == (UsageState.RUNNING, 420.0, 210.0)
    assert usage.idle_seconds == {"no_activity": 105.0} and usage.energy_joules == 126_000
    assert usage.at == START + 3 * MINUTE and usage.memory_peak_bytes == 6 << 30


def test_what_no_gpu_reports_is_absent_and_not_zero():
    world = World()
    world.board.take([receipt(1, sm_active_s=None, energy_j=None, busy_s=None, memory_peak_bytes=None)], 0.0)
    usage = world.usage(MINUTE)
    known = (usage.sm_active_seconds, usage.energy_joules, usage.busy_seconds, usage.memory_peak_bytes)
    assert known == (None, None, None, None) and usage.gpu_seconds == 60.0


@pytest.mark.parametrize(
    ("receipts", "attempts", "after", "state"),
    [
        ([receipt(1, final=True), second(1, final=True)], [ended()], LATE, UsageState.FINAL),
        ([receipt(1, final=True), second(1)], [ended()], LATE, UsageState.RUNNING),
        ([receipt(1, final=True), second(1)], [ended()], LATE + 6 * MINUTE, UsageState.INCOMPLETE),
        ([receipt(1, final=True)], [ended()], LATE + 6 * MINUTE, UsageState.INCOMPLETE),
        ([receipt(1, final=True), second(1, final=True)], [ended(), ended(number=2)], 2 * LATE, UsageState.INCOMPLETE),
        (
            [receipt(1, final=True), second(1, final=True)],
            [ended(), ended(number=2, started=False)],
            LATE,
            UsageState.FINAL,
        ),
        (
            [receipt(1), receipt(1, ledger="l2", final=True), second(1, final=True)],
            [ended()],
            LATE,
            UsageState.FINAL,
        ),
    ],
    ids=[
        "all are there",
        "one is waited for",
        "one is late",
        "one never came",
        "nothing of the second attempt",
        "the second attempt never ran",
        "the exporter's ledger was lost, its successor saw the end",
    ],
)
def test_final_or_incomplete(receipts, attempts, after, state):
    world = World(done(*attempts))
    world.board.take(receipts, 0.0)
    assert world.usage(after).state is state


@pytest.mark.parametrize(
    ("receipts", "since"),
    [
        ([receipt(5, idle_since=7300.0), second(5, idle_since=7350.0)], 7350.0),
        ([receipt(5, idle_since=7300.0), second(5)], None),
        ([receipt(5, idle_since=7300.0)], None),
        ([receipt(5, idle_since=7300.0), second(5, idle_since=7350.0, final=True)], None),
        ([receipt(5, idle_since=7300.0), second(5, idle_since=7350.0, attempt=0)], None),
        ([receipt(5, idle_since=7300.0), second(0, idle_since=7200.0)], None),
        (
            [receipt(2, idle_since=7200.0), receipt(5, ledger="l2", idle_since=7400.0), second(5, idle_since=7300.0)],
            7400.0,
        ),
    ],
    ids=[
        "all",
        "one is not",
        "one is unknown",
        "one is given back",
        "another attempt",
        "one is old",
        "the newest ledger",
    ],
)
def test_idle_since(receipts, since):
    world = World()
    world.board.take(receipts, 0.0)
    at = START + 5 * MINUTE + FRESH - timedelta(seconds=1)
    expected = None if since is None else datetime.fromtimestamp(since, UTC)
    assert world.board.idle_since("uid-1", at) == expected == world.usage(at - START).idle_since
    assert world.board.idle_since("uid-1", at + MINUTE) is None, "too old to know"
    world.job = job(Phase.SUSPENDED)
    assert world.board.idle_since("uid-1", at) is None and world.board.idle_since("nobody", at) is None


def test_status_is_written_once_a_minute_and_at_the_end():
    world, written = World(), []
    for second_s in range(0, 181, 5):
        world.board.take([receipt(1 + second_s, allocated_s=float(second_s))], float(second_s))
        written += [(second_s, usage.gpu_seconds) for usage in world.write(float(second_s))]
    assert written == [(0, 0.0), (60, 60.0), (120, 120.0), (180, 180.0)]
    world.becomes(done(ended()), 185.0)
    world.board.take([receipt(500, allocated_s=183.0, final=True)], 186.0)
    assert world.write(186.0) == [], "one is still missing"
    world.board.take([second(1, final=True)], 187.0)
    (last,) = world.write(187.0, MINUTE)
    assert (last.state, last.gpu_seconds) == (UsageState.FINAL, 243.0)
    assert len(world.board) == 0 and world.board.next_due_s in (None, 240.0)


def test_what_stays_missing_is_reported_after_ten_minutes_and_may_still_come():
    world = World()
    world.board.take([receipt(1, final=True)], 0.0)
    world.write(0.0)
    world.becomes(done(ended()), 300.0)
    assert world.write(360.0, 6 * MINUTE) == [], "nothing new"
    late = 360.0 + LATE.total_seconds() + 1
    (said,) = world.write(late, timedelta(seconds=late))
    assert said.state is UsageState.INCOMPLETE and len(world.board) == 0
    both = [receipt(1, final=True), second(1, final=True)]  # as the intake loads the whole job from the file
    world.board.take(both, 5000.0)
    (said,) = world.write(5000.0, timedelta(seconds=5000))
    assert said.state is UsageState.FINAL and len(world.board) == 0


def test_jobs_that_are_gone_leave_nothing():
    world = World()
    world.board.take([receipt()], 0.0)
    assert world.becomes(None) and len(world.board) == 0
    world.board.take([receipt(2)], 1.0)
    assert len(world.board) == 0 and world.board.take_due(1e9, START) == []


def test_a_failed_write_is_tried_again():
    world = World()
    world.board.take([receipt()], 0.0)
    (write,) = world.board.take_due(0.0, START)
    world.board.retry(write, 0.0)
    assert world.board.take_due(1.0, START) == []
    assert [one.usage for one in world.board.take_due(10.0, START)] == [write.usage]


def test_an_api_with_an_older_file_does_not_take_back_what_status_holds():
    world = World()
    world.board.take([receipt(9), second(9)], 0.0)
    (newer,) = world.write(0.0)
    other = World(world.job)
    other.board.take([receipt(2)], 0.0)
    assert other.job is not None and other.board.usage_of(other.job, START) == newer and other.write(0.0) == []


STEPS = st.one_of(
    st.tuples(st.just("receipt"), st.integers(0, 1), st.integers(1, 30), st.booleans()),
    st.tuples(st.just("end")),
    st.tuples(st.just("retry")),
    st.tuples(st.just("delete")),
)


@examples(100)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_the_board_empties_and_paces_itself(steps):
    world, writes, now_s = World(), [], 0.0
    for kind, *args in steps:
        now_s += 1.0
        if kind == "receipt":
            worker, seq, final = args
            world.board.take([(receipt, second)[worker](seq, final=final)], now_s)
        elif kind == "delete":
            world.becomes(None, now_s)
        elif world.job is not None:
            world.becomes(done(ended()) if kind == "end" else job(), now_s)
        writes += [(now_s, usage) for usage in world.write(now_s, timedelta(seconds=now_s))]
    for (sooner_s, before), (later_s, after) in pairwise(writes):
        # What comes after a last word brings a job back that the board has forgotten, its pace too.
        if before.state is after.state is UsageState.RUNNING:
            assert later_s - sooner_s >= WRITE_EVERY_S
    if world.job is not None:
        world.becomes(job(), now_s)
        world.becomes(done(ended()), now_s)
    for _ in range(3):
        now_s += 2 * LATE.total_seconds()
        world.write(now_s, timedelta(seconds=now_s))
    assert len(world.board) == 0
