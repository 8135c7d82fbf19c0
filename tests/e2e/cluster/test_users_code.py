"""A user's folder, sent as it is, trains in a foreign image; it is not sent twice; a failure can be looked into."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import Project
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Figure = Callable[[str, object], None]

TRAIN = """\
import os, sys
from model import weights
print("training in", os.getcwd(), "with", weights.NAMES, flush=True)
open(os.path.join(os.environ["STOKER_OUTPUT_DIR"], "result"), "w").write("done")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small project as people have it: a package, an ignored data folder, a file of half a megabyte."""
    work = tmp_path / "work"
    (work / "model").mkdir(parents=True)
    (work / "model" / "__init__.py").touch()
    (work / "model" / "weights.py").write_text("NAMES = ['a', 'b']\n")
    (work / "train.py").write_text(TRAIN)
    (work / "vocabulary.txt").write_text("".join(f"word-{number * 7919 % 100003}\n" for number in range(50_000)))
    (work / ".gitignore").write_text("data/\n*.log\n")
    (work / "data").mkdir()
    (work / "data" / "huge.bin").write_bytes(bytes(1 << 20))
    return work


def _sent(text: str) -> str:
    """What the CLI says it sent."""
    found = re.search(r"^code: .*$", text, re.M)
    assert found, text
    return found[0]


def test_a_folder_is_sent_trains_and_is_not_sent_twice(project: Project, folder: Path, figure: Figure) -> None:
    image = project.stack.images["foreign-python"]
    command = ("run", "--image", image, "--memory", "256Mi", "--name", "{}", "--", "python3", "train.py")
    first = project.stoker(*(word.format("first") for word in command), cwd=folder)
    assert "with ['a', 'b']" in first.stdout, first
    again = project.stoker(*(word.format("again") for word in command), cwd=folder)
    digests = {project.job(name).spec.trainer.code for name in ("first", "again")}
    assert len(digests) == 1 and None not in digests
    for pod in project.pods("first"):
        assert pod["spec"]["containers"][0]["image"] == image
    figure("stoker run of a folder, first time", _sent(first.stderr))
    figure("stoker run of the same folder again", _sent(again.stderr))
    (folder / "train.py").write_text(TRAIN + "print('changed', flush=True)\n")
    changed = project.stoker(*(word.format("changed") for word in command), cwd=folder)
    assert "changed" in changed.stdout
    figure("stoker run after one file changed", _sent(changed.stderr))
    project.stoker("clone", "first", "--name", "cloned", "--set", "spec.env={NAMED: again}")
    assert "with ['a', 'b']" in project.stoker("follow", "cloned").stdout, "the first job's code, not the folder's"
    assert project.job("cloned").spec.env["NAMED"] == "again"


def test_another_project_does_not_get_at_it(project: Project, folder: Path) -> None:
    digest = project.client.ship(folder)
    other = project.stack.project(f"{project.name}-b")
    try:
        spec = {"trainer": {"command": ["python3", "train.py"], "code": digest}, "memory": "128Mi"}
        refused = other.stoker("submit", "-f", "-", stdin=json.dumps({"spec": spec}), check=False)
        assert refused.returncode != 0 and "trainer.code" in refused.stderr
    finally:
        other.client.close()
        project.stack.bed.kubectl("delete", "namespace", other.name, "--wait=false")


def test_a_failed_worker_is_held_and_entered(project: Project, folder: Path, figure: Figure) -> None:
    (folder / "train.py").write_text("open('trace', 'w').write('it broke here')\nraise SystemExit(3)\n")
    image = project.stack.images["foreign-python"]
    project.stoker(
        "submit", "--image", image, "--memory", "256Mi", "--name", "broken", "--gpus", "1", "--hold", "10m",
        "--", "python3", "train.py", cwd=folder,
    )  # fmt: skip
    until(lambda: _held(project, "broken"), "the failed worker is held", timeout_s=90)
    job = project.job("broken")
    assert job.status.phase is Phase.RUNNING and job.status.progress and job.status.progress.held
    assert job.status.progress.held.exit_code == 3
    assert sum(project.stack.gpus_held().values()) == 1
    assert "held until" in project.stoker("ls").stdout
    assert project.client.queue("default").usage.held_gpus == 1
    began = time.monotonic()
    seen = project.stoker("exec", "broken", "--", "sh", "-c", "cat trace; exit 7", check=False)
    assert (seen.stdout, seen.returncode) == ("it broke here", 7), seen
    figure("stoker exec into a held worker: until its answer", f"{time.monotonic() - began:.1f} s")
    project.stoker("cancel", "broken")
    job = project.until_phase("broken", Phase.CANCELLED)
    assert job.status.held_s > 0
    until(lambda: sum(project.stack.gpus_held().values()) == 0, "the held GPU is free", timeout_s=60)


def _held(project: Project, name: str) -> bool:
    progress = project.job(name).status.progress
    return progress is not None and progress.held is not None


def test_a_hold_expires_by_itself(project: Project) -> None:
    command = ["sh", "-c", "exit 4"]
    spec = {"memory": "128Mi", "onFailure": {"hold": "5s"}}
    image = project.stack.images["foreign-python"]
    project.client.submit({**spec, "trainer": {"image": image, "command": command}}, name="brief")
    job = project.until_phase("brief", Phase.FAILED)
    assert 4 <= job.status.held_s < 30 and job.status.attempts[-1].workers[0].exit_code == 4


@pytest.fixture
def serving(project: Project) -> str:
    """A job that serves HTTP on port 8000 of its worker."""
    project.client.submit(
        {
            "memory": "128Mi",
            "trainer": {
                "image": project.stack.images["foreign-python"],
                "command": ["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", "/usr/lib"],
            },
        },
        name="serving",
    )
    project.until_phase("serving", Phase.RUNNING)
    return "serving"


@pytest.fixture
def forwarded(project: Project, serving: str) -> Iterator[int]:
    with subprocess.Popen(
        project.command("port-forward", serving, "0:8000"), env=project.environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "forwarding" in line)
        yield int(re.findall(r":(\d+) ->", line)[0])
        process.terminate()


def test_a_port_is_forwarded(forwarded: int, figure: Figure) -> None:
    began = time.monotonic()
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", forwarded, timeout=60)
        connection.request("GET", "/os-release")
        answer = connection.getresponse()
        assert answer.status == 200 and b"Debian" in answer.read()
        connection.close()
    figure("three requests through stoker port-forward", f"{time.monotonic() - began:.1f} s")
