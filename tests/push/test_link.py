"""One server over HTTP: what comes back, and what the error says where nothing does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.push.link import Link, NoCredentials, NoResponse
from tests.support.testbed.webhook import Answer, Webhook


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with Webhook() as hook:
        yield hook


@pytest.mark.parametrize("url", ["", "api:8470", "ftp://api", "http://", "/v1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no http\(s\) address"):
        Link(url)


def test_a_password_in_the_url_is_refused_before_it_is_in_a_log() -> None:
    with pytest.raises(ValueError, match="take user and password out") as refused:
        Link("https://me:secret@api:8470")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("base", "path", "asked"),
    [
        ("", "/v1/report/usage", "/v1/report/usage"),
        ("stoker/", "/v1/report/usage", "/stoker/v1/report/usage"),
        ("", "", "/"),
        ("api/v1/write?tenant=a", "", "/api/v1/write?tenant=a"),
    ],
)
def test_where_it_posts(hook: Webhook, base: str, path: str, asked: str) -> None:
    link = Link(hook.url + base)
    assert link.post(path, b"{}").status == 200
    assert hook.posted[0].path == asked
    link.close()


@pytest.mark.parametrize(
    ("token", "why"), [(None, "No such file"), (b"", "one line"), (b"one\r\ntwo", "one line"), (b"\xff", "ascii")]
)
def test_a_token_that_is_none(hook: Webhook, tmp_path: Path, token: bytes | None, why: str) -> None:
    file = tmp_path / "token"
    if token is not None:
        file.write_bytes(token)
    with pytest.raises(NoCredentials, match=why):
        Link(hook.url, file).post("/", b"{}")
    assert not hook.posted


def test_a_response_that_never_ends_is_cut(hook: Webhook) -> None:
    hook.answer = lambda _: Answer(body=b"x" * (6 << 20))
    link = Link(hook.url)
    assert len(link.post("/", b"{}").body) == 4 << 20
    assert link.post("/", b"{}").status == 200  # on a new connection
    link.close()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *[("7", 7.0), ("9999", 300.0), ("-1", 0.0), ("soon", 0.0), ("nan", 0.0)],
        *[("Fri, 31 Dec 9999 23:59:59 GMT", 300.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)],
    ],
)
def test_retry_after(hook: Webhook, header: str, seconds: float) -> None:
    hook.answer = lambda _: Answer(503, headers={"Retry-After": header})
    link = Link(hook.url)
    assert link.post("/", b"{}").retry_after_s == seconds
    link.close()


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    with pytest.raises(NoResponse):
        Link("https://127.0.0.1:1", ca_file=tmp_path / "ca").post("/", b"{}")
