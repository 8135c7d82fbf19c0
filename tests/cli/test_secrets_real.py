"""A secret from its file to a job's environment, by a real `stoker up` and the real command; then it is looked for
everywhere else: the data folder, logs, answers, events, metrics, arguments and environments of all processes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.client.client import Client
from tests.support.harness import until

from .test_files_real import Machine

pytestmark = pytest.mark.slow

VALUE = "wb-" + base64.b32encode(os.urandom(25)).decode()
SCRIPT = """
import hashlib, os, sys, time
value = os.environ["WANDB_API_KEY"]
print(hashlib.sha256(value.encode()).hexdigest(), flush=True)
print("my key is", value, file=sys.stderr, flush=True)
for char in value: sys.stdout.write(char); sys.stdout.flush()
print(flush=True)
if sys.argv[1:] == ["stay"]: time.sleep(300)
sys.exit("failed with " + value if sys.argv[1:] else 0)
"""
ANSWERS = (
    "/v1/projects/default/jobs",
    "/v1/projects/default/jobs/stays",
    "/v1/projects/default/jobs/stays/events",
    "/v1/projects/default/jobs/stays/explain",
    "/v1/projects/default/jobs/stays/logs?follow=false",
    "/v1/projects/default/jobs/fails",
    "/v1/projects/default/jobs/fails/events",
    "/v1/projects/default/jobs/fails/logs?follow=false",
    "/v1/projects/default/jobs/waits/explain",
    "/v1/projects/default/secrets",
    "/metrics",
    "/openapi.json",
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(SCRIPT)
    found = Machine(folder / "home", folder / "work")
    yield found
    found.close()


def test_it_is_found_only_where_it_is_meant_to_be(machine: Machine) -> None:
    given = machine.work.parent / "key.txt"
    given.write_text(f"{VALUE}\n")
    # A job that comes before its secret waits, and says for which.
    machine(
        "submit",
        "--no-code",
        "--name",
        "waits",
        "--secret",
        "WANDB_API_KEY",
        "--",
        sys.executable,
        str(machine.work / "train.py"),
    )
    message = "secret 'wandb-api-key' of project 'default' does not exist: `stoker secret set wandb-api-key -p default`"
    until(lambda: message in machine("why", "waits").stdout, "it says what it waits for", timeout_s=60)
    assert machine.job("waits")["status"]["phase"] in ("Queued", "Starting", "Stopping")
    assert "has: value" in machine("secret", "set", "WANDB_API_KEY", "--file", str(given)).stdout
    given.unlink()
    until(lambda: machine.job("waits")["status"]["phase"] == "Succeeded", "it runs, once it is set", timeout_s=150)

    digest = hashlib.sha256(VALUE.encode()).hexdigest()
    command = ("--secret", "WANDB_API_KEY", "--", sys.executable, "train.py")
    machine("submit", "--name", "stays", *command, "stay")
    failed = machine("run", "--name", "fails", *command, "fail", check=False)
    shown = f"{digest}\nmy key is ***\n***\nfailed with ***\n"
    assert (failed.returncode, failed.stdout) == (1, shown), failed.stderr
    assert "failed with ***" in machine("why", "fails").stdout
    until(lambda: machine("logs", "stays").stdout == f"{digest}\nmy key is ***\n***\n", "its log", timeout_s=30)

    url = json.loads((machine.home / "endpoint.json").read_text())["url"]
    token = (machine.home / "token").read_text().strip()
    for path in ANSWERS:
        request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert VALUE not in answer.read().decode(), path
    printed = "".join(
        machine(*args).stdout + machine(*args).stderr
        for args in (("get", "stays", "-o", "yaml"), ("secret", "list"), ("events", "fails"), ("ls", "-o", "wide"))
    )
    assert VALUE not in printed + failed.stderr and "wandb-api-key" in printed

    holders = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command_line, environ = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
            except OSError:
                continue
            assert VALUE.encode() not in command_line, command_line
            holders += [command_line] if VALUE.encode() in environ else []
    assert len(holders) == 1 and holders[0].endswith(b"train.py\0stay\0"), holders

    machine("cancel", "stays")
    until(lambda: machine.job("stays")["status"]["phase"] == "Cancelled", "it is cancelled", timeout_s=60)
    forms = [VALUE.encode(), base64.b64encode(VALUE.encode())]
    found = [
        path.relative_to(machine.home)
        for path in machine.home.rglob("*")
        if path.is_file() and any(form in path.read_bytes() for form in forms)
    ]
    assert found == [Path("secrets/default/wandb-api-key.json")]
    assert machine("secret", "delete", "WANDB_API_KEY").stdout == "wandb-api-key deleted\n"
    assert not any(VALUE.encode() in path.read_bytes() for path in machine.home.rglob("*") if path.is_file())


def test_a_key_in_plain_env_is_remarked_on(machine: Machine) -> None:
    (machine.work / ".env").write_text("# mine\nexport HF_TOKEN='hf_abcdefgh'\nLR=0.1  # a rate\n\nRUN_NAME=first\n")
    submit = ("submit", "--no-code", "--dry-run", "-o", "json", "--env-file", ".env")
    made = machine(*submit, "-e", f"X={VALUE}", "-e", "RUN_NAME=second", "--", "true")
    assert json.loads(made.stdout)["spec"]["env"] == {
        "HF_TOKEN": "hf_abcdefgh", "LR": "0.1", "RUN_NAME": "second", "X": VALUE,
    }  # fmt: skip
    warned = [line.split()[1] for line in made.stderr.splitlines() if "looks like a key" in line]
    assert warned == ["HF_TOKEN", "X"] and VALUE not in made.stderr
    assert "`stoker secret set hf-token` and --secret HF_TOKEN" in made.stderr
    (machine.work / ".env").write_text("hf_abcdefghijk\n")
    torn = machine(*submit, "--", "true", check=False)
    assert torn.returncode != 0 and ".env:1: write NAME=VALUE" in torn.stderr and "hf_abc" not in torn.stderr


def test_the_sdk_sets_it_and_completion_knows_it(machine: Machine) -> None:
    url = json.loads((machine.home / "endpoint.json").read_text())["url"]
    with Client(url, (machine.home / "token").read_text().strip()) as client:
        assert client.set_secret("gcs", VALUE, key="key.json").keys == ("key.json",)
        job = client.run(["true"], no_code=True, secrets={"A": "gcs/key.json", "B": "gcs"})
        assert {name: ref.key for name, ref in job.spec.secret_env.items()} == {"A": "key.json", "B": "value"}
        job.cancel()
        typed = {"COMP_WORDS": "stoker secret delete g", "COMP_CWORD": "3", "_STOKER_COMPLETE": "bash_complete"}
        stoker = str(Path(sys.executable).with_name("stoker"))
        shown = subprocess.run([stoker], env=machine.env | typed, capture_output=True, text=True, timeout=60)
        assert shown.stdout.split() == ["plain,gcs", "plain,gcs/key.json"]
        client.delete_secret("gcs", key="key.json")
        assert client.secrets() == ()


def test_a_secret_from_a_pipe_and_what_is_refused(machine: Machine) -> None:
    args = [sys.executable, "-m", "stoker.cli.main", "secret", "set", "hf/read"]
    for given, code in ((b"piped value\n", 0), (b"", 2), (b"\xff\xfe", 2)):
        done = subprocess.run(args, env=machine.env, input=given, capture_output=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert machine("secret", "list", "-o", "json").stdout.count('"read"') == 1
    for name in ("hf/", "Not A Name", "hf/.."):
        done = subprocess.run([*args[:-1], name], env=machine.env, input=b"v", capture_output=True, timeout=60)
        assert done.returncode in (1, 2), name
    assert machine("secret", "delete", "hf/read").stdout == "hf/read deleted\n"
