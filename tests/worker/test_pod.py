"""The supervisor in pod mode: its order from the environment, its folders, its last words, its stdout."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.spec.worker import ExitRecord
from stoker_worker import pod
from stoker_worker.bundle import install
from stoker_worker.folder import termination_message

from .pod_worker import PROGRAM

SHOWS_ENV = """
import json, os
json.dump([dict(os.environ), os.getcwd()], open(os.environ['STOKER_RUN_DIR'] + '/e', 'w'))
"""
PYTHON = "/usr/bin/python3"


def shown(pod_worker, **env):
    pod_worker.python(SHOWS_ENV, env=env)
    assert pod_worker.finish().exit_code == 0
    return json.loads((pod_worker.run_dir / "e").read_text())


def test_the_environment_is_the_contracts(pod_worker):
    uuids = "GPU-aaaa,GPU-bbbb"
    env, cwd = shown(
        pod_worker,
        STOKER_GPUS=2,
        NVIDIA_VISIBLE_DEVICES=uuids,
        MASTER_ADDR="job-1-0.job.default.svc",
        MASTER_PORT=29400,
        STOKER_WORKER=1,
        STOKER_WORKERS=2,
        USER_WORD="kept",
    )
    output = str(pod_worker.folder / "volume" / "output")
    assert cwd == env["STOKER_OUTPUT_DIR"] == output and os.path.isdir(env["STOKER_CHECKPOINT_DIR"])
    assert env["STOKER_GPU_UUIDS"] == env["CUDA_VISIBLE_DEVICES"] == uuids
    assert env["MASTER_ADDR"] == env["PET_MASTER_ADDR"] == "job-1-0.job.default.svc"
    assert (env["RANK"], env["WORLD_SIZE"], env["GROUP_RANK"], env["PET_NNODES"]) == ("1", "2", "1", "2")
    assert (env["PET_NPROC_PER_NODE"], env["OMP_NUM_THREADS"], env["USER_WORD"]) == ("2", "2", "kept")
    jax = (env["JAX_COORDINATOR_ADDRESS"], env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"])
    assert jax == ("job-1-0.job.default.svc:29400", "2", "1")
    workers = ["job-1-0.job.default.svc:29400", "job-1-1.job.default.svc:29400"]
    assert json.loads(env["TF_CONFIG"]) == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}}
    assert env["STOKER_PROGRESS_FILE"] == str(pod_worker.run_dir / "progress.json")
    assert os.access(env["HOME"], os.W_OK) and env["USER"]
    assert (pod_worker.run_dir.stat().st_mode & 0o777) == 0o700


@pytest.mark.parametrize(
    ("given", "uuids", "cuda"),
    [
        ({}, "", ""),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "", ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "STOKER_GPUS": 4}, "", None),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1", "STOKER_GPUS": 2}, "0,1", None),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-1", "STOKER_GPUS": 1}, "MIG-1", "MIG-1"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-1", "STOKER_GPUS": 1, "STOKER_SIMULATED_GPUS": 1}, "GPU-1", ""),
    ],
    ids=["none", "an image's own all", "by another way", "by number", "a part", "pretended"],
)
def test_the_gpus_are_the_device_plugins(tmp_path, given, uuids, cuda):
    order = pod.compose(environment(tmp_path, **given), ["true"])
    env = order.launch.env
    assert env["STOKER_GPU_UUIDS"] == uuids and env.get("CUDA_VISIBLE_DEVICES") == cuda
    assert order.launch.gpus == int(given.get("STOKER_GPUS", 0))


@pytest.mark.parametrize(
    ("address", "host"),
    [("", "127.0.0.1"), ("10.0.0.7", "0.0.0.0"), ("fd00::7", "::")],
    ids=["on the node's network", "IPv4", "IPv6"],
)
def test_metrics_are_served_on_the_pods_own_addresses(tmp_path, address, host):
    given = {"STOKER_POD_IP": address} if address else {}
    assert pod.compose(environment(tmp_path, **given), ["true"]).launch.env["STOKER_METRICS_HOST"] == host


def environment(tmp_path, **more):
    env = {f"STOKER_{name}": "1" for name in ("ATTEMPT", "WORKERS", "RANKS")} | {
        "STOKER_WORKER": "0",
        "STOKER_GPUS": "0",
        "STOKER_RUN_DIR": str(tmp_path / "run"),
        **{f"STOKER_{name}": name for name in ("POD_UID", "JOB", "JOB_UID", "PROJECT")},
    }
    return env | {name: str(value) for name, value in more.items()}


def test_threads_follow_the_share_of_processors(tmp_path, monkeypatch):
    def threads(**more):
        return pod.compose(environment(tmp_path, **more), ["true"]).launch.env["OMP_NUM_THREADS"]

    assert threads(STOKER_CPU_MILLI=8000, STOKER_RANKS=2) == "4"
    assert threads(STOKER_CPU_MILLI=500) == "1"
    monkeypatch.setattr(pod, "_cgroup_cpu_milli", lambda: 3000)
    assert threads() == "3"
    assert threads(OMP_NUM_THREADS=7) == "7"
    monkeypatch.setattr(pod, "_cgroup_cpu_milli", lambda: 0)
    assert threads() == str(len(os.sched_getaffinity(0)))


def test_the_working_folder_is_the_jobs_else_the_images_else_the_outputs(tmp_path, monkeypatch):
    def working_dir(**more):
        return pod.compose(environment(tmp_path, STOKER_OUTPUT_DIR=tmp_path / "o", **more), ["true"]).launch.working_dir

    monkeypatch.chdir("/")
    assert working_dir() == str(tmp_path / "o")
    code = {"STOKER_CODE": "sha256:" + "0" * 64}
    assert working_dir(**code) == str(tmp_path / "run" / "code")
    assert working_dir(**code, STOKER_WORKING_DIR="a/b") == str(tmp_path / "run" / "code" / "a" / "b")
    assert working_dir(STOKER_WORKING_DIR="/srv") == "/srv"
    monkeypatch.chdir(tmp_path)
    assert working_dir() == str(tmp_path)


def test_folders_of_the_code_go_before_the_images_own_for_python(tmp_path):
    def python_path(**more):
        return pod.compose(environment(tmp_path, **more), ["true"]).launch.env.get("PYTHONPATH")

    code = tmp_path / "run" / "code"
    assert python_path(STOKER_PYTHON_PATH="src:.") == f"{code}/src:{code}"
    assert python_path(STOKER_PYTHON_PATH="src", PYTHONPATH="/opt/x") == f"{code}/src:/opt/x"
    assert python_path(PYTHONPATH="/opt/x") == "/opt/x" and python_path() is None


@pytest.mark.parametrize("missing", ["STOKER_POD_UID", "STOKER_JOB_UID", "STOKER_ATTEMPT"])
def test_what_is_no_workers_pod_is_refused(pod_worker, missing, capfd):
    pod_worker.start(["true"], env={missing: None})
    assert pod_worker.process.wait(10) == 70
    assert missing in capfd.readouterr().err


@pytest.mark.skipif(os.getuid() != 0 or not os.access(PYTHON, os.X_OK), reason="needs root and a Python for all users")
def test_a_volume_that_may_not_be_written_is_a_clear_end(pod_worker):
    """As a user that is neither root nor known to the image."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        home.chmod(0o755)
        install(str(home / "stoker"))
        (home / "stoker").chmod(0o777)
        (home / "volume").mkdir(mode=0o755)
        pod_worker.run_dir = home / "stoker" / "run"
        env = {"STOKER_CHECKPOINT_DIR": home / "volume" / "c", "STOKER_TERMINATION_LOG": home / "stoker" / "words"}
        worker = subprocess.run(
            ["/bin/sh", str(home / "stoker" / "start"), "true"],
            env=pod_worker.env(PATH="/usr/bin:/bin", **env),
            cwd="/",
            user=23456,
            group=23456,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        record = ExitRecord.model_validate_json((home / "stoker" / "words").read_bytes())
    assert worker.returncode == record.exit_code == 126
    for words in ("Permission denied", "user 23456", "fsGroup", "belongs to user 0, group 0, mode 0755"):
        assert words in record.message and words in worker.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="makes folders of others")
@pytest.mark.parametrize(
    ("owner", "mode", "says"),
    [
        (
            (4321, 4321),
            0o700,
            "user 4321, group 4321, mode 0700; this worker runs as user 0, group 0. In the security of",
        ),
        ((4321, 4321), 0o700, "set runAsUser: 4321; or fsGroup, for volumes that heed it"),
        ((4321, 99), 0o2775, "set runAsUser: 4321 or fsGroup: 99"),
        ((0, 99), 0o770, "set fsGroup: 99"),
        ((0, 0), 0o755, "set fsGroup (volumes that heed it are given to that group), or change the folder's owner"),
    ],
)
def test_the_message_about_a_foreign_volume_is_the_fix(tmp_path, owner, mode, says):
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, *owner)
    volume.chmod(mode)
    said = pod._whose(str(volume / "uid" / "checkpoints"))
    assert said.startswith(f"{volume} belongs to user {owner[0]}") and says in said


@pytest.mark.skipif(os.getuid() != 0 or not os.access(PYTHON, os.X_OK), reason="needs root and a Python for all users")
def test_in_an_image_made_for_root_home_and_caches_can_be_written(pod_worker):
    """As the user of *restricted*: what the image says of root's home is of no use, what it brings along stays."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        home.chmod(0o755)
        install(str(home / "stoker"))
        for name, mode in [("stoker", 0o777), ("volume", 0o777), ("root", 0o700), ("models", 0o755), ("mine", 0o777)]:
            (home / name).mkdir(exist_ok=True)
            (home / name).chmod(mode)
        pod_worker.run_dir = home / "stoker" / "run"
        image = {
            "HOME": home / "root",
            "XDG_CACHE_HOME": home / "root" / ".cache",
            "TORCHINDUCTOR_CACHE_DIR": home / "root" / "inductor",
            "TRITON_CACHE_DIR": "/proc/triton",
            "MPLCONFIGDIR": home / "models" / "mpl",
            "TORCH_HOME": home / "root" / "torch",
            "HF_HOME": home / "models",
            "NUMBA_CACHE_DIR": home / "mine" / "numba",
        }
        env = pod_worker.env(
            PATH="/usr/bin:/bin",
            STOKER_CHECKPOINT_DIR=home / "volume" / "c",
            STOKER_OUTPUT_DIR=home / "volume" / "o",
            STOKER_TERMINATION_LOG=home / "stoker" / "words",
            **image,
        )
        worker = subprocess.run(
            ["/bin/sh", str(home / "stoker" / "start"), "env"],
            env=env, cwd="/", user=23456, group=23456, extra_groups=[], capture_output=True, text=True, check=False,
        )  # fmt: skip
    seen = dict(line.split("=", 1) for line in worker.stdout.splitlines())
    assert {name: seen[name] for name in image if name in seen} == {
        "HOME": "/tmp",
        "HF_HOME": str(home / "models"),
        "NUMBA_CACHE_DIR": str(home / "mine" / "numba"),
    }
    assert seen["USER"] == seen["LOGNAME"] == "stoker"


times = st.floats(0, 2e9)
numbers = st.integers(0, 1 << 60)
ranks = st.integers(0, 64).map(lambda n: [{"rank": r, "exitCode": 1, "signal": None, "at": 1.5} for r in range(n)])
records = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "podUid": st.text(max_size=40),
        "startedAt": times,
        "finishedAt": times,
        "stopRequested": st.booleans(),
        "exitCode": st.integers(0, 255),
        "signal": st.none() | st.integers(1, 64),
        "failedRank": st.none() | st.integers(0, 4096),
        "failedAt": st.none() | times,
        "ranks": ranks,
        "graceExceeded": st.booleans(),
        "message": st.text(max_size=200) | st.integers(0, 1000).map("\N{FIRE}".__mul__),
        "progress": st.none()
        | st.fixed_dictionaries(
            {"at": times, "step": numbers},
            optional={
                "samples": numbers,
                "metrics": st.dictionaries(st.text(max_size=9), st.floats(-1e9, 1e9), max_size=5)
                | st.integers(0, 300).map(lambda n: {f"metric-{i}": float(i) for i in range(n)}),
                "checkpoint": st.fixed_dictionaries({"step": numbers, "path": st.integers(0, 4095).map("p".__mul__)}),
                "summary": st.dictionaries(st.text(max_size=9), st.integers(0, 5000).map("s".__mul__), max_size=3),
            },
        ),
        "logBytes": numbers,
    }
)


@given(records)
@settings(deadline=None)
def test_the_termination_message_fits_and_are_always_a_record(data):
    message = termination_message(data)
    assert len(message) <= 4096
    read, whole = ExitRecord.model_validate_json(message), ExitRecord.model_validate(data)
    kept = ("pod_uid", "exit_code", "signal", "stop_requested", "failed_rank", "failed_at", "log_bytes", "finished_at")
    assert all(getattr(read, name) == getattr(whole, name) for name in kept)
    if whole.progress is None:
        assert read.progress is None
    else:
        assert read.progress.step == whole.progress.step
        saved = whole.progress.checkpoint
        assert saved is None or read.progress.checkpoint.step == saved.step
    if len(json.dumps(data)) <= 4096:
        assert read == whole


def test_a_reader_that_stalls_or_goes_never_holds_the_worker_up(pod_worker, log_api):
    read, write = os.pipe()
    script = "import sys\nfor i in range(200_000): print(i, 'x' * 100)"
    began = time.monotonic()
    pod_worker.python(script, api=log_api, stdout=write)
    os.close(write)
    record = pod_worker.finish()
    os.close(read)
    assert record.exit_code == 0 and record.finished_at - record.started_at < 15
    assert time.monotonic() - began < 25
    lines = log_api.log.splitlines()
    assert len([line for line in lines if not line.startswith(b"[stoker]")]) == 200_000
    (said,) = [line for line in lines if line.startswith(b"[stoker]")]
    assert b"stdout" in said and b"this log is not" in said


def test_a_closed_stdout_is_reported_once_and_costs_nothing(pod_worker, log_api):
    read, write = os.pipe()
    os.close(read)
    pod_worker.python("for i in range(1000): print(i, flush=True)", api=log_api, stdout=write)
    os.close(write)
    assert pod_worker.finish().exit_code == 0
    lines = log_api.log.splitlines()
    assert [line for line in lines if line.isdigit()] == [b"%d" % i for i in range(1000)]
    assert sum(line.startswith(b"[stoker]") for line in lines) == 1


def test_without_an_api_the_log_is_on_stdout_alone(pod_worker):
    pod_worker.python("print('x' * 1000_000)")
    record = pod_worker.finish()
    assert record.log_bytes == 1_000_001 == len(pod_worker.stdout)
    assert (pod_worker.run_dir / "log").stat().st_size == 0


@pytest.mark.skipif(os.getuid() != 0, reason="a PID namespace needs root")
def test_as_pid_1_it_stops_and_reaps(pod_worker, wait_until):
    """What a double fork leaves behind comes to PID 1; a SIGTERM reaches it although PID 1 has no defaults."""
    script = (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "print('ready', os.getppid(), flush=True)\n"
        "time.sleep(60)"
    )
    entry = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--"]
    pod_worker.python(script, entry=entry)
    wait_until(lambda: pod_worker.stdout == b"ready 1\n", what="the rank under PID 1")
    with open(f"/proc/{pod_worker.process.pid}/task/{pod_worker.process.pid}/children") as children:
        os.kill(int(children.read().split()[0]), signal.SIGTERM)
    record = pod_worker.finish()
    assert record.exit_code == 75 and record.stop_requested
