"""What waits to be sent: in order, bounded and small, each ended series marked once."""

from __future__ import annotations

import tracemalloc

import pytest
from prometheus_client.core import Sample

from stoker.push.buffer import Buffer
from stoker.push.snappy import compress
from tests.support.testbed.remote_write import read_request

More = {"job": "j", "instance": "n0"}


def poll(*values: float, name: str = "x") -> list[Sample]:
    return [Sample(name, {"gpu": str(gpu)}, value) for gpu, value in enumerate(values)]


def points(buffer: Buffer, most: int = 1000) -> dict[str, list[tuple[int, float | None]]]:
    """GPU → what the next request says of it."""
    taken = buffer.take(most)
    if taken is None:
        return {}
    found = {dict(series.labels)["gpu"]: list(series.points) for series in read_request(compress(taken.request))}
    assert sum(map(len, found.values())) == taken.count
    return found


def test_samples_come_out_in_order_in_parts_of_any_size() -> None:
    buffer = Buffer(1000, More)
    for at in range(1, 5):
        buffer.add(float(at), poll(at, at * 10, at * 100))
    assert len(buffer) == 12
    assert points(buffer, 4) == {"0": [(1000, 1), (2000, 2)], "1": [(1000, 10)], "2": [(1000, 100)]}
    assert points(buffer, 4) == {"1": [(2000, 20), (3000, 30)], "2": [(2000, 200)], "0": [(3000, 3)]}
    assert points(buffer) == {"2": [(3000, 300), (4000, 400)], "0": [(4000, 4)], "1": [(4000, 40)]}
    assert len(buffer) == 0 and buffer.take(1) is None and buffer.dropped == 0


def test_a_series_that_is_gone_is_marked_once_and_may_come_back() -> None:
    buffer = Buffer(1000, More)
    for at, values in [(1.0, (1.0, 2.0)), (2.0, (3.0,)), (3.0, (4.0,)), (4.0, (5.0, 6.0))]:
        buffer.add(at, poll(*values))
    buffer.end(5.0)
    buffer.end(6.0)
    assert points(buffer) == {
        "0": [(1000, 1), (2000, 3), (3000, 4), (4000, 5), (5000, None)],
        "1": [(1000, 2), (2000, None), (4000, 6), (5000, None)],
    }


def test_the_oldest_polls_fall_out_and_are_counted() -> None:
    buffer = Buffer(6, More)
    for at in range(5):
        buffer.add(float(at), poll(at, at))
    assert len(buffer) == 6 and buffer.dropped == 4
    assert points(buffer) == {"0": [(2000, 2), (3000, 3), (4000, 4)], "1": [(2000, 2), (3000, 3), (4000, 4)]}


def test_of_a_poll_partly_taken_only_the_rest_is_dropped() -> None:
    buffer = Buffer(6, More)
    for at in range(3):
        buffer.add(float(at), poll(at, at))
    assert points(buffer, 1) == {"0": [(0, 0)]}
    buffer.add(3.0, poll(3, 3))
    assert len(buffer) == 6 and buffer.dropped == 1


def test_a_poll_larger_than_all_room_is_counted_and_nothing_breaks() -> None:
    buffer = Buffer(2, More)
    buffer.add(1.0, poll(1, 2, 3))
    assert len(buffer) == 0 and buffer.dropped == 3
    buffer.add(2.0, poll(4))
    assert points(buffer) == {"0": [(2000, 4)]}  # what ended with it had no room either


def test_a_sample_that_waits_takes_few_bytes() -> None:
    node = [
        Sample(f"stoker_gpu_family_{number % 115}", {"node": "gpu-node-017", "gpu": str(number // 115)}, 0.5)
        for number in range(920)
    ]
    buffer = Buffer(500_000, More)
    buffer.add(0.0, node)
    tracemalloc.start()
    try:
        for at in range(1, 61):
            buffer.add(float(at), [one._replace(value=at / 7 + place) for place, one in enumerate(node)])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(buffer) == 61 * 920
    assert held / (60 * 920) < 12  # 480 such polls, two hours, are 4 MB


def test_series_that_are_not_needed_any_more_are_forgotten() -> None:
    buffer = Buffer(100, More)
    for at in range(20_000):
        buffer.add(float(at), [Sample("x", {"gpu": str(at)}, 1.0)])
    assert len(buffer._labels) < 6_000
    assert points(buffer)["19999"] == [(19_999_000, 1)]


def test_a_series_that_comes_twice_counts_once() -> None:
    """A receiver refuses the whole request for two values of one moment."""
    buffer = Buffer(1000, More)
    buffer.add(1.0, [Sample("x", {"gpu": "0"}, 1.0), Sample("x", {"gpu": "0"}, 2.0)])
    assert points(buffer) == {"0": [(1000, 2)]} and len(buffer) == 0


def test_ever_new_labels_in_an_outage_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.push.buffer.LABEL_BYTES", 100_000)
    buffer = Buffer(1_000_000, More)
    for at in range(100):
        buffer.add(float(at), [Sample("x", {"gpu": f"{at}-{number}", "long": "y" * 100}, 1.0) for number in range(50)])
        assert sum(map(len, buffer._labels.values())) <= 100_000
    assert buffer.dropped > 0 and max(at for found in points(buffer).values() for at, _ in found) == 99_000
