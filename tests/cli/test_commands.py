"""The commands against a scripted server: what they send, what they print, how they end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from stoker.cli.main import _COMMANDS, cli
from stoker.spec.code import CodeManifest
from stoker.spec.rest import QueueWithUsage

JOBS = "/v1/projects/default/jobs"
EMPTY = CodeManifest(files=()).digest()  # of the folder tests start in


@pytest.fixture
def stoker(script: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STOKER_SERVER", script.url)
    monkeypatch.setenv("STOKER_TOKEN", "t")

    def run(*args: str, **more: Any) -> Result:
        return CliRunner().invoke(cli, list(args), **more)

    return run


def test_help_lists_every_command_with_its_own_text() -> None:
    listed = CliRunner().invoke(cli, ["--help"]).stdout
    for name, entry in _COMMANDS.items():
        command = cli.get_command(cli.make_context("stoker", ["ls"], resilient_parsing=True), name)
        assert command is not None and command.short_help == entry.short
        assert f"  {name}" in listed


def test_a_command_line_becomes_a_job(stoker: Any, script: Any, make_job: Any, tmp_path: Path) -> None:
    script.on("POST", JOBS, script.json(make_job("train-abc"), 201))
    result = stoker(
        *("submit", "--gpus", "2", "-w", "3", "--queue", "q", "--priority", "5", "--cpu", "4", "--memory", "8Gi"),
        *("--runtime", "rdma", "--ttl", "7d"),
        *(
            "-e",
            "A=1=2",
            "-e",
            "HOST",
            "--max-duration",
            "2h",
            "--hold",
            "30m",
            "--name",
            "n",
            "--idempotency-key",
            "k",
        ),
        *("--", sys.executable, "train.py", "--lr", "0.1", "-v"),
        env={"HOST": "box"},
    )
    assert (result.exit_code, result.stdout) == (0, "train-abc\n")
    (request,) = script.posted
    assert request.headers["idempotency-key"] == "k"
    assert request.body == {
        "metadata": {"name": "n"},
        "spec": {
            "queue": "q",
            "priority": 5,
            "workers": 3,
            "gpusPerWorker": 2,
            "cpu": "4",
            "memory": "8Gi",
            "runtime": "rdma",
            "ttlAfterFinished": "7d",
            "onFailure": {"hold": "30m"},
            "env": {"VIRTUAL_ENV": sys.prefix, "A": "1=2", "HOST": "box"},
            "stop": {"maxDuration": "2h"},
            "trainer": {
                "command": [sys.executable, "train.py", "--lr", "0.1", "-v"],
                "code": EMPTY,
            },
        },
    }


def test_an_elastic_job_wishes_for_the_most_unless_it_says_else(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("POST", JOBS, script.json(make_job("a"), 201))
    for options in ([], ["-w", "4"]):
        assert stoker("submit", "--elastic", "2:8", *options, "--", "/bin/true").exit_code == 0
    sizes = [(one.body["spec"]["workers"], one.body["spec"]["elastic"]) for one in script.posted]
    assert sizes == [(8, {"min": 2, "max": 8}), (4, {"min": 2, "max": 8})]
    result = stoker("submit", "--elastic", "2-8", "--", "/bin/true")
    assert result.exit_code == 2 and "write MIN:MAX" in result.stderr


def test_on_this_machine_the_users_own_program_is_meant(
    stoker: Any, script: Any, make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(program.parent))
    script.on("POST", JOBS, script.json(make_job(), 201))
    assert stoker("submit", "python", "train.py").exit_code == 0, "also without --"
    assert script.posted[0].body["spec"]["trainer"]["command"] == [str(program), "train.py"]
    missing = stoker("submit", "--", "no-such-program")
    assert (missing.exit_code, "no program 'no-such-program'" in missing.stderr) == (2, True)
    assert len(script.posted) == 1


def test_on_another_machine_the_arguments_stay_as_they_are(
    script: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.client.config import Endpoint

    monkeypatch.setattr(Endpoint, "loopback", property(lambda _: False))
    script.on("POST", JOBS, script.json(make_job(), 201))
    assert CliRunner().invoke(cli, ["--server", script.url, "submit", "--", "python", "x.py"]).exit_code == 0
    assert script.posted[0].body == {"spec": {"trainer": {"command": ["python", "x.py"], "code": EMPTY}}}


def test_a_cluster_behind_a_port_forward_is_not_this_machine(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("POST", JOBS, script.json(make_job(), 201))
    script.on("GET", "/version", script.json({"version": "1", "apiVersion": "stoker.dev/v1alpha1", "mode": "Cluster"}))
    assert stoker("submit", "--", "no-such-program-here", "x.py").exit_code == 0
    trainer = {"command": ["no-such-program-here", "x.py"], "code": EMPTY}
    assert script.posted[-1].body == {"spec": {"trainer": trainer}}
    assert stoker("submit", "--image", "registry.example/train:1", "--", "python", "x.py").exit_code == 0
    trainer = {"command": ["python", "x.py"], "image": "registry.example/train:1", "code": EMPTY}
    assert script.posted[-1].body == {"spec": {"trainer": trainer}}


def test_files_overrides_and_the_line_of_a_fault(stoker: Any, script: Any, make_job: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("spec:\n  cpu: 1\n  trainer: {recipe: image-classification}\n---\nspec: {cpu: x}\n")
    fault = script.problem(422, "Invalid", "2 faults", (("/spec/cpu", "'x' is no quantity"),))
    script.on("POST", JOBS, script.json(make_job("one"), 201), fault)
    result = stoker("submit", "-f", str(path), "--set", "spec.priority=3", "--gpus", "1", "--idempotency-key", "k")
    assert (result.exit_code, result.stdout) == (1, "one\n")
    assert result.stderr == f"stoker: spec.cpu ({path}:5): 'x' is no quantity\n"
    first, second = script.posted
    assert first.body["spec"] == {
        "cpu": 1,
        "priority": 3,
        "gpusPerWorker": 1,
        "trainer": {"recipe": "image-classification"},
    }
    assert [first.headers["idempotency-key"], second.headers["idempotency-key"]] == ["k", "k.1"]


def test_dry_run_shows_the_whole_job(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("POST", JOBS, script.json(make_job("digits-x")))
    text = "spec: {trainer: {recipe: image-classification}}"
    result = stoker("submit", "-f", "-", "--dry-run", "-o", "yaml", input=text)
    assert result.exit_code == 0 and yaml.safe_load(result.stdout)["metadata"]["name"] == "digits-x"
    assert script.posted[0].query == {"dryRun": "true"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["submit"], "give either -f FILE or a command"),
        (["submit", "-f", "a.yaml", "--", "ls"], "give either -f FILE or a command"),
        (["run", "job.yaml"], "to submit a job file: -f job.yaml"),
        (["submit", "-f", "/no/such/file"], "can't read /no/such/file: No such file or directory"),
        (["submit", "-e", "NOT_SET_ANYWHERE", "--", "ls"], "NOT_SET_ANYWHERE=VALUE"),
        (["ls", "--phase", "Sleeping"], "'Sleeping' is not a phase; phases: Queued, Starting"),
        (["get", "a", "b"], "one job at a time"),
        (["get", "nodes", "--text", "x"], "--text chooses among jobs: stoker get jobs --text"),
        (["get", "a", "--state", "Queued"], "--phase chooses among jobs"),
        (["ls", "--mine", "--user", "x"], "choose one"),
        (["subimt"], "no command 'subimt'; did you mean 'submit'?"),
        (["logs"], "Missing argument 'JOB'"),
        (["ls", "--nope"], "No such option"),
    ],
)
def test_wrong_usage_is_exit_code_two(stoker: Any, script: Any, args: list[str], says: str) -> None:
    result = stoker(*args)
    assert result.exit_code == 2 and says in result.stderr and result.stdout == ""
    assert script.requests == []


def test_a_refusal_is_one_line_and_exit_code_one(stoker: Any, script: Any) -> None:
    script.on("GET", f"{JOBS}/x", script.problem(404, "NotFound", "there is no job x; `stoker ls` lists them"))
    result = stoker("get", "x")
    assert (result.exit_code, result.stderr) == (1, "stoker: there is no job x; `stoker ls` lists them\n")
    script.on("GET", f"{JOBS}/x", script.problem(401, "Unauthorized", "no such token"))
    assert stoker("get", "x").stderr == (
        "stoker: no such token\ngive the server's token by STOKER_TOKEN (`stoker up` keeps it in <data folder>/token)\n"
    )


def test_an_answer_of_another_form_is_named(stoker: Any, script: Any) -> None:
    script.on("GET", JOBS, script.json({"items": [{"metadata": {}}]}))
    script.on("GET", f"{JOBS}/x", script.json({"metadata": {"name": "x"}}))
    for args in (("ls",), ("get", "x")):
        result = stoker(*args)
        assert result.exit_code == 1 and "can't read (" in result.stderr, result.stderr


def test_no_server_is_exit_code_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.client.wire.FIRST_PAUSE_S", 0.001)
    result = CliRunner().invoke(cli, ["ls"])
    assert (result.exit_code, "start one with `stoker up`" in result.stderr) == (3, True)
    result = CliRunner().invoke(cli, ["ls", "--server", "http://127.0.0.1:9"])
    assert (result.exit_code, "connection refused" in result.stderr) == (3, True)
    result = CliRunner().invoke(cli, ["ls", "--server", "nonsense"])
    assert (result.exit_code, "is not a server address" in result.stderr) == (2, True)


def test_ls_forms(stoker: Any, script: Any, make_job: Any) -> None:
    page = {"items": [make_job(f"j{n}") for n in range(51)], "nextCursor": None}
    script.on("GET", JOBS, script.json(page))
    table = stoker("ls")
    assert len(table.stdout.splitlines()) == 51 and table.stderr == "the newest 50; --all lists all\n"
    assert len(stoker("ls", "--all", "-o", "name").stdout.split()) == 51
    assert json.loads(stoker("ls", "-a", "-o", "json").stdout)[50]["metadata"]["name"] == "j50"
    assert len(yaml.safe_load(stoker("ls", "-o", "yaml").stdout)) == 50
    script.on("GET", JOBS, script.json({"items": [], "nextCursor": None}))
    asked = ("--user", "bob", "--gpu-type", "h100", "--since", "7d", "-l", "team=nlp,!old", "--text", "lr 3", "-a")
    for args in (("ls",), ("get", "jobs")):
        assert stoker(*args, *asked, "--sort", "-duration").exit_code == 0
        conditions = {"user": "bob", "gpuType": "h100", "since": "7d", "label": "team=nlp,!old", "text": "lr 3"}
        assert script.requests[-1].query == {"limit": "500", "sort": "-duration", **conditions}
    script.on("GET", "/v1/whoami", script.json({"name": "me"}))
    assert stoker("ls", "--mine").exit_code == 0 and script.requests[-1].query["user"] == "me"
    empty = stoker("ls", "--phase", "queued,Running", "-q", "q")
    assert (empty.stdout, empty.stderr) == ("", "no such jobs in project default\n")
    assert script.requests[-1].query == {"limit": "51", "queue": "q", "phase": "Queued,Running"}


def test_projects_before_and_after_the_command(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("GET", "/v1/projects/a/jobs/x", script.json(make_job("x")))
    for args in (["-p", "a", "get", "x"], ["get", "x", "-p", "a"], ["-p", "b", "get", "x", "--project", "a"]):
        assert stoker(*args).exit_code == 0
    assert stoker("get", "x", env={"STOKER_PROJECT": "a"}).exit_code == 0


def test_verbs_go_on_after_a_refusal(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("POST", f"{JOBS}/a/cancel", script.json(make_job("a", "Running"), 202))
    script.on("POST", f"{JOBS}/c/cancel", script.json(make_job("c", "Queued"), 202))
    result = stoker("cancel", "a", "b", "c")
    assert result.exit_code == 1
    assert result.stdout == "a: cancel requested; it is Running\nc: cancel requested; it is Queued\n"
    assert result.stderr == f"stoker: b: nothing at {JOBS}/b/cancel\n"


def test_delete(stoker: Any, script: Any) -> None:
    script.on("DELETE", f"{JOBS}/a", script.json({}, 200))
    script.on("DELETE", f"{JOBS}/c", script.cut, script.problem(404, "NotFound", "gone"))
    result = stoker("delete", "a", "b", "c")
    assert (result.exit_code, result.stdout) == (1, "a deleted\nc deleted\n"), "c: our own first try did it"
    assert result.stderr == f"stoker: b: nothing at {JOBS}/b\n"


def test_runtimes(stoker: Any, script: Any) -> None:
    plain = {"metadata": {"name": "plain"}, "spec": {"nodeSelector": {}}}
    spec = {
        "image": "registry.example/train:1",
        "nodeSelector": {"gpu": "h200"},
        "checkpoints": {"template": {"size": "100Gi"}},
        "projects": ["vision"],
    }
    rdma = {"metadata": {"name": "rdma"}, "spec": spec}
    script.on("GET", "/v1/runtimes", script.json({"items": [plain, rdma]}))
    script.on("GET", "/v1/runtimes/rdma", script.json(rdma))
    assert [line.split() for line in stoker("get", "runtimes").stdout.splitlines()] == [
        ["NAME", "IMAGE", "CHECKPOINTS", "NODES", "PROJECTS"],
        ["plain", "-", "not", "kept", "any", "all"],
        ["rdma", "registry.example/train:1", "100Gi", "each", "gpu=h200", "vision"],
    ]
    assert json.loads(stoker("get", "runtime", "rdma", "-o", "json").stdout)["spec"]["image"] == spec["image"]


def test_queues(stoker: Any, script: Any) -> None:
    queue = QueueWithUsage.model_validate({"metadata": {"name": "q"}}).dump()
    script.on("GET", "/v1/queues/q", script.problem(404, "NotFound", "no queue"))
    script.on("PUT", "/v1/queues/q", script.json(queue, 201))
    script.on("DELETE", "/v1/queues/q", script.json({}, 200))
    args = ["--gpus", "4", "--memory", "64Gi", "--project", "a", "--project", "b", "--highest-priority", "9"]
    args += ["--reservation-budget", "0.5", "--ttl", "7d", "--preempt", "LowerPriority", "--min-runtime", "5m"]
    args += ["--discipline", "las"]
    assert stoker("queue", "set", "q", *args).exit_code == 0
    limit = {"gpus": 4, "memory": "64Gi"}
    spec = {"limit": limit, "projects": ["a", "b"], "highestPriority": 9, "reservationBudget": 0.5}
    spec |= {
        "discipline": "las",
        "ttlAfterFinished": "7d",
        "preemption": {"withinQueue": "LowerPriority", "minRuntime": "5m"},
    }
    assert script.requests[-1].body == {"spec": spec}
    assert stoker("queue", "rm", "q").stdout == "queue q removed\n"


def test_a_queues_limit_is_removed_before_a_part_of_it_is_set(stoker: Any, script: Any) -> None:
    spec = {"limit": {"gpus": 4, "memory": "64Gi"}, "weight": 2}
    queue = QueueWithUsage.model_validate({"metadata": {"name": "q", "resourceVersion": "7"}, "spec": spec}).dump()
    script.on("GET", "/v1/queues/q", script.json(queue, ETag='"7"'))
    script.on("PUT", "/v1/queues/q", script.json(queue, 200, Warning='299 - "its parent is missing"'))
    assert stoker("queue", "set", "q", "--unset", "limit", "--gpus", "8").stderr == "warning: its parent is missing\n"
    sent = script.requests[-1].body["spec"]
    assert (sent["limit"], sent["weight"]) == ({"gpus": 8}, 2)
    assert stoker("queue", "set", "q", "--unset", "limit", "--limit", "h100=4").exit_code == 0
    assert script.requests[-1].body["spec"]["limit"] == {"gpuTypes": {"h100": 4}}
    both = stoker("queue", "set", "q", "--unset", "weight", "--weight", "4")
    assert both.exit_code == 2 and "--weight is given a value and unset" in both.stderr


def test_a_number_that_is_none_is_not_sent(stoker: Any, script: Any) -> None:
    script.on("GET", "/v1/queues/q", script.problem(404, "NotFound", "no queue"))
    refused = stoker("queue", "set", "q", "--reservation-budget", "nan")
    assert refused.exit_code == 2 and "this can't be sent as JSON" in refused.stderr


def test_log_bytes_come_through_untouched(stoker: Any, script: Any) -> None:
    data = b"\xff\xfe half \r 50%\r\nend"

    def raw(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    script.on("GET", f"{JOBS}/a/logs", raw)
    assert stoker("logs", "a", "--worker", "1", "--attempt", "2", "--tail", "3").stdout_bytes == data
    (request,) = script.requests
    assert request.query == {"worker": "1", "follow": "false", "attempt": "2", "tailLines": "3"}
    assert request.headers["accept"] == "text/plain"


def test_an_unexpected_error_is_one_line(stoker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.client.calls.Calls.items", lambda *_: 1 / 0)
    result = stoker("get", "nodes")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "internal error: ZeroDivisionError" in result.stderr and "STOKER_DEBUG=1" in result.stderr
    assert isinstance(stoker("get", "nodes", env={"STOKER_DEBUG": "1"}).exception, ZeroDivisionError)
