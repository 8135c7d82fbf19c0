"""Reads what a remote-write 1.0 sender posted: Snappy's block format and the few protobuf messages, by the book.

A plain reading of the specifications, written apart from the sender, so that tests can hold one against the other.
Pure. Called by tests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

STALE_BITS = 0x7FF0000000000002


@dataclass(frozen=True, slots=True)
class Written:
    """One series of a request."""

    labels: tuple[tuple[str, str], ...]
    """In the order sent, with `__name__`."""
    points: tuple[tuple[int, float | None], ...]
    """(milliseconds, value); None is the staleness marker."""


def read_request(body: bytes) -> list[Written]:
    """Raises: ValueError where it is no remote-write request."""
    return [_series(data) for number, data in _fields(decompress(body)) if number == 1 and isinstance(data, bytes)]


def decompress(body: bytes) -> bytes:
    """Source: google/snappy, format_description.txt. Raises: ValueError."""
    size, at = _varint(body, 0)
    out = bytearray()
    while at < len(body):
        tag = body[at]
        at += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                more = length - 59
                length = int.from_bytes(body[at : at + more], "little")
                at += more
            out += body[at : at + length + 1]
            at += length + 1
            continue
        if tag & 3 == 1:
            length, distance = (tag >> 2 & 7) + 4, tag >> 5 << 8 | body[at]
            at += 1
        else:
            wide = 2 if tag & 3 == 2 else 4
            length, distance = (tag >> 2) + 1, int.from_bytes(body[at : at + wide], "little")
            at += wide
        if not 0 < distance <= len(out):
            raise ValueError(f"a copy from {distance} bytes before byte {len(out)}")
        for _ in range(length):  # a copy may overlap itself
            out.append(out[-distance])
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes, not the {size} announced")
    return bytes(out)


def _series(data: bytes) -> Written:
    labels, points = [], []
    for number, field in _fields(data):
        if not isinstance(field, bytes):
            raise ValueError("a series of something else than labels and samples")
        parts = dict(_fields(field))
        if number == 1:
            labels.append((_text(parts.get(1)), _text(parts.get(2))))
        elif number == 2:
            raw, at_ms = parts.get(1, bytes(8)), parts.get(2, 0)
            if not isinstance(raw, bytes) or not isinstance(at_ms, int):
                raise ValueError("a sample is a double and a varint")
            stale = int.from_bytes(raw, "little") == STALE_BITS
            points.append((at_ms, None if stale else float(struct.unpack("<d", raw)[0])))
    return Written(tuple(labels), tuple(points))


def _text(data: bytes | int | None) -> str:
    if not isinstance(data, bytes):
        raise ValueError("a label is two strings")
    return data.decode()


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
            case 1:
                yield key >> 3, data[at : at + 8]
                at += 8
            case 2:
                length, at = _varint(data, at)
                yield key >> 3, data[at : at + length]
                at += length
            case wire:
                raise ValueError(f"wire type {wire}")
    if at != len(data):
        raise ValueError("a field that is cut off")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("a number that is cut off")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
