"""Which server, which token: and never the one's token to the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.client.config import find_server
from stoker.client.errors import BadInput, Unreachable


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "endpoint.json").write_text(json.dumps({"url": "http://127.0.0.1:8470", "pid": 1}))
    (tmp_path / "token").write_text("local-token\n")
    return {"STOKER_HOME": str(tmp_path)}


def test_what_up_left_is_found(home: dict[str, str]) -> None:
    found = find_server(env=home)
    assert (found.url, found.token, found.local, found.loopback) == ("http://127.0.0.1:8470", "local-token", True, True)
    assert "local-token" not in repr(found)


def test_the_local_token_goes_to_the_local_server_only(home: dict[str, str]) -> None:
    assert find_server("http://127.0.0.1:8470/", env=home).token == "local-token"
    assert find_server("http://127.0.0.1:9999", env=home).token is None
    other = find_server(env={**home, "STOKER_SERVER": "https://stoker.example.org"})
    assert (other.token, other.local, other.loopback) == (None, False, False)


def test_what_is_given_goes_before_the_environment_goes_before_the_folder(home: dict[str, str]) -> None:
    env = {**home, "STOKER_SERVER": "http://env:1", "STOKER_TOKEN": "env-token"}
    assert (find_server(env=env).url, find_server(env=env).token) == ("http://env:1", "env-token")
    said = find_server("http://[::1]:2", "said-token", env=env)
    assert (said.url, said.token, said.loopback) == ("http://[::1]:2", "said-token", True)


def test_no_server_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"no Stoker server is running here .* start one with `stoker up`"):
        find_server(env={"STOKER_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "url",
    [
        "stoker.example:8470",
        ":8470",
        "[::1",
        "ftp://a",
        "http://",
        "http://user:pw@a",
        "http://a:port",
        "http://a/?x=1",
        "http://[::1",
    ],
)
def test_addresses_that_are_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="server address"):
        find_server(url, env={"STOKER_HOME": str(tmp_path)})


def test_an_address_of_this_machine_needs_no_scheme_and_another_s_does(home: dict[str, str]) -> None:
    found = find_server("127.0.0.1:8470", env=home)
    assert (found.url, found.token) == ("http://127.0.0.1:8470", "local-token")
    assert find_server("localhost:99", env=home).url == "http://localhost:99"
    with pytest.raises(BadInput, match=r"or https://stoker\.example:8470"):
        find_server("stoker.example:8470", env=home)


@pytest.mark.parametrize("text", ["{", "[]", '{"url": 1}'])
def test_a_torn_endpoint_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoint.json").write_text(text)
    with pytest.raises(BadInput, match="restart `stoker up`"):
        find_server(env={"STOKER_HOME": str(tmp_path)})


def test_a_token_file_that_is_no_text(home: dict[str, str]) -> None:
    (Path(home["STOKER_HOME"]) / "token").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(BadInput, match="it is not text; give one by STOKER_TOKEN"):
        find_server(env=home)


def test_a_token_with_a_line_break_never_becomes_a_header(home: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="copy it again"):
        find_server(token="a\r\nX-Evil: 1", env=home)
