"""Which part of a file a request asks for: `Range` and `If-Range`, `If-None-Match`.

Source: RFC 9110 §13, §14. One range at a time: a request for several gets the whole file, as it may.
"""

from __future__ import annotations

import re
from email.utils import format_datetime
from typing import NamedTuple

from stoker_api.ports import FileStamp
from stoker_api.problems import Problem, ProblemCode

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII | re.IGNORECASE)


class Span(NamedTuple):
    """The bytes from `start` up to before `end`; `part`: they were asked for by a range."""

    start: int
    end: int
    part: bool


def wanted(stamp: FileStamp, range_: str | None, if_range: str | None) -> Span:
    """Raises: Problem (416), for a range that begins behind the end."""
    whole = Span(0, stamp.size, False)
    found = _RANGE.fullmatch((range_ or "").strip())
    if found is None or not _still_the_same(stamp, if_range):
        return whole
    first, last = found.groups()
    if not first and not last:
        return whole
    if not first:
        start, end = max(0, stamp.size - int(last)), stamp.size
        satisfiable = int(last) > 0 and stamp.size > 0
    else:
        start, end = int(first), min(stamp.size, int(last) + 1 if last else stamp.size)
        if last and int(last) < start:
            return whole  # not valid, so it does not count
        satisfiable = start < stamp.size
    if not satisfiable:
        raise Problem(
            ProblemCode.RANGE_NOT_SATISFIABLE,
            f"The file has {stamp.size} bytes; ask for a range that begins before its end.",
            headers={"Content-Range": f"bytes */{stamp.size}"},
        )
    return Span(start, end, True)


def modified_text(stamp: FileStamp) -> str:
    """`Last-Modified`."""
    return format_datetime(stamp.modified_at, usegmt=True)


def _still_the_same(stamp: FileStamp, if_range: str | None) -> bool:
    """A weak tag never matches; a date only as it was given out."""
    return if_range is None or if_range.strip() in (stamp.etag, modified_text(stamp))
