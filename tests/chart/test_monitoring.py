"""Alerts and dashboards speak of metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart import rendering
from stoker.controller.metrics import OperatorMetrics, Reading
from stoker_api.metrics import ApiMetrics, QueueCounts

from .matrix import MATRIX, MONITORING
from .once import objects

RULES = yaml.safe_load((rendering.CHART / "files" / "rules" / "stoker.yaml").read_text())
DASHBOARDS = sorted((rendering.CHART / "files" / "dashboards").glob("*.json"))
SERIES = re.compile(r"\b(stoker_[a-z_]+)(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")


def _labels() -> dict[str, set[str]]:
    """Every series that operator and api export → its labels."""
    reading = Reading(
        leader=True, reconcile_errors=0, queue_depth=0, queue_delayed=0, scheduling_passes=0, starts=0,
        events_dropped=0, unreadable_jobs=0, api_window=0, api_refusals=0, calls={"kube.get Pod": 1},
        objects={"Pod": 1},
    )  # fmt: skip
    api = ApiMetrics([QueueCounts(lambda: {("default", "Queued"): 1}, dict)])
    api.observe("/readyz", "GET", 200, 0.1)
    for metric, label in ((api.streams, "k"), (api.reports, "o"), (api.log_posts, "o")):
        metric.labels(label)
    families = [*OperatorMetrics(lambda: reading).collect(), *api.registry.collect()]
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def _queries() -> Iterator[tuple[str, str]]:
    for group in RULES:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]


@pytest.mark.parametrize(("name", "query"), list(_queries()), ids=[name for name, _ in _queries()])
def test_queries_name_series_and_labels_that_there_are(name: str, query: str) -> None:
    labels = _labels()
    found = SERIES.findall(query)
    assert found
    for series, selector in found:
        assert series in labels, f"{name}: nothing exports {series}"
        asked = {part.split("=")[0].rstrip("!").strip() for part in selector.split(",") if part}
        assert asked <= labels[series], f"{name}: {series} has no {asked - labels[series]}"
    grouped = {label.strip() for group in BY.findall(query) for label in group.split(",")}
    assert grouped <= set().union(*(labels[series] for series, _ in found))


def test_every_alert_says_what_and_why() -> None:
    alerts = [rule for group in RULES for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")


def test_alerts_reach_the_cluster_as_they_are_written() -> None:
    """Prometheus' own {{ $value }} is none of helm's."""
    [rule] = [one for one in objects({"monitoring": MONITORING}) if one["kind"] == "PrometheusRule"]
    assert rule["spec"]["groups"] == RULES


def test_dashboards_reach_the_cluster_as_they_are_written() -> None:
    [found] = [
        one
        for one in objects({"monitoring": MONITORING})
        if one["kind"] == "ConfigMap" and "dashboard" in one["metadata"]["name"]
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {path.name: path.read_text() for path in DASHBOARDS}


def test_prometheus_shows_its_own_token_to_the_api_and_may_read() -> None:
    found = objects(MATRIX["monitored"])
    [monitor] = [one for one in found if one["kind"] == "ServiceMonitor"]
    assert monitor["spec"]["endpoints"][0]["bearerTokenFile"].endswith("serviceaccount/token")
    [binding] = [
        one
        for one in found
        if one["kind"] == "ClusterRoleBinding" and any(subject["name"] == "prometheus" for subject in one["subjects"])
    ]
    [role] = [
        one for one in found if one["kind"] == "ClusterRole" and one["metadata"]["name"] == binding["roleRef"]["name"]
    ]
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


def test_over_tls_prometheus_knows_the_authority_and_the_name() -> None:
    values: dict[str, Any] = MATRIX["monitored over tls"]
    [monitor] = [one for one in objects(values) if one["kind"] == "ServiceMonitor"]
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https" and "bearerTokenFile" not in endpoint
    assert endpoint["authorization"]["credentials"] == {"name": "scraper", "key": "token"}
    assert endpoint["tlsConfig"]["ca"]["configMap"] == {"name": "corporate", "key": "ca.crt"}
    assert endpoint["tlsConfig"]["serverName"] == "stoker-api.stoker-system.svc"
