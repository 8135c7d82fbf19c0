"""Secrets' values in what a rank prints: masked wherever the pieces are cut, and nothing else is changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_worker.masking import MASK, Masking, patterns
from tests.support.examples import examples

KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhk\n-----END KEY-----\n"
TEXTS = st.lists(
    st.sampled_from([b"abcabcabd", b"abcabcab", b"abc", b"a", b"\n", b" ", b"abcabcabdabcabcabd", b"zz"]), max_size=12
).map(b"".join)


def masked(values: list[str], pieces: list[bytes]) -> bytes:
    masking = Masking(patterns(values))
    return b"".join([*(masking.feed(piece) for piece in pieces), masking.flush()])


def cut(text: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({min(one, len(text)) for one in at})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@examples(200)
@given(text=TEXTS, at=st.lists(st.integers(0, 100), max_size=8))
def test_where_the_pieces_are_cut_does_not_matter(text: bytes, at: list[int]) -> None:
    found = masked(["abcabcabd"], cut(text, at))
    assert b"abcabcabd" not in found
    whole = text.replace(b"abcabcabd", MASK)
    # Of half a value at the very end not even that is shown.
    assert found == (whole[:-8] + MASK if whole.endswith(b"abcabcab") else whole)


@pytest.mark.parametrize(
    ("values", "printed", "shown"),
    [
        (["s3cr3t-key"], b"key=s3cr3t-key!\n", b"key=***!\n"),
        (["s3cr3t-key", "s3cr3t-key-2"], b"s3cr3t-key-2 s3cr3t-key", b"*** ***"),
        (["short"], b"short\n", b"short\n"),
        ([KEY], b"key:\n" + KEY.encode(), b"key:\n***\n***\nkqhk\n***\n"),
        (["pässwörter"], "pässwörter".encode(), b"***"),
        (["s3cr3t-key"], b"s3cr3t", b"s3cr3t"),
    ],
)
def test_what_is_masked(values: list[str], printed: bytes, shown: bytes) -> None:
    assert masked(values, [printed]) == shown


def test_a_whole_line_is_never_held_back() -> None:
    masking = Masking(patterns(["12345678"]))
    assert masking.feed(b"step 1\n") == b"step 1\n"
    assert masking.feed(b"step 1") == b"step "
    assert masking.feed(b"0\n") == b"10\n"
