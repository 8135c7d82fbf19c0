"""Pages of metrics from untrusted servers: read as Prometheus' own parser reads them, or refused as a whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Sample
from prometheus_client.parser import text_string_to_metric_families

from stoker.push.exposition import LONGEST_VALUE, MOST_LABELS, parse


def by_prometheus_client(page: bytes) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    families = text_string_to_metric_families(page.decode())
    return {(one.name, frozenset(one.labels.items()), one.value) for family in families for one in family.samples}


def compared(found: list[Sample]) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    return {(one.name, frozenset(one.labels.items()), one.value) for one in found}


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r"), max_size=30), max_size=4)
)
def test_what_a_client_library_writes_is_read_as_it_was_meant(values: list[str]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "help\nme", [f"l{number}" for number in range(len(values))], registry=registry)
    (gauge.labels(*values) if values else gauge).set(-1.5e-7)
    Counter("c", "", registry=registry).inc(3)
    Histogram("h", "", registry=registry).observe(0.3)
    page = generate_latest(registry)
    assert compared(parse(page, 1000)) == by_prometheus_client(page)


@pytest.mark.parametrize(
    ("line", "value"),
    [("x 1", 1), ("x{} 2 1700000000000", 2), ('x{a="b",} 3', 3), (' \tx { a = "}" } 4'.replace("x {", "x{"), 4),
     ("x +Inf", math.inf), ("x\t5\r", 5)],
)  # fmt: skip
def test_other_ways_to_write_it(line: str, value: float) -> None:
    assert [one.value for one in parse(f"# TYPE x gauge\n\n{line}\n".encode(), 10)] == [value]


@pytest.mark.parametrize(
    "page",
    [
        *(
            b"x",
            b"x{",
            b'x{a="b"',
            b'x{a="b" 1',
            b'x{a="b"c="d"} 1',
            b"x{a=b} 1",
            b"1x 1",
            b"x one",
            b"x 1 2 3",
            b"\xff 1",
        ),
        b'x{a="' + b"b" * (LONGEST_VALUE + 1) + b'"} 1',
        b"x{" + b",".join(b'a%d="b"' % number for number in range(MOST_LABELS + 1)) + b"} 1",
        b"x" * 1000 + b" 1",
        b"\n".join(b"x%d 1" % number for number in range(11)),
        b"<html>",
    ],
)
def test_a_page_that_is_none_is_refused(page: bytes) -> None:
    with pytest.raises(ValueError):
        parse(page, 10)
