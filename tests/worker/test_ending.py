"""How a worker ends: exit codes, signals, the first failure of several ranks, commands that can't be started."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from .pod_worker import RANK_1_OF_3

PY = sys.executable


@pytest.mark.parametrize("code", [0, 1, 64, 75, 77, 255])
def test_a_commands_own_exit_code_is_the_workers(worker, code):
    record = worker.run(["sh", "-c", f"echo one; echo two; exit {code}"])
    assert (record.exit_code, record.signal, record.stop_requested) == (code, None, False)
    assert record.failed_rank == (0 if code else None)
    assert record.message == ("two" if code else "")
    assert [end.exit_code for end in record.ranks] == [code]
    assert worker.log == b"one\ntwo\n"
    assert record.pod_uid == worker.uid
    assert record.started_at <= record.ranks[0].at <= record.finished_at


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGPIPE])
def test_a_signal_that_ended_the_rank_is_recorded(worker, signum):
    record = worker.run(["sh", "-c", f"echo last words; kill -{signum.name[3:]} $$"])
    assert (record.exit_code, record.signal) == (128 + signum, signum)
    assert record.message == f"ended by {signum.name}; its last line: last words"


def test_what_python_died_of_is_the_message(worker):
    worker.python("import sys; print('fine', file=sys.stderr); raise ValueError('the loss is\\x1b[31m red')")
    assert worker.finish().message == "ValueError: the loss is [31m red"


@pytest.mark.parametrize(
    ("mode", "last_line", "expected"),
    [
        ("once", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("once", "torch.cuda.OutOfMemoryError: CUDA out of memory.", True),
        ("once", "[rank1]: torch.OutOfMemoryError: CUDA out of memory.", True),
        ("once", "MemoryError", False),
        ("perGpu", "torch.OutOfMemoryError: CUDA out of memory.", False),  # our trainer has an exit code for it
    ],
)
def test_a_command_that_died_of_torchs_out_of_memory_is_recorded_so(worker, mode, last_line, expected):
    record = worker.run(["sh", "-c", 'echo "$0"; exit 1', last_line], mode=mode)
    assert (record.exit_code, record.message, record.out_of_memory) == (1, last_line, expected)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["no-such-command"], 127, "no such command in PATH"),
        (["./no-such-file"], 127, "no such file in"),
        (["./data"], 126, "may not be executed"),
        (["data"], 126, "may not be executed"),
        (["./text"], 126, "'#!'"),
        (["./badshebang"], 127, "interpreter"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(worker, argv, code, says):
    for name, text, mode in [("data", "x", 0o644), ("text", "echo x", 0o755), ("badshebang", "#!/no/sh\n", 0o755)]:
        (worker.folder / name).write_text(text)
        (worker.folder / name).chmod(mode)
    record = worker.run(argv, env={"PATH": str(worker.folder)})
    assert record.exit_code == code
    assert says in record.message
    assert record.message.encode() in worker.log


def test_a_missing_working_folder_says_so(worker):
    record = worker.run(["true"], workingDir=str(worker.folder / "gone"))
    assert record.exit_code == 126
    assert "working folder" in record.message and "gone" in record.message


def test_the_environment_is_launch_jsons_and_torchruns_and_nothing_else(worker, monkeypatch):
    monkeypatch.setenv("STOKER_SECRET", "of stoker up")
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    worker.python(script, env={"MINE": "1"}, worker=1, workers=3, gpuUuids=["A", "B"], masterPort=12345)
    assert worker.finish().exit_code == 0
    env = json.loads(worker.log)
    assert "STOKER_SECRET" not in env
    expected = {
        "MINE": "1",
        **RANK_1_OF_3,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "12345",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "12345",
    }
    assert {name: env.get(name) for name in expected} == expected


def test_a_rank_starts_clean(worker):
    """Own session, default signals, none blocked, no files of ours but its three."""
    script = """
import os, signal
print(os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
status = open('/proc/self/status').read()
print([line.split()[1] for line in status.splitlines() if line.startswith(('SigIgn', 'SigCgt'))])
"""
    worker.order([PY, "-S", "-E", "-c", script]).start()
    assert worker.finish().exit_code == 0
    lines = worker.log.decode().splitlines()
    assert lines[0] == "True ['0', '1', '2'] 4"  # the fourth is the listing's own
    assert lines[1] == "set()"
    # What Python itself ignores (SIGPIPE, SIGXFSZ) and nothing inherited; from 32 on they are the C library's own.
    assert int(lines[2].split("'")[1], 16) & ((1 << 31) - 1) == (1 << 12) | (1 << 24)


def test_the_first_failing_rank_is_the_cause_and_ends_the_others(worker, tmp_path):
    script = """
import os, sys, time
print('rank', os.environ['RANK'], flush=True)
if os.environ['RANK'] == '5':
    while len([n for n in os.listdir(sys.argv[1])]) < 2: time.sleep(0.01)
    print('I am the cause', flush=True)
    sys.exit(9)
open(sys.argv[1] + '/' + os.environ['RANK'], 'w').close()
time.sleep(60)
"""
    ready = tmp_path / "ready"
    ready.mkdir()
    worker.python(script, str(ready), ranks=3, worker=1, workers=2, mode="perGpu")
    record = worker.finish()
    assert (record.exit_code, record.failed_rank, record.message) == (9, 5, "I am the cause")
    assert {(end.rank, end.exit_code, end.signal) for end in record.ranks} == {
        (3, None, 15),
        (4, None, 15),
        (5, 9, None),
    }
    assert record.failed_at == next(end.at for end in record.ranks if end.rank == 5)
    assert set(worker.log.splitlines()) == {
        b"[rank 3] rank 3",
        b"[rank 4] rank 4",
        b"[rank 5] rank 5",
        b"[rank 5] I am the cause",
    }


def test_a_rank_that_ignores_term_after_anothers_failure_is_killed(worker):
    script = """
import os, signal, sys, time
if os.environ['RANK'] == '0':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open('ready', 'w').close()
    time.sleep(60)
while not os.path.exists('ready'): time.sleep(0.01)
sys.exit(3)
"""
    worker.python(script, ranks=2, mode="perGpu")
    record = worker.finish()
    assert (record.exit_code, record.failed_rank, record.grace_exceeded) == (3, 1, False)
    assert (record.ranks[1].rank, record.ranks[1].signal) == (0, 9)
    assert 4.5 < record.finished_at - record.failed_at < 8


def test_a_rank_that_stopped_on_request_leaves_the_others_the_time_to_save(worker):
    script = """
import os, sys, time
if os.environ['RANK'] == '0':
    open('ready', 'w').close()
    time.sleep(1)
    open('saved', 'w').close()
else:
    while not os.path.exists('ready'): time.sleep(0.01)
sys.exit(75)
"""
    worker.python(script, ranks=2, mode="perGpu")
    record = worker.finish()
    assert record.exit_code == 75 and [end.exit_code for end in record.ranks] == [75, 75]
    assert (worker.folder / "saved").exists()


def test_the_last_progress_is_in_the_record(worker):
    progress = {
        "at": 12.5,
        "step": 7,
        "totalSteps": 10,
        "metrics": {"loss": 0.25, "bad": "x"},
        "checkpoint": {"step": 5, "path": "/x"},
        "summary": {"accuracy": 0.97},
        "unknown": [1],
    }
    record = worker.run(["sh", "-c", f"echo '{json.dumps(progress)}' > progress.json"])
    assert record.progress.step == 7 and record.progress.total_steps == 10
    assert record.progress.metrics == {"loss": 0.25}
    assert record.progress.checkpoint.step == 5
    assert record.progress.summary == {"accuracy": 0.97}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"step": "x", "metrics": 3, "checkpoint": {}}', "\xff"])
def test_a_progress_file_that_is_none_spoils_nothing(worker, text):
    (worker.folder / "progress.json").write_text(text)
    record = worker.run(["true"])
    assert record.exit_code == 0
    assert record.progress is None or record.progress.step == 0


def test_started_json_names_the_supervisor(worker):
    worker.order(["sh", "-c", "cat started.json; read x"]).start().finish()
    started = json.loads(worker.log)
    assert started["pid"] == worker.process.pid
    assert started["bootId"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert not list(worker.folder.glob("*.tmp"))


def test_an_order_that_is_none_is_refused(worker):
    (worker.folder / "launch.json").write_text("{}")
    worker.start(stderr=-1)
    _, said = worker.process.communicate(timeout=20)
    assert worker.process.returncode == 70 and b"can't read" in said
    assert not (worker.folder / "started.json").exists()


def test_two_supervisors_never_run_in_one_folder(worker, wait_until):
    worker.order(["sh", "-c", "while ! test -e go; do sleep 0.01; done"]).start()
    wait_until((worker.folder / "started.json").exists)
    first = worker.process
    worker.start(stderr=-1)
    _, said = worker.process.communicate(timeout=20)
    assert worker.process.returncode == 70 and b"another supervisor" in said
    (worker.folder / "go").touch()
    assert first.wait(20) == 0


def test_an_agent_that_vanished_while_the_worker_starts_spoils_nothing(worker):
    """The readiness pipe is not read any more (found by the crash sweep of tests/agent)."""
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    worker.order(["true"]).start(options=["--ready-fd", str(write_fd)], pass_fds=[write_fd])
    os.close(write_fd)
    assert worker.finish().exit_code == 0


def test_readiness_is_signalled_when_started_json_stands(worker):
    read_fd, write_fd = os.pipe()
    worker.order(["sh", "-c", "while ! test -e go; do sleep 0.01; done"])
    worker.start(options=["--ready-fd", str(write_fd)], pass_fds=[write_fd])
    os.close(write_fd)
    assert os.read(read_fd, 10) == b"S"
    assert (worker.folder / "started.json").exists()
    assert os.read(read_fd, 10) == b""  # no other process holds it, the rank least of all
    os.close(read_fd)
    (worker.folder / "go").touch()
    assert worker.finish().exit_code == 0
