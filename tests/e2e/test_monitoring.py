"""`stoker up` under a fake NVIDIA driver, with a real Prometheus: exporter, targets, series, receipts, usage.

And all of it again after a kill -9 of the exporter and of the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.client.client import Client
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.usage import JobUsage, UsageState
from tests.support.harness import Server, running, until
from tests.support.nvml_scenario import NoCompiler, Scenario
from tests.support.testbed.monitoring import Prometheus
from tools.verify.alert_stages import scrape_configs

pytestmark = pytest.mark.slow

WATTS = (300.0, 90.0)
# Serves metrics on the port that is its own, until the file that it is given is there.
COMMAND = """
import http.server, os, pathlib, sys, threading, time
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'my_own_loss{job_name="%s"} 0.25\\n' % os.environ['STOKER_JOB'].encode()
        self.send_response(200); self.send_header('Content-Type', 'text/plain; version=0.0.4')
        self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
where = (os.environ['STOKER_METRICS_HOST'], int(os.environ['STOKER_METRICS_PORT']))
threading.Thread(target=http.server.HTTPServer(where, Metrics).serve_forever, daemon=True).start()
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """Two GPUs of known power: 300 W at 80 % busy, 90 W idle."""
    scenario = Scenario(tmp_path_factory.mktemp("nvml"))
    scenario.add_gpu(watts=WATTS[0], busy=80, sm=60, used=20 << 30)
    scenario.add_gpu(watts=WATTS[1])
    try:
        scenario.write()
    except NoCompiler as error:
        pytest.skip(str(error))
    return scenario


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, driver: Scenario) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("up") / "data", env=driver.env()) as found:
        yield found


def config(server: Server) -> dict[str, Any]:
    """As a person would get it, scraping every half second."""
    return {"scrape": scrape_configs(server, 0.5)}


def submit(client: Client, name: str, until_there: Path) -> TrainingJob:
    command = {"trainer": {"command": [sys.executable, "-c", COMMAND, str(until_there)], "workingDir": "/"}}
    job = client.submit({**command, "gpusPerWorker": 1, "cpu": "100m", "memory": "64Mi"}, name=name)
    client.wait(name, [Phase.RUNNING], 60)
    return job


def final_usage(client: Client, name: str) -> tuple[TrainingJob, JobUsage]:
    """Of a job that is about to end."""

    def check() -> tuple[TrainingJob, JobUsage] | None:
        job = client.get(name)
        usage = job.status.usage
        return (job, usage) if job.status.phase in ENDED and usage and usage.state is UsageState.FINAL else None

    return until(check, f"the last receipts of {name}", 60)


def ran_s(job: TrainingJob) -> float:
    return sum((one.ended_at - one.started_at).total_seconds() for one in job.status.attempts if one.ended_at)


def test_prometheus_finds_everything_and_receipts_say_the_same(
    server: Server, tmp_path: Path, monitoring: None
) -> None:
    with server.client() as client, Prometheus(**config(server)) as prometheus:
        job = submit(client, "one", tmp_path / "enough")
        for name in ("stoker-api", "stoker-exporter", "stoker-workers"):
            prometheus.until(f'up{{job="{name}"}} == 1')
        assert {target["labels"]["job"] for target in prometheus.targets()} == {
            "stoker-api",
            "stoker-exporter",
            "stoker-workers",
        }
        # What hardware does, for which job, and the names by a join with what the operator reports.
        assert prometheus.value('stoker_gpu_power_watts{gpu="0"}') == WATTS[0]
        assert prometheus.value('stoker_gpu_power_watts{gpu="1",instance="local"}') == WATTS[1]
        busy = "rate(stoker_job_gpu_busy_seconds_total[5s]) * on (job_uid) group_left (job_name, queue) stoker_job_info"
        (found,) = prometheus.until(f"{busy} > 0.7")
        assert (found.labels["job_name"], found.labels["queue"]) == ("one", "default")
        assert found.labels["job_uid"] == job.uid
        share = "stoker_gpu_allocation_share_ratio * on (pod_uid) group_left (job_name) stoker_job_pod_info"
        assert [one.value for one in prometheus.until(share)] == [1.0]
        # The script's own metrics, with the job's labels and without a token having been sent there.
        own = prometheus.until("my_own_loss")[0]
        assert own.value == 0.25
        assert {name: own.labels[name] for name in ("job_name", "project", "job_uid", "worker", "queue")} == {
            "job_name": "one",
            "project": "default",
            "job_uid": job.uid,
            "worker": "0",
            "queue": "default",
        }
        (tmp_path / "enough").touch()
        ended, usage = final_usage(client, "one")
        assert usage.gpu_seconds == pytest.approx(ran_s(ended), abs=2.5)  # two polls, and the worker's own start
        assert usage.energy_joules == pytest.approx(WATTS[0] * usage.gpu_seconds, rel=0.01, abs=2 * WATTS[0])
        assert usage.busy_seconds == pytest.approx(0.8 * usage.gpu_seconds, rel=0.01, abs=2)
        assert usage.unobserved_seconds < 2.5 and not usage.simulated
        # The counters stay for a while, and their last value is the receipt's.
        mine = f'{{job_uid="{job.uid}"}}'
        # status.usage is rounded
        prometheus.until(f"abs(sum(stoker_job_gpu_allocated_seconds_total{mine}) - {usage.gpu_seconds}) < 0.1")
        joules = prometheus.value(f"sum(stoker_job_gpu_energy_joules_total{mine})")
        assert joules == pytest.approx(usage.energy_joules, abs=0.1)
        until(lambda: not prometheus.query("my_own_loss"), "the worker's series to end with it", 30)


def test_metrics_and_targets_are_for_those_who_have_a_token(server: Server) -> None:
    token = (server.data / "scrape.token").read_text().strip()
    assert (server.data / "scrape.token").stat().st_mode & 0o777 == 0o600
    until(lambda: server.exporters(), "the exporter", 30)

    def status(url: str, bearer: str = "") -> int:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    found = until(lambda: targets(server.url, token)[1:], "the exporter among the targets", 30)
    exporter = f"http://{found[0]['targets'][0]}/metrics"
    until(lambda: status(exporter, token) == 200, "the exporter's metrics", 30)
    assert status(exporter) == status(exporter, "guess") == 401
    assert status(f"{server.url}/metrics") == status(f"{server.url}/v1/sd/prometheus?role=workers") == 401
    assert status(f"{server.url}/metrics", token) == 200


def test_killed_exporter_and_killed_server_come_back_and_every_second_is_accounted_for(
    server: Server, tmp_path: Path, monitoring: None
) -> None:
    with Prometheus(**config(server)) as prometheus:
        with server.client() as client:
            job = submit(client, "two", tmp_path / "enough")
        mine = f'{{job_uid="{job.uid}"}}'
        allocated = f"stoker_job_gpu_allocated_seconds_total{mine}"
        prometheus.until(f"{allocated} > 2")
        (exporter,) = server.exporters()
        os.kill(exporter, signal.SIGKILL)
        until(lambda: server.exporters() not in ([], [exporter]), "another exporter", 60)
        lost = prometheus.until(f"stoker_job_gpu_unobserved_seconds_total{mine} > 0")[0].value
        (exporter,) = server.exporters()
        server.kill()
        until(lambda: not server.exporters(), "the exporter's end with its server", 30)
        assert [worker.job for worker in server.workers() if worker.rank is not None] == ["two"]
        server.start()
        until(lambda: server.exporters(), "another exporter", 60)
        prometheus.until(f"stoker_job_gpu_unobserved_seconds_total{mine} > {lost}")
        assert prometheus.value(f"resets({allocated}[1h])") == 0
        assert prometheus.value(f"max(resets(stoker_job_gpu_energy_joules_total{mine}[1h]))") == 0
        (tmp_path / "enough").touch()
        with server.client() as client:
            ended, usage = final_usage(client, "two")
        assert usage.gpu_seconds == pytest.approx(ran_s(ended), abs=2.5)
        assert 0 < usage.unobserved_seconds < usage.gpu_seconds
        seen, unseen = (f"sum(stoker_job_gpu_{name}_joules_total{mine})" for name in ("energy", "unobserved_energy"))
        joules = WATTS[0] * usage.gpu_seconds
        prometheus.until(f"abs(sum({allocated}) - {usage.gpu_seconds}) < 0.1")  # status.usage is rounded
        assert prometheus.value(seen) == pytest.approx(joules, rel=0.01, abs=2 * WATTS[0])
        assert 0 < prometheus.value(unseen) < joules, "part of it: the job alone held the GPU"
        server.stop()
        assert server.exporters() == []


def test_an_exporter_that_did_not_end_with_its_server_is_ended_by_the_next(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--virtual-gpus", "1") as server:
        (first,) = until(lambda: server.exporters(), "the exporter", 30)
        argv = Path(f"/proc/{first}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        server.kill()
        until(lambda: server.exporters() == [], "its end with its server", 30)
        # One that did not end, as if it hung; and the server was killed before it had written anything down.
        left = subprocess.Popen(argv, cwd=server.data / "exporter", start_new_session=True)
        old = left.pid
        until(lambda: server.exporters() == [old], "the one that is left", 30)
        os.kill(old, signal.SIGSTOP)
        server.start()
        until(lambda: server.exporters() not in ([], [old]) and old not in server.exporters(), "another exporter", 60)
        left.wait(10)


def test_pushed_by_one_option_prometheus_has_the_same(driver: Scenario, tmp_path: Path, monitoring: None) -> None:
    """Nothing is scraped: api, operator, exporter and trainers, with the labels that scraping gives them."""
    with ExitStack() as stack:
        prometheus = stack.enter_context(Prometheus())
        options = ("--push-url", prometheus.write_url, "--push-every", "1s", "--push-label", "cluster=lab")
        server = stack.enter_context(running(tmp_path / "data", *options, env=driver.env()))
        client = stack.enter_context(server.client())
        job = submit(client, "one", tmp_path / "enough")
        own = prometheus.until("my_own_loss")[0]
        whose = {"job": "stoker-workers", "project": "default", "job_name": "one", "job_uid": job.uid, "cluster": "lab"}
        assert own.value == 0.25 and whose.items() <= own.labels.items()
        share = "stoker_gpu_allocation_share_ratio * on (pod_uid) group_left (job_name) stoker_job_pod_info"
        assert [one.value for one in prometheus.until(share)] == [1.0]
        assert prometheus.value('stoker_gpu_power_watts{gpu="0"}') == WATTS[0]
        up = {one.labels["job"]: one.value for one in prometheus.query("up")}
        assert up == {"stoker-api": 1, "stoker-exporter": 1, "stoker-workers": 1}
        assert prometheus.value('sum(stoker_push_samples_total{outcome!="sent"})') == 0
        (tmp_path / "enough").touch()
        until(lambda: not prometheus.query("my_own_loss"), "the worker's series to end with it", 30)
        assert prometheus.targets() == []
        server.stop()
        until(lambda: not prometheus.query("up"), "all series to end with the server", 30)


def targets(url: str, token: str, role: str = "servers") -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{url}/v1/sd/prometheus?role={role}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        found: list[dict[str, Any]] = yaml.safe_load(answer.read())
    return found


@pytest.mark.parametrize("options", [["--virtual-gpus", "2", "--no-exporter"], []], ids=["not wanted", "no GPU"])
def test_no_exporter_runs_where_it_has_nothing_to_do(tmp_path: Path, options: list[str]) -> None:
    with running(tmp_path / "data", *options) as server:
        token = (server.data / "scrape.token").read_text().strip()
        assert [target["labels"] for target in targets(server.url, token)] == [{"job": "stoker-api"}]
        assert server.exporters() == [] and not (server.data / "exporter").exists()


def test_a_simulated_gpu_is_accounted_and_reported_as_none(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--virtual-gpus", "1") as server, server.client() as client:
        job = submit(client, "one", tmp_path / "enough")
        ledger = server.data / "exporter" / "ledger.json"
        # The exporter looks once a second, from when it has started: a job that is over by then it never saw.
        until(lambda: ledger.exists() and job.uid.encode() in ledger.read_bytes(), "the exporter to see the job", 60)
        (tmp_path / "enough").touch()
        ended, usage = final_usage(client, "one")
        assert usage.simulated and usage.energy_joules is None and usage.busy_seconds is None
        assert usage.gpu_seconds <= ran_s(ended) + 2.5
