"""Following a job: its output, its progress and the exit code it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stoker.cli.board import Bars, BoardLines
from stoker.cli.main import cli
from stoker.cli.tracking import exit_code
from stoker.spec.job import TrainingJob

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = "/v1/projects/default/jobs"
COMMAND = {"trainer": {"command": ["/bin/train"], "workingDir": "/"}}


def _progress(step: int, **metrics: float) -> dict[str, Any]:
    return {"at": step, "step": step, "totalSteps": 10, "metrics": metrics}


def _serve(script: Any, sse: Any, job: dict[str, Any], *frames: bytes, logs: bytes = b"") -> None:
    script.on("POST", JOBS, script.json(job, 201))
    script.on("GET", f"{JOBS}/a", script.json(job))
    script.on("GET", f"{JOBS}/a/events", script.text(b"".join(frames)))
    script.on("GET", f"{JOBS}/a/logs", script.text(logs + sse("end", {})))


def _run(script: Any, *args: str) -> Any:
    return CliRunner().invoke(cli, ["--server", script.url, *args])


def test_a_recipe_shows_its_progress_and_ends_with_zero(script: Any, sse: Any, make_job: Any) -> None:
    done = make_job(
        "a", "Succeeded", reason="Completed", message="target reached", progress=_progress(9, accuracy=0.98)
    )
    _serve(
        script,
        sse,
        make_job("a", "Queued", message="waits"),
        sse("job", make_job("a", "Queued", message="waits for 1 GPU")),
        sse("job", make_job("a", "Running", attempt=1, progress=_progress(1, loss=0.5))),
        sse("job", done),
        sse("end", {"phase": "Succeeded"}),
    )
    result = _run(script, "run", "-f", str(EXAMPLES / "digits.yaml"))
    assert result.exit_code == 0
    lines = [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()]
    assert lines == [
        "a                Queued     waits for 1 GPU",
        "a                Running    step 1/10 · loss 0.5",
        "a                Succeeded  step 9/10 · accuracy 98.00%",
    ]
    assert result.stderr == "submitted a\na Succeeded: target reached\n"


def test_the_size_that_was_worked_out_is_shown(script: Any, sse: Any, make_job: Any) -> None:
    job = make_job("a", "Succeeded", reason="Completed", message="done")
    job["status"]["resources"] = {"cpu": "7", "cpuFrom": "GpuShare", "memory": "56Gi", "sharedMemory": "28Gi"}
    _serve(script, sse, job, sse("job", job), sse("end", {"phase": "Succeeded"}))
    result = _run(script, "run", "-f", str(EXAMPLES / "digits.yaml"))
    assert (
        result.stderr == "submitted a\neach worker: 1 GPU, 7 cores, 56Gi memory (share of a GPU)\na Succeeded: done\n"
    )


def test_a_warning_of_the_server_is_shown_on_standard_error(script: Any, make_job: Any) -> None:
    answer = script.json(make_job("a", "Queued"), 201, Warning='299 - "may be preempted", 299 - "two\tlines"')
    script.on("POST", JOBS, answer)
    result = _run(script, "submit", "-f", str(EXAMPLES / "digits.yaml"))
    assert result.exit_code == 0 and result.stdout.split() == ["a"]
    assert result.stderr == "warning: may be preempted\nwarning: two lines\n"


def test_a_command_s_output_is_all_that_is_on_standard_output(script: Any, sse: Any, make_job: Any) -> None:
    workers = [{"worker": 0, "node": "n", "exitCode": 7, "category": "UserError"}]
    attempt = {"number": 1, "endedAt": "2026-01-01T00:00:00Z", "category": "UserError", "workers": workers}
    failed = make_job("a", "Failed", COMMAND, attempt=1, attempts=[attempt], message="exit code 7")
    _serve(
        script,
        sse,
        make_job("a", "Queued", COMMAND),
        sse("job", make_job("a", "Running", COMMAND, attempt=1)),
        sse("job", failed),
        sse("end", {"phase": "Failed"}),
        logs=sse("log", "hello\nworld", "1.12"),
    )
    result = _run(script, "run", "--", "true")
    assert (result.exit_code, result.stdout) == (7, "hello\nworld\n")
    assert "a Failed: exit code 7" in result.stderr and "stoker why a" in result.stderr


def test_the_workers_that_an_elastic_job_gets_later_are_followed_too(script: Any, sse: Any, make_job: Any) -> None:
    spec = COMMAND | {"workers": 3, "elastic": {"min": 1, "max": 3}}

    def job(phase: str, attempt: int, workers: int) -> bytes:
        placed = [{"worker": at, "node": "n"} for at in range(workers)]
        before = [{"number": at, "endedAt": "2026-01-01T00:00:00Z"} for at in range(1, attempt)]
        return sse("job", make_job("a", phase, spec, attempt=attempt, placement=placed, attempts=before))

    phases = [("Running", 1, 1), ("Queued", 1, 0), ("Starting", 2, 2), ("Running", 2, 2), ("Succeeded", 2, 0)]
    frames = [job(*one) for one in phases]
    _serve(
        script,
        sse,
        make_job("a", "Queued", spec),
        *frames,
        sse("end", {"phase": "Succeeded"}),
        logs=sse("log", "hello", "1.6"),
    )
    result = _run(script, "run", "--", "true")
    assert sorted(result.stdout.splitlines()) == ["[0] hello", "[1] hello"]


def test_a_job_that_never_ran_has_no_log_and_that_is_no_error(script: Any, sse: Any, make_job: Any) -> None:
    cancelled = make_job(
        "a", "Cancelled", COMMAND, attempt=1, attempts=[{"number": 1, "endedAt": "2026-01-01T00:00:00Z"}]
    )
    _serve(script, sse, cancelled, sse("job", cancelled), sse("end", {"phase": "Cancelled"}))
    script.on("GET", f"{JOBS}/a/logs", script.problem(404, "NotFound", "no log"))
    result = _run(script, "follow", "a")
    assert (result.exit_code, result.stdout) == (130, "")


@pytest.mark.parametrize(
    ("phase", "category", "code", "leaves"),
    [
        ("Succeeded", None, 0, 0),
        ("Failed", "UserError", 3, 3),
        ("Failed", "UserError", None, 1),
        ("Failed", "BadConfig", 64, 1),
        ("Failed", "NodeLost", None, 1),
        ("Cancelled", "Interrupted", 75, 130),
    ],
)
def test_exit_codes(make_job: Any, phase: str, category: str | None, code: int | None, leaves: int) -> None:
    collateral = {"worker": 0, "node": "n", "exitCode": 143, "category": "Interrupted"}
    cause = {"worker": 1, "node": "n", "exitCode": code, "category": category}
    end = {"number": 2, "endedAt": "2026-01-01T00:00:00Z", "category": category, "workers": [collateral, cause]}
    first = {"number": 1, "endedAt": "2026-01-01T00:00:00Z", "category": "NodeLost"}
    job = make_job("a", phase, attempt=2, attempts=[first, end])
    assert exit_code(TrainingJob.model_validate(job)) == leaves


def test_lines_come_at_changes_of_phase_and_every_few_seconds(make_job: Any) -> None:
    import io

    clock = [0.0]
    out = io.StringIO()
    lines = BoardLines(out, every_s=3, clock=lambda: clock[0])
    for at in range(10):
        clock[0] = float(at)
        job = make_job("a", "Running", attempt=1, progress=_progress(at))
        lines.update(TrainingJob.model_validate(job))
        lines.update(TrainingJob.model_validate(job))
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["0s", "3s", "6s", "9s"]


def test_a_hold_is_shown_at_once_and_once(make_job: Any) -> None:
    import io

    out = io.StringIO()
    lines = BoardLines(out, every_s=3, clock=lambda: 0.0)
    held = {"since": 1.0, "until": 60.0, "exitCode": 1}
    for progress in (_progress(1), _progress(2), {**_progress(2), "held": held}, {**_progress(2), "held": held}):
        lines.update(TrainingJob.model_validate(make_job("a", "Running", attempt=1, progress=progress)))
    assert [line.split()[3] for line in out.getvalue().splitlines()] == ["step", "held"]


@pytest.mark.parametrize("width", [30, 60, 120])
def test_bars_fit_the_terminal(make_job: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    with Bars(out) as bars:
        for number in range(2):
            job = make_job(f"job-{number}", "Running", progress=_progress(5, loss=0.25, accuracy=0.5))
            bars.update(TrainingJob.model_validate(job))
        bars.say("a [word] beside it")
    text = out.getvalue()
    assert "job-1" in text and "a [word] beside it" in text
    assert width < 100 or "step 5/10 · loss 0.25 · accuracy 50.00%" in text


GPUS = {
    "items": [
        {
            "metadata": {"name": "n"},
            "status": {"gpus": [{"uuid": f"g{n}", "index": n, "model": "H100", "memoryBytes": 1} for n in range(4)]},
        }
    ]
}
NO_GPU = "note: it has no GPU, though the server has 4: --gpus 1 (or --gpus 0, if none is meant)"


@pytest.mark.parametrize(
    ("options", "command", "says"),
    [
        ([], ["/usr/bin/python3", "-u", "train.py"], NO_GPU),
        (["--gpus", "0"], ["python", "train.py"], ""),
        (["--gpus", "1"], ["python", "train.py"], ""),
        (["--gpus", "2"], ["/opt/bin/python3.12", "-u", "train.py"], "note: 2 GPUs and one process"),
        (["--gpus", "2"], ["python", "-m", "mine.train"], "note: 2 GPUs and one process"),
        (["--gpus", "2"], ["torchrun", "train.py"], ""),
        (["--gpus", "2"], ["python", "-m", "torch.distributed.run", "train.py"], ""),
        (["--gpus", "2"], ["sh", "train.sh"], ""),
    ],
)
def test_an_oversight_is_remarked_on(
    script: Any, sse: Any, make_job: Any, options: list[str], command: list[str], says: str
) -> None:
    spec = {"trainer": {"command": command}, "gpusPerWorker": int(options[1]) if options else 0}
    _serve(
        script,
        sse,
        make_job("a", "Queued", spec),
        sse("job", make_job("a", "Succeeded", spec)),
        sse("end", {"phase": "Succeeded"}),
    )
    script.on("GET", "/v1/nodes", script.json(GPUS))
    script.on("GET", "/version", script.json({"version": "1", "apiVersion": "v", "mode": "Cluster"}))
    result = _run(script, "run", *options, "--no-code", "--", *command)
    notes = [line for line in result.stderr.splitlines() if line.startswith("note:")]
    assert (len(notes), "".join(notes).startswith(says)) == (1 if says else 0, True), result.stderr


def test_a_server_that_shows_no_nodes_is_not_asked_in_vain(script: Any, sse: Any, make_job: Any) -> None:
    _serve(
        script,
        sse,
        make_job("a", "Queued", COMMAND),
        sse("job", make_job("a", "Succeeded", COMMAND)),
        sse("end", {"phase": "Succeeded"}),
    )
    script.on("GET", "/v1/nodes", script.json({"code": "Forbidden", "detail": "no"}, 403))
    result = _run(script, "run", "--no-code", "--", "/bin/true")
    assert result.exit_code == 0 and "note" not in result.stderr
