"""Where the stored log ends in the kubelet's copy: rotated or not, with a newline that no one printed or without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_api.worker_logs.kubelet_copy import ANCHOR_BYTES, rest_of

WHOLE = b"".join(b"line %06d of the log\n" % number for number in range(2000))


@given(
    held=st.integers(0, len(WHOLE)),
    rotated=st.integers(0, len(WHOLE)),
    total_known=st.booleans(),
    newline=st.booleans(),
)
def test_the_rest_is_found_or_reported_missing(held, rotated, total_known, newline):
    copy = WHOLE[rotated:] + (b"\n" if newline else b"")
    anchor = WHOLE[max(0, held - ANCHOR_BYTES) : held]
    total = len(WHOLE) if total_known else None
    rest = rest_of(copy, held, anchor, total)
    if rotated <= held - ANCHOR_BYTES or rotated == 0:
        assert rest == WHOLE[held:] + (b"\n" if newline and not total_known else b"")
    elif total_known and held < len(WHOLE) and rotated > 1:
        assert rest is None, "what has too little in common is not guessed at"


@pytest.mark.parametrize("total", [None, 8000])
def test_repeating_output_is_taken_by_its_place_not_by_its_looks(total):
    whole = b"same\n" * 1600
    assert rest_of(whole, 3000, whole[:3000], total) == whole[3000:]
