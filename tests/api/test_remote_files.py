"""Files of a running worker and of an ended job through sessions: a caller's HTTP, the real api, real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker_worker
from stoker.controller.render import owned_by
from stoker.spec.job import JOBS, TrainingJob, TrainingJobSpec
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import ANNOTATION_FILES_WANTED
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.report_tokens import worker_token
from stoker_api.files import channel, readers, remote

from .log_world import KEY, LogWorld, log_world, store_in

PROGRAM = Path(stoker_worker.__file__).with_name("__main__.py")
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05); print('line', flush=True)"
FILES = "/v1/projects/alpha/jobs/one/files"
CONTENT = os.urandom(3_500_000)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogWorld]:
    async with store_in(tmp_path) as store, log_world(tmp_path, store) as found:
        yield found


@pytest.fixture
async def worker(logs: LogWorld, tmp_path: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Of job `one`, with files in its output folder and beside its code."""
    pod = await logs.pod(await logs.job())
    token = tmp_path / "worker-token"
    token.write_text(worker_token(KEY, pod.uid))
    output, run = tmp_path / "output", tmp_path / "run"
    (output / "runs").mkdir(parents=True)
    (output / "model.pt").write_bytes(CONTENT)
    (output / "runs" / "log").write_text("log")
    (output / "link").symlink_to("/etc/passwd")
    (run / "code").mkdir(parents=True)
    (run / "code" / "train.py").touch()
    (run / "code-complete").touch()
    await asyncio.sleep(0.02)
    (run / "code" / "beside").write_text("beside")
    env = {
        "PATH": os.environ["PATH"],
        "STOKER_POD_UID": pod.uid,
        "STOKER_PROJECT": "alpha",
        "STOKER_JOB": "one",
        "STOKER_JOB_UID": pod.metadata.owner_references[0].uid,
        "STOKER_ATTEMPT": "1",
        "STOKER_WORKER": "0",
        "STOKER_WORKERS": "1",
        "STOKER_OUTPUT_DIR": str(output),
        "STOKER_RUN_DIR": str(run),
        "STOKER_TERMINATION_LOG": str(tmp_path / "termination"),
        "STOKER_API_URL": logs.url,
        "STOKER_TOKEN_FILE": str(token),
    }
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--", sys.executable, "-c", WAITS]
    with subprocess.Popen(argv, env=env, cwd="/", stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def get(logs: LogWorld, path: str = "", **headers: str) -> httpx.Response:
    return await logs.client.get(FILES + path, headers={"Authorization": f"Bearer {logs.admin}", **headers}, timeout=40)


def sessions(logs: LogWorld) -> Any:
    return len(logs.services.sessions)


async def test_files_of_a_running_worker_are_listed_and_read(logs: LogWorld, worker: Any, tmp_path: Path) -> None:
    listed = (await get(logs)).json()
    assert [(one["path"], one["kind"], one["size"]) for one in listed["items"]] == [
        ("beside-code/beside", "file", 6), ("link", "link", 0), ("model.pt", "file", len(CONTENT)),
        ("runs/log", "file", 3),
    ]  # fmt: skip
    whole = await get(logs, "/model.pt")
    assert (whole.status_code, whole.content) == (200, CONTENT)
    part = await get(logs, "/model.pt", Range="bytes=1000000-1000999")
    assert (part.status_code, part.content) == (206, CONTENT[1_000_000:1_001_000])
    same = {"Range": "bytes=0-9", "If-Range": whole.headers["etag"]}
    assert (await get(logs, "/model.pt", **same)).status_code == 206
    assert (await get(logs, "/beside")).text == "beside"
    for path in ("/link", "/no", "/train.py", "/..%2Frun%2Flaunch.json"):
        refused = await get(logs, path)
        assert (refused.status_code, refused.json()["code"]) == (404, "NoFile"), path
    assert sessions(logs) == 1, "one session does for all of them"
    answers = await asyncio.gather(*(get(logs, "/model.pt") for _ in range(6)))
    assert all(answer.content == CONTENT for answer in answers) and sessions(logs) <= remote.AT_ONCE


async def test_who_reads_slowly_does_not_hold_up_others_for_long(
    logs: LogWorld, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TURN_S", 0.2)
    files, job = logs.services.files, next(iter(logs.deps.jobs.values()))
    held = [await files.open(job, "model.pt") for _ in range(remote.AT_ONCE)]
    busy = await get(logs)
    assert (busy.status_code, busy.json()["code"]) == (503, "TooManyStreams")
    await held.pop().close()
    assert (await get(logs)).status_code == 200
    for file in held:
        await file.close()


async def test_many_files_are_listed(logs: LogWorld, worker: Any, tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / "output" / "runs" / f"{number:04}-{'x' * 100}").touch()
    listed = (await get(logs, "?folder=runs&limit=3001")).json()
    assert len(listed["items"]) == 3001 and not listed["truncated"] and listed["folder"] == "runs"
    assert (await get(logs, "?limit=10")).json()["truncated"]


async def test_a_session_that_is_not_used_ends_and_a_worker_that_is_gone_is_said(
    logs: LogWorld, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await get(logs)).status_code == 200 and sessions(logs) == 1
    await logs.services.files.close_idle(float("inf"))
    assert sessions(logs) == 0
    assert (await get(logs)).status_code == 200
    monkeypatch.setattr(channel, "COME_S", 0.5)
    worker.kill()
    worker.wait()
    broken = await get(logs, "/model.pt")
    assert broken.status_code == 503 and broken.json()["code"] == "Unavailable"
    pod = next(iter(logs.deps.pods.values()))
    await logs.end(pod, 0)
    ended = await get(logs)
    assert (ended.status_code, ended.json()["code"]) == (409, "NotRunning")


async def test_a_worker_that_answers_nonsense_does_no_harm(logs: LogWorld) -> None:
    """Its process is a tenant's."""
    import json

    from websockets.asyncio.client import connect

    from stoker_api.sessions.rendezvous import SUBPROTOCOL

    pod = await logs.pod(await logs.job())
    auth = {"Authorization": f"Bearer {worker_token(KEY, pod.uid)}"}
    for answers in (
        [b"\0[]", b"\1{}"], [b"\1[]"], [b"\7"], ["text"], [b"\1{"], [b"\0{}", b"\1{}"], [],
        [b"\0" + json.dumps({"files": [[1, 2, 3, 4]], "folder": "", "truncated": 1}).encode(), b"\1{}"],
        [b'\1{"error": "\\u001b[2Jx", "code": "Failed"}'],
    ):  # fmt: skip
        asking = asyncio.create_task(get(logs))
        while not (waiting := logs.services.sessions.waiting(pod.uid)):
            await asyncio.sleep(0.01)
        url = logs.url.replace("http:", "ws:") + f"/v1/report/sessions/{waiting[0]}"
        async with connect(url, additional_headers=auth, subprotocols=[SUBPROTOCOL], proxy=None) as socket:
            assert json.loads(await socket.recv()) == {"kind": "files"}
            await socket.send('{"ready":true}')
            await socket.recv()
            for answer in answers:
                await socket.send(answer)
            if not answers:
                await socket.close()
            answer = await asking
            assert answer.status_code == 503 and "\x1b" not in answer.text, answers


async def _ended(logs: LogWorld, **spec: Any) -> TrainingJob:
    meta = ObjectMeta(name="one", namespace="alpha")
    job = TrainingJob(metadata=meta, spec=TrainingJobSpec.model_validate({"trainer": {"command": ["train"]}, **spec}))
    return await logs.status(await logs.deps.store.create(JOBS, job), attempt=1, phase="Succeeded")


async def _wanted(logs: LogWorld, job: TrainingJob) -> None:
    async with asyncio.timeout(10):
        while ANNOTATION_FILES_WANTED not in (await logs.deps.store.get(JOBS, job.key)).metadata.annotations:
            await asyncio.sleep(0.01)


async def _reader_pod(logs: LogWorld, job: TrainingJob) -> Pod:
    """What the operator does."""
    meta = ObjectMeta(name="one-files", namespace="alpha", owner_references=(owned_by(job),))
    pod = await logs.deps.store.create(PODS, Pod(metadata=meta, spec=PodSpec(containers=(Container(),))))
    return await logs.deps.store.patch_status(PODS, pod.key, {"phase": "Running"}, manager="kubelet")


def _reader_env(logs: LogWorld, job: TrainingJob, pod_uid: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "reader-token").write_text(worker_token(KEY, pod_uid))
    return {
        "PATH": os.environ["PATH"],
        "STOKER_POD_UID": pod_uid,
        "STOKER_PROJECT": "alpha",
        "STOKER_JOB": "one",
        "STOKER_JOB_UID": job.uid,
        "STOKER_OUTPUT_DIR": str(tmp_path / "output"),
        "STOKER_RUN_DIR": str(tmp_path / "volume" / "run"),
        "STOKER_API_URL": logs.url,
        "STOKER_TOKEN_FILE": str(tmp_path / "reader-token"),
    }


async def test_once_a_job_has_ended_a_pod_reads_its_files(logs: LogWorld, tmp_path: Path) -> None:
    (tmp_path / "output" / "beside-code" / "runs").mkdir(parents=True)
    (tmp_path / "output" / "beside-code" / "runs" / "model.pt").write_bytes(CONTENT)
    (tmp_path / "output" / "link").symlink_to("/etc/passwd")
    job = await _ended(logs, checkpoint={"claim": "mine"})
    asking = asyncio.create_task(get(logs))
    await _wanted(logs, job)
    pod = await _reader_pod(logs, job)
    argv = [sys.executable, "-I", "-m", "stoker_worker", "--reader"]
    env = _reader_env(logs, job, pod.uid, tmp_path)
    with subprocess.Popen(argv, env=env, cwd="/", stderr=subprocess.PIPE) as process:
        try:
            answer = await asking
            assert [one["path"] for one in answer.json()["items"]] == ["beside-code/runs/model.pt", "link"]
            assert (await get(logs, "/runs/model.pt")).content == CONTENT
            assert (await get(logs, "/link")).status_code == 404
            assert sessions(logs) == 1
            place = await logs.client.get(
                FILES.removesuffix("/files"), headers={"Authorization": f"Bearer {logs.admin}"}
            )
            assert place.json()["status"]["output"] == f"claim mine, {job.uid}/output"
        finally:
            process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0


async def test_what_can_not_be_read_is_said(logs: LogWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await _ended(logs)
    nothing = await get(logs)
    assert (nothing.status_code, nothing.json()["code"]) == (404, "NoFile") and "claim" in nothing.text
    await logs.status(job, phase="Queued")
    assert (await get(logs)).json()["code"] == "NotRunning"
    await logs.delete(JOBS, job, logs.deps.jobs)
    await _ended(logs, checkpoint={"claim": "mine"})
    monkeypatch.setattr(readers, "STARTS_S", 0.2)
    late = await get(logs)
    assert (late.status_code, late.headers["retry-after"]) == (503, "2") and "stoker events one" in late.text


async def test_an_unused_reader_ends(logs: LogWorld, tmp_path: Path) -> None:
    job = await _ended(logs, checkpoint={"claim": "mine"})
    pod = await _reader_pod(logs, job)
    script = "import os; from stoker_worker import reader; reader.IDLE_S = 1.0; os._exit(reader.main(os.environ, []))"
    env = _reader_env(logs, job, pod.uid, tmp_path)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=env, stderr=subprocess.PIPE)
    async with asyncio.timeout(20):
        assert await process.wait() == 0


async def test_only_a_reader_asks_for_readers_sessions(logs: LogWorld) -> None:
    worker = await logs.pod(await logs.job())
    for uid, status in ((worker.uid, 404), ("gone", 503)):
        headers = {"Authorization": f"Bearer {worker_token(KEY, uid)}"}
        assert (await logs.client.get("/v1/report/reader", headers=headers)).status_code == status
