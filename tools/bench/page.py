"""The web page with many jobs and many readers: `python -m tools.bench.page [jobs] [pages]`.

The api runs in a process of its own over the embedded store, filled with jobs that have not ended. A real browser opens
the page and filters; then jobs are submitted, first alone, then while so many pages are open. Of these only the calls
are made: each follows the newest 50 jobs, as several users.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path

import httpx

from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.worker import LogPart
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.serve import serving
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import TokenFile
from tests.support.harness import cpu_s

OF_A_USER = 50
"""Pages; one caller may have 100 streams."""
SETTLE_S = 3.0
SUBMITS = 400
AT_ONCE = 500
SPEC = {"trainer": {"command": ["python", "train.py"]}, "gpusPerWorker": 1}


class NoLogs:
    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        return None

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        return None


async def serve(folder: Path, count: int) -> None:
    """Until killed; says its port once it is ready."""
    clock = SystemClock()
    tokens = TokenFile.open(folder)
    tokens.ensure_admin()
    async with EmbeddedStore(folder / "stoker.db", clock) as store:
        await store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
        for begin in range(0, count, AT_ONCE):
            jobs = [
                TrainingJob(metadata=ObjectMeta(name=f"job-{n}", namespace="default"), spec=SPEC)  # type: ignore[arg-type]
                for n in range(begin, min(count, begin + AT_ONCE))
            ]
            await asyncio.gather(*(store.create(JOBS, job) for job in jobs))
        identity = TokenIdentity(tokens, b"k" * 32)
        deps = Deps(store, **caches(store, clock), logs=NoLogs(), identity=identity, clock=clock)  # type: ignore[arg-type]
        async with running_caches(deps), serving(create_app(deps)) as port:
            print(port, flush=True)
            await asyncio.Event().wait()


def browsed(url: str, token: str) -> list[str]:
    """The times of a browser's first view, of one with a warm cache, and of a filter."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        return ["no chromium here"]
    from playwright.sync_api import sync_playwright

    lines = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context()
        context.add_init_script(f"sessionStorage.setItem('stoker.token', {token!r})")
        page = context.new_page()
        for what in ("first view", "again, files kept"):
            begun = time.perf_counter()
            page.goto(url)
            page.locator("table.jobs tbody tr").first.wait_for()
            lines.append(f"{what:30} {time.perf_counter() - begun:6.2f} s")
        for text in ("job-77", "no-such-job"):
            begun = time.perf_counter()
            with page.expect_response(lambda answer, text=text: f"text={text}" in answer.url):  # type: ignore[misc]
                page.get_by_label("Search").fill(text)
            page.locator("table.jobs, .empty").first.wait_for()
            lines.append(
                f"{'filter by ' + text:30} {time.perf_counter() - begun:6.2f} s (0.35 s of it: typing may go on)"
            )
        browser.close()
    return lines


async def submits(client: httpx.AsyncClient, what: str) -> str:
    times = []
    for _ in range(SUBMITS):
        begun = time.perf_counter()
        answer = await client.post("/v1/projects/default/jobs", json={"spec": SPEC})
        assert answer.status_code == 201, answer.text
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    return f"{what:30} p50 {times[SUBMITS // 2]:6.1f} ms   p99 {times[int(SUBMITS * 0.99)]:6.1f} ms"


async def reader(client: httpx.AsyncClient, token: str, received: list[int]) -> None:
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    async with client.stream("GET", "/v1/projects/-/jobs", headers=headers) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_raw():
            received.append(len(part))


async def idle(pid: int, what: str) -> str:
    before_s = cpu_s(pid)
    await asyncio.sleep(SETTLE_S)
    return f"{what:30} {100 * (cpu_s(pid) - before_s) / SETTLE_S:6.1f} % of a core"


async def measure(count: int, pages: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "tools.bench.page", "serve", temporary, str(count)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(await process.stdout.readline())}"
            token = await asyncio.to_thread(Path(temporary, "token").read_text)
            print(f"{count} jobs")
            print("\n".join(await asyncio.to_thread(browsed, url, token.strip())))
            limits = httpx.Limits(max_connections=pages + 1, max_keepalive_connections=pages + 1)
            headers = {"Authorization": f"Bearer {token.strip()}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=30) as client:
                await submits(client, "")
                print(await submits(client, "submit, no page open"))
                print(await idle(process.pid, "nothing new, no page open"))
                tokens = TokenFile.open(Path(temporary))
                users = [tokens.add(f"user-{n}", "reader", ["*"]) for n in range(math.ceil(pages / OF_A_USER))]
                received: list[int] = []
                readers = [asyncio.create_task(reader(client, users[n // OF_A_USER], received)) for n in range(pages)]
                await asyncio.sleep(SETTLE_S)
                received.clear()
                print(await idle(process.pid, f"nothing new, {pages} pages open"))
                begun = time.perf_counter()
                print(await submits(client, f"submit, {pages} pages open"))
                kb = sum(received) / 1000 / pages / (time.perf_counter() - begun)
                print(f"{'sent to such a page':30} {kb:6.1f} kB/s meanwhile")
                for task in readers:
                    task.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
        finally:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(measure(*[int(n) for n in (*sys.argv[1:], *("100000", "200")[len(sys.argv) - 1 :])]))
