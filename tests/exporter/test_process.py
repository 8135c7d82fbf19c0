"""The exporter as people run it: real processes over the fake NVML."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stoker.exporter.clock import UJ
from stoker.exporter.meters.ledger import parse
from tests.support.exporter_process import Exporter, worker
from tests.support.harness import until

JOB = "1,job-a,vision,0"
ACCOUNTS = ("attributed", "unallocated", "unobserved")


@pytest.fixture
def gpu(scenario):
    gpu = scenario.add_gpu(watts=250, busy=80, sm=40, used=2 << 30)
    scenario.write()
    return gpu


@pytest.fixture
def options(tmp_path):
    (tmp_path / "workers").mkdir()
    state, workers = str(tmp_path / "state"), str(tmp_path / "workers")
    return ["--state", state, "--allocation", "workers", "--workers", workers]


def read_ledger(tmp_path):
    return parse((tmp_path / "state/ledger.json").read_bytes())


def test_a_job_from_its_begin_to_its_end(scenario, gpu, options, tmp_path):
    with Exporter(*options, env=scenario.env()) as exporter:
        lock = worker(tmp_path / "workers", "a", [gpu.uuid])
        until(lambda: (exporter.value("stoker_job_gpu_busy_seconds_total", JOB) or 0) > 1, "busy seconds")
        values = exporter.values()
        assert values["stoker_exporter_collect_success", ""] == 1
        share = [
            labels
            for (name, labels), value in values.items()
            if name == "stoker_gpu_allocation_share_ratio" and value == 1
        ]
        assert share == ["1,job-a,exclusive,a-1-0,vision,pod-a,0"]
        lock.close()
        until(lambda: not any(n == "stoker_gpu_allocation_share_ratio" for n, _ in exporter.values()), "the end")
        assert exporter.end() == 0
    ledger = read_ledger(tmp_path)
    (hold,) = ledger.holds
    assert hold.ended_ns is not None and hold.owner.job_uid == "job-a"
    joules = hold.energy_uj["exclusive"] / UJ
    seen_s = (hold.allocated_ns - hold.unobserved_ns) / 1e9
    assert joules == pytest.approx(250 * seen_s, rel=0.02, abs=50)  # a busy machine polls a fifth of a second late
    account = ledger.accounts[gpu.uuid]
    assert sum(account.energy_uj.values()) <= account.energy.counter_uj


def test_asked_to_end_many_times_at_any_moment_it_ends(options):
    """Signals that interrupt each other's handling."""
    for pause_s in (0.0, 0.05, 0.2):
        with Exporter("--simulated-gpus", "1", *options, env={}) as exporter:
            time.sleep(pause_s)
            for _ in range(200):
                if exporter.process.poll() is None:
                    exporter.process.send_signal(signal.SIGTERM)
            assert exporter.end() == 0


def test_connections_that_four_pods_hold_keep_no_probe_out(options):
    """They sent one request each and stay silent; without a token they are /healthz's and /metrics' alike."""
    with Exporter("--simulated-gpus", "1", *options, env={}) as exporter, ExitStack() as held:
        for number in range(64):
            source = (f"127.0.0.{2 + number % 4}", 0)
            one = held.enter_context(socket.create_connection(("127.0.0.1", exporter.port), 20, source))
            one.sendall(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"metrics" if number % 2 else b"healthz"))
            assert one.recv(12) == b"HTTP/1.1 200"
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", exporter.port), 20, (f"127.0.0.{n}", 0)))
            for n in (2, 3, 4, 5) * 16
        ]
        assert len(silent) == 64
        for _ in range(20):
            assert exporter.get("/healthz") == exporter.get("/readyz") == "ok\n"
        assert "stoker_exporter_build_info" in exporter.get("/metrics")


@pytest.mark.slow
def test_killed_and_started_again_no_counter_falls_and_nothing_is_lost(scenario, gpu, options, tmp_path):
    with worker(tmp_path / "workers", "a", [gpu.uuid]):
        shown, first = {}, None
        for _ in range(3):
            with Exporter(*options, env=scenario.env()) as exporter:
                seconds = shown.get(("stoker_job_gpu_allocated_seconds_total", JOB), 0.0)
                until(
                    lambda: (exporter.value("stoker_job_gpu_allocated_seconds_total", JOB) or 0) > seconds + 1,  # noqa: B023
                    "more seconds",
                )
                now = exporter.values()
                for key, value in shown.items():
                    if key[0].startswith(("stoker_job_gpu_", "stoker_gpu_account_")):
                        assert now[key] >= value, key
                shown = now
                exporter.end(signal.SIGKILL)
            first = first or read_ledger(tmp_path).accounts[gpu.uuid]
        with Exporter(*options, env=scenario.env()) as exporter:
            until(lambda: exporter.value("stoker_gpu_energy_joules_total"), "a poll")
            exporter.end()
    ledger = read_ledger(tmp_path)
    account = ledger.accounts[gpu.uuid]
    (hold,) = ledger.holds
    assert sum(account.time_ns.values()) / 1e9 == pytest.approx(ledger.written.at - account.begin_at, abs=2.0)
    # Of the time before the first look at the driver's counter no energy is known.
    seconds = (sum(account.time_ns.values()) - sum(first.time_ns.values())) / 1e9
    joules = (sum(account.energy_uj.values()) - sum(first.energy_uj.values())) / UJ
    assert joules == pytest.approx(250 * seconds, rel=0.01, abs=250)
    assert account.time_ns["unobserved"] > 0 and hold.unobserved_ns > 0
    assert hold.allocated_ns == hold.unobserved_ns + sum(hold.idle_ns.values()) + active_ns(hold)


def active_ns(hold):
    return hold.allocated_ns - hold.unobserved_ns - sum(hold.idle_ns.values())


def test_it_ends_while_the_driver_hangs(scenario, gpu, options):
    with Exporter(*options, "--stuck-after", "1s", env=scenario.env()) as exporter:
        until(lambda: exporter.value("stoker_gpu_power_watts"), "a poll")
        scenario.fault(call="*", gpu=0, begin=time.time(), do="hang")
        scenario.write()
        until(lambda: exporter.value("stoker_exporter_child_restarts_total", "stuck"), "a restart")
        assert exporter.get("/healthz") == "ok\n"
        assert exporter.end() == 0


def test_without_a_driver_it_says_so_and_is_ready(options, tmp_path):
    with Exporter(*options, env={"LD_LIBRARY_PATH": str(tmp_path)}) as exporter:
        until(lambda: "NVML can't be used" in "".join(exporter.said), "a word about it")
        until(lambda: exporter.get("/readyz") == "ok\n", "readiness")


def test_simulated_slots(tmp_path, options):
    with (
        worker(tmp_path / "workers", "a", ["SIM-0"], simulated=True),
        Exporter(*options, "--simulated-gpus", "2", env={}) as exporter,
    ):
        until(lambda: (exporter.value("stoker_job_gpu_allocated_seconds_total", JOB) or 0) > 0.5, "seconds")
        families = {family.name: family for family in text_string_to_metric_families(exporter.get("/metrics"))}
        info = families["stoker_gpu_info"].samples
        assert [(one.labels["uuid"], one.labels["simulated"]) for one in info] == [("SIM-0", "true"), ("SIM-1", "true")]
        assert "stoker_gpu_power_watts" not in families and exporter.child() is None
        values = exporter.values()
        allocated = values["stoker_job_gpu_allocated_seconds_total", JOB]
        assert values["stoker_job_gpu_unobserved_seconds_total", JOB] == allocated


def test_without_allocation_there_are_no_accounts(scenario, gpu):
    with Exporter(env=scenario.env()) as exporter:
        until(lambda: exporter.value("stoker_gpu_power_watts"), "a poll")
        names = {name for name, _ in exporter.values()}
        assert not {name for name in names if "account" in name or "alloc" in name}


def run(*args, **environment):
    return subprocess.run(
        [sys.executable, "-m", "stoker.exporter", *args],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("args", "environment", "says"),
    [
        (["--allocation", "workers"], {}, "--allocation workers needs --workers"),
        (["--interval", "1 fortnight"], {}, "write 1s, 500ms or 2m"),
        (["--interval", "10ms"], {}, "200ms to 1h"),
        (["--stuck-after", "1s"], {}, "at least twice --interval"),
        (["--tls-cert", "x"], {}, "both --tls-cert and --tls-key"),
        (["--no-collector", "core"], {}, "invalid choice: 'core'"),
        (["--push-label", "x"], {}, "write NAME=VALUE"),
        ([], {"STOKER_EXPORTER_PORT": "99999"}, "--port (from the environment)"),
        ([], {"STOKER_EXPORTER_NO_COLLECTOR": "gpm core"}, "'core' is not one of"),
        (["--port", "0", "--api-url", "api:8470"], {}, "--api-url"),
        (["--port", "0", "--push-url", "nowhere"], {}, "--push-"),
        (["--port", "0", "--auth-token-file", "/nonexistent"], {}, "--auth-token-file /nonexistent"),
        (["--port", "0", "--state", "/proc/nothing"], {}, "--state"),
    ],
)
def test_options_that_can_not_be_used(args, environment, says):
    done = run(*args, **environment)
    assert done.returncode in (1, 2) and says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1 and "choose another by --host and --port" in done.stderr


def test_help_names_every_option():
    text = run("--help").stdout
    for name in ("--state", "--allocation", "--no-collector", "--push-url", "--simulated-gpus", "--auth-token-file"):
        assert name in text


def test_the_parent_imports_neither_nvml_nor_what_it_does_not_need():
    args = "import sys, stoker.exporter.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", args], capture_output=True, text=True, timeout=60, check=True)
    modules = set(loaded.stdout.split())
    unwanted = {"pynvml", "pydantic", "httpx", "grpc", "click", "asyncio"}
    assert not unwanted & modules
    ours = {name for name in modules if re.match(r"stoker\.(?!exporter|heap$|nvml$|nvml.frames$)", name)}
    assert not ours, json.dumps(sorted(ours))
