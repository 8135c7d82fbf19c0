"""`stoker up --background`, and that what it and `stoker token create` print can be typed."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import until

STOKER = [sys.executable, "-m", "stoker.cli.main"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server runs on Linux")


@pytest.fixture
def shell_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """`stoker` in PATH, and the folder's own home elsewhere."""
    pytest.importorskip("fastapi")
    path = tmp_path / "bin"
    path.mkdir()
    (path / "stoker").write_text(f'#!/bin/sh\nexec {sys.executable} -m stoker.cli.main "$@"\n')
    (path / "stoker").chmod(0o755)
    monkeypatch.delenv("STOKER_HOME")
    return {**os.environ, "HOME": str(tmp_path), "PATH": f"{path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def up(tmp_path: Path, shell_env: dict[str, str]) -> Iterator[tuple[Path, str]]:
    """The data folder of a server in the background, and what starting it printed."""
    data = tmp_path / "the data"
    args = ["up", "--background", "--data", str(data), "--port", "0", "--no-exporter"]
    done = subprocess.run([*STOKER, *args], env=shell_env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    pid = json.loads((data / "endpoint.json").read_text())["pid"]
    try:
        yield data, done.stderr
    finally:
        os.kill(pid, signal.SIGTERM)
        until(lambda: not (data / "endpoint.json").exists(), "the end of the server")


def typed(line: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=120)


def test_it_returns_when_it_is_ready_and_its_lines_can_be_typed(
    up: tuple[Path, str], shell_env: dict[str, str], tmp_path: Path
) -> None:
    data, said = up
    pid = json.loads((data / "endpoint.json").read_text())["pid"]
    assert os.getsid(pid) == pid != os.getsid(0) and f"stop   kill {pid} " in said and str(data / "up.log") in said
    line = re.search(r"^  try +(.*)$", said, re.MULTILINE)
    assert line is not None and line[1].startswith("STOKER_HOME='")
    done = typed(line[1], shell_env)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    again = subprocess.run(
        [*STOKER, "up", "--background", "--data", str(data), "--port", "0"],
        env=shell_env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 1 and f"is in use by process {pid}" in again.stderr and "ready" not in again.stderr

    master, slave = pty.openpty()  # on a terminal a new token comes with what its owner types
    create = [*STOKER, "token", "create", "bob", "--project", "vision", "--data", str(data)]
    with subprocess.Popen(create, env=shell_env, stdout=slave, stderr=subprocess.PIPE, text=True) as process:
        os.close(slave)
        token = os.read(master, 4096).decode().strip()
        _, printed = process.communicate(timeout=60)
    os.close(master)
    export, listing = (line.strip() for line in printed.splitlines() if line.startswith("  "))
    assert export.startswith("export STOKER_SERVER=http://127.0.0.1:") and f"STOKER_TOKEN={token}" in export
    listed = typed(f"{export}; {listing}", {**shell_env, "HOME": str(tmp_path / "elsewhere")})
    assert (listed.returncode, listed.stderr) == (0, "no jobs in project vision\n")
    piped = subprocess.run([*create[:5], "eve", *create[6:]], env=shell_env, capture_output=True, text=True, timeout=60)
    assert piped.stderr == "" and len(piped.stdout.split()) == 1


def test_what_keeps_it_from_starting_is_printed(tmp_path: Path, shell_env: dict[str, str]) -> None:
    args = [*STOKER, "up", "--background", "--port", "0", "--data"]
    bad = [*args, str(tmp_path / "data"), "--memory", "lots"]
    done = subprocess.run(bad, env=shell_env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "lots" in done.stderr
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "data")
    done = subprocess.run([*args, below], env=shell_env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "can't write" in done.stderr and "Traceback" not in done.stderr
