"""Quantities and durations as Kubernetes and Go read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.quantity import (
    LONGEST_S,
    cpu_milli,
    format_bytes,
    format_duration,
    memory_bytes,
    new_duration,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "milli"), [("1", 1000), ("500m", 500), ("0.1", 100), ("1.5", 1500), ("100u", 1), ("2k", 2_000_000)]
)
def test_cpu(text: str, milli: int) -> None:
    assert cpu_milli(text) == milli


@pytest.mark.parametrize(("text", "count"), [("16Gi", 16 * 2**30), ("40G", 40 * 10**9), ("1.5Ki", 1536), ("7", 7)])
def test_memory(text: str, count: int) -> None:
    assert memory_bytes(text) == count


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "Gi", "1gi", "1e3", "0x10", "9Ei9", "99999E", "１"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|larger"):
        memory_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("250ms", 0.25), ("1.5h", 5400)]
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1s ", "1h 3m", "1w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        parse_duration(text)


def test_a_duration_of_more_than_ten_years_is_refused_anew_and_counts_as_ten_years_where_it_is_stored() -> None:
    assert new_duration("87600h") == parse_duration("3650d") == parse_duration("9" * 31 + "s") == LONGEST_S
    with pytest.raises(ValueError, match=r"10 years \(3650d\)"):
        new_duration("3650d1s")


@given(st.integers(min_value=10, max_value=10**7))
def test_a_formatted_duration_reads_back_to_two_units(seconds: int) -> None:
    back = parse_duration(format_duration(seconds))
    assert abs(back - seconds) < max(60, seconds * 0.05)


def test_bytes_for_people() -> None:
    assert [format_bytes(n) for n in (512, 2048, 3 * 2**30, 1536 * 2**20)] == ["512", "2Ki", "3Gi", "1.5Gi"]
