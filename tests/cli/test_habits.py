"""Habits from other tools: their names, `--json`, `-o wide`, `-w`, `--all` with a preview, Tab."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stoker.cli import watching
from stoker.cli.habits import ALSO, HABITS, QUEUE_HABITS, TOKEN_HABITS
from stoker.cli.main import _COMMANDS, cli

ASKED_FOR = ("ps", "jobs", "status", "describe", "apply", "stop", "kill", "rm", "attach", "top")


@pytest.mark.parametrize("word", ASKED_FOR)
def test_another_tool_s_word_leads_to_our_command(word: str) -> None:
    done = CliRunner().invoke(cli, [word, "digits-1"])
    assert done.exit_code == 2 and f"no command '{word}'; here it is: stoker {HABITS[word]}" in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["queue", "list"], "no command 'queue list'; here it is: stoker queue ls"),
        (["queue", "st"], "no command 'queue st'; did you mean 'queue set'?"),
        (["token", "rm", "a"], "no command 'token rm'; here it is: stoker token revoke NAME"),
        (["STOP"], "here it is: stoker cancel JOB (stoker suspend JOB stops it until `resume`)"),
        (["evnts"], "no command 'evnts'; did you mean 'events'?"),
        (["xyzzy"], "no command 'xyzzy'\n"),
    ],
)
def test_words_of_groups_and_letters_that_are_near(args: list[str], says: str) -> None:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 2 and says in done.stderr


def test_every_line_named_is_one_that_click_takes() -> None:
    """A word of ours is no other tool's, and what is named is there with these options."""
    lines = [
        *HABITS.values(),
        *QUEUE_HABITS.values(),
        *TOKEN_HABITS.values(),
        *(text.split(" s")[0] for text in ALSO.values()),
    ]
    for line in lines:
        args = shlex.split(re.sub(r",.*", "", line))
        if not args[0].startswith("--"):
            command: Any = cli
            context = cli.make_context("stoker", ["ls"], resilient_parsing=True)
            while args and isinstance(command, click.Group):
                command = command.get_command(context, args.pop(0))
                assert command is not None, line
            filled = [
                {"JOB": "a", "FILE": "f", "PORT": "80", "NAME": "n", "PROJECT": "p"}.get(word, word) for word in args
            ]
            command.make_context("x", filled, parent=context)  # click keeps the first context's names of --help
    assert not set(HABITS) & set(_COMMANDS)


PATH = "/v1/projects/default/jobs"
STOKER = [sys.executable, "-m", "stoker.cli.main"]


@pytest.fixture
def stoker(script: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STOKER_SERVER", script.url)
    return lambda *args, **more: CliRunner().invoke(cli, list(args), **more)


def test_json_is_o_json_everywhere(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("GET", PATH, script.json({"items": [make_job("a")], "nextCursor": None}))
    script.on("GET", f"{PATH}/a", script.json(make_job("a")))
    script.on("POST", f"{PATH}/a/cancel", script.json(make_job("a", "Cancelled")))
    assert json.loads(stoker("ls", "--json").stdout)[0]["metadata"]["name"] == "a"
    assert json.loads(stoker("get", "a", "--json", "-o", "json").stdout)["metadata"]["name"] == "a"
    assert json.loads(stoker("cancel", "a", "--json").stdout)[0]["status"]["phase"] == "Cancelled"
    for args in (("ls", "--json", "-o", "yaml"), ("ls", "-o", "yaml", "--json")):
        assert "--json and -o yaml: choose one" in stoker(*args).stderr


def test_the_beginning_of_a_name_is_enough_where_it_is_one_job_s(stoker: Any, script: Any, make_job: Any) -> None:
    digits, mnist = make_job("digits-x7k2p", "Running"), make_job("mnist-1")
    script.on("GET", PATH, script.json({"items": [digits, mnist, make_job("my-digits-2")], "nextCursor": None}))
    at = f"{PATH}/digits-x7k2p"
    script.on("GET", at, script.json(digits))
    script.on("POST", f"{at}/cancel", script.json(digits))
    script.on("DELETE", at, script.json({}))
    script.on("GET", f"{at}/events", script.json({"items": []}))
    script.on("GET", f"{at}/explain", script.json({"phase": "Running", "summary": "trains", "blockers": []}))
    script.on("GET", f"{at}/logs", script.text(b"hello\n"))
    for args in (("get", "dig"), ("why", "dig"), ("events", "dig"), ("cancel", "dig"), ("delete", "dig")):
        done = stoker(*args)
        assert (done.exit_code, done.stderr) == (0, "dig: digits-x7k2p\n"), done.output
        assert script.requests[-1].path.startswith(at)
    assert all(request.query["text"] == "dig" for request in script.requests if request.path == PATH)
    script.on("GET", PATH, script.json({"items": [make_job(f"digits-{n}") for n in range(12)], "nextCursor": None}))
    several = stoker("cancel", "digits")
    assert several.exit_code == 2 and "begins several names: digits-0, digits-1, " in several.stderr
    assert "digits-7, …; type more of it" in several.stderr
    missing = stoker("get", "xyz")
    assert missing.exit_code == 1 and f"nothing at {PATH}/xyz" in missing.stderr


def test_another_project_than_the_tokens_own_is_named(stoker: Any, script: Any) -> None:
    script.on("GET", PATH, script.problem(404, "NotFound", "There is no project 'default'."))
    script.on("GET", "/v1/whoami", script.json({"name": "bob", "projects": ["vision", "nlp"]}))
    done = stoker("ls")
    assert done.exit_code == 1
    assert (
        "There is no project 'default'.\nyour token is for vision, nlp: -p vision, or STOKER_PROJECT=vision"
        in done.stderr
    )
    script.on("GET", "/v1/whoami", script.json({"name": "root", "projects": ["*"]}))
    assert "your token" not in stoker("ls").stderr


def test_wide_shows_more(stoker: Any, script: Any, make_job: Any) -> None:
    script.on("GET", PATH, script.json({"items": [make_job("a", gpuType="h100")], "nextCursor": None}))
    title, row = stoker("ls", "-o", "wide").stdout.splitlines()
    assert {"PRIORITY", "TYPE", "NODES", "STARTED", "ENDED", "RAN"} <= set(title.split()) and "h100" in row
    script.on("GET", f"{PATH}/a", script.json(make_job("a")))
    assert stoker("get", "a", "-o", "wide").stdout.startswith("NAME")


def test_all_shows_what_is_meant_and_asks(
    stoker: Any, script: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.on("GET", PATH, script.json({"items": [make_job("a"), make_job("b")], "nextCursor": None}))
    for name in "ab":
        script.on("POST", f"{PATH}/{name}/cancel", script.json(make_job(name, "Cancelled")))
        script.on("DELETE", f"{PATH}/{name}", script.json({}))
    piped = stoker("cancel", "--all", "-q", "gold")
    assert piped.exit_code == 2 and "means these 2 jobs; add --yes" in piped.stderr
    assert [line.split()[0] for line in piped.stdout.splitlines()] == ["NAME", "a", "b"]
    phases = "Queued,Starting,Running,Stopping,Suspended"
    assert script.requests[-1].query == {"limit": "500", "queue": "gold", "phase": phases}
    assert {request.method for request in script.requests} == {"GET"}
    assert stoker("cancel", "--all", "--yes").stdout.splitlines() == [
        "a: cancel requested; it is Cancelled",
        "b: cancel requested; it is Cancelled",
    ]
    assert stoker("delete", "--all", "-y", "--state", "failed").stdout.splitlines() == ["a deleted", "b deleted"]
    assert script.requests[-3].query["phase"] == "Failed"
    script.on("GET", PATH, script.json({"items": [], "nextCursor": None}))
    nothing = stoker("retry", "--all")
    assert (nothing.exit_code, nothing.stderr) == (0, "no such jobs in project default\n")
    assert set(script.requests[-1].query["phase"].split(",")) == {"Failed", "Cancelled"}
    for args, says in (
        (("cancel",), "which jobs? stoker cancel JOB, or --all"),
        (("cancel", "--text", "x"), "stoker cancel --all --text"),
        (("cancel", "a", "--all"), "give jobs by name, or --all, not both"),
        (("cancel", "a", "--mine"), "give jobs by name, or --mine, not both"),
    ):
        assert says in stoker(*args).stderr


@pytest.mark.parametrize(("typed", "cancels"), [(b"y\n", True), (b"n\n", False)])
def test_a_terminal_is_asked(script: Any, make_job: Any, typed: bytes, cancels: bool) -> None:
    script.on("GET", PATH, script.json({"items": [make_job("a")], "nextCursor": None}))
    script.on("POST", f"{PATH}/a/cancel", script.json(make_job("a", "Cancelled")))
    master, slave = pty.openpty()
    with subprocess.Popen(
        [*STOKER, "--server", script.url, "cancel", "--all"], stdin=slave, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        shown = b""
        while b"cancel 1 job?" not in shown:
            shown += os.read(master, 65536)
        os.write(master, typed)
        assert (process.wait(30) == 0) is cancels
    os.close(master)
    assert any(request.method == "POST" for request in script.requests) is cancels


@pytest.mark.parametrize("everything", [False, True])
def test_a_watched_list_in_a_pipe_is_what_changes(script: Any, make_job: Any, sse: Any, everything: bool) -> None:
    """The server says when, but for a list of any length, which is asked for again and again."""
    first, second = make_job("a", "Queued"), make_job("a", "Running")
    second["metadata"]["resourceVersion"] = "8"
    both, read = ["u-a", "u-b"], threading.Event()
    first["metadata"]["uid"] = second["metadata"]["uid"] = "u-a"
    other = make_job("b")
    other["metadata"]["uid"] = "u-b"
    if everything:
        pages = [{"items": [job, other], "nextCursor": None} for job in (first, first, second)]
        script.on("GET", PATH, *(script.json(page) for page in pages))
    else:
        news = ([first, other], [], [second])
        frames = [sse("jobs", {"items": items, "order": both, "nextCursor": None}) for items in news]
        script.on("GET", PATH, script.text(b"".join(frames), hold=read))
    quick = "from stoker.cli import watching; watching.EVERY_S = 0.01\n"
    code = quick + "from stoker.cli.main import main; main()"
    asked = ["ls", "-w", *(["--all"] if everything else [])]
    with subprocess.Popen(
        [sys.executable, "-c", code, "--server", script.url, *asked], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline().split()[:2] for _ in range(4)]
        read.set()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert shown == [["NAME", "PHASE"], ["a", "Queued"], ["b", "Queued"], ["a", "Running"]]


def test_a_watched_list_on_a_terminal_is_shown_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(["one\ntwo\n", "three\n"])
    screen = watching._Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with pytest.raises(StopIteration):
        watching.watch(lambda changes: print(next(looks), end=""), sleep=lambda _: None)
    assert screen.getvalue() == "\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J\x1b[Hthree\x1b[K\n\x1b[J"


def test_what_is_watched_is_a_table(stoker: Any) -> None:
    assert "--watch shows tables" in stoker("ls", "-w", "--json").stderr


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("ls -q ", ["gold", "default"]),
        ("submit --queue g", ["gold"]),
        ("queue rm d", ["default"]),
        ("get queues g", ["gold"]),
        ("get q", ["queues"]),
        ("get ru", ["runtimes", "run-1"]),
        ("ls --phase Queued,s", ["Queued,Starting", "Queued,Stopping", "Queued,Suspended", "Queued,Succeeded"]),
        ("-p v", ["vision"]),
        ("ls --project ", ["vision", "-"]),
        ("resume ", ["run-1"]),
        ("ls --sort d", ["duration"]),
    ],
)
def test_tab_offers_what_may_stand_there(script: Any, make_job: Any, typed: str, offers: list[str]) -> None:
    script.on(
        "GET", "/v1/queues", script.json({"items": [{"metadata": {"name": name}} for name in ("gold", "default")]})
    )
    script.on("GET", "/v1/whoami", script.json({"name": "me", "projects": ["vision", "*"]}))
    script.on("GET", PATH, script.json({"items": [make_job("run-1")], "nextCursor": None}))
    env = {
        **os.environ,
        "_STOKER_COMPLETE": "bash_complete",
        "COMP_WORDS": f"stoker {typed}",
        "COMP_CWORD": str(len(typed.split(" "))),
        "STOKER_SERVER": script.url,
    }
    done = subprocess.run(
        [sys.executable, "-c", "from stoker.cli.main import main; main()"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == offers, done.stderr
    if typed == "resume ":
        assert script.requests[-1].query["phase"] == "Suspended,Stopping"


def timed(sse: Any, *lines: tuple[str, str]) -> bytes:
    """A worker's whole log as the server sends it."""
    frames, end = b"", 0
    for at, text in lines:
        end += len(text.encode()) + 1
        frames += sse("time", {"at": at}) + sse("log", text, f"1.{end}")
    return frames + sse("end", {"phase": "Succeeded", "reason": "", "message": ""})


def test_logs_of_all_workers_in_the_order_of_time(stoker: Any, script: Any, sse: Any, make_job: Any) -> None:
    job = make_job("a", "Running", {"trainer": {"command": ["x"]}, "workers": 2, "elastic": {"min": 1, "max": 3}})
    script.on("GET", f"{PATH}/a", script.json(job))
    logs = [timed(sse, ("1", "a"), ("4", "b")), timed(sse, ("2", "c\nd"), ("3", "e"))]
    script.on(
        "GET", f"{PATH}/a/logs", *(script.text(log) for log in logs), script.problem(404, "NoLog", "no log of worker 2")
    )
    done = stoker("logs", "a", "--all-workers", "-t", "--since", "10m", "-n", "5")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "1 [0] a\n2 [1] c\n2 [1] d\n3 [1] e\n4 [0] b\n"
    asked = [request.query for request in script.requests if request.path.endswith("/logs")]
    assert [query["worker"] for query in asked] == ["0", "1", "2"]
    assert asked[0] == {"worker": "0", "follow": "false", "tailLines": "5", "since": "10m", "timestamps": "true"}
    script.on("GET", f"{PATH}/a/logs", *(script.text(log) for log in logs), script.problem(404, "NoLog", "none"))
    followed = stoker("logs", "a", "-f", "-a")
    assert sorted(line.partition("] ")[2] for line in followed.stdout.splitlines()) == list("abcde")
    script.on("GET", f"{PATH}/a/logs", script.problem(404, "NoLog", "none has a log"))
    assert "none has a log" in stoker("logs", "a", "-a").stderr
    assert "choose one" in stoker("logs", "a", "-a", "-w", "1").stderr
    script.on("GET", f"{PATH}/a", script.json(make_job("a", spec={"trainer": {"command": ["x"]}, "workers": 65})))
    assert "64 logs are the most at once" in stoker("logs", "a", "-a").stderr


def test_times_before_lines_followed_or_not(stoker: Any, script: Any, sse: Any) -> None:
    script.on("GET", f"{PATH}/a/logs", script.text(timed(sse, ("1", "x\ny"), ("2", "z"))))
    assert stoker("logs", "-f", "-t", "a").stdout == "1 x\n1 y\n2 z\n"
    assert stoker("logs", "-f", "a").stdout == "x\ny\nz\n"
    script.on("GET", f"{PATH}/a/logs", script.text(b"1 x\n"))
    assert stoker("logs", "-t", "a").stdout == "1 x\n" and script.requests[-1].query["timestamps"] == "true"
