"""Server, Prometheus, driver and watch together: one run of the story. Everything is gone when the context ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.cli.client import Client
from tests.support.harness import Server, running, until
from tests.support.nvml_scenario import Scenario
from tests.support.testbed.monitoring import Prometheus

from .drive import Driver
from .story import GIB, GPUS, MIG_GPU, PRICE, QUEUES, USERS, Job, jobs
from .watch import Watch

ROOT = Path(__file__).resolve().parents[2]
RULES = ("recording", "stoker", "gpus", "jobs")


@dataclass
class Run:
    server: Server
    prometheus: Prometheus
    driver: Driver
    watch: Watch
    scrape_s: float
    begin: float = 0.0
    """Unix seconds: everything is up and told of."""
    end: float = 0.0
    uids: dict[str, str] | None = None


def scenario(folder: Path) -> Scenario:
    """Eight GPUs at rest, the last one in two MIG devices. Raises: NoCompiler."""
    folder.mkdir()
    made = Scenario(folder)
    for number in range(GPUS):
        gpu = made.add_gpu(margin=54)
        if number == MIG_GPU:
            gpu.first["watts"] = 260.0
            gpu.first["temp"] = 45.0
            gpu.first["sm"], gpu.first["used"] = 21.0, 46.0 * GIB
            gpu.add_mig(slices=3, memory=71 * GIB, used=40 * GIB, sm=44)
            gpu.add_mig(slices=2, memory=35 * GIB, used=6 * GIB, sm=7)
    return made.write()


def scrape_configs(server: Server, scrape_s: float) -> list[dict[str, Any]]:
    """As `stoker prometheus-config` prints them; only the pauses are shorter."""
    env = {**os.environ, "STOKER_HOME": str(server.data)}
    every = f"{int(scrape_s * 1000)}ms"
    command = [sys.executable, "-m", "stoker.cli.main", "prometheus-config", "--interval", every]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    found: list[dict[str, Any]] = yaml.safe_load(printed)["scrape_configs"]
    for one in found:
        one["scrape_timeout"] = every
        one["http_sd_configs"][0]["refresh_interval"] = "1s"
    return found


def rules() -> list[Path]:
    return [ROOT / "helm" / "stoker" / "files" / "rules" / f"{name}.yaml" for name in RULES]


@contextlib.contextmanager
def prepared(folder: Path, length_s: float, scrape_s: float = 2.0) -> Iterator[Run]:
    """All up, nothing submitted. Raises: NoCompiler, Unavailable."""
    driven = scenario(folder / "nvml")
    options = ["--cpus", "16", "--memory", "16Gi", "--gpu-price", f"h200={PRICE}"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(folder / "data", *options, env=driven.env()))
        scrape = scrape_configs(server, scrape_s)
        prometheus = stack.enter_context(Prometheus(scrape=scrape, rules=rules(), interval_s=scrape_s))
        with server.client() as client:
            for name, spec in QUEUES.items():
                client.put_queue(name, spec)
        by_name = {job.name: job for job in jobs(length_s)}
        run = Run(server, prometheus, Driver(driven, server, by_name, length_s), Watch(server), scrape_s)
        prometheus.until(f"count(stoker_gpu_up) == {GPUS} and on () stoker_operator_leader == 1", 60)
        yield run


def play(run: Run, length_s: float, say: Any = print) -> None:
    """The story; returns when it is over, with what still runs running. Fills in `begin` and `end`."""
    run.driver.start()
    run.watch.start()
    run.begin = time.time()
    clients = {user: _client(run.server, user, project) for user, project in USERS.items()}
    try:
        todo = sorted(((job.begin, "submit", job) for job in run.driver.jobs.values()), key=lambda one: one[0])
        for share, _, job in todo:
            _wait(run, run.begin + share * length_s)
            clients[job.user].submit({"queue": job.queue, **job.spec}, name=job.name)
            say(f"{time.time() - run.begin:6.1f} s: {job.user} submits {job.name} to {job.queue}")
        _wait(run, run.begin + length_s)
        run.end = time.time() - 2 * run.scrape_s  # what was true then has been scraped
        run.uids = {name: job.uid for name, job in run.watch.newest().items()}
    finally:
        for client in clients.values():
            client.close()
    run.watch.stop()
    run.driver.stop()


def _wait(run: Run, moment: float) -> None:
    while (left := moment - time.time()) > 0:
        for thread in (run.driver, run.watch):
            if thread.failed is not None:
                raise thread.failed
        time.sleep(min(1.0, left))


def _client(server: Server, user: str, project: str) -> Client:
    command = ["token", "create", user, "--project", project, "--data", str(server.data)]
    env = {**os.environ, "STOKER_HOME": str(server.data)}
    made = subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    token = made.stdout.split()[-1]
    client = Client(server.url, token, project=project)
    until(lambda: client.whoami(), "the token to be known", 30)
    return client


__all__ = ["Job", "Run", "play", "prepared", "rules", "scrape_configs"]
