"""Which columns of a table a terminal has room for, and how wide each is, so that no line wraps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

GAP = "  "
ROOM = 20
"""What a column that may be cut keeps before another one goes."""
LEAST = 8
"""What is left of one when nothing else helps."""


class Sizes(Protocol):
    """What is asked of a column. `drops`: the highest goes first where there is no room, 0 last."""

    @property
    def cut(self) -> bool: ...
    @property
    def right(self) -> bool: ...
    @property
    def drops(self) -> int: ...


def width_of(text: str) -> int:
    """How many places of a terminal's line `text` takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def cut_to(text: str, size: int) -> str:
    """`text` with an ellipsis where it takes more than `size` places."""
    if width_of(text) <= size:
        return text
    while text and width_of(text) > size - 1:
        text = text[:-1]
    return text + "…" if size else ""


def fitted(columns: Sequence[Sizes], widths: Sequence[int], width: int) -> dict[int, int]:
    """The places of the columns to show → how wide each is; the lines take `width` at most.

    First texts that may be cut are, down to ROOM; then columns go that may; then texts are cut further, names too; then
    columns go from the right. Numbers are shown whole or not at all. The first column stays.
    """
    shown = dict(enumerate(widths))
    spare = sorted((at for at in shown if columns[at].drops), key=lambda at: -columns[at].drops)
    while True:
        sizes = _narrowed(shown, width, ROOM, lambda at: columns[at].cut)
        if _total(sizes) <= width or not spare:
            break
        del shown[spare.pop(0)]
    sizes = _narrowed(sizes, width, LEAST, lambda at: columns[at].cut)
    sizes = _narrowed(sizes, width, LEAST, lambda at: not columns[at].right)
    while _total(sizes) > width and len(sizes) > 1:
        del sizes[max(sizes)]
    return _narrowed(sizes, width, 1, lambda at: len(sizes) == 1)


def _total(sizes: dict[int, int]) -> int:
    return sum(sizes.values()) + len(GAP) * (len(sizes) - 1)


def _narrowed(sizes: dict[int, int], width: int, least: int, may: Callable[[int], bool]) -> dict[int, int]:
    """Take what is too much from the widest that may be narrower, down to `least` each."""
    sizes = dict(sizes)
    for _ in range(_total(sizes) - width):
        widest = max((at for at in sizes if may(at)), key=lambda at: sizes[at], default=None)
        if widest is None or sizes[widest] <= least:
            break
        sizes[widest] -= 1
    return sizes
