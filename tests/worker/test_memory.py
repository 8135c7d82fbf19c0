"""A worker that is held to its memory by the kernel: real control groups, where this user may make them."""

import os
import re
import shutil
import subprocess
import sys
import uuid

import pytest

from stoker.local.agent.memory_groups import find_memory_groups
from stoker_worker import memory_group

LIMIT = 96 << 20
TAKE = "print('taking', flush=True); kept = bytearray(400 << 20); print('had it')"


@pytest.fixture
def groups(tmp_path):
    found = find_memory_groups(tmp_path)
    if found.why_not:
        pytest.skip(found.why_not)
    yield found
    found.remove_unused()


@pytest.fixture
def group(groups):
    made = groups.make(f"test-{uuid.uuid4().hex[:8]}", LIMIT)
    assert made
    yield made
    groups.remove(made)
    assert not os.path.exists(made)


def test_what_takes_more_than_its_memory_is_killed_and_the_record_says_so(worker, group):
    worker.python(TAKE, memoryGroup=group)
    record = worker.finish()
    assert (record.signal, record.memory_killed) == (9, True)
    assert LIMIT * 0.95 < record.memory_peak_bytes <= LIMIT
    assert record.message == "ended by SIGKILL; its last line: taking"


def test_a_child_that_the_kernel_took_explains_its_parents_failure(worker, group):
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    record = worker.python(script, TAKE, memoryGroup=group).finish()
    assert (record.exit_code, record.signal, record.memory_killed) == (1, None, True)


def test_within_its_memory_nothing_happens_and_the_peak_is_known(worker, group):
    record = worker.python("kept = bytearray(32 << 20); raise SystemExit(3)", memoryGroup=group).finish()
    assert (record.exit_code, record.memory_killed) == (3, False)
    assert 32 << 20 < record.memory_peak_bytes < LIMIT


def test_a_group_that_is_gone_is_logged_and_the_worker_runs(worker, tmp_path, capfd):
    record = worker.run(["true"], memoryGroup=str(tmp_path / "none"))
    assert (record.exit_code, record.memory_peak_bytes) == (0, None)
    assert "memory is not enforced" in capfd.readouterr().err


def test_groups_of_a_killed_server_are_removed_but_for_those_in_use(groups, tmp_path):
    used, left = (groups.make(f"test-{uuid.uuid4().hex[:8]}", LIMIT) for _ in range(2))
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with open(f"{used}/{memory_group.PROCS_FILE}", "w") as file:
        file.write(str(sleeper.pid))
    other = find_memory_groups(tmp_path / "another data folder")
    assert os.path.exists(left)
    other.remove(left)
    assert os.path.exists(left), "it is another server's"
    find_memory_groups(tmp_path)
    assert os.path.exists(used) and not os.path.exists(left)
    sleeper.communicate(b"\n")


# cgroup v2 by its files, as a container sees them; the kernel that runs these tests may have v1.

V2 = {"memory.max": "1073741824\n", "memory.peak": "5000\n", "memory.events": "low 0\nmax 31\noom 1\noom_kill 2\n"}


@pytest.mark.parametrize(
    ("cgroup", "mount", "within"),
    [
        ("0::/\n", "/", ""),
        ("0::/kubepods/pod1/c1\n", "/", "kubepods/pod1/c1"),
        ("0::/kubepods/pod1/c1\n", "/kubepods/pod1/c1", ""),
        ("9:name=systemd:/\n0::/user.slice/a.scope\n", "/", "user.slice/a.scope"),
    ],
)
def test_the_own_group_of_v2_is_found_and_read(tmp_path, monkeypatch, cgroup, mount, within):
    here = tmp_path / "cgroup" / within
    here.mkdir(parents=True)
    for name, text in V2.items():
        (here / name).write_text(text)
    tables = {
        "/proc/self/cgroup": cgroup,
        "/proc/self/mountinfo": f"1 2 0:3 / /proc rw - proc proc rw\n4 5 0:6 {mount} {tmp_path}/cgroup ro,nosuid"
        " shared:9 - cgroup2 cgroup rw,nsdelegate\n",
    }
    read = memory_group._lines
    monkeypatch.setattr(
        memory_group, "_lines", lambda path: tables[path].rstrip("\n").split("\n") if path in tables else read(path)
    )
    assert memory_group.own_group() == str(here)
    assert (memory_group.kills(str(here)), memory_group.peak_bytes(str(here))) == (2, 5000)
    shutil.rmtree(here)
    assert memory_group.own_group() == ""


def test_the_supervisor_reads_no_group_that_it_was_not_given(worker):
    record = worker.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert (record.signal, record.memory_killed, record.memory_peak_bytes) == (9, False, None)
    assert re.match("ended by SIGKILL", record.message)
