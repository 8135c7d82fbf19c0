"""The way to the api: what comes back, what is told where nothing does."""

import pytest

from stoker.exporter.reporting.link import ApiLink, Unreachable

from .recording_api import Say


@pytest.mark.parametrize("url", ["", "api:8470", "ftp://api", "http://", "/v1"])
def test_what_is_no_address_is_told_so(url):
    with pytest.raises(ValueError, match="no address of an api"):
        ApiLink(url)


def test_a_password_in_the_url_is_refused_before_it_is_in_a_log():
    with pytest.raises(ValueError, match="take user and password out") as told:
        ApiLink("https://me:secret@api:8470")
    assert "secret" not in str(told.value)


def test_a_path_before_the_apis_own_is_kept(api):
    link = ApiLink(api.url + "/stoker/")
    assert link.post("/v1/report/usage", b"{}").status == 200
    assert api.posts[0].path == "/stoker/v1/report/usage"
    link.close()


@pytest.mark.parametrize(
    ("token", "why"), [(None, "No such file"), (b"one\r\ntwo", "Invalid header"), (b"\xff", "ascii")]
)
def test_a_token_that_is_none(api, tmp_path, token, why):
    file = tmp_path / "token"
    if token is not None:
        file.write_bytes(token)
    with pytest.raises(Unreachable, match=why):
        ApiLink(api.url, file).post("/", b"{}")
    assert not api.posts


def test_an_answer_that_never_ends_is_cut(api):
    api.answer = lambda _: Say(body=b"x" * (6 << 20))
    link = ApiLink(api.url)
    assert len(link.post("/", b"{}").body) == 4 << 20
    assert link.post("/", b"{}").status == 200  # on a new connection
    link.close()


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("9999", 300.0), ("-1", 0.0), ("soon", 0.0), ("nan", 0.0)])
def test_retry_after(api, header, seconds):
    api.answer = lambda _: Say(503, headers={"Retry-After": header})
    link = ApiLink(api.url)
    assert link.post("/", b"{}").retry_after_s == seconds
    link.close()


def test_a_ca_file_that_is_none(tmp_path):
    (tmp_path / "ca").write_text("no certificate")
    with pytest.raises(Unreachable):
        ApiLink("https://127.0.0.1:1", ca_file=tmp_path / "ca").post("/", b"{}")
