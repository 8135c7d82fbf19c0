"""What `helm test` runs in its pod, run here against a server that is slow to come or takes us for another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.local_server import LocalServer

from .once import of_kind

ACCOUNT = "system:serviceaccount:stoker-system:default"


@contextmanager
def _api(name: str, *, late: int = 0) -> Iterator[str]:
    """Answers 503 `late` times; then as the api does, calling `name` who shows the token `t`."""
    left = [late]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            left[0] -= 1
            known = self.headers["Authorization"] == "Bearer t"
            pages = {"/readyz": "ok\n", "/version": {"version": "1"}, "/v1/whoami": {"name": name} if known else None}
            page = pages.get(self.path)
            self.send_response(503 if left[0] >= 0 else 200 if page else 401)
            self.send_header("Content-Type", "text/plain" if isinstance(page, str) else "application/json")
            self.end_headers()
            self.wfile.write((page if isinstance(page, str) else json.dumps(page)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = LocalServer(Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _check(url: str, folder: Path, *, token: str = "t", seconds: str = "30") -> subprocess.CompletedProcess[str]:
    """The command of the pod, as rendered."""
    [pod] = of_kind({}, "Pod")
    [container] = pod["spec"]["containers"]
    assert container["command"] == ["python3", "-c"]
    (folder / "token").write_text(token)
    env = {one["name"]: one["value"] for one in container["env"]} | {"SECONDS": seconds, "PATH": os.environ["PATH"]}
    env |= {"URL": url, "TOKEN_FILE": str(folder / "token"), "no_proxy": "*"}
    command = [sys.executable, "-c", *container["args"]]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_it_waits_until_the_api_answers(tmp_path: Path) -> None:
    with _api(ACCOUNT, late=1) as url:
        done = _check(url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert ACCOUNT in done.stdout


def test_it_fails_where_nothing_answers(tmp_path: Path) -> None:
    assert _check("http://127.0.0.1:9", tmp_path, seconds="0").returncode == 1


def test_it_fails_where_its_token_is_not_known(tmp_path: Path) -> None:
    with _api(ACCOUNT) as url:
        assert _check(url, tmp_path, token="other", seconds="0").returncode == 1


def test_it_fails_where_it_is_taken_for_another(tmp_path: Path) -> None:
    with _api("alice") as url:
        done = _check(url, tmp_path)
    assert done.returncode == 1 and "takes this pod for alice" in done.stderr
