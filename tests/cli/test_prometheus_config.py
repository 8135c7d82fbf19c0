"""`stoker prometheus-config`: what it prints is what Prometheus takes; and what it says where it can't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import yaml

from tests.support.local_server import LocalServer
from tests.support.testbed.build import cache
from tests.support.testbed.monitoring import Prometheus, check_config

BUILT = cache()
"""Read before a test has another home."""


def printed(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "STOKER_HOME": str(home)} | {"STOKER_SERVER": "", "STOKER_TOKEN": ""}
    command = [sys.executable, "-m", "stoker.cli.main", "prometheus-config", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder as `stoker up` leaves it; its name needs quotes."""
    folder = tmp_path / "my data: 1"
    folder.mkdir()
    (folder / "endpoint.json").write_text(json.dumps({"url": "http://127.0.0.1:8470", "pid": 1}))
    (folder / "scrape.token").write_text("stk_x\n")
    return folder


def test_a_local_server_is_found_with_its_token(home: Path) -> None:
    done = printed(home, "--interval", "5s")
    assert done.returncode == 0, done.stderr
    servers, workers = yaml.safe_load(done.stdout)["scrape_configs"]
    token = {"credentials_file": str(home / "scrape.token")}
    assert servers["authorization"] == token and servers["scrape_interval"] == "5s"
    (found,) = servers["http_sd_configs"]
    assert found["url"] == "http://127.0.0.1:8470/v1/sd/prometheus?role=servers" and found["authorization"] == token
    assert "authorization" not in workers, "users' code gets no token"
    assert "honor_labels" not in workers, "a worker could name another's job"
    assert workers["http_sd_configs"][0]["authorization"] == token
    assert "scheme" not in servers


@pytest.mark.parametrize("server", ["", "https://stoker.example:8443"])
def test_prometheus_takes_it(
    home: Path, server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(BUILT))
    request.getfixturevalue("monitoring")
    ca = home / "ca.pem"
    ca.write_text("")
    remote = ["--server", server, "--token-file", str(home / "scrape.token"), "--ca-file", str(ca)] if server else []
    (home / "prometheus.yml").write_text(printed(home, *remote).stdout)
    assert "SUCCESS" in check_config("promtool", "check", "config", str(home / "prometheus.yml"))


FORGED = b"""\
my_loss{job_uid="victim"} 0.25
stoker_train_loss{project="p",job_name="mine",job_uid="victim",attempt="1",recipe="x"} 0.5
stoker_job_gpu_allocated_seconds_total{job_uid="victim"} 1e9
stoker:job_info{job_uid="victim"} 1
DCGM_FI_DEV_GPU_UTIL 100
"""


def test_a_worker_speaks_of_its_own_training_only(
    home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As a real Prometheus takes in what users' code serves."""
    monkeypatch.setenv("STOKER_CACHE", str(BUILT))
    request.getfixturevalue("monitoring")
    [job] = [
        one for one in yaml.safe_load(printed(home).stdout)["scrape_configs"] if one["job_name"].endswith("workers")
    ]
    del job["http_sd_configs"]

    class Worker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(FORGED)

        def log_message(self, *_: object) -> None: ...

    with LocalServer(Worker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{server.server_address[1]}"
        job |= {"scrape_interval": "1s", "static_configs": [{"targets": [target], "labels": {"job_uid": "mine"}}]}
        try:
            with Prometheus(scrape=[job]) as prometheus:
                prometheus.until("my_loss")
                own = {"job": "stoker-workers", "instance": target, "job_uid": "mine"}
                found = prometheus.series('{job="stoker-workers",__name__!~"up|scrape_.*"}')
                more = {"project": "p", "job_name": "mine", "attempt": "1", "recipe": "x"}
                assert sorted(found, key=lambda one: one["__name__"]) == [
                    {"__name__": "my_loss", **own},
                    {"__name__": "stoker_train_loss", **more, **own},
                ]
        finally:
            server.shutdown()


def test_a_server_elsewhere_is_asked_over_tls(home: Path) -> None:
    done = printed(home, "--server", "https://stoker.example", "--token-file", "/etc/t", "--ca-file", "/etc/ca.pem")
    servers, workers = yaml.safe_load(done.stdout)["scrape_configs"]
    assert servers["scheme"] == "https" and servers["tls_config"] == {"ca_file": "/etc/ca.pem"}
    for job in (servers, workers):
        assert job["http_sd_configs"][0]["tls_config"] == {"ca_file": "/etc/ca.pem"}
        assert job["http_sd_configs"][0]["authorization"] == {"credentials_file": "/etc/t"}
    assert "tls_config" not in workers


def test_what_is_missing_is_named(home: Path, tmp_path: Path) -> None:
    elsewhere = printed(home, "--server", "https://stoker.example")
    assert elsewhere.returncode == 2 and "--token-file" in elsewhere.stderr
    (home / "scrape.token").unlink()
    assert "start `stoker up`" in printed(home).stderr
    assert printed(tmp_path).returncode == 3
