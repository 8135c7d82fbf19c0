"""A real Prometheus and a real Alertmanager on loopback, with the configuration a test gives them.

Owns the processes, their ports, their folder (temporary; data survive `stop` and `start`, not `close`) and the
questions put to them over HTTP, each with a time-out. Knows nothing of Stoker's metrics. Never builds: `make testbed
GROUP=monitoring` does. `testbed.webhook` receives what Alertmanager sends. Called by tests and proofs.

    with Prometheus(scrape=[{"job_name": "node", "static_configs": [{"targets": ["127.0.0.1:8475"]}]}]) as prometheus:
        prometheus.until("up == 1")
        assert prometheus.value("sum(up)") == 1
"""

from __future__ import annotations

import http.client
import json
import shutil
import tempfile
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.testbed import build
from tests.support.testbed.arguments import LOOPBACK
from tests.support.testbed.control_plane import free_ports
from tests.support.testbed.errors import BedError
from tests.support.testbed.guard import Guard
from tests.support.testbed.parts import Part, kill_all, make_bed, until
from tests.support.testbed.shell import run

READY_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 20.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels (with `__name__`), and (unix seconds, value) in order."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The newest."""
        return self.points[-1][1]


class _Server:
    """A program of the bed with an HTTP port of its own: started, stopped, killed, asked."""

    name = ""
    _reload_path = "/-/reload"
    _host = LOOPBACK

    def __init__(self) -> None:
        program = build.program(self.name)  # before anything is made: raises Unavailable
        self.folder = Path(tempfile.mkdtemp(prefix=f"stoker-{self.name}-"))
        make_bed(self.folder)
        self._guard = Guard(self.folder)
        self.port = free_ports(1)[0]
        self.url = f"http://{self._host}:{self.port}"
        self.config_file = self.folder / "config.json"  # JSON is YAML
        self.part = Part(self.folder, self.name, [str(program), *self._arguments()])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Starts it, with the data it had, and waits until it is ready. Raises: BedError with the end of its log."""
        self.part.start()
        self.part.until(self._is_ready, f"{self.name} to be ready", READY_TIMEOUT_S)

    def stop(self) -> None:
        """SIGTERM, and waits for the end. Data stay."""
        self.part.stop()

    def kill(self) -> None:
        """SIGKILL: the crash. Data stay."""
        self.part.kill()

    def close(self) -> None:
        """Ends the process and removes its folder. May be called twice."""
        if self.folder.exists():
            kill_all(self.folder)
            self.part.reap()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._guard.release()

    def reload(self) -> None:
        """Reads the configuration again. Raises: BedError with the server's reason where it is bad."""
        self.ask(self._reload_path, method="POST")

    def ask(
        self, path: str, params: Mapping[str, str | Sequence[str]] | None = None, *, method: str = "GET", body: str = ""
    ) -> str:
        """The answer's text. Raises: BedError where there is none in 20 s, or its status is not 2xx."""
        target = f"{path}?{urllib.parse.urlencode(params, doseq=True)}" if params else path
        connection = http.client.HTTPConnection(self._host, self.port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request(method, target, body=body or None, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise BedError(f"{self.name} did not answer {target}: {error!r}\n{self.part.tail()}") from None
        finally:
            connection.close()
        if answer.status // 100 != 2:
            raise BedError(f"{self.name} answered {answer.status} to {target}: {text[:2000]}")
        return text

    def _arguments(self) -> list[str]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        try:
            self.ask("/-/ready")
        except BedError:
            return False
        return True


class Prometheus(_Server):
    """One Prometheus with a fresh database.

    scrape: `scrape_configs`. rules: files (YAML) of rules. alertmanagers: urls to send alerts to.
    interval_s: how often is scraped and rules are evaluated.
    remote_write: whether `/api/v1/write` takes samples. out_of_order: how late they may come, as Prometheus writes it.
    more: further top-level configuration; args: further flags, such as `--query.lookback-delta=15s`.
    host: an address of this machine to listen on.
    """

    name = "prometheus"

    def __init__(
        self,
        *,
        scrape: Sequence[Mapping[str, Any]] = (),
        rules: Sequence[Path] = (),
        alertmanagers: Sequence[str] = (),
        interval_s: float = 1.0,
        remote_write: bool = True,
        out_of_order: str = "",
        more: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        host: str = LOOPBACK,
    ) -> None:
        self._remote_write, self._args, self._host = remote_write, tuple(args), host
        super().__init__()
        every = f"{int(interval_s * 1000)}ms"
        config: dict[str, Any] = {
            "global": {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every},
            "scrape_configs": list(scrape),
            "rule_files": [str(path) for path in rules],
        }
        if alertmanagers:
            hosts = [url.partition("://")[2] for url in alertmanagers]
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": hosts}]}]}
        if out_of_order:
            config["storage"] = {"tsdb": {"out_of_order_time_window": out_of_order}}
        self.config: dict[str, Any] = {**config, **(more or {})}
        self._write_config()

    @property
    def write_url(self) -> str:
        """Where remote-write goes."""
        return f"{self.url}/api/v1/write"

    def configure(self, **changes: Any) -> None:
        """Replaces top-level keys of the configuration (`scrape_configs=[…]`) and reloads."""
        self.config.update(changes)
        self._write_config()
        self.reload()

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """An instant query, at a unix time or now; a scalar is one series without labels."""
        params = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        data = self._data("/api/v1/query", params)
        if data["resultType"] in ("scalar", "string"):
            return [Series({}, (_point(data["result"]),))]
        if data["resultType"] == "matrix":
            return _matrix(data["result"])
        return [Series(one["metric"], (_point(one["value"]),)) for one in data["result"]]

    def value(self, expression: str, at: float | None = None) -> float:
        """Of a query with exactly one answer. Raises: BedError where there are none or several."""
        found = self.query(expression, at)
        if len(found) != 1:
            raise BedError(f"{expression} has {len(found)} answers, not one: {[one.labels for one in found][:10]}")
        return found[0].value

    def range(self, expression: str, start: float, end: float, step_s: float) -> list[Series]:
        """A range query from `start` to `end`, unix seconds."""
        params = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"}
        return _matrix(self._data("/api/v1/query_range", params)["result"])

    def samples(self, selector: str, start: float, end: float) -> list[Series]:
        """The raw samples as they are stored, those at `start` and `end` included."""
        # The range is open at its left end.
        return self.query(f"{selector}[{int((end - start) * 1000) + 1}ms]", end)

    def series(self, *selectors: str, start: float | None = None, end: float | None = None) -> list[dict[str, str]]:
        """The labels of the series that match."""
        params: dict[str, str | Sequence[str]] = {"match[]": selectors}
        if start is not None and end is not None:
            params |= {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        found: list[dict[str, str]] = self._data("/api/v1/series", params)
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Active targets as Prometheus lists them: labels, scrapeUrl, health (up, down, unknown), lastError, …"""
        found: list[dict[str, Any]] = self._data("/api/v1/targets", {"state": "active"})["activeTargets"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing alerts: labels, annotations, state, activeAt, value."""
        found: list[dict[str, Any]] = self._data("/api/v1/alerts")["alerts"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All rules of all groups, with health and lastError."""
        return [rule for group in self._data("/api/v1/rules")["groups"] for rule in group["rules"]]

    def until(self, expression: str, timeout_s: float = 30.0) -> list[Series]:
        """The first non-empty answer. Raises: BedError with what is known of the targets when the time is over."""
        return self.until_true(lambda: self.query(expression), expression, timeout_s)

    def until_true(self, check: Callable[[], T | None], what: str, timeout_s: float = 30.0) -> T:
        """The first true answer of `check`, which may ask this server. Raises: BedError, as `until`."""
        try:
            return until(check, what, timeout_s, every_s=0.1)
        except BedError as error:
            reported = [f"{one['scrapeUrl']} {one['health']} {one['lastError']}" for one in self.targets()]
            raise BedError("\n".join([str(error), *reported, self.part.tail()])) from None

    def _data(self, path: str, params: Mapping[str, str | Sequence[str]] | None = None) -> Any:
        return json.loads(self.ask(path, params))["data"]

    def _write_config(self) -> None:
        self.config_file.write_text(json.dumps(self.config))

    def _arguments(self) -> list[str]:
        return [
            f"--config.file={self.config_file}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            "--storage.tsdb.retention.time=10y",  # tests write at times of their own
            f"--web.listen-address={self._host}:{self.port}",
            "--web.enable-lifecycle",
            "--rules.alert.resend-delay=1s",
            *(["--web.enable-remote-write-receiver"] if self._remote_write else []),
            *self._args,
        ]


class Alertmanager(_Server):
    """One Alertmanager that sends everything to the webhook at once, unless another `config` is given."""

    name = "alertmanager"

    def __init__(self, *, webhook: str = "", config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        hooks = [{"url": webhook, "send_resolved": True}] if webhook else []
        route = {"receiver": "tests", "group_by": ["..."], "group_wait": "100ms", "group_interval": "1s"}
        default = {
            "route": {**route, "repeat_interval": "1h"},
            "receivers": [{"name": "tests", "webhook_configs": hooks}],
        }
        self.config = dict(config) if config is not None else default
        self.config_file.write_text(json.dumps(self.config))

    def alerts(self, *matchers: str) -> list[dict[str, Any]]:
        """Alerts it holds: labels, annotations, startsAt, endsAt, status. `matchers`: such as `alertname="Down"`."""
        found: list[dict[str, Any]] = json.loads(self.ask("/api/v2/alerts", {"filter": matchers}))
        return found

    def _arguments(self) -> list[str]:
        return [
            f"--config.file={self.config_file}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
            "--cluster.listen-address=",  # alone: no gossip
        ]


def check_config(program: str, *arguments: str, timeout_s: float = 60.0) -> str:
    """What `promtool` or `amtool` says to these arguments. Raises: BedError where it fails; Unavailable."""
    return run(str(build.program(program)), *arguments, timeout_s=timeout_s)


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _matrix(result: Sequence[Mapping[str, Any]]) -> list[Series]:
    return [Series(one["metric"], tuple(_point(pair) for pair in one["values"])) for one in result]


__all__ = ["Alertmanager", "Prometheus", "Series", "check_config"]
