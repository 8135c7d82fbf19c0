"""`stoker files` and `stoker cp`, and what the SDK does of the same: against the real api, and over cut connections."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from stoker.cli.main import cli
from stoker.client.client import Client
from stoker.client.errors import ApiError, BadInput

if TYPE_CHECKING:
    from .live_api import Live

SPEC = {"trainer": {"command": ["python", "train.py"]}}


def stoker(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args))


@pytest.fixture
def output(live: Live) -> Path:
    with Client() as client:
        job = client.submit(SPEC, name="one")
    live.status(job, attempt=1, phase="Succeeded", reason="Completed", message="done")
    folder = live.home / "jobs" / job.uid / "output"
    (folder / "runs" / "one").mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"model" * 1000)
    (folder / "runs" / "one" / "log").write_text("log")
    (folder / "runs" / "two").write_text("two")
    (folder / "link").symlink_to("model.pt")
    return folder


def test_files_are_listed(output: Path) -> None:
    listed = stoker("files", "one")
    assert listed.exit_code == 0
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert rows[0] == ["PATH", "SIZE", "AGE"] and ["model.pt", "5.0", "kB"] in [row[:3] for row in rows]
    assert [row[0] for row in rows[1:]] == ["link", "model.pt", "runs/one/log", "runs/two"]
    assert stoker("files", "one", "runs", "-o", "name").stdout == "runs/one/log\nruns/two\n"
    assert json.loads(stoker("files", "one", "-o", "json").stdout)["items"][1]["path"] == "model.pt"
    missing = stoker("files", "one", "no")
    assert missing.exit_code == 1 and "no folder 'no'" in missing.stderr


def test_jobs_say_where_their_results_are(output: Path) -> None:
    details = stoker("get", "one").stdout
    assert f"output   {output} · stoker files one\n" in details
    assert "done · `stoker files one` lists its files" in stoker("ls").stdout


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_copies_go_where_cp_would_put_them(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    one = stoker("cp", "one:model.pt")
    assert (one.exit_code, one.stderr) == (0, "1 file, 5.0 kB\n") and tree(here) == {"model.pt": "model" * 1000}
    (here / "model.pt").write_text("old")
    assert stoker("cp", "one:model.pt", "new.pt").exit_code == stoker("cp", "one:/model.pt", ".").exit_code == 0
    assert set(tree(here).values()) == {"model" * 1000} and len(tree(here)) == 2
    assert stoker("cp", "one:runs", "into/").exit_code == stoker("cp", "one:runs", "as").exit_code == 0
    assert tree(here / "into") == {"runs/one/log": "log", "runs/two": "two"}
    assert tree(here / "as") == {"one/log": "log", "two": "two"}
    every = stoker("cp", "one:", "every")
    assert every.exit_code == 0 and "left out: 1 symbolic link\n" in every.stderr
    assert sorted(tree(here / "every")) == ["model.pt", "runs/one/log", "runs/two"]
    umask = os.umask(0)
    os.umask(umask)
    assert (here / "model.pt").stat().st_mode & 0o777 == 0o666 & ~umask
    assert not [path for path in here.rglob("*") if path.name.startswith(".")], "nothing half is left"


def test_the_beginning_of_a_jobs_name_is_enough(output: Path, tmp_path: Path) -> None:
    assert stoker("cp", "on:model.pt", str(tmp_path / "model.pt")).exit_code == 0
    assert (tmp_path / "model.pt").read_bytes() == b"model" * 1000
    assert "model.pt" in stoker("files", "on").stdout


def test_what_can_not_be_copied_is_reported(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    for source, message, exit_code in (
        ("model.pt", "write JOB:PATH", 2),
        ("./x:y", "write JOB:PATH", 2),
        ("one:no.pt", "no file 'no.pt'", 1),
        ("one:link", "is a symbolic link", 1),
        ("none:x", "no job 'none'", 1),
        ("one:../x", "without `.` and `..`", 2),
    ):
        result = stoker("cp", source, ".")
        assert result.exit_code == exit_code and message in result.stderr, (source, result.stderr)
    assert set(tmp_path.rglob("*")) == before


LISTED = "/v1/projects/default/jobs/one/files"


def test_a_servers_names_lead_nowhere_else(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_SERVER", script.url)
    monkeypatch.setenv("STOKER_TOKEN", "t")
    for path in ("../out", "a/../../out", "/etc/out", "a//b", "x" * 300, "a\0b"):
        item = {"path": path, "kind": "file", "size": 1, "modifiedAt": "2026-01-01T00:00:00Z"}
        script.on("GET", LISTED, script.json({"items": [item], "folder": "", "truncated": False}))
        result = stoker("cp", "one:", str(tmp_path / "in"))
        if path == "/etc/out":  # below the folder, as any other
            assert result.exit_code == 1 and any("files//etc/out" in one.path for one in script.requests)
        else:
            assert result.exit_code == 1 and "can't be one here" in result.stderr, path
    assert not list(tmp_path.rglob("out"))


CONTENT = os.urandom(300_000)


def cut(etag: str, at: int) -> Callable[[BaseHTTPRequestHandler], None]:
    """Part of what was asked for, then the connection breaks."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and handler.headers["If-Range"] == etag else 0
        handler.send_response(206 if begin else 200)
        handler.send_header("ETag", etag)
        handler.send_header("Content-Length", str(len(CONTENT) - begin))
        handler.end_headers()
        handler.wfile.write(CONTENT[begin : begin + at])
        handler.close_connection = True

    return answer


def test_a_cut_connection_is_resumed_at_the_byte(script: Any, tmp_path: Path) -> None:
    script.on("GET", LISTED, script.problem(404, "NoFile", "there is no folder 'big'"))
    script.on("GET", f"{LISTED}/big", *[cut('"a"', 50_000)] * 3, cut('"b"', 50_000), cut('"b"', len(CONTENT)))
    got = tmp_path / "here"
    with Client(script.url, "t") as client:
        assert client.cp("one", "big", got) == len(CONTENT)
    assert got.read_bytes() == CONTENT
    ranges = [one.headers.get("range") for one in script.requests]
    assert ranges == [None, None, "bytes=50000-", "bytes=100000-", "bytes=150000-", "bytes=50000-"], (
        "anew once it changed"
    )


def test_the_sdk_lists_and_fetches(output: Path, tmp_path: Path) -> None:
    with Client() as client:
        listed = client.files("one", "runs")
        assert [(one.path, one.size) for one in listed.items] == [("runs/one/log", 3), ("runs/two", 3)]
        here = tmp_path / "here"
        here.mkdir()
        assert client.get("one").cp("runs/one/log", here) == 3
        assert (here / "log").read_bytes() == b"log"
        with pytest.raises(ApiError) as met:
            client.cp("one", "no", here)
        assert [one.name for one in here.iterdir()] == ["log"], "what did not come leaves nothing"
        assert met.value.code == "NoFile"
        assert client.cp("one", "runs", here) == 6 and (here / "runs/one/log").read_bytes() == b"log"
        assert client.cp("one", "runs/", tmp_path / "renamed") == 6 and (tmp_path / "renamed/two").is_file()
        assert client.get("one").cp("", tmp_path / "all") == 5006
        assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["model.pt", "runs"], "without the link"
        with pytest.raises(BadInput, match="the path is one within the output folder"):
            client.cp("one", "../../token", here)
