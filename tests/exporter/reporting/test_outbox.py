"""What waits: the newest of each key, within bounds."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.exporter.reporting.outbox import (
    KEEP_FINAL_S,
    MAX_BATCH_BYTES,
    MAX_EVENTS,
    MAX_RECEIPTS,
    Receipts,
    WaitingEvents,
    event_item,
)

from .recording_api import receipt


def seqs(box):
    return {(item.key[-1], item.seq) for item in box.items()}


def test_the_newest_of_a_key_waits():
    box = Receipts()
    assert not box.offer(receipt(2))
    box.offer(receipt(1))
    box.offer(receipt(3))
    box.offer(receipt(1, worker=1))
    assert seqs(box) == {("0", 3), ("1", 1)}


def test_only_a_final_one_that_is_news_must_not_wait():
    box = Receipts()
    assert not box.offer(receipt(1))
    assert box.offer(receipt(2, final=True))
    assert not box.offer(receipt(2, final=True))
    for item in box.batch():
        box.settle(item)
    assert not box.offer(receipt(2, final=True)) and len(box) == 0


def test_of_holds_that_are_over_nothing_is_kept():
    box = Receipts()
    for worker in range(1000):
        box.offer(receipt(worker=worker, final=True))
        for item in box.batch():
            box.settle(item)
        box.forget_settled()
    assert not box.offer(receipt(worker=999, final=True)) and len(box) == 0
    assert sum(len(kept) for kept in vars(box).values() if isinstance(kept, (dict, set))) <= 2


def test_what_came_while_the_older_one_was_sent_still_waits():
    box = Receipts()
    box.offer(receipt(1))
    sent = box.batch()
    box.offer(receipt(2))
    box.settle(sent[0])
    assert seqs(box) == {("0", 2)}


def test_where_there_is_no_room_the_oldest_that_is_not_final_goes():
    box = Receipts(limit=3)
    box.offer(receipt(worker=0, final=True))
    box.offer(receipt(worker=1))
    box.offer(receipt(worker=2, final=True))
    box.offer(receipt(worker=3, final=True))
    assert seqs(box) == {("0", 1), ("2", 1), ("3", 1)}
    box.offer(receipt(worker=4, final=True))
    assert seqs(box) == {("2", 1), ("3", 1), ("4", 1)} and box.dropped == 2


def test_what_was_not_taken_for_a_month_goes():
    box = Receipts()
    now = time.time()
    box.offer(receipt(worker=0, final=True, at=now - KEEP_FINAL_S - 1))
    box.offer(receipt(worker=1, final=True, at=now - KEEP_FINAL_S + 60))
    box.expire(now)
    assert seqs(box) == {("1", 1)} and box.dropped == 1


def test_final_ones_go_first_and_posts_are_bounded():
    box = Receipts()
    for worker in range(MAX_RECEIPTS + 10):
        box.offer(receipt(worker=worker, final=worker >= MAX_RECEIPTS, pod_uid=""))
    batch = box.batch()
    assert all(item.final for item in batch[:10]) and not batch[10].final
    assert sum(len(item.text) + 1 for item in batch) <= MAX_BATCH_BYTES
    assert len(batch) <= MAX_RECEIPTS


def test_one_receipt_that_is_too_long_still_goes_alone():
    box = Receipts()
    box.offer(receipt(model="x" * MAX_BATCH_BYTES))
    assert len(box.batch()) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_none_is_logged(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        Receipts().offer(receipt(allocated_s=value))


def test_events_are_bounded_and_the_oldest_goes():
    box = WaitingEvents(limit=300)
    for n in range(305):
        box.put(event_item({"id": f"e{n}", "at": 1.0}))
    assert len(box) == 300 and box.dropped == 5
    assert len(box.batch()) == MAX_EVENTS and json.loads(box.batch()[0].text)["id"] == "e5"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.integers(0, 3), st.integers(0, 9), st.booleans()),
            st.tuples(st.just("settle"), st.just(0), st.just(0), st.just(False)),
        ),
        max_size=60,
    )
)
def test_of_each_key_the_newest_offered_is_settled_or_waits(steps):
    box = Receipts(limit=4)
    newest, settled = {}, {}
    for what, worker, seq, final in steps:
        if what == "offer":
            box.offer(receipt(seq, worker=worker, final=final))
            newest[worker] = max(seq, newest.get(worker, -1))
        else:
            for item in box.batch():
                box.settle(item)
                settled[int(item.key[-1])] = item.seq
    waiting = {int(item.key[-1]): item.seq for item in box.items()}
    for worker, seq in newest.items():
        assert max(waiting.get(worker, -1), settled.get(worker, -1)) == seq
