"""What a command writes beside its code: moved into the output folder when the worker ends, by real supervisors."""

import os
import time
from pathlib import Path

import pytest

from stoker_worker import kept_files
from stoker_worker.folder import Launch

from .test_code import bundle_of, sends

SHIPPED = {"train.py": b"print('training')\n", "data/shipped.txt": b"shipped", "config": "data/shipped.txt"}
WRITES = """
import os, pathlib, time
pathlib.Path('runs/one').mkdir(parents=True)
pathlib.Path('runs/one/model.pt').write_bytes(b'model')
pathlib.Path('data/shipped.txt').write_text('changed')
pathlib.Path('__pycache__').mkdir()
pathlib.Path('__pycache__/x.pyc').write_text('cache')
pathlib.Path('env/bin').mkdir(parents=True)
pathlib.Path('env/pyvenv.cfg').touch()
pathlib.Path('env/bin/python').touch()
os.symlink('/etc/hostname', 'runs/link')
if os.environ.get('THEN') == 'fail': raise SystemExit(3)
if os.environ.get('THEN') == 'wait':
    print('written', flush=True)
    time.sleep(60)
"""


def kept(pod_worker, name="beside-code"):
    """path -> content, or a link's text, of what is in the output folder."""
    root = pod_worker.folder / "volume" / "output" / name
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


EXPECTED = {"runs/one/model.pt": b"model", "data/shipped.txt": b"changed", "runs/link": "/etc/hostname"}


@pytest.mark.parametrize("then", ["", "fail", "wait"])
def test_what_is_written_beside_the_code_is_kept_however_it_ends(pod_worker, log_api, then):
    digest, body = bundle_of(SHIPPED)
    log_api.code = sends(body)
    pod_worker.python(WRITES, api=log_api, env={"STOKER_CODE": digest, "THEN": then})
    if then == "wait":
        deadline = time.monotonic() + 30
        while b"written" not in pod_worker.stdout and time.monotonic() < deadline:
            time.sleep(0.02)
        pod_worker.process.terminate()
    pod_worker.finish()
    assert kept(pod_worker) == EXPECTED, "the command's own, without caches and environments, and nothing as shipped"
    assert b"[stoker]" not in pod_worker.stdout or then, "the log is the command's own"


def test_another_worker_has_a_folder_of_its_own_and_an_attempt_adds_to_the_last(pod_worker, log_api):
    digest, body = bundle_of(SHIPPED)
    log_api.code = sends(body)
    pod_worker.python(
        WRITES, api=log_api, env={"STOKER_CODE": digest, "STOKER_WORKER": "2", "STOKER_WORKERS": "3"}
    ).finish()
    assert not kept(pod_worker) and kept(pod_worker, "beside-code-2") == EXPECTED


def test_an_output_folder_laid_as_a_trap_is_not_followed(pod_worker, log_api):
    digest, body = bundle_of(SHIPPED)
    log_api.code = sends(body)
    elsewhere = pod_worker.folder / "elsewhere"
    elsewhere.mkdir()
    trap = f"import os; os.symlink({str(elsewhere)!r}, os.environ['STOKER_OUTPUT_DIR'] + '/beside-code')\n"
    pod_worker.python(trap + WRITES, api=log_api, env={"STOKER_CODE": digest})
    assert pod_worker.finish().exit_code == 0
    assert not any(elsewhere.iterdir())
    assert b"3 files written beside the code were not kept (Not a directory): " in pod_worker.stdout


def launch_of(output):
    return Launch(
        {
            "podUid": "u", "project": "p", "jobName": "j", "jobUid": "ju", "attempt": 1, "worker": 0, "workers": 1,
            "ranks": 1, "argv": ["x"], "workingDir": "/", "graceS": 1, "masterPort": 1,
            "env": {"STOKER_OUTPUT_DIR": str(output), "STOKER_CODE": "sha256:0"},
        }
    )  # fmt: skip


@pytest.fixture
def other_disk(tmp_path):
    """A worker's folder on another file system than `tmp_path`."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    folder = shm / f"stoker-test-{os.getpid()}"
    (folder / "code").mkdir(parents=True)
    (folder / "code-complete").touch()
    time.sleep(0.02)
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()


def test_onto_another_file_system_it_is_copied_up_to_a_limit(other_disk, tmp_path, monkeypatch):
    code = other_disk / "code"
    for number in range(3):
        (code / f"small{number}").write_bytes(b"s" * 100)
    (code / "big").write_bytes(b"b" * 2000)
    os.utime(code / "small0", (1_000_000_000, 1_000_000_000))
    (code / "small0").chmod(0o755)
    (code / "link").symlink_to("small0")
    os.mkfifo(code / "pipe")
    monkeypatch.setattr(kept_files, "MOST_BYTES", 1000)
    lines = kept_files.keep_files(str(other_disk), launch_of(tmp_path))
    found = {path.name: path for path in (tmp_path / "beside-code").iterdir()}
    assert sorted(found) == ["link", "small0", "small1", "small2"], "small ones first, and nothing half"
    assert found["small0"].stat().st_mtime == 1_000_000_000 and os.access(found["small0"], os.X_OK)
    assert os.readlink(found["link"]) == "small0"
    assert lines == [
        "1 file written beside the code was not kept (over the limit of 0 MiB for what is copied): big; write results"
        " to $STOKER_OUTPUT_DIR"
    ]


def test_what_was_shipped_does_not_count_in_the_limit_of_files(tmp_path, monkeypatch):
    folder, output = tmp_path / "worker", tmp_path / "output"
    (folder / "code").mkdir(parents=True)
    output.mkdir()
    for number in range(20):
        (folder / "code" / f"a{number}").touch()
    (folder / "code-complete").touch()
    time.sleep(0.02)
    for number in range(4):
        (folder / "code" / f"own{number}").write_bytes(b"x" * number)
    monkeypatch.setattr(kept_files, "MOST_LISTED", 3)
    lines = kept_files.keep_files(str(folder), launch_of(output))
    assert sorted(path.name for path in (output / "beside-code").iterdir()) == ["own0", "own1", "own2"]
    assert lines == [
        "1 file written beside the code was not kept (over the limit of 3 files): own3; write results to"
        " $STOKER_OUTPUT_DIR"
    ]
