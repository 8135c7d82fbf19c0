"""The client and the commands against the real api over the real embedded store; the tests play the operator."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from stoker.cli.main import cli
from stoker.client.client import Client
from stoker.client.errors import ApiError
from stoker.client.updates import EventSeen, JobChanged, JobEnded
from stoker.spec.job import TrainingJobSpec

if TYPE_CHECKING:
    from .live_api import Live

SPEC = {"trainer": {"command": ["python", "train.py"]}}


def test_the_life_of_jobs_through_the_sdk(live: Live) -> None:
    with Client() as client:
        assert client.whoami().role == "admin"
        first = client.submit(SPEC, name="one", idempotency_key="k")
        assert client.submit(SPEC, name="one", idempotency_key="k").uid == first.uid
        with pytest.raises(ApiError) as met:
            client.submit({**SPEC, "priority": 3}, name="one", idempotency_key="k")
        assert met.value.status == 422
        typed = client.submit(TrainingJobSpec.model_validate({**SPEC, "priority": 7}))
        assert typed.spec.priority == 7 and typed.metadata.name.startswith("train")
        dry = client.submit(SPEC, name="dry", dry_run=True)
        assert dry.metadata.name == "dry"
        assert {job.metadata.name for job in client.ls()} == {typed.metadata.name, "one"}, "and no dry one"
        assert client.suspend("one").spec.suspend and not client.resume("one").spec.suspend
        assert client.cancel("one").spec.cancel
        live.status(first, phase="Cancelled", reason="Cancelled")
        assert client.wait("one", ["Cancelled"], timeout=5).status.phase == "Cancelled"
        assert client.retry("one").spec.retry_generation == 1
        with pytest.raises(ApiError) as met:
            client.get("missing")
        assert met.value.status == 404


def test_a_job_once_more_by_the_sdk_and_the_commands(live: Live) -> None:
    with Client() as client:
        first = client.submit({**SPEC, "env": {"LR": "0.1"}, "priority": 1}, name="one")
        assert client.set("one", {"priority": 4}).spec.priority == 4
        client.cancel("one")
        live.status(first, phase="Succeeded", reason="Completed")
        assert client.clone("one", {"env": {"LR": "0.2"}}, new_name="two").spec.env == {"LR": "0.2"}
        changed = ("--set", "spec.trainer.command.1=eval.py", "--set", "metadata.labels.try=b", "-n", "three")
        made = CliRunner().invoke(cli, ["clone", "one", *changed])
        assert (made.exit_code, made.stdout) == (0, "three\n"), made.stderr
        third = client.get("three")
        assert third.spec.trainer.command == ("python", "eval.py") and third.spec.env == {"LR": "0.1"}
        assert third.metadata.labels["try"] == "b" and not third.spec.cancel
        again = CliRunner().invoke(cli, ["clone", "one", "--from-checkpoint", "-o", "json"])
        assert json.loads(again.stdout)["spec"]["checkpoint"]["from"] == {"job": "one"}, again.stderr
        raised = CliRunner().invoke(cli, ["set", "two", "--priority", "9"])
        assert (raised.exit_code, raised.stdout, client.get("two").spec.priority) == (0, "two: priority 9\n", 9)
        assert "give --priority" in CliRunner().invoke(cli, ["set", "two"]).stderr
        refused = CliRunner().invoke(cli, ["retry", "one"])
        assert refused.exit_code == 1 and "stoker clone" in refused.stderr


def test_what_get_prints_can_be_submitted(live: Live) -> None:
    with Client() as client:
        spec = {"trainer": {"command": [sys.executable, "train.py"]}, "env": {"A": "on"}}
        client.submit({"spec": spec, "metadata": {"name": "one", "labels": {"team": "nlp"}}})
        client.cancel("one")
        for form in ("yaml", "json"):
            printed = CliRunner().invoke(cli, ["get", "one", "-o", form]).stdout
            made = CliRunner().invoke(cli, ["submit", "-f", "-", "--no-code"], input=printed)
            assert made.exit_code == 0 and made.stdout.startswith("one-"), made.stderr
            job = client.get(made.stdout.strip())
            assert job.spec.env == {"A": "on"} and job.metadata.labels["team"] == "nlp" and not job.spec.cancel
        made = CliRunner().invoke(cli, ["submit", "-f", "-", "--no-code", "-n", "other"], input=printed)
        assert made.stdout == "other\n", made.stderr


def test_nodes_through_the_sdk_and_the_command(live: Live) -> None:
    live.gpus()

    def command(*args: str) -> Any:
        return CliRunner().invoke(cli, ["node", *args])

    made = command("cordon", "node-a", "--gpu", "1", "--reason", "fan fails")
    assert made.exit_code == 0, made.stderr
    assert "`stoker node uncordon node-a --gpu 1` opens it again" in made.stdout
    assert "GPU 1: cordoned" in command("ls").stdout
    assert "GPU 1: cordoned" in CliRunner().invoke(cli, ["get", "node", "node-a"]).stdout
    with Client() as client:
        assert client.node("node-a").status.gpus[1].unavailable == "cordoned"
        assert not client.uncordon("node-a", gpu="GPU-1").status.gpus[1].unavailable
        assert not client.cordon("node-a", reason="power").status.ready
    assert command("uncordon", "node-a").stdout == "node node-a takes new jobs again\n"
    wrong = command("cordon", "node-a", "--gpu", "7")
    assert wrong.exit_code == 1 and "is no GPU of node 'node-a'; known are GPU-0, GPU-1" in wrong.stderr
    missing = CliRunner().invoke(cli, ["get", "node", "none"])
    assert missing.exit_code == 1 and "node 'none'" in missing.stderr


def test_queues_through_the_sdk_and_the_command(live: Live) -> None:
    made = CliRunner().invoke(cli, ["queue", "set", "small", "--gpus", "1", "--project", "default", "-o", "json"])
    assert made.exit_code == 0 and json.loads(made.stdout)["spec"]["limit"] == {"gpus": 1}
    with Client() as client:
        assert client.queue("small").usage.pending == 0
        assert {queue.metadata.name for queue in client.queues()} == {"default", "small"}
        given = ("--gpus", "2", "--cpu", "8", "--parent", "top", "--highest-priority", "3")
        for args in (given, ("--unset", "cpu", "--unset", "parent"), ("--memory", "8Gi")):
            changed = CliRunner().invoke(cli, ["queue", "set", "small", *args, "-o", "json"])
        spec = json.loads(changed.stdout)["spec"]
        assert (spec["limit"], spec["projects"]) == ({"gpus": 2, "memory": "8Gi"}, ["default"]), "the rest stays"
        assert "parent" not in spec and spec["highestPriority"] == 3
        for args in (("--guarantee", "gpus=1", "--weight", "2"), ("--guarantee", "cpu=4"), ("--unset", "weight")):
            changed = CliRunner().invoke(cli, ["queue", "set", "small", *args, "-o", "json"])
        spec = json.loads(changed.stdout)["spec"]
        assert (spec["guarantee"], spec["weight"]) == ({"gpus": 1, "cpu": "4"}, 1)
        for args in (("--limit", "h100=3", "--limit", "a100=1"), ("--limit", "h100=2", "--guarantee", "h100=1")):
            changed = CliRunner().invoke(cli, ["queue", "set", "small", *args, "-o", "json"])
        spec = json.loads(changed.stdout)["spec"]
        assert spec["limit"] == {"gpus": 2, "memory": "8Gi", "gpuTypes": {"h100": 2, "a100": 1}}
        assert spec["guarantee"] == {"gpus": 1, "cpu": "4", "gpuTypes": {"h100": 1}}
        assert "1 (h100 1)" in CliRunner().invoke(cli, ["queue", "ls"]).stdout
        sizes = (
            "--default-per-gpu",
            "cpu=8",
            "--default-per-gpu",
            "memory=64Gi",
            "--default-without-gpus",
            "memory=2Gi",
        )
        for args in (sizes, ("--default-per-gpu", "cpu=6"), ("--unset", "default-without-gpus")):
            changed = CliRunner().invoke(cli, ["queue", "set", "small", *args, "-o", "json"])
        assert json.loads(changed.stdout)["spec"]["defaults"]["perGpu"] == {"cpu": "6", "memory": "64Gi"}
        assert not json.loads(changed.stdout)["spec"]["defaults"].get("withoutGpus")
        wrong = CliRunner().invoke(cli, ["queue", "set", "small", "--default-per-gpu", "gpus=1"])
        assert wrong.exit_code == 2 and "write cpu=8 or memory=64Gi" in wrong.output
        for option, text in (("--guarantee", "h100=x"), ("--limit", "=4")):
            wrong = CliRunner().invoke(cli, ["queue", "set", "small", option, text])
            assert wrong.exit_code == 2 and "write gpus=8, h100=8, cpu=64 or memory=512Gi" in wrong.output
        both = CliRunner().invoke(cli, ["queue", "set", "small", "--gpus", "1", "--unset", "gpus"])
        assert both.exit_code == 2 and "--gpus is given a value and unset" in both.output
        client.put_queue("small", {"limit": {"gpus": 2}})
        assert client.queue("small").spec.projects is None, "a put replaces the whole"
        client.submit({**SPEC, "queue": "small"})
        said = "queue 'small': 1 job that has not ended uses it: it takes no new jobs, and goes with the last of them"
        removed = CliRunner().invoke(cli, ["queue", "rm", "small"])
        assert removed.stdout == f"{said}\n", removed.output


def test_events_over_a_restart_come_once_each(live: Live) -> None:
    with Client() as client:
        job = client.submit(SPEC, name="a")
        live.event(job, "Placed")
        seen: list[str] = []
        with client.events("a") as updates:
            for update in updates:
                match update:
                    case EventSeen(event):
                        seen.append(event.reason)
                        if event.reason == "Placed":
                            live.restart()
                            live.event(job, "Started")
                        elif event.reason == "Started":
                            live.status(job, phase="Succeeded", reason="Completed", message="done")
                    case JobChanged(changed):
                        seen.append(changed.status.phase)
                    case JobEnded(end):
                        seen.append(f"end {end.message}")
    assert [word for word in seen if word in ("Placed", "Started")] == ["Placed", "Started"]
    assert seen[-2:] == ["Succeeded", "end done"]


def test_a_log_over_restarts_and_attempts_is_whole(live: Live) -> None:
    with Client() as client:
        job = client.submit(SPEC, name="a")
        uid = live.pod(job)
        expected = [f"line {number} of 200 ü" for number in range(200)]
        live.status(job, phase="Running", attempt=1)
        live.logs.data[uid] = "".join(line + "\n" for line in expected[:100]).encode()
        got, cuts = "", 0
        for chunk in client.logs("a"):
            got += chunk.text
            if chunk.attempt == 1 and cuts < 5:
                cuts += 1
                more = expected[80 + cuts * 20 : 100 + cuts * 20]
                live.logs.data[uid] += "".join(line + "\n" for line in more).encode()
                live.restart()
            elif chunk.attempt == 1 and got.count("\n") == 200 and uid not in live.logs.ended:
                live.logs.ended.add(uid)
                second = live.pod(job, 2)
                live.logs.data[second] = b"again, without end"
                live.logs.ended.add(second)
                live.status(job, phase="Succeeded", attempt=2)
        assert got == "".join(line + "\n" for line in expected) + "again, without end"
        assert b"".join(client.log_bytes("a", attempt=1, tail=2)).decode() == "\n".join(expected[-2:]) + "\n"


def test_commands(live: Live, tmp_path: Path) -> None:
    def stoker(*args: str) -> Any:
        return CliRunner().invoke(cli, list(args))

    path = tmp_path / "job.yaml"
    path.write_text(
        "metadata: {name: bad}\nspec:\n  trainer: {recipe: image-classification}\n  gpu:\n    minMemry: 1Gi\n"
    )
    refused = stoker("submit", "-f", str(path))
    assert refused.exit_code == 1 and f"spec.gpu.minMemry ({path}:5): " in refused.stderr
    assert stoker("ls").stderr == "no jobs in project default\n"

    ok = stoker("submit", "-f", str(path), "--set", "spec.gpu={}", "--set", "metadata.name=good")
    assert (ok.exit_code, ok.stdout) == (0, "good\n"), ok.stderr
    assert stoker("ls", "-o", "name").stdout == "good\n"
    assert stoker("-p", "-", "ls").stdout.startswith("PROJECT")
    why = stoker("why", "good")
    assert why.exit_code == 0 and why.stdout.startswith("good is Queued: ")
    assert json.loads(stoker("why", "good", "-o", "json").stdout)["phase"] == "Queued"
    assert "image-classification" in stoker("get", "good").stdout
    assert stoker("get", "nodes", "-o", "json").stdout == "[]\n"
    none = stoker("logs", "good")
    assert none.exit_code == 1 and "not started yet" in none.stderr
    token = stoker("token", "create", "bob", "--role", "reader", "--project", "default")
    assert token.exit_code == 0
    forbidden = stoker("--token", token.stdout.strip(), "cancel", "good")
    assert forbidden.exit_code == 1 and forbidden.stderr.startswith("stoker: good: ")
    assert stoker("--token", "wrong", "ls").exit_code == 1


def test_a_list_is_followed_through_the_sdk(live: Live) -> None:
    with Client() as client:
        first = client.submit(SPEC, name="one")
        with client.watch(phases=["Queued"]) as lists:
            assert [(job.metadata.name, job.status.phase) for job in next(lists)] == [("one", "Queued")]
            client.submit(SPEC, name="two")
            newest = next(lists)
            assert {job.metadata.name for job in newest} == {"one", "two"}
            live.status(first, phase="Cancelled", reason="Cancelled")
            assert [job.metadata.name for job in next(lists)] == ["two"]
            assert newest[0].refresh().uid == newest[0].uid, "jobs, as those of ls"


def test_run_follows_to_the_commands_own_exit_code(live: Live) -> None:
    def play() -> None:
        with Client() as client:
            while not (jobs := list(client.ls())):
                pass
            job = jobs[0]
            uid = live.pod(job)
            live.logs.data[uid] = b"hello\n"
            live.status(job, phase="Running", attempt=1)
            live.logs.data[uid] += b"bye\n"
            live.logs.ended.add(uid)
            worker = {"worker": 0, "node": "n", "podUid": uid, "exitCode": 9, "category": "UserError"}
            end = {"number": 1, "endedAt": "2026-01-01T00:00:00Z", "category": "UserError", "workers": [worker]}
            live.status(job, phase="Failed", reason="Failed", message="exit code 9", attempts=[end])

    thread = threading.Thread(target=play)
    thread.start()
    result = CliRunner().invoke(cli, ["run", "--", "true"])
    thread.join(20)
    assert (result.exit_code, result.stdout) == (9, "hello\nbye\n"), result.stderr
