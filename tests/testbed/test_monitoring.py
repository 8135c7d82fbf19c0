"""Real Prometheus and Alertmanager as tests use them: scraped, asked, stopped and started, alerts sent to a webhook."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.testbed.errors import BedError
from tests.support.testbed.monitoring import Alertmanager, Prometheus
from tests.support.testbed.webhook import Webhook

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("monitoring")]

SELF = {"job_name": "itself", "static_configs": [{"targets": ["127.0.0.1:1"], "labels": {"kind": "closed"}}]}


def rules(folder: Path, *, threshold: int) -> Path:
    file = folder / "rules.json"
    alert = {"alert": "Closed", "expr": f'up{{kind="closed"}} < {threshold}', "labels": {"severity": "page"}}
    file.write_text(json.dumps({"groups": [{"name": "tests", "rules": [alert]}]}))
    return file


def test_what_is_scraped_can_be_asked_for_and_outlives_a_stop() -> None:
    with Prometheus(scrape=[SELF]) as prometheus:
        begin = time.time()
        own = [{"targets": [prometheus.url.partition("://")[2]]}]
        prometheus.configure(scrape_configs=[{"job_name": "itself", "static_configs": own}])
        found = prometheus.until("prometheus_build_info")
        assert found[0].value == 1 and found[0].labels["job"] == "itself"
        assert [target["health"] for target in prometheus.targets()] == ["up"]
        assert prometheus.value('up{job="itself"}') == 1
        assert prometheus.value("1 + 1") == 2
        assert {"__name__": "up", "job": "itself", "instance": own[0]["targets"][0]} in prometheus.series("up")
        written = prometheus.samples('up{job="itself"}', begin, time.time())[0].points
        assert written and all(value == 1 and begin <= at for at, value in written)
        prometheus.stop()
        with pytest.raises(BedError, match="did not answer"):
            prometheus.query("up")
        prometheus.start()
        kept = prometheus.samples('up{job="itself"}', begin, written[-1][0])[0].points
        assert kept[: len(written)] == written
        with pytest.raises(BedError, match="has 0 answers, not one"):
            prometheus.value("nothing_of_this_name")
        with pytest.raises(BedError, match="parse error"):
            prometheus.query("sum(")


def test_an_alert_is_reported_when_it_fires_and_when_it_is_over(tmp_path: Path) -> None:
    with (
        Webhook() as hook,
        Alertmanager(webhook=hook.url) as alertmanager,
        Prometheus(
            scrape=[SELF], rules=[rules(tmp_path, threshold=1)], alertmanagers=[alertmanager.url], interval_s=0.5
        ) as prometheus,
    ):
        assert hook.until_alert("Closed")["labels"]["severity"] == "page"
        assert [alert["state"] for alert in prometheus.alerts()] == ["firing"]
        assert [rule["health"] for rule in prometheus.rules()] == ["ok"]
        assert alertmanager.alerts('alertname="Closed"')[0]["labels"]["kind"] == "closed"
        assert alertmanager.alerts('alertname="Other"') == []
        rules(tmp_path, threshold=0)
        prometheus.reload()
        assert hook.until_alert("Closed", "resolved")["labels"]["kind"] == "closed"


def test_a_bad_configuration_is_reported() -> None:
    with Prometheus() as prometheus, pytest.raises(BedError, match="field not_a_key not found"):
        prometheus.configure(not_a_key=1)


def test_nothing_is_left_behind() -> None:
    with Prometheus() as prometheus:
        folder, pid = prometheus.folder, prometheus.part.pid
        assert folder.exists() and pid
    assert not folder.exists() and not Path(f"/proc/{pid}").exists()
