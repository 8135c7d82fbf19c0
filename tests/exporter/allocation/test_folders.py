"""Who holds which GPU on one machine: folders of real supervisors, read while they are started, live and end.

Nothing here waits for a clock.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stoker_worker
from stoker.exporter.allocation.folders import FolderAllocation
from stoker.exporter.owners import Owner
from stoker.local.agent.folders import WorkerFolder
from stoker.local.agent.spawning import send, start
from stoker.spec.worker import EXIT_FILE, LAUNCH_FILE, LOCK_FILE, STARTED_FILE, Launch, LaunchMode
from stoker.store.seam import Seam
from tests.support.harness import until

from .conftest import gpu

PROGRAM = str(Path(stoker_worker.__file__).with_name("__main__.py"))
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


class Workers:
    """Workers as the node agent starts them."""

    def __init__(self, folder):
        self.path = folder / "workers"
        self.path.mkdir(mode=0o700)
        self.folder = folder
        self.handles = []

    def order(self, uid, *uuids, argv=SLEEP, **more):
        fields = {
            "pod_uid": uid,
            "pod_name": f"train-1-{uid}",
            "project": "vision",
            "job_name": "train",
            "job_uid": "job-1",
            "attempt": 2,
            "worker": 3,
            "workers": 4,
            "mode": LaunchMode.ONCE,
            "ranks": 1,
            "argv": argv,
            "working_dir": str(self.folder),
            "env": {"PATH": os.environ["PATH"], "STOKER_POD_UID": uid},
            "grace_s": 1.0,
            "gpu_uuids": uuids,
            "master_port": 29500,
            **more,
        }
        return Launch(**fields)

    def start(self, uid, *uuids, **more):
        folder = WorkerFolder(self.path, uid)
        handle = start(folder, self.order(uid, *uuids, **more), self.folder / "job", PROGRAM, os.environ, Seam(), {})
        assert handle is not None
        self.handles.append(handle)
        until((folder.path / STARTED_FILE).exists, every_s=0.005)
        return handle

    def end(self, handle, signum=signal.SIGTERM):
        send(handle, signum)
        self.bury(handle)

    def bury(self, handle):
        os.waitid(os.P_PIDFD, handle.pidfd, os.WEXITED)
        os.close(handle.pidfd)
        os.close(handle.ready_fd)
        self.handles.remove(handle)


@pytest.fixture
def workers(tmp_path):
    made = Workers(tmp_path)
    yield made
    for handle in list(made.handles):
        made.end(handle)


@pytest.fixture
def allocation(workers, clock):
    return FolderAllocation(workers.path, lambda: [gpu(0), gpu(1)], clock)


def owners(answer):
    return {one.uuid: one.owner.pod_uid for one in answer.holdings}


def test_a_worker_holds_its_gpus_from_start_to_end(workers, allocation, clock):
    assert allocation.read().holdings == ()
    handle = workers.start("u1", "GPU-0000", "GPU-0001")
    answer = allocation.read()
    assert (answer.known, answer.unattributed, answer.simulated, answer.mono_s) == (True, {}, (), clock.now)
    assert owners(answer) == {"GPU-0000": "u1", "GPU-0001": "u1"}
    assert answer.holdings[0].owner == Owner("vision", "train-1-u1", "u1", "job-1", "vision", "train", 2, 3)
    assert {(one.share, one.method) for one in answer.holdings} == {(1.0, "exclusive")}
    workers.end(handle)
    assert (workers.path / "u1" / EXIT_FILE).exists()
    assert allocation.read().holdings == ()


def test_it_is_reported_when_a_worker_began_and_ended(workers, clock):
    """By started.json and the exit record, on the clock of the meters."""
    handle = workers.start("u1", "GPU-0000")
    begun_at = (workers.path / "u1" / STARTED_FILE).stat().st_mtime
    allocation = FolderAllocation(workers.path, lambda: [gpu(0)], clock, lambda: begun_at + 7)
    read = allocation.read()
    assert read.holdings[0].since_s == pytest.approx(clock.now - 7, abs=1e-3) and read.ended_s == {}
    workers.end(handle)
    lived_s = (workers.path / "u1" / EXIT_FILE).stat().st_mtime - begun_at
    for reader in (allocation, FolderAllocation(workers.path, lambda: [gpu(0)], clock, lambda: begun_at + 7)):
        assert reader.read().ended_s == {"u1": pytest.approx(clock.now - 7 + lived_s, abs=1e-3)}
        assert reader.read().holdings == ()
    an_hour_later = FolderAllocation(workers.path, lambda: [gpu(0)], clock, lambda: begun_at + lived_s + 3700)
    assert an_hour_later.read().ended_s == {}


def test_a_killed_supervisor_holds_nothing_though_it_left_no_record(workers, allocation):
    handle = workers.start("u1", "GPU-0000", argv=("sleep", "2"))
    workers.end(handle, signal.SIGKILL)
    assert not (workers.path / "u1" / EXIT_FILE).exists()
    until(lambda: allocation.read().holdings == ())  # a child that it was starting may have its lock for a moment


def test_one_after_the_other_on_one_gpu(workers, allocation):
    workers.end(workers.start("u1", "GPU-0000"))
    workers.start("u2", "GPU-0000")
    assert owners(allocation.read()) == {"GPU-0000": "u2"}


def test_who_came_and_went_between_two_looks_is_reported_once(workers):
    gpus = []
    allocation = FolderAllocation(workers.path, lambda: gpus)
    for uid in ("u1", "u2"):
        workers.end(workers.start(uid, "GPU-0000"))
    for _ in range(2):  # as long as no GPU is known no hold can begin
        read = allocation.read()
        assert read.holdings == () and {one.owner.pod_uid for one in read.brief} == {"u1", "u2"}
        assert [one.method for one in read.brief] == ["exclusive"] * 2
        # A worker of less than 4 ms has begun and ended in one tick of the files' times.
        assert all(one.since_s <= read.ended_s[one.owner.pod_uid] <= read.mono_s for one in read.brief)
    gpus.append(gpu(0))
    assert len(allocation.read().brief) == 2 and allocation.read().brief == ()
    gpus.clear()
    early = workers.start("u0", "GPU-0000")
    assert owners(allocation.read()) == {"GPU-0000": "u0"}
    workers.end(early)
    gpus.append(gpu(0))
    assert [one.owner.pod_uid for one in allocation.read().brief] == ["u0"], "it was seen when it could have no hold"
    lives = workers.start("u3", "GPU-0000")
    assert owners(allocation.read()) == {"GPU-0000": "u3"}
    workers.end(lives)
    read = allocation.read()
    assert read.brief == () and "u3" in read.ended_s, "it was seen"
    assert FolderAllocation(workers.path, lambda: gpus).read().brief == (), "an exporter before it saw them"


def test_simulated_gpus_are_marked(workers, allocation):
    workers.start("u1", "SIM-0", simulated_gpus=True)
    workers.start("u2", "GPU-0000")
    answer = allocation.read()
    assert answer.simulated == ("SIM-0",)
    assert answer.unattributed == {"device_unseen": 1}  # NVML shows no slots


def test_a_worker_without_gpus_holds_none(workers, allocation):
    workers.start("u1")
    answer = allocation.read()
    assert (answer.holdings, answer.unattributed) == ((), {})


def test_an_order_that_was_given_but_not_begun_holds_nothing(workers, allocation):
    folder = WorkerFolder(workers.path, "u1")
    folder.write_launch(workers.order("u1", "GPU-0000"), workers.folder / "job", Seam())
    fd = folder.take_lock()  # between the lock and the supervisor's first act
    assert allocation.read().holdings == ()
    os.close(fd)


def test_a_new_address_of_the_api_changes_nothing(workers, allocation):
    workers.start("u1", "GPU-0000")
    allocation.read()
    WorkerFolder(workers.path, "u1").replace_launch(workers.order("u1", "GPU-0000", report={"url": "x", "token": "t"}))
    assert owners(allocation.read()) == {"GPU-0000": "u1"}


def test_a_folder_that_is_removed_or_is_none(workers, allocation):
    handle = workers.start("u1", "GPU-0000")
    allocation.read()
    workers.end(handle)
    WorkerFolder(workers.path, "u1").remove(Seam())
    (workers.path / ".removing-u2").mkdir()
    (workers.path / "empty").mkdir()
    (workers.path / "a file").write_text("")
    assert allocation.read().known and allocation.read().holdings == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"podUid": "u1"}', '{"project": 1, "gpuUuids": 3}'])
def test_a_living_worker_whose_order_can_not_be_read_puts_free_gpus_in_doubt(workers, allocation, text):
    workers.start("u1", "GPU-0000")
    workers.start("u2", "GPU-0001")
    (workers.path / "u1" / LAUNCH_FILE).write_text(text)
    answer = allocation.read()
    assert answer.unattributed == {"launch_unreadable": 1}
    assert (owners(answer), answer.doubtful) == ({"GPU-0001": "u2"}, ("GPU-0000",))


def test_no_folder(tmp_path, clock):
    answer = FolderAllocation(tmp_path / "nowhere", lambda: [gpu(0), gpu(1)], clock).read()
    assert not answer.known and answer.unattributed == {"workers_missing": 2}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_folder(workers):
    script = (
        "import os, sys; from pathlib import Path\n"
        "from stoker.exporter.allocation.folders import FolderAllocation\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "answer = FolderAllocation(Path(sys.argv[1])).read()\n"
        "print(answer.known, answer.unattributed)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(workers.path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False {'workers_denied': 1}", done.stderr


def test_looking_never_makes_a_start_fail(workers, clock):
    """Four threads look without a pause while 40 workers are started: each start finds its lock free at first try."""
    stop = threading.Event()
    looks = []

    def look():
        mine = FolderAllocation(workers.path, clock=clock)
        while not stop.is_set():
            looks.append(len(mine.read().holdings))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for n in range(40):
            folder = WorkerFolder(workers.path, f"u{n}")
            folder.write_launch(workers.order(f"u{n}", f"GPU-{n}"), workers.folder / "job", Seam())
            for _ in range(50):  # as `starting` takes it, but without its patience
                fd = folder.take_lock()
                assert fd is not None
                os.close(fd)
            workers.bury(workers.start(f"u{n}", argv=("true",)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(looks) > 40


def test_a_look_holds_no_lock_where_nothing_has_begun(workers, allocation, monkeypatch):
    """The rule itself: before started.json stands, the lock is not touched."""
    folder = WorkerFolder(workers.path, "u1")
    folder.write_launch(workers.order("u1", "GPU-0000"), workers.folder / "job", Seam())
    (folder.path / LOCK_FILE).write_text("")
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("touched"))
    assert allocation.read().holdings == ()


def test_an_ended_folder_is_not_looked_into_again(workers, allocation, monkeypatch):
    workers.end(workers.start("u1", "GPU-0000"))
    allocation.read()
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("touched"))
    assert allocation.read().holdings == ()


def test_exporter_and_agent_read_the_same_fields(workers):
    """The plain reading of launch.json against the model that writes it."""
    launch = workers.order("u1", "SIM-0", "SIM-1", simulated_gpus=True)
    written = json.loads(launch.model_dump_json(by_alias=True, exclude_none=True))
    assert written["gpuUuids"] == ["SIM-0", "SIM-1"] and written["simulatedGpus"] is True
    for name in ("project", "podName", "podUid", "jobUid", "jobName", "attempt", "worker"):
        assert name in written
