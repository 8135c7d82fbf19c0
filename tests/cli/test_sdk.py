"""The SDK as a script uses it, against a real `stoker up`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import Client, Job
from stoker.client.errors import BadInput
from stoker.spec.rest import JobCurves
from tests.support.harness import SHOWS_PROGRESS, running

TRAIN = SHOWS_PROGRESS + (
    "steps = int(os.environ['STEPS'])\n"
    "for step in range(1, steps + 1):\n"
    "    show(step=step, totalSteps=steps, metrics={'loss': 1 / step})\n"
    "    print('step', step, flush=True)\n"
    "open(os.environ['STOKER_OUTPUT_DIR'] + '/model.txt', 'w').write('done')\n"
)


PROGRAMS = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_a_script_runs_its_folder_waits_and_reads_what_came_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    with running(tmp_path / "data") as server:
        script = [sys.executable, str(Path(__file__).parent / "sdk_script.py")]
        token = (tmp_path / "data/token").read_text().strip()
        done = subprocess.run(
            [*script, server.url, token, str(folder)], capture_output=True, text=True, timeout=100, env=PROGRAMS
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("<Job train-") and lines[0].endswith(": Succeeded · step 3/3 · loss 0.3333> True")
    assert lines[1:4] == ["step 1", "step 2", "step 3"]
    assert lines[4].endswith("3: 0.3333333333333333}")
    assert lines[5] == "['model.txt'] 4" and (folder / "model.txt").read_text() == "done"
    assert "is Failed: exit 1: ValueError: invalid literal" in lines[6] and lines[6].endswith(" Retries"), lines[6]


def test_a_command_is_a_list_of_arguments(script: Any) -> None:
    with Client(script.url) as client, pytest.raises(BadInput, match=r"a list of arguments: \['python', 'train.py'\]"):
        client.run("python train.py")
    assert not script.requests


def test_a_job_is_readable_in_a_notebook(script: Any, make_job: Any) -> None:
    progress = {"at": 1, "step": 4, "totalSteps": 10, "metrics": {"loss": 0.5}}
    script.on("GET", "/v1/projects/default/jobs/a", script.json(make_job("a", "Running", progress=progress)))
    spec = {"gpusPerWorker": 2, "trainer": {"recipe": "gpt"}}
    waits = make_job("b", "Queued", spec, message="short 2 of 2 <GPUs>:\nnone is free")
    script.on("GET", "/v1/projects/default/jobs/b", script.json(waits))
    with Client(script.url) as client:
        job = client.get("a")
        assert isinstance(job, Job) and repr(job) == str(job) == "<Job a: Running · step 4/10 · loss 0.5>"
        html = client.get("b")._repr_html_()
    assert "<td>Queued · short 2 of 2 &lt;GPUs&gt;: none is free</td>" in html and "<th>GPUs</th><td>2</td>" in html


def test_metrics_are_columns_of_one_length() -> None:
    curves = [
        {"metric": "loss", "attempt": 1, "steps": [1, 2], "times": [0.0, 1.0], "values": [0.5, 0.25]},
        {"metric": "loss", "attempt": 2, "steps": [2], "times": [9.0], "values": [0.125]},
    ]
    found = JobCurves.model_validate({"project": "p", "job": "j", "jobUid": "u", "deleted": False, "curves": curves})
    assert found.columns() == {
        "metric": ["loss", "loss", "loss"],
        "attempt": [1, 1, 2],
        "step": [1, 2, 2],
        "time": [0.0, 1.0, 9.0],
        "value": [0.5, 0.25, 0.125],
    }


def test_what_run_has_to_note_stays_with_the_job(script: Any, make_job: Any) -> None:
    body = make_job("a", "Queued", {"trainer": {"command": ["python", "x.py"]}, "gpusPerWorker": 2})
    script.on("POST", "/v1/projects/default/jobs", script.json(body, 201, Warning='299 - "may be preempted"'))
    script.on("GET", "/version", script.json({"version": "1", "apiVersion": "v", "mode": "Cluster"}))
    script.on("GET", "/v1/projects/default/jobs/a", script.json(body))
    with Client(script.url) as client:
        heard: list[str] = []
        client.calls.on_warning = heard.append
        job = client.run(["python", "x.py"], gpus=2, no_code=True)
        assert job.remarks[0] == "may be preempted" == heard[0]
        assert job.remarks[1].startswith("2 GPUs and one process: ") and len(job.remarks) == 2
        assert "<th>note</th><td>may be preempted</td>" in job._repr_html_()
        assert client.get("a").remarks == ()
