"""Server-sent events from bytes: nothing but the format.

Source: WHATWG HTML, "9.2.6 Interpreting an event stream". One change: a lone carriage return does not end a line, so
that progress bars in a log arrive whole; our server writes LF.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseFrame:
    """One dispatched event. `id` is its own, None if it carried none."""

    event: str
    data: str
    id: str | None = None


def frames(chunks: Iterable[bytes]) -> Iterator[SseFrame]:
    """Complete frames only: what a cut leaves half sent is dropped, as the resume sends it again."""
    event, frame_id = "", None
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield SseFrame(event or "message", "\n".join(data), frame_id)
            event, frame_id, data = "", None, []
            continue
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            data.append(text)
        elif name == b"event":
            event = text
        elif name == b"id" and "\0" not in text:
            frame_id = text


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        if b"\n" not in chunk:
            rest += chunk
            continue
        first, *more = chunk.split(b"\n")
        yield (rest + first).removesuffix(b"\r")
        for line in more[:-1]:
            yield line.removesuffix(b"\r")
        rest = more[-1]
