"""Numbers as protobuf and Snappy both write them: seven bits a byte, the lowest first. Called by `protobuf`, `snappy`.

Source: protobuf.dev, "Encoding: base 128 varints".
"""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Of a number that is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
