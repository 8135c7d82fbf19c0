"""When lines were written: the worker's records beside its log, and finding them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_api.streams.line_times import stamp
from stoker_worker.log_times import RECORD_BYTES, LogTimes, offset_since, times_of
from stoker_worker.output import Log
from tests.support.examples import examples


def written(path: Path, *records: tuple[int, float]) -> str:
    times = LogTimes(str(path))
    for offset, at_s in records:
        times.note(offset, at_s)
    times.close()
    return str(path)


def test_what_was_written_since_and_when(tmp_path: Path) -> None:
    path = written(tmp_path / "log.times", (0, 100.0), (50, 101.5), (80, 200.0))
    assert [offset_since(path, at_s) for at_s in (0, 100.5, 101.0, 102.6, 200.0, 201.5)] == [0, 0, 50, 80, 80, None]
    assert times_of(path, 0, 90) == [(0, 100.0), (50, 101.5), (80, 200.0)]
    assert times_of(path, 60, 80) == [(60, 101.5)]
    assert times_of(path, 90, 99) == [(90, 200.0)] and times_of(path, 0, 0) == []
    with pytest.raises(FileNotFoundError):
        offset_since(str(tmp_path / "none"), 0)


@examples(100)
@given(
    gaps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=30),
    begin=st.integers(0, 1500),
    length=st.integers(1, 200),
)
def test_every_byte_has_the_time_of_the_record_before_it(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[tuple[int, int]], begin: int, length: int
) -> None:
    records, offset, at_s = [], 0, 1000
    for size, pause_s in gaps:
        records.append((offset, float(at_s)))
        offset, at_s = offset + size, at_s + pause_s
    path = written(tmp_path_factory.mktemp("t") / "log.times", *records)
    found = times_of(path, begin, begin + length)
    for byte in range(begin, begin + length):
        expected = [at for start, at in records if start <= byte][-1]
        assert [at for start, at in found if start <= byte][-1] == expected


def test_one_record_a_second_and_half_a_record_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.times"
    times = LogTimes(str(path))
    assert times.due(10.0)
    times.note(0, 10.0)
    assert not times.due(10.9) and not times.due(3.0) and times.due(11.0)
    times.close()
    path.write_bytes(path.read_bytes() + b"half")
    again = LogTimes(str(path))
    assert path.stat().st_size == RECORD_BYTES and not again.due(10.5) and again.due(11.0)
    again.close()


def test_the_log_notes_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("stoker_worker.output.time.time", lambda: now[0])
    log = Log(str(tmp_path / "log"))
    log.times = LogTimes(str(tmp_path / "log.times"))
    for at_s, text in ((1000.0, b"one\n"), (1000.5, b"two\n"), (1002.0, b"three\n")):
        now[0] = at_s
        log.write(text)
    assert times_of(str(tmp_path / "log.times"), 0, 99) == [(0, 1000.0), (8, 1002.0)]


def test_a_full_disk_costs_the_times_alone(tmp_path: Path) -> None:
    code = (
        "from stoker_worker.log_times import LogTimes\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"times = LogTimes({str(tmp_path / 'log.times')!r})\n"
        "for at in range(100): times.note(at, float(at))\n"
    )
    command = ["prlimit", f"--fsize={RECORD_BYTES * 3 + 5}", sys.executable, "-c", code]
    subprocess.run(command, check=True, timeout=60, env=os.environ)
    assert times_of(str(tmp_path / "log.times"), 0, 99) == [(0, 0.0), (1, 1.0), (2, 2.0)]


@examples(100)
@given(content=st.binary(max_size=400), begin=st.integers(0, 50), length=st.integers(0, 20), since=st.floats(0, 1e12))
def test_whatever_a_job_writes_there_is_read_in_bounds(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, begin: int, length: int, since: float
) -> None:
    path = tmp_path_factory.mktemp("t") / "log.times"
    path.write_bytes(content)
    found = times_of(str(path), begin, begin + length)
    assert len(found) <= length + 1
    assert all(stamp(at_s) and offset >= begin for offset, at_s in found)
    offset = offset_since(str(path), since)
    assert offset is None or offset >= 0


def test_a_link_and_a_pipe_are_no_times(tmp_path: Path) -> None:
    written(tmp_path / "other", (0, 1.0))
    (tmp_path / "link").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic link"):
        times_of(str(tmp_path / "link"), 0, 9)
    assert offset_since(str(tmp_path / "pipe"), 0) is None  # and no one waits for a writer
    with pytest.raises(OSError, match="seek"):
        times_of(str(tmp_path / "pipe"), 0, 9)
