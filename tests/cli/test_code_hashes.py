"""The memory of hashes makes a second look cheap and never a wrong one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.client.code.hashes import RACY_NS, Hashes
from stoker.client.errors import BadInput

LATER_NS = 3_600_000_000_000


def _look(folder: Path, *names: str, later_ns: int = LATER_NS) -> tuple[list[str], int]:
    """The hashes, and how many bytes were read for them."""
    hashes = Hashes(str(folder), clock=lambda: time.time_ns() + later_ns)
    found = [hashes.of(name, (folder / name).stat()) for name in names]
    hashes.save()
    return found, hashes.read_bytes


def _memory() -> list[Path]:
    return list(Path(os.environ["XDG_CACHE_HOME"], "stoker/code").iterdir())


@pytest.fixture
def folder() -> Path:
    for name in ("a.py", "b.py"):
        Path(name).write_text(f"{name} ten bytes."[:10])
    return Path.cwd()


def test_what_is_known_is_not_read_again(folder: Path) -> None:
    first, read = _look(folder, "a.py", "b.py")
    assert read == 20
    assert _look(folder, "a.py", "b.py") == (first, 0)
    (folder / "a.py").write_text("another")
    second, read = _look(folder, "a.py", "b.py")
    assert read == 7 and second[0] != first[0] and second[1] == first[1]


def test_a_change_that_keeps_size_and_time_is_seen(folder: Path) -> None:
    first, _ = _look(folder, "a.py")
    facts = (folder / "a.py").stat()
    (folder / "a.py").write_text("0123456789")
    os.utime(folder / "a.py", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert _look(folder, "a.py")[0] != first


def test_a_file_written_just_now_is_not_trusted_next_time(folder: Path) -> None:
    assert _look(folder, "a.py", later_ns=0)[1] == 10
    assert _look(folder, "a.py", later_ns=0)[1] == 10, "it may have changed within the clock's tick"
    assert _look(folder, "a.py", later_ns=RACY_NS + 10**9)[1] == 10
    assert _look(folder, "a.py", later_ns=0)[1] == 0


@pytest.mark.parametrize("damage", [b"", b"not a checksum\n{}", b"\x00" * 300, "torn", "flipped", "gone", "folder"])
def test_a_damaged_memory_does_no_harm(folder: Path, damage: bytes | str) -> None:
    first, _ = _look(folder, "a.py")
    (memory,) = _memory()
    data = memory.read_bytes()
    if isinstance(damage, bytes):
        memory.write_bytes(damage)
    elif damage == "torn":
        memory.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        memory.write_bytes(data.replace(first[0][:4].encode(), b"ffff"))
    else:
        memory.unlink()
        if damage == "folder":
            memory.mkdir()
    assert _look(folder, "a.py") == (first, 10)


def test_a_memory_that_can_t_be_written_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    first, _ = _look(folder, "a.py")
    assert _look(folder, "a.py") == (first, 10)


def test_the_memory_is_private_and_old_ones_are_cleared_away(folder: Path) -> None:
    _look(folder, "a.py")
    (memory,) = _memory()
    assert memory.stat().st_mode & 0o077 == 0 and memory.parent.stat().st_mode & 0o077 == 0
    os.utime(memory, (1, 1))
    (folder / "sub").mkdir()
    (folder / "sub/c.py").write_text("c")
    _look(folder / "sub", "c.py")
    (left,) = _memory()
    assert left.name != memory.name


def test_a_file_that_grows_while_it_is_read_is_reported(folder: Path) -> None:
    facts = (folder / "a.py").stat()
    (folder / "a.py").write_text("a longer text than before")
    with pytest.raises(BadInput, match=r"a\.py changed while it was sent; try again"):
        Hashes(str(folder)).of("a.py", facts)
    (folder / "a.py").unlink()
    with pytest.raises(BadInput, match=r"a\.py changed"):
        Hashes(str(folder)).of("a.py", facts)
