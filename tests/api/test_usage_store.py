"""The usage file: sums that no repetition, order or restart changes; durability; damage; what is kept."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.spec.usage import GpuReceipt
from stoker.store.clock import ManualClock
from stoker_api.kept_file import FileUnavailable, NewerFile
from stoker_api.usage import db, history
from stoker_api.usage.amounts import Amounts, hours, impossible
from stoker_api.usage.db import APPLICATION_ID, MIGRATIONS, JobFacts, UsageFile
from stoker_api.usage.history import By, UsageFilter
from stoker_api.usage.prices import Prices
from stoker_api.usage.store import UsageStore
from tests.support.examples import examples

from .receipts import receipt

JOB = JobFacts("uid-1", "alpha", "one", "default", "alice", 0.0)
NOW_S = 100_000.0


def summed(file: UsageFile) -> dict[str, float]:
    names = ", ".join(f"total({name})" for name in Amounts._fields)
    row = file._run.execute(f"SELECT {names} FROM hours").fetchone()
    return {name: round(value, 6) for name, value in zip(Amounts._fields, row, strict=True)}


def of_newest(receipts: list[GpuReceipt]) -> dict[str, float]:
    newest: dict[Any, GpuReceipt] = {}
    for one in receipts:
        key = (one.attempt, one.worker, one.uuid, one.ledger)
        if key not in newest or newest[key].seq < one.seq:
            newest[key] = one
    whole = Amounts()
    for one in newest.values():
        whole = whole.plus(Amounts.of(one))
    return {name: round(value, 6) for name, value in whole._asdict().items()}


@st.composite
def streams(draw: Any) -> list[GpuReceipt]:
    """Some GPUs' receipts, each key's growing with its seq; some numbers become known late."""
    found = []
    for uuid in ("GPU-0", "GPU-1"):
        for ledger in draw(st.lists(st.sampled_from(["l1", "l2"]), unique=True, min_size=1)):
            allocated_s, begin_at = 0.0, draw(st.integers(0, 9000))
            known_from = draw(st.integers(0, 5))
            for seq in range(1, draw(st.integers(1, 5)) + 1):
                allocated_s += draw(st.integers(0, 5000))
                sm = {} if seq >= known_from else {"sm_active_s": None, "energy_j": None}
                found.append(
                    receipt(seq, uuid=uuid, ledger=ledger, begin_at=float(begin_at), allocated_s=allocated_s, **sm)
                )
    return found


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_whatever_order_repetition_and_restart_the_sums_are_the_newest_receipts(
    tmp_path: Path, receipts: list[GpuReceipt], rng: random.Random, batch: int
) -> None:
    path = tmp_path / "usage.db"
    path.unlink(missing_ok=True)
    sent = receipts + rng.choices(receipts, k=len(receipts))
    rng.shuffle(sent)
    for begin in range(0, len(sent), batch):
        file = UsageFile(path)  # a restart between any two batches
        file.take([JOB], sent[begin : begin + batch], NOW_S)
        file.close()
    file = UsageFile(path)
    try:
        assert summed(file) == of_newest(receipts)
        lowest = file._run.execute(f"SELECT {', '.join(f'min({name})' for name in Amounts._fields)} FROM hours")
        assert all(value > -1e-6 for value in lowest.fetchone()), "an hour never has less than nothing"
    finally:
        file.close()


@pytest.mark.parametrize(
    ("begin", "end", "shares"),
    [
        (7200, 7800, {7200: 1.0}),
        (7200, 10800, {7200: 1.0}),
        (9000, 12600, {7200: 0.5, 10800: 0.5}),
        (10000, 18000, {7200: 0.1, 10800: 0.45, 14400: 0.45}),
        (8000, 8000, {7200: 1.0}),
        (12000, 8000, {7200: 1.0}),
    ],
    ids=["in one", "to its end", "two halves", "three", "no time", "the clock was set back"],
)
def test_a_span_is_split_over_the_hours_it_touches(begin, end, shares):
    assert {hour: round(share, 9) for hour, share in hours(begin, end)} == shares


def test_deltas_fall_in_the_hours_in_which_they_came(tmp_path):
    file = UsageFile(tmp_path / "usage.db")
    first = receipt(1, begin_at=9000.0, allocated_s=1800.0)  # to the hour's end
    file.take([JOB], [first], NOW_S)
    file.take([JOB], [receipt(2, begin_at=9000.0, allocated_s=3600.0, sm_active_s=1000.0)], NOW_S)
    found = file._run.execute("SELECT hour, allocated_s, sm_active_s FROM hours ORDER BY hour").fetchall()
    assert found == [(7200, 1800.0, 900.0), (10800, 1800.0, 100.0)]
    file.close()


def test_what_is_refused_says_why(tmp_path):
    file = UsageFile(tmp_path / "usage.db")
    assert file.take([], [receipt()], NOW_S).refused == [(0, "there is no such job, and nothing is known of one")]
    assert file.take([JOB], [receipt(3)], NOW_S).new == [0]
    taken = file.take([], [receipt(4), receipt(5, allocated_s=1.0), receipt(4), receipt(1)], NOW_S)
    assert taken.new == [0] and taken.stale == [2, 3]
    assert taken.refused == [(1, "allocatedS went back; a new ledger needs a new id")]
    young = JOB._replace(uid="uid-2", created_at=NOW_S - 60)
    old = receipt(1, job_uid="uid-2", begin_at=0.0, allocated_s=90_000.0)
    assert file.take([young], [old], NOW_S).refused == [(0, "allocatedS is more than the time since the job was made")]
    file.close()


def test_a_workers_books_are_its_nodes_also_when_the_job_is_gone(tmp_path):
    file = UsageFile(tmp_path / "usage.db")
    assert file.take([JOB], [receipt(1)], NOW_S).new == [0]
    why = "another node has reported for this worker of this attempt"
    for raised in (receipt(2, node="node-b"), receipt(1, node="node-b", ledger="l2", uuid="GPU-9")):
        assert file.take([], [raised], NOW_S).refused == [(0, why)]
    assert file.take([], [receipt(1, node="node-b", attempt=2), receipt(2)], NOW_S).new == [0, 1]
    file.close()


def test_a_node_that_makes_up_gpus_and_ledgers_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(db, "MOST_KEYS", 3)
    file = UsageFile(tmp_path / "usage.db")
    made_up = [receipt(1, uuid=f"GPU-{number}") for number in range(5)]
    taken = file.take([JOB], made_up, NOW_S)
    assert (taken.new, [index for index, _ in taken.refused]) == ([0, 1, 2], [3, 4])
    later = file.take([], [receipt(2, uuid="GPU-0"), receipt(1, uuid="GPU-0", worker=1), *made_up[3:]], NOW_S)
    assert (later.new, [index for index, _ in later.refused]) == ([0, 1], [2, 3]), "what is known goes on"
    file.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"begin_at": NOW_S + 3600, "at": NOW_S + 3660.0}, "check the node's clock"),
        ({"begin_at": 9000.0, "at": 8000.0}, "begins after it ends"),
        ({"busy_s": 90.0}, "busyS is more"),
        ({"sm_active_s": 90.0}, "smActiveS is more"),
        ({"unobserved_s": 90.0}, "unobservedS is more"),
        ({"idle_s": {"no_process": 40.0, "no_activity": 40.0}}, "idleS is more"),
        ({"allocated_s": 1e9, "at": 9000.0}, "allocatedS is more than the time"),
        ({"energy_j": 1e9}, "energyJ is more than a GPU can use"),
        ({"unobserved_energy_j": 1e9}, "energyJ is more than a GPU can use"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_can_not_be_true(more, why):
    found = impossible(receipt(1, **more), NOW_S)
    assert why in found and bool(found) == bool(why)


async def test_what_is_old_is_forgotten_and_only_that(tmp_path):
    clock = ManualClock(datetime(2026, 6, 1, tzinfo=UTC))
    begin_s, day_s = clock.now().timestamp(), 86400.0
    with UsageStore(tmp_path / "usage.db", clock, keep_s=10 * day_s) as store:
        other = JOB._replace(uid="uid-2", name="two")
        await store.take([other], [receipt(1, job_uid="uid-2", begin_at=begin_s, allocated_s=60.0)])
        clock.advance(20 * day_s)
        goes_on = receipt(1, begin_at=begin_s, allocated_s=20 * day_s)
        await store.take([JOB], [goes_on])
        assert await store.forget_old() > 0
        assert await store.receipts("uid-1") == [goes_on] and await store.receipts("uid-2") == []
        assert await store.job("alpha", "two") is None
        query = "SELECT min(hour), sum(allocated_s) FROM hours"
        left = await store.read(lambda reader: reader.execute(query).fetchone())
        assert left[0] == begin_s + 10 * day_s and left[1] == pytest.approx(10 * day_s)
        assert await store.forget_old() == 0


async def test_a_job_is_known_by_name_and_uid_after_it_is_gone(tmp_path):
    with UsageStore(tmp_path / "usage.db", ManualClock()) as store:
        await store.register([JOB, JOB._replace(uid="uid-9", created_at=5.0)])
        await store.register([JOB._replace(queue="other")])
        assert (await store.job("alpha", "one")) == JOB._replace(uid="uid-9", created_at=5.0), "the newest of the name"
        assert await store.known(["uid-1", "nobody"]) == {"uid-1"}
        assert (await store.take([], [receipt()])).new == [0]


KILLED = """
import asyncio, sys
from pathlib import Path
from stoker.store.clock import SystemClock
from stoker.spec.usage import GpuReceipt
from stoker_api.usage.store import JobFacts, UsageStore

async def main():
    with UsageStore(Path(sys.argv[1]), SystemClock()) as store:
        job = JobFacts("uid-1", "alpha", "one", "default", "alice", 0.0)
        for line in sys.stdin:
            await store.take([job], [GpuReceipt.model_validate_json(line)])
            print("taken", flush=True)

asyncio.run(main())
"""


def test_what_was_taken_survives_kill_9(tmp_path):
    path = tmp_path / "usage.db"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    with child.stdin, child.stdout:
        for seq in range(1, 6):
            child.stdin.write(receipt(seq).model_dump_json(by_alias=True, exclude_none=True) + "\n")
            child.stdin.flush()
            assert child.stdout.readline() == "taken\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(20)
    file = UsageFile(path)
    assert summed(file)["allocated_s"] == 300.0 and [one.seq for one in file.receipts("uid-1")] == [5]
    file.close()


async def test_a_damaged_file_is_kept_aside_at_the_start(tmp_path, caplog):
    path = tmp_path / "usage.db"
    path.write_bytes(b"no database at all" * 100)
    with UsageStore(path, ManualClock()) as store:
        assert (await store.take([JOB], [receipt()])).new == [0] and store.damaged == 1
    (aside,) = tmp_path.glob("usage.db.damaged-*")
    assert aside.read_bytes().startswith(b"no database") and "a new one begun" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_is_damaged_later_is_replaced_when_that_is_met(tmp_path, caplog):
    path = tmp_path / "usage.db"
    with UsageStore(path, ManualClock()) as store:
        await store.take([JOB], [receipt()])
        store._file._run.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store._file.close()  # its cache goes with it
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        store._file = _reopened(path)
        assert (await store.take([JOB], [receipt(2)])).new == [0]
        assert store.damaged == 1 and "damaged" in caplog.text
        read = await store.read(lambda reader: reader.execute("SELECT sum(allocated_s) FROM hours").fetchone())
        assert read == (120.0,), "cumulative: the next receipt brings all of it"


def _reopened(path: Path) -> UsageFile:
    file = UsageFile.__new__(UsageFile)
    file._run = sqlite3.connect(path, check_same_thread=False)
    return file


def test_a_newer_file_is_left_alone(tmp_path):
    path = tmp_path / "usage.db"
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA user_version = {len(MIGRATIONS) + 1}; PRAGMA application_id = {APPLICATION_ID};")
    connection.close()
    with pytest.raises(NewerFile, match="upgrade Stoker"):
        UsageStore(path, ManualClock())
    assert list(tmp_path.iterdir()) == [path]


async def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path):
    with UsageStore(tmp_path / "usage.db", ManualClock()) as store:
        await store.take([JOB], [receipt()])
        (pages,) = store._file._run.execute("PRAGMA page_count").fetchone()
        store._file._run.execute(f"PRAGMA max_page_count = {pages}")
        many = [receipt(1, uuid=f"GPU-{number}") for number in range(500)]
        with pytest.raises(FileUnavailable, match="full"):
            await store.take([JOB], many)
        store._file._run.execute("PRAGMA max_page_count = 100000")
        assert len(await store.receipts("uid-1")) == 1, "whole or not at all"
        assert len((await store.take([JOB], many)).new) == 499


async def test_one_that_goes_away_leaves_no_half(tmp_path):
    with UsageStore(tmp_path / "usage.db", ManualClock()) as store:
        task = asyncio.create_task(store.take([JOB], [receipt()]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await store.receipts("uid-1")) == 1


def test_the_default_is_more_than_a_year():
    from stoker_api.usage.store import KEEP_S

    assert timedelta(seconds=KEEP_S) == timedelta(days=400)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), min_size=1, max_size=8), st.data())
def test_days_and_hours_sum_to_the_same(tmp_path: Path, spans: list[tuple[int, int]], data: Any) -> None:
    path = tmp_path / "usage.db"
    path.unlink(missing_ok=True)
    file = UsageFile(path)
    try:
        for number, (begin_h, length_h) in enumerate(spans):
            one = receipt(1, uuid=f"GPU-{number}", begin_at=begin_h * 3600.0, allocated_s=length_h * 3600.0)
            file.take([JOB], [one], 1e9)
        since_h = data.draw(st.integers(0, 160))
        until_h = data.draw(st.integers(since_h + 1, 162))
        since, until = (datetime.fromtimestamp(hour * 3600, UTC) for hour in (since_h, until_h))
        _, totals, _ = history.sums(file._run, UsageFilter(since, until, None), [By.PROJECT], Prices(), 10)
        expected = sum(max(0, min(until_h, at + length) - max(since_h, at)) for at, length in spans)
        assert sum(total.amounts.allocated_s for total in totals) == pytest.approx(expected * 3600.0)
    finally:
        file.close()


async def test_a_question_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker_api.kept_file.READ_S", 0.0)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    with UsageStore(tmp_path / "usage.db", ManualClock()) as store:
        with pytest.raises(FileUnavailable, match="ask for less at once"):
            await store.read(lambda reader: reader.execute(endless).fetchone())
        monkeypatch.setattr("stoker_api.kept_file.READ_S", 20.0)
        assert await store.read(lambda reader: reader.execute("SELECT 1").fetchone()) == (1,)
