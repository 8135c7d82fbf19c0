"""Sessions in real workers: a command entered, a port reached, and training that never notices."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from stoker_worker import sessions
from stoker_worker.bundle import build_zipapp

from .conftest import family_of
from .peer import END, OVER, RESIZE, STDIN, STDOUT, sha256
from .pod_worker import PROGRAM, PYTHONS
from .session_worker import WAITS, SessionWorker
from .test_code import bundle_of, sends

FAILS = "import sys; open('trace', 'w').write('it broke here'); sys.exit(3)"


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_command_has_its_output_exit_code_environment_and_folder(entered):
    entered.start(env={"MINE": "1", "STOKER_CHECKPOINT_DIR": "/c"})
    script = "echo out; echo err >&2; pwd; env; exit 7"
    stdout, stderr, end = entered.call().exec("sh", "-c", script).rest()
    assert (stderr, end) == (b"err\n", {"exitCode": 7, "message": ""})
    out, folder, *env = stdout.decode().splitlines()
    seen = dict(line.split("=", 1) for line in env)
    assert (out, folder) == ("out", str(entered.worker.folder))
    assert (seen["MINE"], seen["STOKER_CHECKPOINT_DIR"], seen["TERM"]) == ("1", "/c", "xterm")
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & seen.keys()
    assert entered.api.tokens == ["wkr.x"] and entered.api.joined == [f"{1:032x}"]
    record = entered.go()
    assert record.exit_code == 0 and entered.worker.log == b"up\ndone\n"
    assert os.listdir(entered.worker.folder / "sessions") == []


def test_its_signals_and_files_are_clean_and_its_session_its_own(entered):
    entered.start()
    script = """
import os
print(os.getsid(0) == os.getpid() == os.getpgrp(), sorted(os.listdir('/proc/self/fd')))
status = open('/proc/self/status').read()
print([int(line.split()[1], 16) & 0xfff for line in status.splitlines() if line.startswith(('SigBlk', 'SigIgn'))])
"""
    stdout, _, end = entered.call().exec(sys.executable, "-S", "-E", "-c", script).rest()
    assert end["exitCode"] == 0
    assert stdout.decode().splitlines() == ["True ['0', '1', '2', '3']", "[0, 0]"]  # the fourth is the listing's own
    entered.go()


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["no-such-command"], 127, "no such command in PATH"),
        (["./launch.json"], 126, "may not be executed"),
        (["sh", "-c", "kill -9 $$"], 137, "ended by signal 9"),
    ],
)
def test_what_can_not_run_or_is_killed_ends_as_in_a_shell(entered, argv, code, says):
    entered.start()
    _, _, end = entered.call().exec(*argv).rest()
    assert end["exitCode"] == code and says in end["message"]
    assert entered.go().exit_code == 0


def test_large_data_goes_both_ways_unchanged(entered):
    entered.start()
    peer = entered.call().exec("sh", "-c", "tee copy | sha256sum >&2; cat copy")
    data = os.urandom(1 << 20) * 8

    def feed():
        for start in range(0, len(data), 65_535):
            peer.send(STDIN, data[start : start + 65_535])
        peer.send(END)

    feeder = threading.Thread(target=feed)
    feeder.start()
    stdout, stderr, end = peer.rest()
    feeder.join()
    assert end["exitCode"] == 0 and stderr.decode().split()[0] == sha256(data) == sha256(stdout)
    entered.go()


def test_a_terminal_is_one(entered):
    entered.start()
    script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size && echo ready && read line && stty size && echo got $line"
    peer = entered.call().exec("sh", "-c", script, tty=True)
    assert peer.until(STDOUT, b"ready\r\n") == b"24 80\r\nready\r\n"
    peer.send(RESIZE, b'{"columns": 132, "rows": 50}')
    peer.send(RESIZE, b"nonsense")
    peer.send(RESIZE, b'{"columns": -1, "rows": 1e9}')
    peer.send(STDIN, b"line\n")
    stdout, stderr, end = peer.rest()
    assert (stdout, stderr) == (b"line\r\n50 132\r\ngot line\r\n", b"") and end["exitCode"] == 0
    entered.go()


def test_a_terminal_takes_an_end_of_input(entered):
    entered.start()
    peer = entered.call().exec("cat", tty=True)
    peer.send(STDIN, b"one\n")
    peer.until(STDOUT, b"one\r\none\r\n")
    peer.send(END)
    assert peer.rest()[2]["exitCode"] == 0
    entered.go()


def test_an_empty_command_is_the_workers_shell(entered):
    entered.start()
    peer = entered.call()
    assert peer.begin(kind="exec", argv=[], tty=True, columns=80, rows=24, term="dumb") == {"ready": True}
    peer.send(STDIN, b"echo $((20 + 3)) $TERM\n")
    peer.until(STDOUT, b"23 dumb\r\n")
    peer.send(STDIN, b"exit 4\n")
    assert peer.rest()[2]["exitCode"] == 4
    assert entered.go().exit_code == 0


def test_interrupt_reaches_the_command_and_nothing_else(entered):
    entered.start()
    # NOFLSH: else the kernel drops what stands in the terminal as it has sent the signal, a quick answer too.
    script = """
import sys, termios, time
mode = termios.tcgetattr(0)
mode[3] |= termios.NOFLSH
termios.tcsetattr(0, termios.TCSANOW, mode)
try:
    print('ready', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print('interrupted', flush=True)
sys.exit(int(input()))
"""
    peer = entered.call().exec(sys.executable, "-c", script, tty=True)
    peer.until(STDOUT, b"ready\r\n")
    peer.send(STDIN, b"\x03")
    peer.until(STDOUT, b"interrupted\r\n")
    peer.send(STDIN, b"4\n")
    assert peer.rest()[2]["exitCode"] == 4
    assert entered.go().exit_code == 0


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"kind": "exec", "argv": [1]}, "argv"),
        ({"kind": "exec", "argv": [""]}, "names no program"),
        ({"kind": "forward", "port": 0}, "no such kind"),
        ({"kind": "dance"}, "no such kind"),
        ([], "no request"),
    ],
)
def test_what_is_no_request_is_answered(entered, request_, says):
    entered.start()
    peer = entered.call()
    peer.text(request_)
    answer = peer.document()
    assert answer["ready"] is False and says in answer["message"]
    assert peer.next() == OVER and peer.close_code == 1000
    entered.go()


def test_a_failed_worker_is_entered_while_it_is_held(entered):
    entered.start(FAILS, env={"STOKER_HOLD_SECONDS": "600"})
    entered.worker.says("held for 10m after exit code 3: `stoker exec job` enters")
    stdout, _, end = entered.call().exec("sh", "-c", "cat trace; nohup sleep 100 >/dev/null 2>&1 & exit 7").rest()
    assert (stdout, end["exitCode"]) == (b"it broke here", 7)
    entered.worker.says("held for")
    assert entered.worker.process.poll() is None
    entered.worker.stop()
    record = entered.worker.finish()
    assert (record.exit_code, record.stop_requested) == (3, False)
    assert entered.worker.family == [], "what was started in a session ends with the worker"


def test_a_session_lives_on_from_the_training_into_the_hold(entered):
    entered.start(WAITS + "\nraise SystemExit(3)", env={"STOKER_HOLD_SECONDS": "600"})
    peer = entered.call().exec("sh", "-c", "echo in; read line; echo $line")
    peer.until(STDOUT, b"in\n")
    (entered.worker.folder / "go").touch()
    entered.worker.says("held for 10m after exit code 3")
    peer.send(STDIN, b"still here\n")
    stdout, _, end = peer.rest()
    assert (stdout, end["exitCode"]) == (b"still here\n", 0)
    entered.worker.stop()
    assert entered.worker.finish().exit_code == 3


@pytest.mark.parametrize("manners", ["", "trap '' HUP TERM; "], ids=["polite", "deaf"])
@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
def test_the_workers_end_ends_a_session_and_says_so(entered, tty, manners):
    entered.start()
    peer = entered.call().exec("sh", "-c", manners + "echo in; sleep 100 & while :; do wait; done", tty=tty)
    peer.until(STDOUT, b"in")
    record = entered.go()
    assert record.exit_code == 0 and record.finished_at - record.ranks[0].at < 4
    _, _, end = peer.rest()
    assert end["message"] == "the worker has ended" and end["exitCode"] > 128
    assert peer.close_code == 1000 and entered.worker.family == []


def test_a_shell_at_a_terminal_ends_with_the_worker(entered):
    entered.start()
    peer = entered.call()
    assert peer.begin(kind="exec", argv=["bash", "-i"], tty=True, columns=80, rows=24)["ready"]
    peer.send(STDIN, b"echo $((40 + 2))\n")
    peer.until(STDOUT, b"42\r\n")
    record = entered.go()
    assert record.exit_code == 0 and record.finished_at - record.ranks[0].at < 3
    assert peer.rest()[2]["message"] == "the worker has ended"


@pytest.mark.parametrize("how", ["says so", "breaks off"])
def test_a_caller_who_leaves_takes_the_command_along(entered, wait_until, how):
    entered.start()
    peer = entered.call().exec("sh", "-c", "echo $$; exec sleep 100")
    pid = int(peer.until(STDOUT, b"\n"))
    if how == "says so":
        peer.close()
    else:
        peer.sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the command's end")
    assert entered.go().exit_code == 0


def test_a_killed_session_process_disturbs_nothing(entered, wait_until):
    entered.start()
    peer = entered.call().exec("sh", "-c", "echo $$; exec sleep 100")
    pid = int(peer.until(STDOUT, b"\n"))
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(stat[1]), signal.SIGKILL)
    assert peer.next() == OVER
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the command's end")
    assert entered.call().exec("echo", "again").rest()[0] == b"again\n"
    assert entered.go().exit_code == 0


def test_what_a_command_leaves_running_outlives_its_session_but_not_the_worker(entered, wait_until):
    entered.start()
    script = "setsid sleep 100 >/dev/null 2>&1 & echo $!"
    stdout, _, _ = entered.call().exec("sh", "-c", script).rest()
    parent = Path(f"/proc/{int(stdout)}/stat")
    wait_until(lambda: parent.read_text().rpartition(")")[2].split()[1] == str(entered.worker.process.pid))
    assert entered.go().exit_code == 0
    assert not parent.exists()


def test_one_id_is_one_process_and_nine_are_too_many(entered, wait_until):
    entered.start()
    peers = [peer.exec("cat") for peer in entered.calls(sessions.AT_ONCE)]
    folder = entered.worker.folder / "sessions"
    (folder / f"{1:032x}").touch()
    (folder / "not an id").touch()
    answer = entered.call().begin(kind="exec", argv=["true"])
    assert answer["ready"] is False and "8 sessions are open in this worker" in answer["message"]
    wait_until(lambda: len(children(entered.worker.process.pid)) == 1 + sessions.AT_ONCE, what="the ninth's end")
    assert entered.api.joined.count(f"{1:032x}") == 1
    for peer in peers:
        peer.send(END)
        assert peer.rest()[2]["exitCode"] == 0
    assert entered.call().exec("echo", "again").rest()[0] == b"again\n"
    assert entered.go().exit_code == 0


def test_a_session_that_is_not_awaited_is_logged_and_disturbs_nothing(entered, wait_until):
    entered.api.accepts = lambda token: False
    entered.start()
    entered.worker.says("up")
    folder = entered.worker.folder / "sessions"
    folder.mkdir()
    (folder / "abc").touch()
    wait_until(lambda: entered.api.tokens, what="the session's try")
    wait_until(lambda: len(children(entered.worker.process.pid)) == 1, what="its end")
    assert entered.go().exit_code == 0


# As it is shipped.


@pytest.mark.parametrize("python", PYTHONS[:1] + PYTHONS[-1:], ids=lambda path: Path(path).parts[-3])
def test_the_zipapp_serves_sessions_and_fetches_code_on_the_oldest_and_the_newest_python(
    worker, log_api, tmp_path, python
):
    build_zipapp(str(tmp_path / "worker.pyz"))
    digest, body = bundle_of({"run.sh": (b"#!/bin/sh\necho up; exit 3", "x")})
    log_api.code = sends(body)
    env = {"STOKER_CODE": digest, "STOKER_HOLD_SECONDS": "600"}
    worker.order(
        ["./run.sh"], env=env, workingDir=str(worker.folder / "code"), report={"url": log_api.url, "token": "wkr.x"}
    )
    worker.start(python=python, program=tmp_path / "worker.pyz")
    worker.says("held for")
    entered = SessionWorker(worker, log_api)
    assert entered.call().exec("sh", "-c", "ls; exit 7").rest() == (b"run.sh\n", b"", {"exitCode": 7, "message": ""})
    peer = entered.call().exec("cat", tty=True)
    peer.send(STDIN, b"x\n")
    peer.until(STDOUT, b"x\r\nx\r\n")
    worker.stop()
    assert peer.rest()[2]["message"] == "the worker has ended"
    assert worker.finish().exit_code == 3 and worker.family == []


# In a pod.


def test_in_a_pod_the_apis_answers_name_it_over_tls(pod_worker, log_api, tmp_path):
    """As PID 1's worker is: named by an answer, the authority from the environment, nothing of it for the command."""
    url = log_api.over_tls(tmp_path)
    log_api.word = {"stop": False, "why": "", "sessions": ["a1", "a1", 7, "-no", "a1"]}
    pem = (tmp_path / "cert.pem").read_text()
    pod_worker.python(WAITS, api=url, env={"STOKER_API_CA_PEM": pem, "STOKER_WORKING_DIR": str(tmp_path)})
    peer = log_api.peer()
    data = os.urandom(3 << 20)
    peer.exec("sh", "-c", "env >&2; cat")
    for start in range(0, len(data), 50_000):
        peer.send(STDIN, data[start : start + 50_000])
    peer.send(END)
    stdout, stderr, end = peer.rest()
    assert sha256(stdout) == sha256(data) and end["exitCode"] == 0
    assert b"STOKER_API_CA_PEM" not in stderr and b"STOKER_POD_UID" in stderr
    (tmp_path / "go").touch()
    assert pod_worker.finish().exit_code == 0
    assert log_api.joined == ["a1"] and log_api.peers.empty()
    assert family_of(pod_worker.uid) == []


@pytest.mark.skipif(os.getuid() != 0, reason="a PID namespace needs root")
def test_as_pid_1_a_held_worker_is_entered_and_leaves_nothing(pod_worker, log_api, wait_until):
    log_api.word = {"stop": False, "why": "", "sessions": ["a1"]}
    entry = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--"]
    pod_worker.python(FAILS, api=log_api, env={"STOKER_HOLD_SECONDS": 600}, entry=entry)
    peer = log_api.peer().exec("sh", "-c", "setsid sleep 100 >/dev/null 2>&1 & cat trace; cat")
    peer.until(STDOUT, b"it broke here")
    wait_until(lambda: b"held for 10m" in log_api.log, what="the hold")
    with open(f"/proc/{pod_worker.process.pid}/task/{pod_worker.process.pid}/children") as file:
        os.kill(int(file.read().split()[0]), signal.SIGTERM)
    assert peer.rest()[2]["message"] == "the worker has ended"
    record = pod_worker.finish()
    assert (record.exit_code, record.stop_requested) == (3, False) and record.held_s > 0
    assert family_of(pod_worker.uid) == []
