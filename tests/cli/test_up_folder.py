"""`stoker up` on a data folder that has lost its store, or whose disk takes nothing: a sentence, and no loss."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.harness import Server, until

SLEEPS = {"trainer": {"command": ["sleep", "600"], "workingDir": "/"}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path / "data")
    try:
        yield found
    finally:
        found.close()


def refused(server: Server, *options: str, file_bytes: int | None = None) -> str:
    """What a `stoker up` that ends at once says, in one line. `file_bytes`: the longest file it may write."""
    command = [sys.executable, "-m", "stoker.cli.main", "up", "--data", str(server.data), "--port", str(server.port)]
    if file_bytes is not None:
        command = ["prlimit", f"--fsize={file_bytes}", *command]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_lost_store_is_refused_and_its_workers_go_on(server: Server) -> None:
    server.start()
    with server.client() as client:
        client.submit(SLEEPS, name="a")
        workers = until(server.workers, "a worker")
    server.kill()
    kept = server.data.parent / "kept"
    kept.mkdir()
    for file in server.data.glob("stoker.db*"):
        file.rename(kept / file.name)
    assert "put stoker.db back from a backup, or" in refused(server)
    assert "1 of the lost store's workers still run" in refused(server, "--new-store")
    assert {worker.pid for worker in workers} <= {worker.pid for worker in server.workers()}, "none was stopped"
    for file in kept.iterdir():
        file.rename(server.data / file.name)
    server.start()
    with server.client() as client:
        until(lambda: client.get("a").status.phase == "Running", "the job, found again")


def test_a_disk_that_takes_nothing_and_a_token_that_is_no_text_are_named(server: Server) -> None:
    server.start()
    assert server.process is not None
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, unlimited))
    headers = {"Authorization": f"Bearer {(server.data / 'token').read_text().strip()}"}
    answer = httpx.post(f"{server.url}/v1/projects/default/jobs", json={"spec": SLEEPS}, headers=headers)
    assert answer.status_code == 503 and "The server's disk takes no writes" in answer.json()["detail"]
    ready = httpx.get(f"{server.url}/readyz")
    assert ready.status_code == 503 and "disk" in ready.json()["detail"]
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, "writes again, though nothing is written")
    server.stop()
    assert str(server.data) in refused(server, file_bytes=1)
    (server.data / "token").write_bytes(b"\xff\xfe\x80")
    assert "holds no token; remove it" in refused(server)
