"""Packs of files: read the same in pieces of any length, and broken by no bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_api.code.pack import BadPack, Inflater, PackReader
from tests.support.examples import examples

from .code_folder import pack, sha


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def begin(self, sha256: str, size: int) -> None:
        self._now, self._data = sha256, bytearray()

    def write(self, data: memoryview) -> None:
        self._data += data

    def end(self) -> None:
        self.files[self._now] = bytes(self._data)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 50), max_size=30), st.booleans())
@examples(100)
def test_a_pack_means_the_same_in_pieces_of_any_length(contents, steps, torn):
    kept, data = Kept(), pack(contents)
    reader, at = PackReader(kept), 0
    end = max(0, len(data) - 1) if torn else len(data)
    for step in [*steps, len(data)]:
        reader.feed(data[at : min(at + step, end)])
        at += step
    if torn and data:
        whole = pack(contents[:-1])
        with pytest.raises(BadPack):
            reader.finish()
        assert set(kept.files) <= {sha(one) for one in contents} and pack(contents).startswith(whole)
    else:
        reader.finish()
        assert kept.files == {sha(one): one for one in contents}


@given(st.binary(max_size=300))
@examples(150)
def test_no_bytes_break_the_reader(data):
    kept = Kept()
    for feed in (data, pack([b"x"]) + data):
        reader = PackReader(kept)
        try:
            reader.feed(feed)
            reader.finish()
        except BadPack:
            pass
        try:
            inflater = Inflater()
            for piece in inflater.feed(data):
                assert len(piece) <= 1 << 20
            inflater.finish()
        except BadPack:
            pass
    assert all(sha(found) == name for name, found in kept.files.items())
