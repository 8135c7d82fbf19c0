"""The command as a process: start-up cost, Ctrl-C, early closed pipes, a bare install."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stoker.cli.commands.names import job_names
from stoker.cli.main import cli

JOBS = "/v1/projects/default/jobs"
STOKER = [sys.executable, "-m", "stoker.cli.main"]
# As on a bare install: none of what the extras bring can be imported.
BARE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"fastapi", "uvicorn", "starlette", "numpy", "torch", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from stoker.cli.main import main
sys.argv[0] = "stoker"
main()
"""


IMPORTED = """
import sys
from click.testing import CliRunner
from stoker.cli.main import cli
for args in {commands}:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, (args, done.output)
print(sorted({heavy} & set(sys.modules)))
"""


def _imported(commands: list[list[str]], heavy: set[str]) -> str:
    """Which modules of `heavy` the commands import."""
    code = IMPORTED.format(commands=commands, heavy=heavy)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_help_and_completion_import_nothing_heavy() -> None:
    args = [
        "",
        "ls",
        "get",
        "why",
        "usage",
        "metrics",
        "logs",
        "events",
        "exec",
        "port-forward",
        "cancel",
        "queue ls",
        "node ls",
        "node cordon n0",
        "token list",
    ]
    commands = [[*line.split(), "--help"] for line in args]
    assert _imported(commands, {"httpx", "pydantic", "rich", "yaml"}) == "[]\n"


HELP_MAY_IMPORT = {"stoker", "stoker.cli", "stoker.cli.main", "stoker.client", "stoker.client.errors"}
LIST_MAY_IMPORT = HELP_MAY_IMPORT | {
    "stoker.cli.commands",
    "stoker.cli.commands.choosing",
    "stoker.cli.commands.common",
    "stoker.cli.commands.names",
    "stoker.cli.commands.show",
    "stoker.cli.job_table",
    "stoker.cli.job_text",
    "stoker.cli.layout",
    "stoker.cli.output",
    "stoker.client.calls",
    "stoker.client.config",
    "stoker.client.connections",
    "stoker.client.progress_text",
    "stoker.client.wire",
    "stoker.spec",
    "stoker.spec.markers",
    "stoker.spec.names",
    "stoker.spec.phase",
    "stoker.spec.quantity",
}
"""Beside click and the standard library."""
SLOW_OF_THE_LIBRARY = {
    "asyncio",
    "concurrent",
    "csv",
    "hashlib",
    "html",
    "http.cookiejar",
    "logging",
    "multiprocessing",
}
SLOW_OF_THE_LIBRARY |= {"importlib.metadata", "sqlite3", "subprocess", "tempfile", "unittest", "urllib.request", "xml"}
ALL_IMPORTED = """
import sys
before = set(sys.modules)
from stoker.cli.main import main
sys.argv = ["stoker", *{args}]
try:
    main()
except SystemExit as end:
    assert not end.code
print("\\n" + " ".join(set(sys.modules) - before))
"""


@pytest.mark.parametrize(
    ("args", "may"), [("--help", HELP_MAY_IMPORT), ("get jobs", LIST_MAY_IMPORT)], ids=["--help", "get jobs"]
)
def test_what_help_and_a_list_may_import(script: Any, make_job: Any, args: str, may: set[str]) -> None:
    """Each import is CPU time of each command: tools/bench/cli.py measures it."""
    script.on("GET", JOBS, script.json({"items": [make_job("a", "Running")], "nextCursor": None}))
    code = ALL_IMPORTED.format(args=args.split())
    env = {**os.environ, "STOKER_SERVER": script.url}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    ours = {name for name in imported if name.partition(".")[0] not in {*sys.stdlib_module_names, "click"}}
    assert ours - may == set() and imported & SLOW_OF_THE_LIBRARY == set()
    assert "stoker.cli.main" in imported


def test_what_looks_or_acts_validates_nothing(script: Any, make_job: Any) -> None:
    job, queue = make_job("a"), {"metadata": {"name": "q"}, "spec": {}, "usage": {"cpuMilli": 0, "memoryBytes": 0}}
    script.on("GET", JOBS, script.json({"items": [job], "nextCursor": None}))
    script.on("GET", f"{JOBS}/a", script.json(job))
    script.on("POST", f"{JOBS}/a/cancel", script.json(job))
    script.on("GET", f"{JOBS}/a/explain", script.json({"phase": "Queued", "summary": "", "blockers": []}))
    script.on("GET", f"{JOBS}/a/events", script.json({"items": []}))
    script.on("GET", "/v1/queues", script.json({"items": [queue]}))
    script.on("GET", "/v1/nodes", script.json({"items": []}))
    report = {"since": "", "until": "", "by": [], "rows": [], "totals": []}
    script.on("GET", "/v1/usage", script.json(report))
    script.on("GET", f"{JOBS}/a/metrics", script.json({"curves": []}))
    args = (
        "ls",
        "ls --phase queued",
        "get a",
        "get nodes",
        "queue ls",
        "node ls",
        "why a",
        "events a",
        "usage",
        "metrics a",
        "cancel a",
    )
    commands = [["--server", script.url, *line.split()] for line in args]
    assert _imported(commands, {"pydantic", "yaml", "stoker.spec.job", "stoker.client.client"}) == "[]\n"


def test_a_bare_install_does_all_but_up(script: Any, make_job: Any) -> None:
    script.on("GET", JOBS, script.json({"items": [make_job("a")], "nextCursor": None}))
    bare = [sys.executable, "-c", BARE]
    listed = subprocess.run(
        [*bare, "--server", script.url, "ls", "-o", "name"], capture_output=True, text=True, timeout=60
    )
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "a\n", "")
    up = subprocess.run([*bare, "up"], capture_output=True, text=True, timeout=60)
    assert up.returncode == 2 and "pip install '.[up]'" in up.stderr and "Traceback" not in up.stderr


def test_ctrl_c_detaches(script: Any, sse: Any, make_job: Any, tmp_path: Path) -> None:
    hold = threading.Event()
    command = {"trainer": {"command": ["/bin/x"]}}
    running = make_job("a", "Running", command, attempt=1)
    script.on("GET", f"{JOBS}/a", script.json(running))
    script.on("GET", f"{JOBS}/a/events", script.text(sse("job", running), hold=hold))
    script.on("GET", f"{JOBS}/a/logs", script.text(sse("log", "hello", "1.6"), hold=hold))
    process = subprocess.Popen(
        [*STOKER, "--server", script.url, "follow", "a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "hello\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        hold.set()
    assert (process.returncode, out) == (130, "")
    assert "detached; a goes on. Follow again: stoker follow a · cancel: stoker cancel a" in err
    assert "Traceback" not in err
    assert not any(request.path.endswith("/cancel") for request in script.requests)


@pytest.mark.parametrize("args", [["ls", "-a"], ["ls", "-a", "-o", "json"], ["logs", "a"], ["logs", "-f", "a"]])
def test_a_pipe_closed_early_ends_quietly(script: Any, sse: Any, make_job: Any, args: list[str]) -> None:
    script.on("GET", JOBS, script.json({"items": [make_job(f"j{n}") for n in range(400)], "nextCursor": None}))
    lines = "\n".join(f"line {n}" for n in range(100_000))
    script.on("GET", f"{JOBS}/a/logs", script.text(sse("log", lines, f"1.{len(lines) + 1}") + sse("end", {})))
    read, write = os.pipe()
    process = subprocess.Popen(
        [*STOKER, "--server", script.url, *args], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    os.read(read, 10)
    os.close(read)
    _, err = process.communicate(timeout=30)
    assert "Traceback" not in err and "BrokenPipe" not in err, err
    assert process.returncode in (0, 1)  # 0: all was written before the pipe was closed


@pytest.mark.parametrize("args", [["logs", "a"], ["logs", "-f", "a"], ["follow", "a"]])
def test_a_terminal_gets_no_escapes_of_a_log(script: Any, sse: Any, make_job: Any, args: list[str]) -> None:
    printed = "\x1b]52;c;ZXZpbA==\x07\x1b[31mred\x1b[0m\x9b2J \u202egnp.exe 50%\tü"
    running, hold = make_job("a", "Running", {"trainer": {"command": ["/bin/x"]}}, attempt=1), threading.Event()
    script.on("GET", f"{JOBS}/a", script.json(running))
    script.on("GET", f"{JOBS}/a/events", script.text(sse("job", running), hold=hold))
    streamed = sse("log", printed, f"1.{len(printed.encode()) + 1}")
    script.on("GET", f"{JOBS}/a/logs", script.text(printed.encode() if args == ["logs", "a"] else streamed, hold=hold))
    master, slave = os.openpty()
    process = subprocess.Popen([*STOKER, "--server", script.url, *args], stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    shown = b""
    while b"exe" not in shown:
        shown += os.read(master, 65536)
    process.kill()
    hold.set()
    process.communicate(timeout=30)
    os.close(master)
    assert "?]52;c;ZXZpbA==?red?2J ?gnp.exe" in shown.decode() and b"\x1b" not in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_complete(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and f"_STOKER_COMPLETE={shell}_complete" in done.stdout


def test_job_names_are_completed_from_the_server(script: Any, make_job: Any) -> None:
    page = {"items": [make_job(name) for name in ("digits-2", "digits-1", "mnist")], "nextCursor": None}
    script.on("GET", JOBS, script.json(page))
    env = {
        **os.environ,
        "_STOKER_COMPLETE": "bash_complete",
        "COMP_WORDS": "stoker logs di",
        "COMP_CWORD": "2",
        "STOKER_SERVER": script.url,
        "STOKER_TOKEN": "t",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from stoker.cli.main import main; main()"],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["plain,digits-2", "plain,digits-1"]
    assert script.requests[0].headers["authorization"] == "Bearer t"


def test_completion_is_silent_without_a_server(script: Any) -> None:
    assert job_names("http://127.0.0.1:9", None, None) == []
    assert job_names(None, None, None) == []
    script.on("GET", JOBS, script.json([1], 200))
    assert job_names(script.url, None, None) == []
