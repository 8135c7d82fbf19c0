"""Alerts on their whole way: the chart's rules in a real Prometheus, a real Alertmanager, a webhook.

Owns the compressed copy of the rules: waits and windows are shortened so that an hour passes in 40 s; thresholds that
are times likewise (`THRESHOLDS`). What is compared with what stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from tests.support.harness import Server
from tests.support.local_server import LocalServer
from tests.support.testbed.monitoring import Alertmanager, Prometheus
from tests.support.testbed.webhook import Webhook

ROOT = Path(__file__).resolve().parents[2]
RULES = ("recording", "stoker", "gpus", "jobs")
FASTER = 90
SHORTEST_S = 6
FOR = "2s"
THRESHOLDS = {
    "stoker_gpu_idle_seconds) > 1800": "stoker_gpu_idle_seconds) > 8",
    "stoker_job_idle_seconds) > 1800": "stoker_job_idle_seconds) > 8",
    ") < 1800": ") < 20",
    ") < 3600": ") < 40",
    "[40s], 7200": "[40s], 80",
    "> 240": "> 5",
    "startable_seconds) > 300": "startable_seconds) > 5",
}
_WINDOW = re.compile(r"(?<=\[|\s)(\d+)([mh])(?=\]|\s|$)", re.MULTILINE)
_FOR = re.compile(r"^(\s+for: )(?!0m)\S+$", re.MULTILINE)


def rules() -> list[Path]:
    return [ROOT / "helm" / "stoker" / "files" / "rules" / f"{name}.yaml" for name in RULES]


def scrape_configs(server: Server, scrape_s: float) -> list[dict[str, Any]]:
    """As `stoker prometheus-config` prints them; only the pauses are shorter."""
    env = {**os.environ, "STOKER_HOME": str(server.data)}
    every = f"{int(scrape_s * 1000)}ms"
    command = [sys.executable, "-m", "stoker.cli.main", "prometheus-config", "--interval", every]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    found: list[dict[str, Any]] = yaml.safe_load(printed)["scrape_configs"]
    for one in found:
        one["scrape_timeout"] = every
        one["http_sd_configs"][0]["refresh_interval"] = every
    return found


def compressed(folder: Path) -> list[Path]:
    """The rules' copy in which an hour is 40 s."""
    found = []
    for path in rules():
        text = _WINDOW.sub(_shorter, _FOR.sub(rf"\g<1>{FOR}", path.read_text()))
        for long, short in THRESHOLDS.items():
            text = text.replace(long, short)
        found.append(folder / path.name)
        found[-1].write_text(text)
    return found


def _shorter(window: re.Match[str]) -> str:
    seconds = int(window[1]) * {"m": 60, "h": 3600}[window[2]]
    return f"{max(SHORTEST_S, seconds // FASTER)}s"


@dataclass
class Case:
    """One alert, what makes it fire and what ends it."""

    alert: str
    cause: str
    begin: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    real: bool = True
    """False: the cause is a series that we serve, not Stoker."""
    fired_s: float = -1.0
    resolved_s: float = -1.0


@dataclass
class Served:
    """A target whose page a case writes: for what can't be caused here."""

    lines: dict[str, float] = field(default_factory=dict)
    rising: dict[str, float] = field(default_factory=dict)
    """Series → by how much it rises at each scrape."""
    port: int = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[Served]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                for name, by in list(served.rising.items()):
                    served.lines[name] = served.lines.get(name, 0.0) + by
                body = "".join(f"{name} {value}\n" for name, value in list(served.lines.items())).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        server = LocalServer(Handler)
        self.port = server.server_port
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def target(self) -> dict[str, object]:
        return {"job_name": "served", "static_configs": [{"targets": [f"127.0.0.1:{self.port}"]}]}

    def case(self, alert: str, wrong: dict[str, float], right: dict[str, float], rising: Sequence[str] = ()) -> Case:
        """wrong: the series' values while it fires; `rising` of them are counters."""
        self.lines |= right

        def begin() -> None:
            self.rising |= {name: wrong[name] for name in rising}
            self.lines |= {name: value for name, value in wrong.items() if name not in rising}

        def end() -> None:
            for name in rising:
                self.rising.pop(name, None)
            self.lines |= {name: value for name, value in right.items() if name not in rising}

        what = ", ".join(f"{name} {'+' if name in rising else '= '}{value:g}" for name, value in wrong.items())
        return Case(alert, what, begin, end, real=False)


@contextlib.contextmanager
def watching(folder: Path, scrape: Sequence[dict[str, object]]) -> Iterator[tuple[Prometheus, Webhook]]:
    with Webhook() as hook, Alertmanager(webhook=hook.url) as manager:
        scraped = {"scrape": scrape, "rules": compressed(folder), "interval_s": 1.0}
        with Prometheus(**scraped, alertmanagers=[manager.url]) as prometheus:  # type: ignore[arg-type]
            yield prometheus, hook


def stage(hook: Webhook, cases: Sequence[Case], say: Callable[[str], None], timeout_s: float = 90.0) -> None:
    """All causes at once; every alert has to come, and once the causes have ended, every one has to go."""
    seen = len(hook.alerts())
    for what, field_name in (("firing", "fired_s"), ("resolved", "resolved_s")):
        for case in cases:
            (case.begin if what == "firing" else case.end)()
        began = time.monotonic()
        left = list(cases)
        while left and time.monotonic() - began < timeout_s:
            come = {one["labels"]["alertname"] for one in hook.alerts()[seen:] if one["status"] == what}
            for case in [one for one in left if one.alert in come]:
                setattr(case, field_name, time.monotonic() - began)
                left.remove(case)
            time.sleep(0.1)
        late = ", ".join(case.alert for case in left)
        say(f"{what}: {len(cases) - len(left)} of {len(cases)}" + (f"; not: {late}" if late else ""))
