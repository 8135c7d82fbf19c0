"""Real supervisors in real folders. Nothing a test starts may outlive it."""

import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stoker_worker
from stoker.spec.worker import ExitRecord
from tests.support import harness

from .pod_worker import LogApi, PodWorker
from .session_worker import SessionWorker

until = functools.partial(harness.until, timeout_s=20.0, every_s=0.005)
PROGRAM = Path(stoker_worker.__file__).with_name("__main__.py")


def family_of(uid):
    """Pids of living processes that carry the worker's environment."""
    mark = f"STOKER_POD_UID={uid}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if mark in environ.split(b"\0"):
                found.append(int(name))
    return found


class Worker:
    """One supervisor under test."""

    def __init__(self, folder, uid):
        self.folder, self.uid = folder, uid
        self.process = None

    def order(self, argv, **fields):
        env = {"PATH": os.environ["PATH"], "STOKER_POD_UID": self.uid, **fields.pop("env", {})}
        order = {
            "version": 1,
            "podUid": self.uid,
            "podName": "job-1-0",
            "project": "default",
            "jobName": "job",
            "jobUid": "job-uid",
            "attempt": 1,
            "worker": 0,
            "workers": 1,
            "mode": "once",
            "ranks": 1,
            "argv": [str(word) for word in argv],
            "workingDir": str(self.folder),
            "env": env,
            "graceS": 10.0,
            "masterPort": 29500,
            **fields,
        }
        (self.folder / "launch.json").write_text(json.dumps(order))
        return self

    def start(self, python=sys.executable, program=PROGRAM, options=(), **popen):
        self.process = subprocess.Popen(
            [python, "-I", "-S", str(program), str(self.folder / "launch.json"), *options],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **popen,
        )
        return self

    def run(self, argv, **fields):
        """Start `argv` and see it through."""
        return self.order(argv, **fields).start().finish()

    def python(self, script, *args, **fields):
        """Start a Python script as the rank."""
        return self.order([sys.executable, "-c", script, *args], **fields).start()

    def finish(self, timeout_s=40):
        """The exit record, by the spec's own model."""
        self.code = self.process.wait(timeout_s)
        record = ExitRecord.model_validate_json((self.folder / "exit.json").read_bytes())
        assert self.code == record.exit_code
        assert record.log_bytes == len(self.log)
        return record

    @property
    def log(self):
        return (self.folder / "log").read_bytes()

    @property
    def family(self):
        return family_of(self.uid)

    def says(self, text):
        """Wait until the log holds `text`."""
        log = self.folder / "log"
        until(lambda: log.exists() and text.encode() in log.read_bytes(), what=f"{text!r} in the log")

    def stop(self, signum=signal.SIGTERM):
        os.kill(self.process.pid, signum)

    @property
    def cpu_s(self):
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime


@pytest.fixture
def make_worker(tmp_path):
    made = []

    def make(name="worker"):
        folder = tmp_path / name
        folder.mkdir()
        worker = Worker(folder, f"{os.getpid()}-{time.monotonic_ns()}")
        made.append(worker)
        return worker

    yield make
    for worker in made:
        if worker.process is not None and worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()
        for pid in worker.family:
            os.kill(pid, signal.SIGKILL)
        until(lambda worker=worker: not worker.family, what="the worker's processes to be gone")


@pytest.fixture
def worker(make_worker):
    return make_worker()


@pytest.fixture
def wait_until():
    return until


@pytest.fixture
def pod_worker(tmp_path):
    folder = tmp_path / "pod"
    folder.mkdir()
    worker = PodWorker(folder, f"{os.getpid()}-{time.monotonic_ns()}")
    yield worker
    if worker.process is not None and worker.process.poll() is None:
        worker.process.kill()
        worker.process.wait()
    for pid in family_of(worker.uid):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not family_of(worker.uid), what="the worker's processes to be gone")


@pytest.fixture
def log_api(tmp_path):
    folder = tmp_path / "api"
    folder.mkdir()
    api = LogApi(folder)
    yield api
    api.close()


@pytest.fixture
def entered(worker, log_api):
    return SessionWorker(worker, log_api)
