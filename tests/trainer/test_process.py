"""The trainer as the supervisor runs it: one process from its environment to exit code, files and metrics."""

from __future__ import annotations

import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("torch")

from stoker.spec.worker import Progress
from tools.verify import resume

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_the_default_recipe_reaches_its_target(run, make_config):
    target = {"metric": "accuracy", "value": 0.97, "mode": None}
    stop = {"maxSteps": None, "target": target, "patience": None}
    codes, outputs = run.run(make_config({}, stop=stop, precision="auto"), fresh=True)
    assert codes == [0], outputs
    progress = Progress.model_validate(run.progress())
    summary = progress.summary
    assert summary["accuracy"] >= 0.97 and summary["targetReached"] is True
    assert summary["ended"] == "the target is reached"
    assert 0 < summary["timeToTargetS"] <= summary["trainS"]
    assert summary["precision"] == "fp32" and summary["device"] == "cpu" and summary["worldSize"] == 1
    assert (summary["trainRows"], summary["testRows"]) == (1442, 355)
    assert f"split sha256:{summary['splitDigest']}" in outputs[0]
    assert Path(summary["weights"]).is_file() and progress.checkpoint.step == progress.step
    assert "target 0.97 reached after" in outputs[0]


def test_asked_by_a_signal_it_shows_its_stacks_and_trains_on(run, make_config, small):
    processes = run.start(make_config(small | {"epochs": 5000}))
    run.wait_for_steps(20)
    processes[0].send_signal(signal.SIGUSR1)
    run.wait_for_steps(len(run.trace()) + 50)
    processes[0].send_signal(signal.SIGTERM)
    codes, outputs = run.finish(processes)
    assert codes == [75]
    assert "most recent call first" in outputs[0] and "stoker_trainer/main.py" in outputs[0], outputs


@pytest.mark.parametrize("host", ["", "0.0.0.0"], ids=["loopback", "a pod's"])
def test_metrics_are_served_while_training(host, run, make_config, small):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"STOKER_METRICS_PORT": str(port), "STOKER_METRICS_HOST": host, "STOKER_JOB": "j"}
    processes = run.start(make_config(small | {"epochs": 5000}), **env)
    run.wait_for_steps(50)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    everywhere = f"{'00000000' if host else '0100007F'}:{port:04X}"
    assert everywhere in Path("/proc/net/tcp").read_text()
    processes[0].send_signal(signal.SIGTERM)
    assert run.finish(processes)[0] == [75]
    assert (
        'stoker_train_step_total{attempt="",job_name="j",job_uid="",project="",recipe="image-classification"}' in text
    )


def test_a_taken_metrics_port_does_not_stop_the_training(run, make_config, small):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        codes, outputs = run.run(make_config(small), STOKER_METRICS_PORT=port)
    assert codes == [0] and f"no /metrics on port {port}" in outputs[0]


def wait_until(condition, within_s=30.0):
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.002)


def test_a_stop_while_importing_ends_at_once_without_a_checkpoint(run, make_config, small):
    (process,) = run.start(make_config(small), fresh=True)
    wait_until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())
    process.send_signal(signal.SIGTERM)
    codes, outputs = run.finish([process], within_s=60)
    assert codes == [75]
    assert "nothing to save" in outputs[0] and not run.trace()
    assert not list(run.folder.glob("checkpoints/step-*"))


AT_ONCE = """
import os, signal
real = signal.signal
def handle(number, handler):
    real(number, handler)
    os.kill(os.getpid(), number)
signal.signal = handle
"""


def test_a_stop_is_not_lost_as_soon_as_it_no_longer_ends_the_process(run, make_config, small):
    codes, outputs = run.run(make_config(small), script=AT_ONCE)
    assert codes == [75], outputs


def test_a_stop_while_waiting_for_a_peer_ends_at_once(run, make_config, small):
    (process,) = run.start(make_config(small), WORLD_SIZE="2", MASTER_PORT=(port := free_port()))

    def rendezvous_is_open():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(port))) == 0

    wait_until(rendezvous_is_open)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert run.finish([process])[0] == [75]
    assert time.monotonic() - begin < 20  # it would wait 120 s for its peer


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


IMPORTS = """
import sys, stoker_trainer.loop as loops
real = loops.Loop.run
def run(self):
    real(self)
    print("heavy:", sorted({"torch._dynamo", "torch._inductor", "sympy", "sklearn", "mlxtend"} & set(sys.modules)))
loops.Loop.run = run
"""


def test_a_training_imports_no_compiler(run, make_config, small):
    """Each of these costs seconds at every start; torch.optim and use_deterministic_algorithms import them."""
    codes, outputs = run.run(make_config(small), 1, IMPORTS, fresh=True)
    assert codes == [0] and "heavy: []" in outputs[0], outputs


HANG = """
import threading, stoker_trainer.step as steps
real, calls = steps.backward, [0]
def backward(*args):
    calls[0] += 1
    if calls[0] == 3:
        threading.Event().wait()
    real(*args)
steps.backward = backward
"""


def test_no_progress_ends_as_stalled_and_shows_where(run, make_config, small):
    codes, outputs = run.run(make_config(small), 1, HANG, STOKER_STALL_SECONDS="5")
    assert codes == [78]
    assert "no progress for 5 s" in outputs[0] and "in backward" in outputs[0]


def test_a_superseded_attempt_ends_itself(run, make_config, small):
    config = make_config(small | {"epochs": 5000}, checkpoint={"everySeconds": 0.0, "keep": 2})
    processes = run.start(config, STOKER_ATTEMPT="1")
    run.wait_for_steps(5)
    (run.folder / "checkpoints" / "claims" / "00000002").touch()
    codes, outputs = run.finish(processes, within_s=60)
    assert codes == [1]
    assert "attempt 2 has claimed it" in outputs[0]


@pytest.mark.parametrize(("ranks", "how"), [(1, "sigkill"), (2, "sigterm")])
def test_resume_is_bitwise(ranks, how, tmp_path, fork_server, monkeypatch):
    """The committed tool with few stops; docs/trainer.md has the figures for twenty."""

    def start(command, env, stdout, stderr):
        return fork_server.fork(env, "from stoker_trainer.__main__ import run; run()", stdout.fileno(), stdout.fileno())

    monkeypatch.setattr(resume.subprocess, "Popen", start)
    said = resume.verify(tmp_path, 3, ranks, how, seed=ranks, config=resume.default_config(epochs=4))
    assert "equal in every bit" in said
