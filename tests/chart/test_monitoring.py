"""Rules reach the cluster as they are written; monitors may read. What rules say is tests/rules' matter."""

from __future__ import annotations

import re
from typing import Any

import yaml

from stoker.cli.commands.prometheus import _CONFIG
from stoker.spec.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_QUEUE, LABEL_WORKER
from tools.chart import rendering, values

from .matrix import MATRIX, MONITORING
from .once import objects

RULES = {
    path.stem: yaml.load(path.read_text(), Loader=rendering.Loader)
    for path in (rendering.CHART / "files" / "rules").glob("*.yaml")
}


def _rendered(**rules: Any) -> dict[str, Any]:
    """File → what the cluster would get of it."""
    found = objects({"monitoring": MONITORING | {"rules": {"enabled": True, **rules}}})
    return {
        one["metadata"]["name"].removeprefix("stoker-"): one["spec"] for one in found if one["kind"] == "PrometheusRule"
    }


def test_rules_reach_the_cluster_as_they_are_written() -> None:
    """Prometheus' own {{ $value }} is none of helm's."""
    assert _rendered() == {name: rules for name, rules in RULES.items() if name != "dcgm"}


def test_groups_of_rules_can_be_left_out_and_dashboards_of_dcgm_served() -> None:
    assert _rendered(stoker=False, gpus=False, jobs=False) == {"recording": RULES["recording"]}
    assert _rendered(dcgm=True) == RULES


def test_alerts_lead_to_the_pages_that_are_named() -> None:
    for spec in _rendered(runbooks="https://wiki.example/stoker").values():
        for rule in (rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule):
            assert rule["annotations"]["runbook_url"] == f"https://wiki.example/stoker/{rule['alert']}.md"
    assert values.RUNBOOKS in (rendering.CHART / "templates" / "monitoring" / "rules.yaml").read_text()


def test_dashboards_show_costs_in_the_currency_of_the_prices() -> None:
    for currency in ("CHF", ""):
        found = objects({"monitoring": MONITORING | {"dashboards": {"enabled": True}}, "api": {"currency": currency}})
        boards = [text for one in found if "-dashboard-" in one["metadata"]["name"] for text in one["data"].values()]
        shown = {unit for text in boards for unit in re.findall(r'"(currency:[^"]*)"', text)}
        assert shown == {f"currency:{currency}"}


def test_which_xids_page_is_a_value() -> None:
    assert values.CRITICAL_XIDS in (rendering.CHART / "templates" / "monitoring" / "rules.yaml").read_text()
    groups = _rendered(criticalXids="79|119", applicationXids="31|94")["gpus"]["groups"]
    rules = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    assert 'xid=~"79|119"' in rules["StokerGpuXidCritical"] and 'xid=~"31|94"' in rules["StokerGpuXidApplication"]
    assert 'xid="94"' in rules["StokerGpuEccUncorrectable"]


def test_prometheus_shows_its_own_token_to_api_and_operators_and_may_read() -> None:
    found = objects(MATRIX["monitored"])
    monitors = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "ServiceMonitor"}
    assert set(monitors) == {"stoker-api", "stoker-operator"}
    assert all(spec["endpoints"][0]["bearerTokenFile"].endswith("token") for spec in monitors.values())
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
    monitors = {one["metadata"]["name"]: one["spec"] for one in objects(values) if one["kind"] == "ServiceMonitor"}
    [endpoint] = monitors["stoker-api"]["endpoints"]
    assert endpoint["scheme"] == "https" and "bearerTokenFile" not in endpoint
    assert endpoint["authorization"]["credentials"] == {"name": "scraper", "key": "token"}
    assert endpoint["tlsConfig"]["ca"]["configMap"] == {"name": "corporate", "key": "ca.crt"}
    assert endpoint["tlsConfig"]["serverName"] == "stoker-api.stoker-system.svc"


def test_what_workers_serve_is_taken_as_users_code() -> None:
    """The same rules as `stoker prometheus-config` prints, which a real Prometheus has shown (tests/cli)."""
    [monitor] = [
        one
        for one in objects({"monitoring": MONITORING})
        if one["kind"] == "PodMonitor" and one["metadata"]["name"].endswith("workers")
    ]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"]["sampleLimit"] == 20000 and "honorLabels" not in endpoint and "authorization" not in endpoint
    printed = yaml.safe_load(_CONFIG.partition("metric_relabel_configs:")[2].format())
    camel = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    relabelled = [{camel.get(key, key): value for key, value in one.items()} for one in endpoint["metricRelabelings"]]
    assert relabelled == printed
    names = (LABEL_JOB, LABEL_JOB_UID, LABEL_ATTEMPT, LABEL_WORKER, LABEL_QUEUE)
    assert {one["sourceLabels"][0] for one in endpoint["relabelings"]} == {
        "__meta_kubernetes_namespace",
        *("__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name) for name in names),
    }
