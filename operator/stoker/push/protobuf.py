"""A remote-write request in protobuf's wire format, from parts that are encoded once. Pure.

    WriteRequest { repeated TimeSeries timeseries = 1; }
    TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
    Label        { string name = 1; string value = 2; }
    Sample       { double value = 1; int64 timestamp = 2; }

Source: prometheus/prompb (remote.proto, types.proto); protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable, Mapping

STALE = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN that says: this series has ended. Bytes, since a float on its way may lose a NaN's payload."""
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_double = struct.Struct("<d").pack


def series(name: str, labels: Mapping[str, str], more: Mapping[str, str]) -> bytes:
    """A TimeSeries' labels, sorted by name as the specification wants it; empty values are left out.

    `more` is added where the series has no label of that name.
    """
    found = {**more, **labels, "__name__": name}
    return b"".join([_label(*pair) for pair in sorted(found.items()) if pair[1]])


def sample(value: bytes, at_ms: int) -> bytes:
    """A Sample field of a TimeSeries. `value`: `double` of it, or STALE."""
    when = varint(at_ms)
    return b"\x12%c\x09%b\x10%b" % (10 + len(when), value, when)


def double(value: float) -> bytes:
    return _double(value)


def request(timeseries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A WriteRequest of (labels, samples) as the two above make them."""
    return b"".join(
        [b"\x0a%b%b%b" % (varint(len(labels) + len(samples)), labels, samples) for labels, samples in timeseries]
    )


def is_label_name(name: str) -> bool:
    return bool(_LABEL_NAME.fullmatch(name)) and not name.startswith("__")


@functools.lru_cache(maxsize=8192)
def _label(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode("utf-8", "replace")
    body = b"\x0a%b%b\x12%b%b" % (varint(len(key)), key, varint(len(text)), text)
    return b"\x0a%b%b" % (varint(len(body)), body)


def varint(number: int) -> bytes:
    """Of a number that is not negative: seven bits a byte, the lowest first. Snappy writes lengths in the same way."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
