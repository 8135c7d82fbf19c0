"""`stoker_job.report`: what a script says becomes the worker's progress, and never costs it anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import stoker_job.progress
from stoker.spec.worker import Progress
from stoker_job import report
from stoker_job.progress import ProgressFile


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv("STOKER_PROGRESS_FILE", str(path))
    monkeypatch.setattr(stoker_job.progress, "_warned", False)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return path


def read(path: Path) -> Progress:
    return Progress.model_validate_json(path.read_text())


def script(path: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from stoker_job import report\n" + code],
        env={**os.environ, "STOKER_PROGRESS_FILE": str(path), **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_what_is_reported_is_the_contracts_progress(path: Path) -> None:
    report(3, total_steps=10, epoch=1, samples=96, loss=0.5, checkpoint=path.parent / "step-3", **{"my/score": 1})
    found = read(path)
    assert (found.step, found.total_steps, found.epoch, found.samples) == (3, 10, 1, 96)
    assert found.metrics == {"loss": 0.5, "my/score": 1.0}
    assert found.checkpoint is not None and (found.checkpoint.step, found.checkpoint.path[-6:]) == (3, "step-3")
    assert abs(found.at - time.time()) < 60


def test_reports_in_a_row_are_written_twice_a_second_and_the_last_always(path: Path) -> None:
    now = 0.0
    file = ProgressFile(str(path), now=lambda: now)
    file.take({"step": 1, "totalSteps": 9}, {"loss": 1.0}, None)
    file.take({"step": 2}, {"accuracy": 0.5}, None)
    assert read(path).step == 1
    now = 0.5
    file.take({"step": 3}, {"loss": 0.3}, None)
    assert read(path).step == 3 and read(path).total_steps == 9
    assert read(path).metrics == {"loss": 0.3, "accuracy": 0.5}, "the newest of each"
    written = path.stat().st_ino
    file.take({"step": 4}, {}, None)
    deadline = time.monotonic() + 30
    while path.stat().st_ino == written:  # the timer's business: nothing more is reported
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    assert read(path).step == 4
    done = script(path, "for step in range(1, 1001): report(step, total_steps=1000)\n")
    assert done.returncode == 0 and read(path).step == 1000, "at the script's end, too"


def test_nothing_that_is_reported_ends_a_training(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __float__(self) -> float:
            raise RuntimeError("device lost")

    report(1, loss=float("nan"), best="high", evil=Evil(), lr=True, many=[1], fine=2, summary={"at": Path("x")})
    assert json.loads(path.read_text())["metrics"] == {"lr": 1.0, "fine": 2.0}
    assert read(path).summary == {"at": "x"}
    done = script(path.parent / "missing" / "p", "report(1); report(2); print('on')")
    assert done.stdout == "on\n" and done.returncode == 0
    assert done.stderr.count("[stoker] progress can't be reported: FileNotFoundError") == 1


def test_who_is_not_the_first_of_a_worker_and_who_is_no_job_say_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    report(1)
    assert not path.exists()
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("STOKER_PROGRESS_FILE")
    report(1)
    assert not path.exists()


def test_a_fork_of_a_training_reports_too(path: Path) -> None:
    code = "import os\nreport(1)\nif os.fork() == 0:\n    report(2); os._exit(0)\nos.wait()\nreport(3)\n"
    assert script(path, code).returncode == 0 and read(path).step == 3


def test_a_tensor_is_read_when_it_is_written_and_its_graph_let_go(path: Path) -> None:
    reads = []

    class Tensor:
        def __init__(self, graph: str) -> None:
            self.graph = graph

        def detach(self) -> Tensor:
            return Tensor("")

        def __float__(self) -> float:
            reads.append(self.graph)
            return 0.5

    file = ProgressFile(str(path), now=lambda: 0.0)
    for step in range(50):
        file.take({"step": step}, {"loss": Tensor("kept")}, None)
    assert reads == [""], "a device is not waited for, and no graph is kept"
    assert read(path).metrics == {"loss": 0.5}
