"""Sizes as people read them, and why a folder is too large: what in it is, and what to do. Called by `folder.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.spec.code import MAX_BYTES, MAX_FILES

_SHOWN = 5
_MOST_OF_IT = 0.8


@dataclass(frozen=True, slots=True)
class Heap:
    """A file, or a folder with all that is below it."""

    path: str
    files: int
    size_bytes: int


def size_text(count: int) -> str:
    """A number of bytes for people: 999 B, 34 kB, 1.2 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.1f} {unit}" if unit != "B" and size < 9.95 else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def files_text(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def too_large(folder: str, found: Iterable[tuple[str, int]], *, whole: bool) -> str:
    """What to say of a folder over the limits. `found`: path and size of its files; not `whole`: only the first."""
    heaps = _heaps(found)
    all_of_it = heaps[""]
    by_size = all_of_it.size_bytes > MAX_BYTES
    lines = [
        f"{folder} is too large to be shipped as code: {'' if whole else 'more than '}{files_text(all_of_it.files)}, "
        f"{size_text(all_of_it.size_bytes)}; the limit is {files_text(MAX_FILES)}, {size_text(MAX_BYTES)}",
        "the largest in it:",
    ]
    lines += [
        f"  {heap.path}  {size_text(heap.size_bytes)}{f' in {files_text(heap.files)}' if heap.files > 1 else ''}"
        for heap in _largest(heaps, by_size=by_size)
    ]
    lines.append(
        "leave out what the job does not need by lines in .stokerignore (written as in .gitignore); bring data by "
        "--data NAME=./folder; or ship nothing: --no-code"
    )
    return "\n".join(lines)


def _heaps(found: Iterable[tuple[str, int]]) -> dict[str, Heap]:
    """Every file, every folder (with a slash at its end) and, as '', the whole."""
    files: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for path, size in found:
        parts = path.split("/")
        for depth in range(len(parts) + 1):
            name = "/".join(parts[:depth]) + ("/" if 0 < depth < len(parts) else "")
            files[name] = files.get(name, 0) + 1
            sizes[name] = sizes.get(name, 0) + size
    files.setdefault("", 0)
    return {name: Heap(name, files[name], sizes.get(name, 0)) for name in files}


def _largest(heaps: dict[str, Heap], *, by_size: bool) -> list[Heap]:
    """The largest things in the folder; for a folder that is nearly all one thing, that thing."""

    def weight(heap: Heap) -> int:
        return heap.size_bytes if by_size else heap.files

    below: dict[str, list[Heap]] = {}
    for heap in heaps.values():
        if heap.path:
            above = heap.path.rstrip("/").rpartition("/")[0]
            below.setdefault(f"{above}/" if above else "", []).append(heap)
    shown = []
    for heap in sorted(below.get("", ()), key=weight, reverse=True)[:_SHOWN]:
        while inner := below.get(heap.path):
            heaviest = max(inner, key=weight)
            if weight(heaviest) < _MOST_OF_IT * weight(heap):
                break
            heap = heaviest
        shown.append(heap)
    return shown
