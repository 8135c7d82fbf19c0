"""Pictures of the page for its documentation: `STOKER_SCREENSHOTS=docs/screenshots pytest -m sweep tests/page`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client.client import Client
from tests.support.harness import SHOWS_PROGRESS, Server, until

pytestmark = [pytest.mark.sweep]
TRAIN = (
    SHOWS_PROGRESS
    + """
import math, random
random.seed(sys.argv[1])
rate, steps = float(sys.argv[2]), int(sys.argv[3])
for step in range(1, steps):
    loss = 2.3 * math.exp(-rate * step / 60) + 0.08 + random.random() * 0.05
    saved = {'checkpoint': {'step': step - step % 40, 'path': 'c'}} if step >= 40 else {}
    show(step=step, totalSteps=steps, at=time.time(), **saved, metrics={
        'loss': loss, 'accuracy': 1 - loss / 2.6, 'samplesPerSecond': 1200 + random.random() * 60,
        'learningRate': 0.001 * (1 - step / steps)})
    print(f'step {step}/{steps} loss {loss:.4f}', flush=True)
    time.sleep(0.12)
"""
)
VIEWS = {
    "jobs": "/",
    "why": "/jobs/default/bert-large",
    "curves": "/jobs/default/resnet50-a?tab=curves",
    "log": "/jobs/default/resnet50-a?tab=log",
    "usage": "/jobs/default/resnet50-a?tab=usage",
    "compare": "/compare?jobs=default/resnet50-a,default/resnet50-b",
    "queues": "/queues?queue=default",
    "gpus": "/gpus",
    "api": "/docs?op=patch_job",
}


@pytest.fixture(scope="module")
def up(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--virtual-gpus", "8", "--cpus", "32", "--grafana", "https://grafana.example"]
    server = Server(tmp_path_factory.mktemp("shots") / "data", *options).start()
    yield server
    server.close()


def submit(client: Client, name: str, *arguments: str, **spec: Any) -> None:
    command = [sys.executable, "-c", TRAIN, name, *arguments]
    client.submit({"metadata": {"name": name}, "spec": {"trainer": {"command": command}, "gpusPerWorker": 2, **spec}})


def test_pictures(up: Server, browse: Any, tmp_path: Path) -> None:
    folder = Path(os.environ.get("STOKER_SCREENSHOTS") or tmp_path)
    with up.client() as client:
        client.submit({"metadata": {"name": "tokenize"}, "spec": {"trainer": {"command": ["true"]}}})
        client.submit({"metadata": {"name": "no-data"}, "spec": {"trainer": {"command": ["ls", "/data/imagenet"]}}})
        submit(client, "resnet50-a", "1.0", "2000")
        submit(client, "resnet50-b", "0.6", "2000")
        submit(client, "gpt-small", "0.4", "6000", priority=3)
        submit(client, "bert-large", "1.0", "900", workers=2)
        until(lambda: client.get("no-data").status.phase == "Failed", "one has failed")
        until(
            lambda: (progress := client.get("resnet50-b").status.progress) and progress.step > 150, "there is a curve"
        )
        for width in (1440, 360):
            for dark in (False, True):
                page = browse(up.url, (up.data / "token").read_text().strip(), width, dark=dark)
                for name, path in VIEWS.items():
                    page.goto(up.url + path)
                    page.locator(
                        "table.jobs, .blocker, canvas, .cells, .operation-body, .log-frame, .tiles, .queues"
                    ).first.wait_for()
                    page.wait_for_load_state("networkidle") if name == "gpus" else page.wait_for_timeout(700)
                    shot = folder / f"page-{name}-{width}-{'dark' if dark else 'light'}.png"
                    page.screenshot(path=shot, full_page=width == 360 and name not in ("api", "compare"))
        for job in client.ls():
            client.cancel(job.metadata.name)
