"""A job's files by their routes, on one machine: lists, ranges, and who may read them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import httpx
import pytest

from stoker_api.files import transfers

FILES = "/v1/projects/alpha/jobs/one/files"
CONTENT = bytes(range(256)) * 4000


@pytest.fixture(params=["embedded"])
def new_world(request, tmp_path, monkeypatch):
    """Of the two modes the one that reads the data folder itself."""
    from .conftest import StreamSettings, _embedded, _running

    (tmp_path / "logs").mkdir()
    return lambda: _running(_embedded(tmp_path, StreamSettings()))


@pytest.fixture
async def output(world, tmp_path) -> Path:
    job = await world.job()
    await world.status(job, attempt=1, phase="Running")
    folder = tmp_path / "jobs" / job.uid / "output"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(CONTENT)
    (folder / "runs").mkdir()
    (folder / "runs" / "ü &#?.txt").write_text("x")
    return folder


def code(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.json()["code"]


async def test_a_list_of_files(world, output):
    (output / "link").symlink_to("/etc/passwd")
    listed = (await world.call("GET", FILES)).json()
    assert (listed["folder"], listed["truncated"]) == ("", False)
    assert [(one["path"], one["kind"], one["size"]) for one in listed["items"]] == [
        ("link", "link", 0), ("model.pt", "file", len(CONTENT)), ("runs/ü &#?.txt", "file", 1),
    ]  # fmt: skip
    below = (await world.call("GET", FILES, params={"folder": "runs", "limit": "1"})).json()
    assert [one["path"] for one in below["items"]] == ["runs/ü &#?.txt"] and below["folder"] == "runs"
    assert (await world.call("GET", FILES, params={"limit": "1"})).json()["truncated"]
    assert code(await world.call("GET", FILES, params={"folder": "no"})) == "NoFile"
    assert (await world.call("GET", FILES, params={"follow": "true"})).status_code == 422
    job = (await world.call("GET", "/v1/projects/alpha/jobs/one")).json()
    assert job["status"]["output"] == str(output)


async def test_a_job_that_has_left_nothing_has_an_empty_list(world):
    await world.job()
    assert (await world.call("GET", FILES)).json() == {"items": [], "folder": "", "truncated": False}
    assert (await world.call("GET", "/v1/projects/alpha/jobs/one")).json()["status"]["output"] == ""


async def test_a_file_whole_and_by_ranges(world, output):
    whole = await world.call("GET", f"{FILES}/model.pt")
    assert (whole.status_code, whole.content) == (200, CONTENT)
    assert whole.headers["accept-ranges"] == "bytes" and whole.headers["content-disposition"] == "attachment"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert (await world.call("GET", f"{FILES}/runs/%C3%BC%20%26%23%3F.txt")).content == b"x"
    size = len(CONTENT)
    for asked, start, end in (
        ("bytes=0-0", 0, 1), ("bytes=10-99", 10, 100), ("bytes=1000000-", 1_000_000, size),
        ("bytes=-5", size - 5, size),
        (f"bytes=5-{size * 9}", 5, size), (f"bytes=-{size * 9}", 0, size), ("BYTES=1-2", 1, 3),
    ):  # fmt: skip
        part = await world.call("GET", f"{FILES}/model.pt", headers={"Range": asked})
        assert (part.status_code, part.content) == (206, CONTENT[start:end]), asked
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        assert part.headers["content-length"] == str(end - start)
    for ignored in ("bytes=5-2", "bytes=0-1,4-5", "lines=1-2", "bytes=-", "bytes=a-b", "bytes=" + "9" * 90 + "-"):
        assert (await world.call("GET", f"{FILES}/model.pt", headers={"Range": ignored})).status_code == 200, ignored
    for behind in (f"bytes={size}-", "bytes=-0"):
        refused = await world.call("GET", f"{FILES}/model.pt", headers={"Range": behind})
        assert (refused.status_code, code(refused)) == (416, "RangeNotSatisfiable")
        assert refused.headers["content-range"] == f"bytes */{size}"


async def test_a_range_counts_only_if_the_file_is_still_the_same(world, output):
    first = await world.call("GET", f"{FILES}/model.pt")
    etag, modified = first.headers["etag"], first.headers["last-modified"]
    for tag in (etag, modified):
        part = await world.call("GET", f"{FILES}/model.pt", headers={"Range": "bytes=0-3", "If-Range": tag})
        assert part.status_code == 206
    assert (await world.call("GET", f"{FILES}/model.pt", headers={"If-None-Match": etag})).status_code == 304
    (output / "model.pt").write_bytes(b"another")
    os.utime(output / "model.pt", (time.time() - 5, time.time() - 5))
    for tag in (etag, f"W/{etag}", modified):
        changed = await world.call("GET", f"{FILES}/model.pt", headers={"Range": "bytes=0-3", "If-Range": tag})
        assert (changed.status_code, changed.content) == (200, b"another")


async def test_head_says_what_get_would(world, output):
    for headers in ({}, {"Range": "bytes=3-9"}):
        got = await world.call("GET", f"{FILES}/model.pt", headers=headers)
        head = await world.call("HEAD", f"{FILES}/model.pt", headers=headers)
        own = {"date", "x-trace-id"}
        assert {k: v for k, v in head.headers.items() if k not in own} == {
            k: v for k, v in got.headers.items() if k not in own
        }
        assert (head.status_code, head.content) == (got.status_code, b"")


async def test_what_is_no_file_is_refused(world, output, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (output / "link").symlink_to(tmp_path / "secret")
    (output / "up").symlink_to(tmp_path)
    os.mkfifo(output / "pipe")
    for path in (
        "no",
        "link",
        "up/secret",
        "pipe",
        "runs",
        "..%2F..%2Ftokens%2Ftoken",
        "%2e%2e/output/model.pt",
        "a%00b",
    ):
        answer = await world.call("GET", f"{FILES}/{path}")
        assert (answer.status_code, code(answer)) == (404, "NoFile"), path
        assert "secret" not in answer.text.replace("up/secret", "")


async def test_only_who_may_read_files_gets_them(world, output):
    for who, status in (("alice", 200), ("admin", 200), ("reader", 403), ("bob", 404), ("garbage", 401)):
        for path in (FILES, f"{FILES}/model.pt"):
            assert (await world.call("GET", path, who=who)).status_code == status, (who, path)


async def test_a_file_that_becomes_shorter_breaks_off(served, tmp_path):
    job = await served.job()
    await served.status(job, attempt=1)
    folder = tmp_path / "jobs" / job.uid / "output"
    folder.mkdir(parents=True)
    path = folder / "big"
    with path.open("wb") as file:
        file.truncate(1 << 28)
    request = served.client.build_request("GET", f"{FILES}/big", headers=served.auth())
    answer = await served.client.send(request, stream=True)
    pieces = answer.aiter_raw()
    await anext(pieces)
    os.truncate(path, 1000)
    with pytest.raises(httpx.RemoteProtocolError):
        await _all(pieces)
    await answer.aclose()
    await _none_under_way(served)


async def test_one_caller_reads_a_few_files_at_once(served, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "OF_CALLER", 2)
    job = await served.job()
    await served.status(job, attempt=1)
    folder = tmp_path / "jobs" / job.uid / "output"
    folder.mkdir(parents=True)
    with (folder / "big").open("wb") as file:
        file.truncate(1 << 30)
    streams = []
    for _ in range(2):
        request = served.client.build_request("GET", f"{FILES}/big", headers=served.auth())
        streams.append(await served.client.send(request, stream=True))
    refused = await served.call("GET", FILES)
    assert (refused.status_code, code(refused)) == (429, "TooManyOwnStreams")
    assert (await served.call("GET", FILES, who="admin")).status_code == 200
    for stream in streams:
        await stream.aclose()
    await _none_under_way(served)
    assert (await served.call("GET", FILES)).status_code == 200


async def _all(pieces) -> None:
    async for _ in pieces:
        pass


async def _none_under_way(served) -> None:
    async with asyncio.timeout(10):
        while served.services.transfers.under_way:
            await asyncio.sleep(0.01)
