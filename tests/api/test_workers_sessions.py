"""Sessions end to end but for the CLI: a caller's WebSocket, the real api, a real worker as in a pod."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

import stoker_worker
from stoker.spec.report_tokens import worker_token
from stoker.spec.worker import ExitRecord
from stoker_api.sessions.rendezvous import SUBPROTOCOL

from .log_world import KEY, LogWorld, log_world, store_in

PROGRAM = Path(stoker_worker.__file__).with_name("__main__.py")
CHATTY = (
    "import os, time\nwhile not os.path.exists('go'): print('line', flush=True); time.sleep(0.05)\nraise SystemExit(3)"
)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogWorld]:
    async with store_in(tmp_path) as store, log_world(tmp_path, store) as found:
        yield found


@pytest.fixture
async def worker(logs: LogWorld, tmp_path: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Of job `one`: it prints all the time, and is held once it has failed."""
    pod = await logs.pod(await logs.job())
    token = tmp_path / "token"
    token.write_text(worker_token(KEY, pod.uid))
    env = {
        "PATH": os.environ["PATH"],
        "STOKER_POD_UID": pod.uid,
        "STOKER_PROJECT": "alpha",
        "STOKER_JOB": "one",
        "STOKER_JOB_UID": pod.metadata.owner_references[0].uid,
        "STOKER_ATTEMPT": "1",
        "STOKER_WORKER": "0",
        "STOKER_WORKERS": "1",
        "STOKER_HOLD_SECONDS": "600",
        "STOKER_OUTPUT_DIR": str(tmp_path / "output"),
        "STOKER_RUN_DIR": str(tmp_path / "run"),
        "STOKER_TERMINATION_LOG": str(tmp_path / "words"),
        "STOKER_API_URL": logs.url,
        "STOKER_TOKEN_FILE": str(token),
    }
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--", sys.executable, "-c", CHATTY]
    with subprocess.Popen(argv, env=env, cwd="/", stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def run(logs: LogWorld, first: dict[str, Any], sent: bytes = b"") -> tuple[bytes, dict[str, Any]]:
    """stdout and the exit of a command in worker 0 of job `one`."""
    url = logs.url.replace("http:", "ws:") + "/v1/projects/alpha/jobs/one/exec"
    headers = {"Authorization": f"Bearer {logs.admin}"}
    async with connect(url, additional_headers=headers, subprotocols=[SUBPROTOCOL], proxy=None) as socket:
        await socket.send(json.dumps(first))
        ready = json.loads(await socket.recv())
        assert ready == {"ready": True}, ready

        async def feed() -> None:
            for at in range(0, len(sent), 60_000):
                await socket.send(b"\0" + sent[at : at + 60_000])
            await socket.send(b"\4")

        feeding = asyncio.create_task(feed())
        said, end = b"", b""
        async for message in socket:
            assert isinstance(message, bytes)
            if message[0] == 1:
                said += message[1:]
            elif message[0] == 5:
                end = message[1:]
        await feeding
        assert socket.close_code == 1000
        return said, json.loads(end)


async def test_a_worker_that_prints_all_the_time_is_entered(logs: LogWorld, worker: Any, tmp_path: Path):
    """Also while it is held; and it ends as it would have."""
    data = os.urandom(2 << 20)
    assert await run(logs, {"kind": "exec", "argv": ["cat"]}, data) == (data, {"exitCode": 0, "message": ""})
    (tmp_path / "output" / "go").touch()
    while not (tmp_path / "run" / "log").exists() or b"held for 10m" not in (tmp_path / "run" / "log").read_bytes():
        await asyncio.sleep(0.02)
    said, end = await run(logs, {"kind": "exec", "argv": ["sh", "-c", "[ -t 0 ] && echo it; exit 7"], "tty": True})
    assert (said, end["exitCode"]) == (b"it\r\n", 7)
    worker.terminate()
    await asyncio.to_thread(worker.wait, 20)
    record = ExitRecord.model_validate_json((tmp_path / "words").read_bytes())
    assert record.exit_code == 3 and record.held_s > 0 and not record.stop_requested
