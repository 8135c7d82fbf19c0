"""From a folder with a script in it to its model file back here: a real `stoker up`, real jobs, the real command."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import until
from tests.support.machine import Machine

pytest.importorskip("fastapi")
pytestmark = pytest.mark.slow

TRAIN = """
import os, pathlib, sys, time
pathlib.Path("runs").mkdir(exist_ok=True)
pathlib.Path("runs/model.pt").write_bytes(b"m" * 2_000_000)
pathlib.Path(os.environ["STOKER_OUTPUT_DIR"], "best.pt").write_text("best")
print("saved", flush=True)
if sys.argv[1:]: time.sleep(300)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(TRAIN)
    found = Machine(folder / "home", folder / "work")
    yield found
    found.close()


def test_a_model_written_beside_the_code_comes_back(machine: Machine) -> None:
    ran = machine("run", "--name", "ends", "--", sys.executable, "train.py")
    assert ran.stdout == "saved\n", "the output is the command's own"
    output = machine.job("ends")["status"]["output"]
    assert f"output: 2 files, 2.0 MB in {output} · copy: stoker cp ends: FOLDER" in ran.stderr
    assert sorted(path.name for path in Path(output).rglob("*.pt")) == ["best.pt", "model.pt"]
    machine("cp", "ends:runs/model.pt", "model.pt")
    assert (machine.work / "model.pt").read_bytes() == b"m" * 2_000_000


def test_it_is_there_while_the_job_runs_and_while_it_is_suspended(machine: Machine) -> None:
    machine("submit", "--name", "saves", "--", sys.executable, "train.py", "stay")
    listed = ["beside-code/runs/model.pt", "best.pt"]
    until(lambda: machine("files", "saves", "-o", "name").stdout.split() == listed, "its files", timeout_s=30)
    machine("cp", "saves:runs", "running/")
    assert (machine.work / "running" / "runs" / "model.pt").stat().st_size == 2_000_000
    uid = machine.job("saves")["metadata"]["uid"]
    machine("suspend", "saves")
    until(lambda: machine.job("saves")["status"]["phase"] == "Suspended", "it is suspended", timeout_s=60)
    assert machine("files", "saves", "-o", "name").stdout.split() == listed
    assert (machine.home / "jobs" / uid / "output" / "beside-code" / "runs" / "model.pt").exists()


def test_a_killed_supervisors_files_are_kept_by_the_node_agent(machine: Machine) -> None:
    machine("submit", "--name", "shot", "--", sys.executable, "train.py", "stay")
    until(lambda: "saved" in machine("logs", "shot", check=False).stdout, "it has saved", timeout_s=30)
    uid = machine.job("shot")["metadata"]["uid"]
    (pid,) = [
        json.loads((folder / "started.json").read_text())["pid"]
        for folder in (machine.home / "workers").iterdir()
        if json.loads((folder / "launch.json").read_text())["jobUid"] == uid
    ]
    os.kill(pid, signal.SIGKILL)
    machine("cancel", "shot")
    until(lambda: re.match("Cancelled|Failed", machine.job("shot")["status"]["phase"]), "it has ended", timeout_s=60)
    listed = machine("files", "shot", "-o", "name").stdout.split()
    assert "beside-code/runs/model.pt" in listed and "best.pt" in listed
    machine("cp", "shot:runs/model.pt", "shot.pt")
