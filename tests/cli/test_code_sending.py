"""Sending a folder to a server: what goes over the wire, how often, and what is said when it can't."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.client import Client
from stoker.client.code import sending
from stoker.client.code.bundle import read_folder
from stoker.client.code.sending import packed
from stoker.client.errors import ApiError, BadInput, StokerError, Unreachable
from stoker.spec.code import CodeFile

CODE = "/v1/projects/default/code"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.client.wire.FIRST_PAUSE_S", 0.001)


@pytest.fixture
def project() -> Path:
    folder = Path.cwd()
    (folder / "sub").mkdir()
    (folder / "train.py").write_text("print(42)\n" * 100)
    (folder / "sub/empty").write_text("")
    (folder / "sub/same.py").write_text("print(42)\n" * 100)
    (folder / "link").symlink_to("sub")
    return folder


def test_a_folder_arrives_as_it_is_and_the_second_time_nothing_is_sent(script: Any, project: Path) -> None:
    with Client(script.url) as client:
        bundle = read_folder(project)
        assert client.calls.send_code(bundle) == script.code.body_bytes
        assert script.code.tree(bundle.digest) == {
            "link": "-> sub",
            "sub/empty": b"",
            "sub/same.py": b"print(42)\n" * 100,
            "train.py": b"print(42)\n" * 100,
        }
        assert script.code.requests == ["GET", "PUT", "POST", "PUT"]
        assert script.code.body_bytes < 2 * len(bundle.manifest.canonical()) + 250, "equal files go once, and gzip'ed"
        script.code.body_bytes, script.code.requests = 0, []
        assert client.ship(project) == bundle.digest
        assert (script.code.requests, script.code.body_bytes) == (["GET"], 0)


def test_the_project_is_the_call_s_else_the_client_s(script: Any, project: Path) -> None:
    with Client(script.url, project="vision") as client:
        client.ship(project)
        client.ship(project, project="a/b")
    assert script.requests[0].path.startswith("/v1/projects/vision/code/sha256:")
    assert script.requests[-1].path.startswith("/v1/projects/a%2Fb/code/sha256:")


def test_every_call_is_repeated_over_cut_connections_and_busy_servers(script: Any, project: Path) -> None:
    bundle = read_folder(project)
    calls = 0
    real = script.code.answer

    def shaky(request: Any) -> Any:
        nonlocal calls
        calls += 1
        return (503, {"code": "Busy", "detail": "busy"}) if calls % 2 else real(request)

    script.code.answer = shaky
    with Client(script.url) as client:
        sent = client.calls.send_code(bundle)
    assert script.code.tree(bundle.digest).keys() == bundle.by_path.keys()
    assert calls == 8 and sent > 2 * len(bundle.manifest.canonical())


def test_a_pack_that_was_cut_off_is_sent_whole_again(script: Any, project: Path) -> None:
    bundle = read_folder(project)
    script.on("POST", f"{CODE}/files", script.cut, lambda handler: _as_usual(script, handler))
    with Client(script.url) as client:
        client.calls.send_code(bundle)
    packs = [request.data for request in script.requests if request.method == "POST"]
    assert len(packs) == 2 and packs[0] == packs[1]
    assert bundle.digest in script.code.bundles


def _as_usual(script: Any, handler: Any) -> None:
    status, body = script.code.answer(script.requests[-1])
    script.json(body, status)(handler)


def test_files_go_in_packs_and_progress_is_shown(script: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PACK_BYTES", 1000)
    for number in range(10):
        (project / f"{number}").write_text(str(number) * 400)
    (project / "large").write_bytes(random.Random(1).randbytes(1 << 20))
    seen: list[tuple[int, int]] = []
    with Client(script.url) as client:
        client.calls.send_code(read_folder(project), progress=lambda done, total: seen.append((done, total)))
    assert script.code.requests.count("POST") == 7
    content = 10 * 400 + 1000 + (1 << 20)
    assert {total for _, total in seen} == {content}
    done = [count for count, _ in seen]
    assert done == sorted(done) and done[-1] == content and len(done) > 10


def test_a_server_that_loses_files_in_between_gets_them_again_but_not_for_ever(script: Any, project: Path) -> None:
    real = script.code.answer
    losses = [1]

    def forgetful(request: Any) -> Any:
        answer = real(request)
        if request.method == "POST" and losses[0]:
            losses[0] -= 1
            script.code.files.popitem()
        return answer

    script.code.answer = forgetful
    with Client(script.url) as client:
        assert client.ship(project) in script.code.bundles
        losses[0] = 99
        (project / "train.py").write_text("other")
        with pytest.raises(StokerError, match="asks for files again that it was sent"):
            client.ship(project)


@pytest.mark.parametrize("what", ["grows", "shrinks", "differs", "goes"])
def test_a_file_that_changes_meanwhile_is_noticed_before_it_is_all_sent(script: Any, project: Path, what: str) -> None:
    bundle = read_folder(project)
    path = project / "sub/same.py"  # the first with its content, and so the one that is read
    if what == "goes":
        path.unlink()
    else:
        path.write_text({"grows": "print(42)\n" * 101, "shrinks": "p", "differs": "print(43)\n" * 100}[what])
    with Client(script.url) as client, pytest.raises(BadInput, match=r"sub/same\.py changed while it was sent"):
        client.calls.send_code(bundle)
    assert bundle.digest not in script.code.bundles


def test_an_older_server_is_called_by_its_name(script: Any, project: Path) -> None:
    script.code = None
    path = f"{CODE}/{read_folder(project).digest}"
    detail = f"There is nothing at {path}; docs/api.md lists the routes."
    script.on("GET", path, script.problem(404, "NotFound", detail))
    script.on("PUT", path, script.problem(404, "NotFound", detail))
    with Client(script.url) as client, pytest.raises(ApiError, match="takes no code: its Stoker is older") as met:
        client.ship(project)
    assert "--no-code" in str(met.value)


@pytest.mark.parametrize(
    ("status", "code", "detail"),
    [
        (403, "Forbidden", "'bob' may not create trainingjobs in project 'default'"),
        (404, "NotFound", "There is no project 'default', or the token may not see it."),
        (507, "CodeFull", "The project's code is over its limit."),
    ],
)
def test_what_the_server_refuses_is_reported_with_its_message(
    script: Any, project: Path, status: int, code: str, detail: str
) -> None:
    path = f"{CODE}/{read_folder(project).digest}"
    script.on("GET", path, script.problem(404 if status == 507 else status, code, detail))
    script.on("PUT", path, script.problem(status, code, detail))
    with Client(script.url) as client, pytest.raises(ApiError) as met:
        client.ship(project)
    assert (str(met.value), met.value.status) == (detail, status)
    assert not any(request.method == "POST" for request in script.requests)


def test_no_server(project: Path) -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unreachable):
        client.ship(project)


@given(sizes=st.lists(st.integers(0, 6 << 20), max_size=40))
def test_packs_hold_every_file_once_and_are_not_too_large(sizes: list[int]) -> None:
    files = [CodeFile(path=f"f{at}", sha256=f"{at:064x}", size=size) for at, size in enumerate(sizes)]
    groups = list(packed(files))
    assert [file for group in groups for file in group] == files
    assert all(group and (len(group) == 1 or sum(f.size for f in group) <= sending.PACK_BYTES) for group in groups)


def test_ship_takes_a_path_in_any_form(script: Any, project: Path) -> None:
    with Client(script.url) as client:
        assert client.ship(".") == client.ship(project) == client.ship(os.fspath(project) + "/")
