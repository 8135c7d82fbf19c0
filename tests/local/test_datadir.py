"""The data folder."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.local.datadir import DataDir, DataDirError, DataDirLocked, write_private
from stoker.local.lost_store import check_store


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_folder_is_closed_to_others(tmp_path):
    old = os.umask(0)
    try:
        data = DataDir(tmp_path / "new" / "stoker")
        assert [mode(path) for path in (data.path, data.workers, data.jobs)] == [0o700] * 3
        assert mode(data.checkpoints("u-1")) == mode(data.output("u-1")) == 0o700
    finally:
        os.umask(old)


def test_an_open_folder_of_ours_is_closed_but_a_strangers_is_refused(tmp_path):
    (tmp_path / "empty").mkdir(mode=0o755)
    assert mode(DataDir(tmp_path / "empty").path) == 0o700
    data = DataDir(tmp_path / "ours")
    data.lock()
    data.unlock()
    data.path.chmod(0o755)
    assert mode(DataDir(data.path).path) == 0o700
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home" / "photo.jpg").touch()
    with pytest.raises(DataDirError, match="holds something else"):
        DataDir(tmp_path / "home")
    assert mode(tmp_path / "home") == 0o755


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataDirError, match="can't use"):
        DataDir(tmp_path / "file")


def test_the_layout(tmp_path):
    data = DataDir(tmp_path / "d")
    root = data.path
    assert data.db == root / "stoker.db" and data.token == root / "token" and data.tokens == root / "tokens.json"
    assert data.endpoint == root / "endpoint.json" and data.worker("u-1") == root / "workers" / "u-1"
    assert data.checkpoints("u-1") == root / "jobs" / "u-1" / "checkpoints"
    assert data.output("u-1") == root / "jobs" / "u-1" / "output"


@pytest.mark.parametrize("uid", ["", "..", "a/b", "../x", ".", "-a", "a\n"])
def test_a_uid_cannot_lead_out_of_the_folder(tmp_path, uid):
    data = DataDir(tmp_path / "d")
    for folder in (data.worker, data.checkpoints, data.output):
        with pytest.raises(ValueError, match="is no uid"):
            folder(uid)


def test_one_holds_the_lock_and_the_other_learns_who(tmp_path):
    first, second = DataDir(tmp_path / "d"), DataDir(tmp_path / "d")
    first.lock()
    first.lock()
    with pytest.raises(DataDirLocked, match=f"in use by process {os.getpid()}") as caught:
        second.lock()
    assert caught.value.pid == os.getpid()
    first.unlock()
    second.lock()
    second.unlock()


HOLDER = """
import sys
from pathlib import Path
from stoker.local.datadir import DataDir
DataDir(Path(sys.argv[1])).lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_holder_lets_go(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "d"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        data = DataDir(tmp_path / "d")
        with pytest.raises(DataDirLocked) as caught:
            data.lock()
        assert caught.value.pid == holder.pid
        holder.kill()
        holder.wait(10)
        data.lock()
        data.unlock()
    finally:
        holder.kill()
        holder.wait(10)
        holder.stdin.close()
        holder.stdout.close()


FORKS = """
import os, sys
from pathlib import Path
from stoker.local.datadir import DataDir
DataDir(Path(sys.argv[1])).lock()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(os.getpid(), flush=True)
os.waitpid(-1, 0)
"""


def test_a_child_of_a_killed_holder_that_has_not_begun_yet_is_waited_for(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, tmp_path / "d"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout.readline() == f"{parent.pid}\n"
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)  # a zombie, until it is reaped below
        data = DataDir(tmp_path / "d")
        with ThreadPoolExecutor() as pool:
            locked = pool.submit(data.lock)
            with pytest.raises(TimeoutError):
                locked.result(0.2)
            parent.stdin.close()  # ends the child
            locked.result(10)
        data.unlock()
    finally:
        parent.kill()
        parent.wait(10)
        parent.stdin.close()
        parent.stdout.close()


PARENT = """
import subprocess, sys
from pathlib import Path
from stoker.local.datadir import DataDir
DataDir(Path(sys.argv[1])).lock()
child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); import sys; sys.stdin.read()"], close_fds=False)
child.wait()
"""


def test_a_worker_that_outlives_the_holder_does_not_hold_the_folder(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path / "d"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout.readline() == "1\n"  # the child is up
        parent.kill()
        parent.wait(10)
        data = DataDir(tmp_path / "d")
        data.lock()
        data.unlock()
    finally:
        parent.stdin.close()  # ends the child
        assert parent.stdout.read() == ""
        parent.stdout.close()


def test_a_store_that_is_lost_differs_from_a_folder_that_never_had_one(tmp_path):
    data = DataDir(tmp_path / "d")
    check_store(data, new_store=False)
    data.db.touch()
    check_store(data, new_store=False)  # killed in its very first start
    data.tokens.touch()
    with pytest.raises(DataDirError, match=r"stoker\.db is empty, but .* \(tokens\.json\): put stoker\.db back"):
        check_store(data, new_store=False)
    data.db.unlink()
    data.output("u-1")
    data.worker("w-1").mkdir()
    with pytest.raises(DataDirError, match=r"is missing, but .*\(jobs/, workers/, tokens\.json\).*--new-store"):
        check_store(data, new_store=False)
    check_store(data, new_store=True)
    lock = (data.worker("w-1") / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(DataDirError, match="1 of the lost store's workers still run"):
        check_store(data, new_store=True)
    lock.close()
    data.db.write_bytes(b"SQLite")
    check_store(data, new_store=False)
    with pytest.raises(DataDirError, match="is for a store that is lost"):
        check_store(data, new_store=True)


def test_the_report_key_is_made_once(tmp_path):
    data = DataDir(tmp_path / "d")
    key = data.report_key()
    assert len(key) == 32 and mode(data.path / "report.key") == 0o600
    assert DataDir(tmp_path / "d").report_key() == key
    (data.path / "report.key").write_bytes(b"torn")
    assert len(data.report_key()) == 32


def test_private_files_are_replaced_whole(tmp_path):
    path = tmp_path / "token"
    write_private(path, b"one")
    with path.open("rb") as reader:
        write_private(path, b"two")
        assert reader.read() == b"one"
    assert path.read_bytes() == b"two" and mode(path) == 0o600
    assert os.listdir(tmp_path) == ["token"]
    with pytest.raises(OSError):
        write_private(tmp_path / "no" / "token", b"x")
