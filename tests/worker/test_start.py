"""The entry point of a worker's container: every shell, any Python, or none."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from stoker.spec.worker import ExitRecord
from stoker_worker.bundle import install, main

from .pod_worker import RANK_1_OF_3

SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["sh"]) if shutil.which(shell[0])]
every_shell = pytest.mark.parametrize("shell", SHELLS, ids="-".join)


@pytest.fixture
def stoker(tmp_path):
    folder = tmp_path / "stoker"
    assert main(["install", str(folder)]) == 0
    return folder


@pytest.fixture
def bin_dir(tmp_path):
    """A PATH with what a small image has, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("env", "mkdir", "cat", "sleep"):
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def bare_start(stoker, tmp_path):
    """The entry point as it is in an image without any Python: the usual places are empty there."""
    text = (stoker / "start").read_text()
    places = [word for word in text.split() if word.startswith(("/usr/", "/opt/", "/venv/")) and "python" in word]
    assert len(places) >= 5
    for place in places:
        text = text.replace(place.rstrip(";"), str(tmp_path / "none"))
    (stoker / "start").write_text(text)
    return stoker / "start"


def run(shell, start, argv, env, **how):
    return subprocess.run(
        [*map(shutil.which, shell[:1]), *shell[1:], str(start), *argv],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        **{"cwd": "/", **how},
    )


@every_shell
def test_with_a_python_it_becomes_the_supervisor(pod_worker, stoker, shell):
    said = run(shell, stoker / "start", ["sh", "-c", 'echo "$0" "$RANK"; exit 3', "two words"], pod_worker.env())
    assert (said.returncode, said.stdout, said.stderr) == (3, "two words 0\n", "")
    record = ExitRecord.model_validate_json(pod_worker.termination_log.read_bytes())
    assert record.exit_code == 3 and record.message == "two words 0"


@every_shell
def test_without_a_python_the_command_runs_bare_and_says_so(pod_worker, stoker, bin_dir, tmp_path, shell):
    env = pod_worker.env(
        PATH=bin_dir,
        STOKER_WORKER=1,
        STOKER_WORKERS=3,
        STOKER_GPUS=2,
        NVIDIA_VISIBLE_DEVICES="GPU-a,GPU-b",
        MASTER_ADDR="job-1-0.job.default.svc",
        HOME="/nowhere",
    )
    said = run(shell, bare_start(stoker, tmp_path), ["env"], env)
    assert said.returncode == 0 and "[stoker] this image has no Python" in said.stderr
    seen = dict(line.split("=", 1) for line in said.stdout.splitlines())
    expected = {
        **RANK_1_OF_3,
        "MASTER_ADDR": "job-1-0.job.default.svc",
        "MASTER_PORT": "29400",
        "STOKER_GPU_UUIDS": "GPU-a,GPU-b",
        "HOME": "/tmp",
        "PWD": str(pod_worker.folder / "volume" / "output"),
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert (pod_worker.folder / "volume" / "checkpoints").is_dir()


@every_shell
@pytest.mark.parametrize("argv", [["sleep", "0"], ["no-such-command"], []], ids=["done", "missing", "nothing"])
def test_a_bare_commands_end_is_its_own(pod_worker, stoker, bin_dir, tmp_path, shell, argv):
    said = run(shell, bare_start(stoker, tmp_path), argv, pod_worker.env(PATH=bin_dir))
    assert said.returncode == {"sleep": 0, "no-such-command": 127}.get(*argv[:1] or ["-"], 64)


def test_code_can_not_be_fetched_without_a_python(pod_worker, stoker, bin_dir, tmp_path):
    env = pod_worker.env(PATH=bin_dir, STOKER_CODE="sha256:abc")
    said = run(["sh"], bare_start(stoker, tmp_path), ["env"], env)
    assert (said.returncode, said.stdout) == (126, "")
    assert "[stoker] the job's code sha256:abc can't be fetched without Python" in said.stderr


@every_shell
def test_an_old_python_is_passed_over(pod_worker, stoker, bin_dir, shell):
    old = bin_dir / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    (bin_dir / "python3.11").symlink_to(sys.executable)
    said = run(shell, stoker / "start", ["env"], pod_worker.env(PATH=bin_dir))
    assert said.returncode == 0 and said.stderr == "" and pod_worker.termination_log.exists()


@every_shell
def test_a_stop_while_it_looks_for_a_python_is_not_lost(pod_worker, stoker, bin_dir, tmp_path, shell, wait_until):
    """The probe of a Python takes its time; the kubelet asks once."""
    slow = bin_dir / "python3"
    slow.write_text(f'#!/bin/sh\n[ "$3" = -c ] || exec {sys.executable} "$@"\n: > {tmp_path}/probed\nsleep 0.5\n')
    slow.chmod(0o755)
    pod_worker.start(
        ["touch", str(tmp_path / "ran")],
        entry=[shutil.which(shell[0]), *shell[1:], stoker / "start"],
        env={"PATH": f"{bin_dir}:/usr/bin:/bin"},
    )
    wait_until((tmp_path / "probed").exists)
    os.kill(pod_worker.process.pid, signal.SIGTERM)
    record = pod_worker.finish()
    assert record.exit_code == 75 and record.stop_requested and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["STOKER_CHECKPOINT_DIR", "STOKER_OUTPUT_DIR"])
def test_a_bare_command_whose_folders_can_not_be_made_is_not_run(pod_worker, stoker, bin_dir, tmp_path, name):
    (tmp_path / "file").touch()
    env = pod_worker.env(PATH=bin_dir, **{name: tmp_path / "file" / "x"})
    said = run(["sh"], bare_start(stoker, tmp_path), ["env"], env)
    assert said.returncode == 126 and "can't use" in said.stderr and said.stdout == ""


def test_it_is_installed_for_everybody_and_the_same_every_time(tmp_path):
    for name in ("a", "b"):
        install(str(tmp_path / name))
        install(str(tmp_path / name))
    assert sorted(os.listdir(tmp_path / "a")) == ["start", "worker.pyz"]
    for name in ("start", "worker.pyz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert (tmp_path / "a" / name).stat().st_mode & 0o777 == 0o755


def test_an_install_that_fails_says_why(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["install", str(tmp_path / "file" / "x")]) == 1
    assert "can't install" in capsys.readouterr().err
    assert main([]) == 64


def test_any_bytes_in_the_environment_come_through_and_none_of_it_lies_on_disk(pod_worker, stoker):
    odd = {**pod_worker.env(), "ODD": "ü\udcff\n=x"}
    said = run(["sh"], stoker / "start", ["sh", "-c", 'printf %s "$ODD"'], odd, errors="surrogateescape")
    assert said.returncode == 0 and said.stdout == odd["ODD"]
    assert json.loads((pod_worker.run_dir / "launch.json").read_text())["env"] == {}
