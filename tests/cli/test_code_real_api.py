"""Shipping over the real api: what it keeps is the folder, what it refuses is said, and what a second time costs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from stoker.cli.main import cli
from stoker.client.client import Client
from stoker.client.code.bundle import read_folder

if TYPE_CHECKING:
    from .live_api import Live


@pytest.fixture
def project() -> Path:
    folder = Path.cwd()
    (folder / "sub").mkdir()
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "a.log").write_text("not this")
    (folder / "train.py").write_text("print(42)\n")
    (folder / "sub/large").write_bytes(random.Random(1).randbytes(6 << 20))
    (folder / "sub/empty").write_text("")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("sub/large")
    return folder


def _kept(live: Live, digest: str) -> tuple[list[dict[str, Any]], list[bytes]] | None:
    """What a worker would be sent: the manifest's entries and the contents in their order."""
    code = live.deps.code
    assert code is not None

    async def read() -> bytes | None:
        found = await code.find("default", digest)
        return None if found is None else b"".join([piece async for piece in code.pieces("default", found)])

    data = live.do(read())
    if data is None:
        return None
    size, _, data = data.partition(b"\n")
    files = json.loads(data[: int(size)])["files"]
    data = data[int(size) :]
    sizes = {file["sha256"]: file.get("size", 0) for file in files if "sha256" in file}
    contents = []
    for length in sizes.values():
        contents.append(data[:length])
        data = data[length:]
    assert data == b""
    return files, contents


def test_the_server_keeps_the_folder_byte_for_byte(live: Live, project: Path) -> None:
    with Client() as client:
        digest = client.ship(project)
        job = client.submit({"trainer": {"command": ["python", "train.py"], "code": digest}})
        assert job.spec.trainer.code == digest
    kept = _kept(live, digest)
    assert kept is not None
    files, contents = kept
    assert [file["path"] for file in files] == [".gitignore", "link", "run.sh", "sub/empty", "sub/large", "train.py"]
    assert (files[1]["link"], files[2]["executable"]) == ("sub/large", True)
    assert contents == [(project / file["path"]).read_bytes() for file in files if "sha256" in file]


def test_the_second_submit_sends_nothing_and_a_change_only_itself(live: Live, project: Path) -> None:
    for number in range(1000):
        (project / f"sub/{number}.py").write_bytes(random.Random(number).randbytes(1000))
    with Client() as client:
        first = client.calls.send_code(read_folder(project))
        assert first > 7_000_000
        assert client.calls.send_code(read_folder(project)) == 0
        (project / "sub/500.py").write_text("print('changed')\n")
        bundle = read_folder(project)
        sent = client.calls.send_code(bundle)
        print(f"first {first}, second 0, one of {len(bundle.by_path)} files changed {sent}")
        assert sent - 2 * len(bundle.manifest.canonical()) < 200


def test_the_command_ships_then_submits(live: Live, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dry = CliRunner().invoke(cli, ["submit", "--dry-run", "-o", "json", "--", "sh", "run.sh"])
    assert dry.exit_code == 0 and "code" not in json.loads(dry.stdout)["spec"]["trainer"]
    assert _kept(live, read_folder(project).digest) is None
    result = CliRunner().invoke(cli, ["submit", "-o", "json", "--", "sh", "run.sh"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["spec"]["trainer"]["code"] == read_folder(project).digest
    assert _kept(live, read_folder(project).digest) is not None


def test_an_upload_goes_on_over_restarts(live: Live, project: Path) -> None:
    seen = []

    def restart_once(done: int, _total: int) -> None:
        if not seen and done > 1 << 20:
            seen.append(done)
            live.restart()

    bundle = read_folder(project)
    with Client() as client:
        client.calls.send_code(bundle, progress=restart_once)
    assert seen and _kept(live, bundle.digest) is not None
