"""`python -m stoker_api.main`: the api as its own process against a real API server."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stoker_api.serve import Certificate

from .cluster import API, Bed


@contextlib.contextmanager
def process(bed: Bed, folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port, once it answers."""
    command = [sys.executable, "-m", "stoker_api.main", "--host", "127.0.0.1", "--port", "0"]
    command += ["--data", str(folder / "data"), "--kubeconfig", str(bed.kubeconfig(folder, API)), *more]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "KUBE"))}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert running.stderr is not None
    try:
        said = []
        for line in running.stderr:
            said.append(line)
            if found := re.search(r"ready on port (\d+)", line):
                yield running, int(found[1])
                break
        else:
            raise AssertionError("".join(said))
    finally:
        running.kill()
        running.communicate(timeout=10)


def test_it_serves_and_stops(the_bed, tmp_path):
    with process(the_bed, tmp_path) as (running, port):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            assert client.get("/readyz").text == "ok\n"
            assert client.get("/version").json()["mode"] == "Cluster"
            assert client.get("/v1/whoami").status_code == 401
            client.headers["Authorization"] = f"Bearer {the_bed.tokens['alice']}"
            assert client.get("/v1/whoami").json()["name"] == "system:serviceaccount:alpha:alice"
            assert client.get("/metrics").status_code == 403
            client.headers["Authorization"] = f"Bearer {the_bed.tokens['admin']}"
            assert "stoker_api_request_seconds" in client.get("/metrics").text
        again = [sys.executable, "-m", "stoker_api.main", "--port", "0", "--data", str(tmp_path / "data")]
        done = subprocess.run(again, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and "another api keeps its logs" in done.stderr
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=15) == 0


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    assert openssl is not None
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return cert, key


def served_name(port: int) -> str:
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    openssl = ["openssl", "x509", "-noout", "-subject"]
    return subprocess.run(openssl, input=pem, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def test_tls(the_bed, tmp_path):
    cert, key = certificate(tmp_path, "first")
    with process(the_bed, tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as (_, port):
        context = ssl.create_default_context(cafile=cert)
        assert httpx.get(f"https://127.0.0.1:{port}/livez", verify=context, timeout=10).text == "ok\n"
        assert served_name(port).endswith("first")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/livez", timeout=10)


def shown(context: ssl.SSLContext) -> bytes | None:
    """The certificate that a new connection meets: a handshake in memory."""
    asks = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asks.check_hostname, asks.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = asks.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.getpeercert(binary_form=True)


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(tmp_path, caplog):
    cert, key = certificate(tmp_path, "first")
    found = Certificate(cert, key)
    first = shown(found.context)
    found.refresh()
    assert first is not None and shown(found.context) == first
    other_cert, other_key = certificate(tmp_path, "second")
    shutil.copy(other_cert, cert)  # its key is not there yet
    found.refresh()
    assert shown(found.context) == first and "is not read again" in caplog.text
    shutil.copy(other_key, key)
    found.refresh()
    second = shown(found.context)
    assert second not in (None, first)
    cert.unlink()
    found.refresh()
    assert shown(found.context) == second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tls-cert", "x"], "both --tls-cert and --tls-key"),
        (["--tls-cert", "x", "--tls-key", "y"], "can't use the certificate"),
        (["--data", "/proc/nowhere"], "can't write to the data folder"),
    ],
)
def test_what_it_can_not_start_with(tmp_path, arguments, says):
    command = [sys.executable, "-m", "stoker_api.main", "--port", "0", "--data", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr
