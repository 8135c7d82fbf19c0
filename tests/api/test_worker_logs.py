"""Workers' logs over the real api: taken by offset, read like any, completed from the kubelet, gone with the job."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import stoker_worker
from stoker.spec.job import JOBS
from stoker.spec.pod import PODS
from stoker.spec.report_tokens import worker_token
from stoker_api.worker_logs.storage import LogLimits

from .log_world import KEY, KubeletsCopy, LogWorld, log_world, store_in


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogWorld]:
    async with store_in(tmp_path) as store, log_world(tmp_path, store) as found:
        yield found


@pytest.fixture
def copy() -> KubeletsCopy:
    return KubeletsCopy()


@pytest.fixture
async def tailed(tmp_path: Path, copy: KubeletsCopy) -> AsyncIterator[LogWorld]:
    async with store_in(tmp_path) as store, log_world(tmp_path, store, copy) as found:
        yield found


async def test_pieces_are_taken_by_their_offset(logs: LogWorld):
    pod = await logs.pod(await logs.job())
    assert (await logs.post(pod, 0, b"hello ")).json()["offset"] == 6
    gap = await logs.post(pod, 11, b"!")
    assert gap.status_code == 409 and gap.json()["offset"] == 6 and gap.json()["code"] == "LogGap"
    assert (await logs.post(pod, 3, b"lo world")).json()["offset"] == 11
    assert (await logs.post(pod, 0, b"hello ")).json()["offset"] == 11, "twice is once"
    assert (await logs.post(pod, 11, b"")).json()["offset"] == 11
    assert await logs.source.read(pod.uid, 0, 99) is not None
    assert (await logs.source.read(pod.uid, 0, 99)).data == b"hello world"
    assert (await logs.post(pod, 30, b"end\n", lost=True)).json()["offset"] == 34
    whole = (await logs.source.read(pod.uid, 0, 999)).data
    assert whole == b"hello world\n[stoker] 19 bytes of output are missing here: they were lost\nend\n"


async def test_the_answer_says_whether_to_go_on(logs: LogWorld):
    job = await logs.job()
    pod = await logs.pod(job)
    assert (await logs.post(pod, 0, b"one\n")).json() == {"offset": 4, "stop": False, "why": ""}
    await logs.status(job, attempt=2, phase="Starting")
    why = "attempt 2 of job one has begun; this is attempt 1"
    assert (await logs.post(pod, 4, b"two\n")).json() == {"offset": 8, "stop": True, "why": why}, "and is taken"


async def test_only_workers_of_known_jobs_post_and_only_bytes(logs: LogWorld):
    job = await logs.job()
    pod = await logs.pod(job)
    assert (await logs.post("stranger", 0, b"x")).status_code == 404
    assert (await logs.post(pod, 0, b"x", Authorization="Bearer wkr.x.y")).status_code == 401
    assert (await logs.post(pod, 0, b"x", Authorization=f"Bearer {logs.admin}")).status_code == 401
    assert (await logs.post(pod, 0, b"x", Content_Type="application/json")).status_code == 415
    assert (await logs.post(pod, 0, b"x" * ((1 << 20) + 1))).status_code == 413
    assert (await logs.post(pod, -1, b"x")).status_code == 422
    assert (await logs.post(pod, 0, b"x" * (1 << 20))).status_code == 200
    await logs.delete(PODS, pod, logs.deps.pods)
    assert (await logs.post(pod, 1 << 20, b"late")).status_code == 200, "the pod is gone, its job is not"
    await logs.delete(JOBS, job, logs.deps.jobs)
    assert (await logs.post(pod, 0, b"x")).status_code == 404


async def test_a_full_store_of_logs_says_when_to_come_back(tmp_path: Path):
    async with store_in(tmp_path) as store, log_world(tmp_path, store, limits=LogLimits(total=10)) as logs:
        pod = await logs.pod(await logs.job())
        assert (await logs.post(pod, 0, b"0123456789")).status_code == 200
        full = await logs.post(pod, 10, b"x")
        assert full.status_code == 507 and full.json()["retryable"] and int(full.headers["Retry-After"]) > 0


async def test_a_follower_gets_every_byte_and_the_end(logs: LogWorld):
    job = await logs.job()
    pod = await logs.pod(job)
    await logs.post(pod, 0, b"first\n")
    following = asyncio.create_task(logs.log(job, follow=True))
    for number in range(20):
        text = b"line %d\n" % number
        held = (await logs.post(pod, 6 + 7 * number if number < 10 else 76 + 8 * (number - 10), text)).json()["offset"]
    assert not following.done()
    await logs.status(job, phase="Succeeded", finishedAt="2026-01-01T00:00:00Z")
    assert not following.done(), "its worker has not ended"
    await logs.end(pod, held)
    answer = await asyncio.wait_for(following, 10)
    assert answer.content == b"first\n" + b"".join(b"line %d\n" % n for n in range(20))


async def test_a_logs_followers_wake_a_few_at_a_time(logs: LogWorld):
    pod = await logs.pod(await logs.job())
    await logs.post(pod, 0, b"a")
    woken: Counter[int] = Counter()
    rounds = 0

    async def follow() -> None:
        await logs.source.wait_growth(pod.uid, 1, 30)
        woken[rounds] += 1

    followers = [asyncio.create_task(follow()) for _ in range(100)]
    await asyncio.sleep(0)
    posting = asyncio.create_task(logs.post(pod, 1, b"b"))
    while not all(follower.done() for follower in followers):
        rounds += 1
        await asyncio.sleep(0)
    assert woken.total() == 100 and max(woken.values()) <= 16
    assert (await posting).status_code == 200


async def test_a_worker_that_printed_nothing_has_an_empty_log(logs: LogWorld):
    job = await logs.job()
    pod = await logs.pod(job)
    await logs.end(pod, 0)
    async with asyncio.timeout(5):
        while (answer := await logs.log(job)).status_code == 404:
            await logs.source.wait_growth(pod.uid, 0, 0.05)
    assert answer.status_code == 200 and answer.content == b""


async def test_logs_go_with_their_job_also_when_it_went_unseen(tmp_path: Path):
    async with store_in(tmp_path) as store:
        async with log_world(tmp_path, store) as logs:
            kept, gone, later = [await logs.job(name) for name in ("kept", "gone", "later")]
            pods = {job.metadata.name: await logs.pod(job) for job in (kept, gone, later)}
            for pod in pods.values():
                await logs.post(pod, 0, b"x")
            await logs.delete(JOBS, gone, logs.deps.jobs)
            async with asyncio.timeout(5):
                while logs.shipped.size(pods["gone"].uid) is not None:
                    await logs.source.wait_growth(pods["gone"].uid, 1, 0.05)
        await store.delete(JOBS, later.key)
        async with log_world(tmp_path, store) as logs, asyncio.timeout(5):
            while logs.shipped.size(pods["later"].uid) is not None:
                await logs.source.wait_growth(pods["later"].uid, 1, 0.05)
            assert len(logs.shipped) == 1 and logs.shipped.total_bytes == 1
            assert sorted(path.stem for path in (tmp_path / "logs").iterdir()) == [pods["kept"].uid] * 3


WHOLE = b"".join(b"%06d some output of a worker\n" % number for number in range(3000))


@pytest.mark.parametrize("record", [True, False], ids=["with a record", "killed"])
@pytest.mark.parametrize("rotated", [0, 40_000], ids=["whole copy", "rotated copy"])
async def test_what_was_not_shipped_comes_from_the_kubelet(tailed: LogWorld, copy: KubeletsCopy, record, rotated):
    job = await tailed.job()
    pod = await tailed.pod(job)
    await tailed.post(pod, 0, WHOLE[:60_000])
    copy.copies[pod.uid] = WHOLE[rotated:]
    following = asyncio.create_task(tailed.log(job, follow=True))
    await tailed.end(pod, len(WHOLE) if record else None)
    await tailed.status(job, phase="Succeeded", finishedAt="2026-01-01T00:00:00Z")
    assert (await asyncio.wait_for(following, 10)).content == WHOLE
    await tailed.delete(PODS, pod, tailed.deps.pods)
    assert (await tailed.source.read(pod.uid, 0, 1 << 20)).ended, "it is kept, the pod need not be"


async def test_a_follower_waits_for_what_a_slow_kubelet_still_has(tailed: LogWorld, copy: KubeletsCopy):
    job = await tailed.job()
    pod = await tailed.pod(job)
    await tailed.post(pod, 0, WHOLE[:60_000])
    copy.copies[pod.uid], copy.pause_s = WHOLE, 2.0
    following = asyncio.create_task(tailed.log(job, follow=True))
    await tailed.status(job, phase="Failed", finishedAt="2026-01-01T00:00:00Z")
    await tailed.end(pod, None)
    assert (await asyncio.wait_for(following, 10)).content == WHOLE


async def test_what_is_lost_is_reported_missing(tailed: LogWorld, copy: KubeletsCopy):
    pod = await tailed.pod(await tailed.job())
    await tailed.post(pod, 0, WHOLE[:30])
    copy.copies[pod.uid] = WHOLE[50_000:]
    await tailed.end(pod, len(WHOLE))
    async with asyncio.timeout(10):
        while not (part := await tailed.source.read(pod.uid, 0, 1 << 20)).ended:
            await tailed.source.wait_growth(pod.uid, part.size, 1)
    notice = b"\n[stoker] 49970 bytes of output are missing here: they were lost\n"
    assert part.data == WHOLE[:30] + notice + WHOLE[50_000:]


async def test_a_copy_that_is_gone_ends_the_log_as_it_is(tailed: LogWorld, copy: KubeletsCopy):
    pod = await tailed.pod(await tailed.job())
    await tailed.post(pod, 0, WHOLE[:30])
    copy.gone.add(pod.uid)
    await tailed.end(pod, None)
    async with asyncio.timeout(5):
        while not (part := await tailed.source.read(pod.uid, 0, 1 << 20)).ended:
            await tailed.source.wait_growth(pod.uid, part.size, 1)
    assert part.data == WHOLE[:30] and copy.asked == 1


async def test_a_shipped_log_needs_no_kubelet(tailed: LogWorld, copy: KubeletsCopy):
    pod = await tailed.pod(await tailed.job(), ran_s=60)
    await tailed.post(pod, 0, WHOLE)
    await tailed.end(pod, len(WHOLE))
    async with asyncio.timeout(5):
        while not (await tailed.source.read(pod.uid, 0, 1)).ended:
            await tailed.source.wait_growth(pod.uid, len(WHOLE), 1)
    assert copy.asked == 0


async def test_a_silent_worker_that_ships_after_all_is_not_followed_at_the_kubelet_any_more(
    tailed: LogWorld, copy: KubeletsCopy
):
    pod = await tailed.pod(await tailed.job(), ran_s=60)
    copy.copies[pod.uid] = WHOLE[:5000]
    async with asyncio.timeout(15):
        while (part := await tailed.source.read(pod.uid, 0, 99_999)) is None or part.size < 5000:
            await tailed.source.wait_growth(pod.uid, 0, 0.2)
    assert (await tailed.post(pod, 0, WHOLE[:4000])).json()["offset"] == 5000
    assert (await tailed.post(pod, 5000, WHOLE[5000:9000])).json()["offset"] == 9000
    for _ in range(3):
        assert (await tailed.source.read(pod.uid, 0, 99_999)).data == WHOLE[:9000]
    assert copy.asked == 1 and not tailed.shipped.is_pulled(pod.uid)


@pytest.mark.parametrize("rotated", [False, True])
async def test_a_restarted_api_goes_on_following_where_it_was(tmp_path: Path, copy: KubeletsCopy, rotated: bool):
    async with store_in(tmp_path) as store:
        async with log_world(tmp_path, store, copy) as logs, asyncio.timeout(15):
            pod = await logs.pod(await logs.job(), ran_s=60)
            copy.copies[pod.uid] = WHOLE[:20_000]
            while (logs.shipped.size(pod.uid) or 0) < 20_000:
                await logs.source.read(pod.uid, 0, 1)
                await logs.source.wait_growth(pod.uid, 19_999, 0.2)
        copy.copies[pod.uid] = WHOLE[30_000:] if rotated else WHOLE[:60_000]
        async with log_world(tmp_path, store, copy) as logs, asyncio.timeout(15):
            while (part := await logs.source.read(pod.uid, 0, 999_999)).size < 40_000:
                await logs.source.wait_growth(pod.uid, 39_999, 0.2)
    if rotated:
        assert part.data.startswith(WHOLE[:20_000] + b"[stoker] some output may be missing or repeated here")
    else:
        assert WHOLE.startswith(part.data)


async def test_a_worker_without_a_supervisor_is_followed_at_the_kubelet(tailed: LogWorld, copy: KubeletsCopy):
    job = await tailed.job()
    pod = await tailed.pod(job, ran_s=60)
    copy.copies[pod.uid] = WHOLE[:50_000]
    following = asyncio.create_task(tailed.log(job, follow=True))
    async with asyncio.timeout(15):
        while (tailed.shipped.size(pod.uid) or 0) < 50_000:
            await tailed.source.wait_growth(pod.uid, tailed.shipped.size(pod.uid) or 0, 0.2)
    assert not following.done()
    copy.copies[pod.uid] = WHOLE
    copy.ended.set()
    await tailed.end(pod, None)
    await tailed.status(job, phase="Succeeded", finishedAt="2026-01-01T00:00:00Z")
    assert (await asyncio.wait_for(following, 10)).content == WHOLE


PRINTS = """
import hashlib, os
digest, line, total, seed = hashlib.sha256(), 0, 0, os.urandom(700).hex().encode()
while total < 60_000_000:
    block = b''.join(b'%09d ' % (line + n) + seed[: 20 + (line + n) * 7919 % 1300] + b'\\n' for n in range(400))
    line, total = line + 400, total + len(block)
    digest.update(block)
    view = memoryview(block)
    while view: view = view[os.write(1, view):]
open('digest', 'w').write('%d %s' % (line, digest.hexdigest()))
"""


@pytest.mark.slow
async def test_sixty_megabytes_of_a_real_supervisor_through_two_restarts_of_the_api(tmp_path: Path):
    """Every line once, by `GET …/logs` of the third api process's worth of state."""
    async with store_in(tmp_path) as store:
        async with log_world(tmp_path, store) as logs:
            job = await logs.job()
            pod = await logs.pod(job)
            port = int(logs.url.rpartition(":")[2])
            (tmp_path / "token").write_text(worker_token(KEY, pod.uid))
            worker = await asyncio.to_thread(_start, tmp_path, pod.uid, job.uid, logs.url)
            try:
                while (logs.shipped.size(pod.uid) or 0) < 5_000_000:
                    await logs.source.wait_growth(pod.uid, logs.shipped.size(pod.uid) or 0, 5)
            except BaseException:
                worker.kill()
                raise
        async with log_world(tmp_path, store, port=port) as logs:
            while (logs.shipped.size(pod.uid) or 0) < 20_000_000:
                await logs.source.wait_growth(pod.uid, logs.shipped.size(pod.uid) or 0, 5)
        async with log_world(tmp_path, store, port=port) as logs:
            assert await asyncio.to_thread(worker.wait, 60) == 0
            record = json.loads((tmp_path / "termination").read_text())
            await logs.end(pod, record["logBytes"])
            await logs.status(job, phase="Succeeded", finishedAt="2026-01-01T00:00:00Z")
            whole = (await logs.log(job, attempt=1)).content
    lines, digest = (tmp_path / "output" / "digest").read_text().split()
    assert len(whole) == record["logBytes"] > 60_000_000
    assert [int(line[:9]) for line in whole.splitlines()] == list(range(int(lines)))
    assert hashlib.sha256(whole).hexdigest() == digest


async def test_a_real_supervisor_stops_when_a_later_attempt_begins(tmp_path: Path):
    """As on a node that has lost its kubelet: no one but the api reaches the worker."""
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(60)"
    async with store_in(tmp_path) as store, log_world(tmp_path, store) as logs:
        job = await logs.job()
        pod = await logs.pod(job)
        (tmp_path / "token").write_text(worker_token(KEY, pod.uid))
        worker = await asyncio.to_thread(_start, tmp_path, pod.uid, job.uid, logs.url, script)
        try:
            await logs.status(job, phase="Starting", attempt=2)
            assert await asyncio.to_thread(worker.wait, 40) == 75
        finally:
            worker.kill()
        whole = (await logs.source.read(pod.uid, 0, 999)).data
    record = json.loads((tmp_path / "termination").read_text())
    assert record["stopRequested"] and record["exitCode"] == 75
    assert whole == b"[stoker] asked to stop by the api: attempt 2 of job one has begun; this is attempt 1\n"


def _start(folder: Path, pod_uid: str, job_uid: str, url: str, script: str = PRINTS) -> subprocess.Popen[bytes]:
    names = {"POD_UID": pod_uid, "JOB_UID": job_uid, "JOB": "one", "PROJECT": "alpha", "ATTEMPT": "1", "WORKER": "0"}
    env = {f"STOKER_{name}": value for name, value in names.items()} | {
        "PATH": os.environ["PATH"],
        "STOKER_WORKERS": "1",
        "STOKER_GPUS": "0",
        "STOKER_API_URL": url,
        "STOKER_TOKEN_FILE": str(folder / "token"),
        "STOKER_RUN_DIR": str(folder / "run"),
        "STOKER_OUTPUT_DIR": str(folder / "output"),
        "STOKER_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "STOKER_TERMINATION_LOG": str(folder / "termination"),
    }
    program = str(Path(stoker_worker.__file__).with_name("__main__.py"))
    argv = [sys.executable, "-I", "-S", program, "--pod", "--", sys.executable, "-c", script]
    return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd="/")
