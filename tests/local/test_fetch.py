"""Fetching data by url from a real HTTP server, as the process does it: cached, checked, bounded, unpacked, masked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.fetch.cache import IN_USE_S, Cache
from stoker.fetch.errors import Refused, says, transient
from stoker.spec.data import DataVolume, fetch_order
from tests.support.local_server import LocalServer

AbstractFileSystem: Any = pytest.importorskip("fsspec").AbstractFileSystem
Files = dict[str, tuple[int, bytes, dict[str, str]]]


class Site:
    """A server with files, each with the status and headers it is answered with; `asked` counts GETs."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.files: Files = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self, head: bool = False) -> None:
                path = self.path.partition("?")[0]
                status, body, headers = site.files.get(path, (404, b"", {}))
                if not head:
                    site.asked.append(path)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if not head:
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET(head=True)

            def log_message(self, *_: object) -> None:
                pass

        self.server = LocalServer(Handler, host=host)
        self.url = self.server.url
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, path: str, body: bytes, status: int = 200, **headers: str) -> str:
        self.files[path] = (status, body, headers)
        return self.url + path


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[..., Any]:
    """Runs the process; its answer."""

    def run(url: str, limit_bytes: int = 1 << 30, **more: Any) -> Any:
        order = json.loads(fetch_order([DataVolume(name="d", url=url, **more)], str(tmp_path / "cache"), "p"))
        env = {"STOKER_FETCH": json.dumps(order | {"limit_bytes": limit_bytes}), "PATH": os.environ["PATH"]}
        log = tmp_path / "termination"
        done = subprocess.run(
            [sys.executable, "-m", "stoker.fetch"],
            env=env | {"STOKER_TERMINATION_LOG": str(log)}, stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        assert (done.returncode, "error" in answer) in ((0, False), (1, True)), done.stderr
        assert "error" not in answer or log.read_text() == answer["error"]
        return Path(answer["places"]["d"]) if "places" in answer else answer["error"]

    return run


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_file_is_fetched_once_by_its_digest_and_can_only_be_read(site: Site, fetch: Any) -> None:
    url = site.put("/a/train.bin", b"x" * 100_000)
    place = fetch(url, digest=sha256(b"x" * 100_000))
    assert [path.name for path in place.iterdir()] == ["train.bin"]
    assert (place / "train.bin").read_bytes() == b"x" * 100_000
    assert ((place / "train.bin").stat().st_mode & 0o777, place.stat().st_mode & 0o777) == (0o444, 0o555)
    asked = len(site.asked)
    assert fetch(url, digest=sha256(b"x" * 100_000)) == place
    assert len(site.asked) == asked, "nothing was asked for"


def test_without_a_digest_it_is_asked_for_and_fetched_again_when_it_is_another(site: Site, fetch: Any) -> None:
    url = site.put("/train.bin", b"one", ETag='"1"')
    first = fetch(url)
    asked = site.asked.count("/train.bin")
    assert fetch(url) == first and site.asked.count("/train.bin") == asked, "a HEAD was enough"
    site.put("/train.bin", b"two", ETag='"2"')
    second = fetch(url)
    assert ((first / "train.bin").read_bytes(), (second / "train.bin").read_bytes()) == (b"one", b"two")
    site.put("/train.bin", b"two")  # no ETag: the store does not say whether it has changed
    third = fetch(url)
    assert third not in (first, second) and fetch(url) != third


def test_what_can_not_be_had_is_reported_without_the_urls_secrets(site: Site, fetch: Any) -> None:
    url = site.put("/x.bin", b"data")
    assert "not " + "0" * 64 in fetch(url, digest="sha256:" + "0" * 64)
    gone = fetch(f"{site.url}/gone?Signature=top-secret")
    assert gone == f"data d: {site.url}/gone?…: 404 Not Found"
    site.put("/denied", b"", status=403)
    assert fetch(f"{site.url}/denied?Signature=top-secret").endswith("denied?…: 403 Forbidden")
    site.put("/busy", b"", status=503)
    assert fetch(f"{site.url}/busy?sig=top-secret").endswith("503 Service Unavailable, after 3 tries")
    assert fetch(url, limit_bytes=3) == f"data d: {url}: it is larger than the limit of 3 bytes"
    assert fetch("s3://bucket/x").startswith("data d: s3://bucket/x: ")


@pytest.mark.parametrize(
    "answered",
    [
        {"status": 404, "message": "Not Found"},  # aiohttp's
        {"response": SimpleNamespace(status_code=404)},  # huggingface_hub's
        {"response": {"ResponseMetadata": {"HTTPStatusCode": 404}}},  # botocore's
        {"code": 404, "message": "Not Found"},  # gcsfs'
    ],
)
def test_a_stores_refusal_is_its_status_and_is_not_asked_for_again(answered: dict[str, Any]) -> None:
    error = OSError("Client error for https://hub.example/x")
    vars(error).update(answered)
    assert (says(error, {}), transient(error)) == ("404 Not Found", False)


class Unauthorized(Exception):
    """As gcsfs raises it."""

    code, message = 401, "Anonymous caller does not have storage.objects.get access"


@pytest.mark.parametrize("refusal", [Unauthorized(), OSError("Forbidden: https://storage.example/b/x\nno access")])
@pytest.mark.parametrize(
    ("private", "there_are_some", "asked_as"),
    [
        (False, False, ["anon"]),
        (True, True, ["anon", "google_default"]),
        (True, False, ["anon", "google_default"]),
    ],
    ids=["public", "private", "private, without credentials"],
)
def test_googles_credentials_are_looked_for_only_once_it_refuses_those_who_have_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    refusal: Exception,
    private: bool,
    there_are_some: bool,
    asked_as: list[str],
) -> None:
    """A look-up takes 12 s where there is no metadata server. The image alone has the real client."""
    made: list[str] = []

    class Client(AbstractFileSystem):
        protocol, cachable = ("gs",), False

        def __init__(self, token: str | None = None, **more: Any) -> None:
            super().__init__(**more)
            self.token = token or "google_default"
            made.append(self.token)
            if self.token != "anon" and not there_are_some:
                raise LookupError("your default credentials were not found")

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            if private and self.token == "anon":
                raise refusal
            return {"name": path, "size": 4, "type": "file", "generation": "1"}

        def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
            self.info(rpath)
            Path(lpath).write_bytes(b"data")

    monkeypatch.setitem(sys.modules, "gcsfs", SimpleNamespace(core=SimpleNamespace(GCSFileSystem=Client)))
    monkeypatch.setitem(sys.modules, "gcsfs.core", SimpleNamespace(GCSFileSystem=Client))
    from stoker.fetch.source import Source

    source = Source("gs://bucket/x", "x")
    if private and not there_are_some:
        with pytest.raises(type(refusal)) as refused:
            source.look()
        assert says(refused.value)[:3] in ("401", "403") and not transient(refused.value)
    else:
        [found] = source.look()
        source.get(found, tmp_path, lambda count: None)
        assert (tmp_path / "x").read_bytes() == b"data"
    assert made == asked_as


def test_a_cache_that_can_not_be_written_is_said(site: Site, fetch: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    said = fetch(site.put("/x.bin", b"data"))
    assert said == f"data d: user {os.getuid()} can't make a folder in the cache: Not a directory"


def packed(*members: tuple[str, bytes | None]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def test_an_archive_is_kept_or_unpacked_and_leads_nowhere_else(site: Site, fetch: Any) -> None:
    good = site.put("/set.tar.gz", packed(("a/b.txt", b"1"), ("c", b"2")))
    assert [path.name for path in fetch(good).iterdir()] == ["set.tar.gz"]
    place = fetch(good, unpack=True)
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*")) == ["a", "a/b.txt", "c"]
    place = fetch(site.put("/set.zip", zipped(("a/b.txt", b"1"))), unpack=True)
    assert (place / "a/b.txt").read_text() == "1"
    evil = {
        "outside of it": packed(("../x", b"")),
        "path outside": packed(("/tmp/x", b"")),
        "a link or device": packed(("a", None), ("a/passwd", b"")),
        "twice": packed(("a", b""), ("a", b"")),
        "can't be unpacked": b"no archive",
    }
    for message, body in evil.items():
        assert message in fetch(site.put(f"/{hashlib.sha256(body).hexdigest()}.tar.gz", body), unpack=True)
    for message, body in {"outside": zipped(("../x", b"")), "limit": zipped(("bomb", b"0" * 50_000_000))}.items():
        said = fetch(site.put("/evil.zip", body), limit_bytes=10_000_000, unpack=True)
        assert message in said


def test_the_least_used_go_when_room_is_needed_but_none_that_is_in_use(tmp_path: Path) -> None:
    import fcntl

    cache = Cache(tmp_path, "p", 100, lambda: None)
    for number, name in enumerate(("held", "old", "older", "new")):
        part = cache.part(name)
        (part / "file").write_bytes(b"")
        (part / "file").chmod(0o444)
        cache.keep(part, name, 25)
        used_at = time.time() - (0 if name == "new" else IN_USE_S + 100 + number)
        os.utime(tmp_path / "p" / f".{name}.size", (used_at, used_at))
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / ".torn.part").mkdir()
    held = os.open(cache.path("held") / "file", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)  # as a worker's supervisor does
    cache.make_room(25)
    assert sorted(path.name for path in (tmp_path / "p").iterdir() if path.name[0] != ".") == ["held", "new", "old"]
    assert not (tmp_path / "q" / ".torn.part").exists()
    cache.make_room(50)
    assert sorted(path.name for path in (tmp_path / "p").iterdir() if path.name[0] != ".") == ["held", "new"]
    with pytest.raises(Refused, match="no room for 75 bytes: 50 of 100 are taken by data in use"):
        cache.make_room(75)
    with pytest.raises(Refused, match="0 may be taken of its disk"):
        Cache(tmp_path, "p", 100, lambda: None, free_share=1.0).make_room(1)
    assert (cache.path("held") / "file").stat().st_mode & 0o777 == 0o444, "a look leaves it as it was"
    os.close(held)
    cache.make_room(75)
    assert cache.use("new") and not cache.use("held")


def test_it_ends_with_who_started_it(tmp_path: Path, site: Site) -> None:
    with (tmp_path / "lock").open("w"):
        order = fetch_order([DataVolume(name="d", url=f"{site.url}/never")], str(tmp_path / "cache"), "p")
        entry = json.loads(order)["items"][0]["entry"]
        (tmp_path / "cache" / "p").mkdir(parents=True)
        import fcntl

        with (tmp_path / "cache" / "p" / f".{entry}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it waits for us
            child = subprocess.Popen(
                [sys.executable, "-m", "stoker.fetch"],
                env={"STOKER_FETCH": order}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            child.communicate(timeout=30)  # closes its input
    assert child.returncode == 1
