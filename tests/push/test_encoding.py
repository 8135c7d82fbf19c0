"""What is sent, read back by a decoder written apart: Snappy of anything, series with sorted labels, exact values."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.push import protobuf, snappy
from tests.support.testbed.remote_write import decompress, read_request

words = st.sampled_from([b"stoker_gpu_busy_ratio", b"\x0a\x04node", b"GPU-1", bytes(70), b"x"])
texts = st.one_of(st.binary(max_size=300), st.lists(st.one_of(words, st.binary(max_size=9))).map(b"".join))


@given(texts)
def test_snappy_gives_back_what_it_was_given(data: bytes) -> None:
    assert decompress(snappy.compress(data)) == data


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 255, 256, 257, 65535, 65536, 65537, 200_000])
def test_snappy_at_the_edges_of_its_lengths(size: int) -> None:
    without_repeats = b"".join(struct.pack(">I", number * 2654435761 % 2**32) for number in range(size // 4 + 1))[:size]
    assert decompress(snappy.compress(without_repeats)) == without_repeats
    assert len(snappy.compress(without_repeats)) <= size + 4 + 3 * (size // 65536 + 1)
    assert decompress(snappy.compress(bytes(size))) == bytes(size)
    assert len(snappy.compress(bytes(size))) < 20 + size / 20


def test_the_request_of_a_node_becomes_a_fraction() -> None:
    node = [
        protobuf.series(
            f"stoker_gpu_family_{family}_total",
            {"node": "gpu-node-017", "gpu": str(gpu), "uuid": f"GPU-{gpu}7d1c2a4-93f0-4f5e-b1c2-0a7b4bb58a3c"},
            {"job": "stoker-exporter", "instance": "gpu-node-017"},
        )
        for gpu in range(8)
        for family in range(100)
    ]
    values = [protobuf.double(1000 / (number + 3)) for number in range(len(node))]
    request = protobuf.request(
        (labels, protobuf.sample(value, 1763768000123)) for labels, value in zip(node, values, strict=True)
    )
    sent = snappy.compress(request)
    assert decompress(sent) == request
    assert len(sent) < len(request) / 6


def test_labels_are_sorted_complete_and_never_empty() -> None:
    labels = {"uuid": "GPU-1", "class": "", "job": "mine", "text": "grün \U0001f600"}
    more = {"instance": "n0", "job": "stoker-exporter", "zone": ""}
    body = snappy.compress(protobuf.request([(protobuf.series("up", labels, more), b"")]))
    (series,) = read_request(body)
    assert series.labels == (
        ("__name__", "up"),
        ("instance", "n0"),
        ("job", "mine"),
        ("text", "grün \U0001f600"),
        ("uuid", "GPU-1"),
    )


@given(st.floats(allow_nan=False), st.integers(min_value=0, max_value=2**53))
def test_samples_are_exact(value: float, at_ms: int) -> None:
    field = protobuf.sample(protobuf.double(value), at_ms)
    (series,) = read_request(snappy.compress(protobuf.request([(protobuf.series("x", {}, {}), field)])))
    assert series.points == ((at_ms, value),)


def test_the_staleness_marker_is_no_other_nan() -> None:
    fields = protobuf.sample(protobuf.STALE, 1) + protobuf.sample(protobuf.double(math.nan), 2)
    (series,) = read_request(snappy.compress(protobuf.request([(protobuf.series("x", {}, {}), fields)])))
    stale, other = series.points
    assert stale == (1, None)
    assert other[1] is not None and math.isnan(other[1])


@pytest.mark.parametrize(
    ("name", "good"), [("cluster", True), ("_a1", True), ("1a", False), ("a-b", False), ("__x", False), ("", False)]
)
def test_names_of_labels(name: str, good: bool) -> None:
    assert protobuf.is_label_name(name) is good
