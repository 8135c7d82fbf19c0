"""Shipped logs on disk: whatever is posted in whatever order, a prefix is held, and a killed api loses nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_api.worker_logs.log_file import Gap, LogOwner, StoredLog
from stoker_api.worker_logs.storage import LogGone, LogLimits, LogsFull, ShippedLogs
from tests.support.examples import examples

OWNER = LogOwner("alpha", "one", "job-1", 1, 0)
WHOLE = bytes(range(256)) * 40

posts = st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 3000), st.booleans())


@given(st.lists(posts, max_size=40))
@examples(75)
def test_any_posts_leave_a_prefix(tmp_path_factory, steps):
    """Overlaps and repeats are dropped, gaps refused with the offset wanted; a restart in between changes nothing."""
    folder = tmp_path_factory.mktemp("logs")
    stored, held = StoredLog.create(folder, "uid", OWNER), 0
    for offset, length, restart in steps:
        data = WHOLE[offset : offset + length]
        if restart:
            stored = StoredLog.load(folder / "uid.json")
        if offset > held:
            with pytest.raises(Gap) as gap:
                stored.append(offset, data)
            assert gap.value.wanted == held
        else:
            held = max(held, offset + len(data))
            assert stored.append(offset, data) == held
        assert stored.path.read_bytes() == WHOLE[:held]
    assert StoredLog.load(folder / "uid.json") == stored


@given(st.lists(st.tuples(posts, st.booleans(), st.integers(0, 80)), max_size=25))
@examples(75)
def test_what_a_worker_has_lost_is_reported_once_and_the_rest_follows(tmp_path_factory, steps):
    """`lost` posts may jump ahead; the api may die anywhere in the line about it, which is then finished first."""
    folder = tmp_path_factory.mktemp("logs")
    stored, held, expected = StoredLog.create(folder, "uid", OWNER), 0, b""
    for (offset, length, restart), lost, torn in steps:
        data = WHOLE[offset : offset + length]
        if restart:
            stored = StoredLog.load(folder / "uid.json")
        if offset > held and not lost:
            with pytest.raises(Gap):
                stored.append(offset, data)
            continue
        if offset > held:
            newline = b"" if not expected or expected.endswith(b"\n") else b"\n"
            notice = newline + b"[stoker] %d bytes of output are missing here: they were lost\n" % (offset - held)
            stored.append(offset, b"", lost=True)
            os.truncate(stored.path, stored.size() - min(torn, len(notice)))  # killed in the middle of the line
            expected, held = expected + notice, offset
        expected, held = expected + data[held - offset :], max(held, offset + len(data))
        assert stored.append(offset, data, lost=lost) == held
        assert stored.path.read_bytes() == expected
    assert stored.held() == held


APPENDS_FOR_EVER = """
import sys
from pathlib import Path
from stoker_api.worker_logs.log_file import LogOwner, StoredLog
folder, seed = Path(sys.argv[1]), bytes(range(256)) * 256
index = folder / "uid.json"
stored = StoredLog.load(index) if index.exists() else StoredLog.create(folder, "uid", LogOwner("a", "b", "c", 1, 0))
offset = stored.held()
while True:
    at = offset % 256
    offset = stored.append(offset, (seed[at:] + seed[:at])[:40_000 + offset % 7_001])
    print(offset, flush=True)
"""


def test_a_killed_api_keeps_what_it_acknowledged(tmp_path):
    pattern = bytes(range(256))
    for _round in range(8):
        api = subprocess.Popen([sys.executable, "-c", APPENDS_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE)
        for _line in range(25):
            api.stdout.readline()
        api.send_signal(signal.SIGKILL)
        said = [int(line) for line in api.stdout.read().split(b"\n") if line.isdigit()][-1:]
        api.stdout.close()
        api.wait()
        stored = StoredLog.load(tmp_path / "uid.json")
        data = stored.path.read_bytes()
        assert stored.held() == len(data) >= (said or [0])[0]
        assert data == (pattern * (len(data) // 256 + 1))[: len(data)]


async def test_concurrent_posts_of_one_log_are_one_after_the_other(tmp_path):
    shipped = ShippedLogs(tmp_path)
    data = os.urandom(2_000_000)

    async def ship(step):
        offset = 0
        while offset < len(data):
            try:
                offset = await shipped.append("uid", OWNER, offset, data[offset : offset + step])
            except Gap as gap:
                offset = gap.wanted

    await asyncio.gather(*(ship(step) for step in (10_000, 33_333, 70_001, 5_000)))
    assert hashlib.sha256((tmp_path / "uid.log").read_bytes()).digest() == hashlib.sha256(data).digest()
    assert shipped.total_bytes == len(data)


async def test_limits_refuse_and_count_and_a_restart_counts_the_same(tmp_path):
    shipped = ShippedLogs(tmp_path, LogLimits(total=250, worker=100))
    assert await shipped.append("a", OWNER, 0, b"x" * 100) == 100
    with pytest.raises(LogsFull, match="100 bytes"):
        await shipped.append("a", OWNER, 100, b"x")
    assert await shipped.append("a", OWNER, 0, b"x" * 100) == 100, "what is held needs no room"
    await shipped.append("b", OWNER, 0, b"x" * 100)
    with pytest.raises(LogsFull, match="250 bytes"):
        await shipped.append("c", OWNER, 0, b"x" * 51)
    assert ShippedLogs(tmp_path).total_bytes == shipped.total_bytes == 200
    await shipped.remove("a")
    assert shipped.total_bytes == 100 and await shipped.read("a", 0, 10) is None
    assert await shipped.append("c", OWNER, 0, b"x" * 51) == 51
    with pytest.raises(LogsFull, match="free"):
        await ShippedLogs(tmp_path, LogLimits(min_free=1 << 60)).append("d", OWNER, 0, b"x")


async def test_a_full_disk_keeps_what_fitted(tmp_path, monkeypatch):
    written = []

    def pwrite(fd, data, at):
        if at + len(data) > 1000:
            data = data[: 1000 - at]
            if not data:
                raise OSError(28, "No space left on device")
        written.append(len(data))
        return real(fd, data, at)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", pwrite)
    shipped = ShippedLogs(tmp_path)
    with pytest.raises(LogsFull, match="No space"):
        await shipped.append("a", OWNER, 0, b"x" * 4000)
    assert shipped.total_bytes == 1000
    monkeypatch.undo()
    assert await shipped.append("a", OWNER, 1000, b"x" * 3000) == 4000


async def test_foreign_files_and_torn_indexes_are_left_alone(tmp_path):
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "y.json").write_text(json.dumps({"version": 9}))
    (tmp_path / "z.tmp").write_text("half")
    assert len(ShippedLogs(tmp_path)) == 0
    assert sorted(os.listdir(tmp_path)) == ["x.json", "y.json"]
    for name in ("../up", "", "a/b", "x" * 200):
        with pytest.raises(LogGone):
            await ShippedLogs(tmp_path).append(name, OWNER, 0, b"x")
    assert not Path(tmp_path.parent / "up.log").exists()
