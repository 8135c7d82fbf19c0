"""The supervisor as it is shipped: the compiled folder, and one zipapp for every Python from 3.8 on."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stoker.spec.worker import Launch
from stoker_worker import folder
from stoker_worker.bundle import build_folder, build_zipapp

from .pod_worker import PYTHONS


def imported(python, program, tmp_path):
    """The modules a start of the supervisor imports, by Python's own account."""
    said = subprocess.run(
        [python, "-X", "importtime", "-I", "-S", program, str(tmp_path / "none")], capture_output=True, text=True
    )
    assert said.returncode == 70, said.stderr
    return {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if line.startswith("import time:")}


def test_the_folder_is_built_once_and_runs_from_bytecode(worker, tmp_path):
    program = build_folder(str(tmp_path / "run"))
    assert program == build_folder(str(tmp_path / "run"))
    assert len(list((tmp_path / "run").iterdir())) == 1
    worker.order(["echo", "hi"]).start(program=program)
    assert worker.finish().exit_code == 0 and worker.log == b"hi\n"


def test_a_start_imports_little(tmp_path):
    modules = imported(sys.executable, build_folder(str(tmp_path / "run")), tmp_path)
    heavy = {"re", "enum", "json", "ctypes", "typing", "collections", "signal", "subprocess", "pathlib", "logging"}
    heavy |= {"threading", "http.client", "asyncio", "dataclasses", "stoker_worker.reporting"}
    heavy |= {"stoker_worker.usercode", "stoker_worker.sessions", "stoker_worker.session", "socket", "hashlib"}
    assert "stoker_worker.supervisor" in modules
    assert not heavy & modules


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS], ids=lambda path: Path(path).parts[-3])
def test_the_zipapp_runs_on_every_python(worker, tmp_path, python):
    build_zipapp(str(tmp_path / "worker.pyz"))
    progress = json.dumps({"at": 1.0, "step": 3})
    # Renamed into place, as the contract asks: the rank that fails first has the other killed at any moment.
    report_step = f"echo '{progress}' > p.$RANK; mv p.$RANK progress.json"
    script = f"{report_step}; (setsid sleep 60 >/dev/null 2>&1 &) ; echo $RANK; exit 7"
    # Reporting to no api takes its two seconds: the oldest and the newest are enough for that.
    report = {"url": "http://127.0.0.1:9", "token": ""} if python in PYTHONS[:1] + PYTHONS[-1:] else None
    worker.order(["sh", "-c", script], ranks=2, mode="perGpu", report=report)
    worker.start(python=python, program=tmp_path / "worker.pyz")
    record = worker.finish()
    assert record.exit_code == 7 and record.progress.step == 3
    assert set(worker.log.splitlines()) >= {f"[rank {record.failed_rank}] {record.failed_rank}".encode()}
    assert worker.family == []


def test_the_zipapp_is_the_same_every_time_and_executable(tmp_path):
    for name in ("a.pyz", "b.pyz"):
        build_zipapp(str(tmp_path / name))
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()
    assert os.access(tmp_path / "a.pyz", os.X_OK)
    assert "stoker_worker/bundle.py" not in zipfile.ZipFile(tmp_path / "a.pyz").namelist()


def test_the_specs_order_is_read_as_it_is_written(tmp_path):
    launch = Launch(
        pod_uid="u",
        pod_name="j-1-0",
        project="p",
        job_name="j",
        job_uid="ju",
        attempt=2,
        worker=1,
        workers=3,
        mode="perGpu",
        ranks=2,
        argv=("python", "x"),
        working_dir="/w",
        env={"A": "ü"},
        grace_s=30,
        gpu_uuids=("G",),
        master_port=1,
        report={"url": "http://x", "token": "t"},
    )
    (tmp_path / "launch.json").write_text(launch.model_dump_json(by_alias=True))
    read = folder.read_launch(str(tmp_path / "launch.json"))
    for name in ("pod_uid", "project", "job_name", "job_uid", "attempt", "worker", "workers", "ranks", "grace_s"):
        assert getattr(read, name) == getattr(launch, name)
    assert tuple(read.argv) == launch.argv and read.env == launch.env and tuple(read.gpu_uuids) == launch.gpu_uuids
    assert read.report == {"url": "http://x", "token": "t"} and read.master_addr == "127.0.0.1"


REPORTS = "import sys, stoker_job; stoker_job.report(7, total_steps=9, loss=0.5); print(stoker_job.__file__, *sys.path)"


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS[:1], *PYTHONS[-1:]], ids=lambda path: Path(path).parts[-3])
@pytest.mark.parametrize("shape", ["folder", "zipapp"])
def test_a_script_imports_what_reports_with_nothing_installed(worker, tmp_path, python, shape):
    program = tmp_path / "worker.pyz"
    if shape == "zipapp":
        build_zipapp(str(program))
    else:
        program = Path(build_folder(str(tmp_path / "run")))
    env = {"PYTHONPATH": "/own", "STOKER_PROGRESS_FILE": "progress.json"}
    worker.order([python, "-S", "-c", REPORTS], env=env).start(program=program)
    record = worker.finish()
    assert record.exit_code == 0, worker.log
    assert (record.progress.step, record.progress.total_steps, record.progress.metrics) == (7, 9, {"loss": 0.5})
    found, *paths = worker.log.decode().split()
    job = paths[paths.index("/own") + 1]
    assert job.endswith("/job") and found.startswith(job), "behind the user's own"


def test_the_trainer_s_ranks_have_no_path_of_ours(worker, tmp_path):
    worker.order(["sh", "-c", "echo ${PYTHONPATH-none}"], mode="perGpu")
    worker.start(program=build_folder(str(tmp_path / "run")))
    assert worker.finish().exit_code == 0 and worker.log == b"none\n"
