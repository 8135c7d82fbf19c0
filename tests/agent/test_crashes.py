"""The agent is killed at every external call between lease and end, and at random moments: every worker runs once."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support.fork_server import ForkServer

# Says who runs it, then numbered lines for a while; ends with the code it was given.
COUNTS = """
import os, sys, time
count, code = int(sys.argv[1]), int(sys.argv[2])
with open('runs', 'a') as runs: runs.write(f"{os.environ['STOKER_POD_NAME']} {os.getpid()}\\n")
for i in range(count):
    print('line', i, flush=True)
    time.sleep(0.01)
sys.exit(code)
"""

CALLS = [
    "agent.folder",
    "agent.launch",
    "agent.lock",
    "agent.spawn",
    "store.patch_status*:1",
    "store.patch_status*:2",
    "store.patch_status*:3",
    "store.patch_status*:4",
    "store.patch_status*:5",
]


@pytest.fixture(scope="module")
def fork_server():
    server = ForkServer("tests.agent.driver")
    yield server
    server.close()


@pytest.fixture
def start(datadir, tmp_path, fork_server):
    def run(rules=""):
        arguments = (str(datadir.path), rules, str(tmp_path / "pods.json"))
        program = f"import asyncio; from tests.agent.driver import main; asyncio.run(main(*{arguments!r}))"
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            return fork_server.fork(os.environ, program, out.fileno(), err.fileno())

    return run


@pytest.fixture
def drive(start, tmp_path):
    def run(rules=""):
        code = start(rules).wait(60)
        return code, (tmp_path / "out").read_text(), (tmp_path / "err").read_text()

    return run


@pytest.fixture
def outcome(drive, datadir, processes):
    """See the pods through to their end, and check that each ran exactly once, completely."""

    def check(expected):
        code, out, err = drive()
        assert code == 0, err
        status = {name: (uid, phase) for name, uid, phase, _ in map(json.loads, out.splitlines())}
        assert processes() == []
        for name, (exit_code, lines) in expected.items():
            uid, phase = status[name]
            assert phase == ("Failed" if exit_code else "Succeeded")
            assert (datadir.worker(uid) / "exit.json").exists(), err
            runs = (datadir.jobs / f"uid-of-{name}" / "output" / "runs").read_text().splitlines()
            assert len(runs) == 1, f"{name} ran {len(runs)} times"
            log = (datadir.worker(uid) / "log").read_text()
            assert log == "".join(f"line {i}\n" for i in range(lines))
            assert json.loads((datadir.worker(uid) / "exit.json").read_text())["exitCode"] == exit_code

    return check


def write_pods(tmp_path, pods):
    (tmp_path / "pods.json").write_text(json.dumps([pod.dump() for pod in pods]))


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_an_external_call_every_worker_runs_once(drive, outcome, make_pod, tmp_path, side, call):
    write_pods(
        tmp_path,
        [
            make_pod("a", [sys.executable, "-c", COUNTS, 30, 0], gpus=1),
            make_pod("b", [sys.executable, "-c", COUNTS, 5, 3], gpus=1),
        ],
    )
    code, _, err = drive(f"kill {side} {call}")
    assert code == -signal.SIGKILL, f"the call was never made: {err}"
    outcome({"a": (0, 30), "b": (3, 5)})


@pytest.mark.slow
def test_killed_again_and_again_the_same_processes_go_on(start, outcome, make_pod, tmp_path):
    """Twelve kills at random moments over pods that live from an instant to seconds."""
    lines = {"p0": 300, "p1": 120, "p2": 60, "p3": 3, "p4": 0, "p5": 200}
    write_pods(tmp_path, [make_pod(name, [sys.executable, "-c", COUNTS, n, 0]) for name, n in lines.items()])
    chance = random.Random(7)
    for _ in range(12):
        process = start()
        time.sleep(chance.uniform(0.0, 0.6))
        process.kill()
        process.wait()
    outcome({name: (0, n) for name, n in lines.items()})


def test_an_injected_failure_is_tried_again(drive, outcome, make_pod, tmp_path):
    write_pods(tmp_path, [make_pod("a", [sys.executable, "-c", COUNTS, 3, 0])])
    code, _, err = drive("fail before agent.folder:1; fail after agent.launch:1; fail before agent.spawn:1")
    assert code == 0, err
    outcome({"a": (0, 3)})


def test_a_spawn_that_worked_but_seemed_to_fail_is_not_repeated(drive, outcome, make_pod, tmp_path):
    write_pods(tmp_path, [make_pod("a", [sys.executable, "-c", COUNTS, 3, 0])])
    assert drive("fail after agent.spawn")[0] == 0
    outcome({"a": (0, 3)})
    trace = (tmp_path / "data" / "trace").read_text()
    assert trace.count("agent.spawn") == 1


def test_a_stop_survives_the_agent(start, drive, make_pod, tmp_path, datadir, processes):
    """Supervisor killed while no agent lives: the next one finds a lost worker and clears what it left."""
    script = """
import subprocess, time
subprocess.Popen(['sleep', '100'], start_new_session=True)
print('up', flush=True)
time.sleep(100)
"""
    write_pods(tmp_path, [make_pod("a", [sys.executable, "-c", script], gpus=2)])
    process = start()
    deadline = time.monotonic() + 20
    while not any(b"up" in log.read_bytes() for log in datadir.workers.glob("*/log")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(processes()) == 3
    started = json.loads(next(datadir.workers.glob("*/started.json")).read_text())
    subprocess.run(["kill", "-KILL", str(started["pid"])], check=True)
    code, out, err = drive()
    assert code == 0, err
    assert json.loads(out)[2:] == ["Failed", "WorkerLost"]
    assert processes() == []
