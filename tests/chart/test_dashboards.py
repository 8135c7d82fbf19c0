"""Dashboards as they are shipped: what they ask exists, what they show can be read, where they lead is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from tests.support import promql
from tests.support.dashboard_queries import panels
from tools.chart import rendering
from tools.chart.dashboards import files
from tools.generate import metrics_table

from . import sample_cluster as sample
from .matrix import MONITORING
from .once import objects

FOLDER = rendering.CHART / "files" / "dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
DRAWN = {"timeseries", "stat", "bargauge", "table", "state-timeline"}
"""Kinds of panel that Grafana publishes as components."""
RATES = {"rate", "increase"}
RARE = {
    "stoker_gangs_withdrawn_total",
    "stoker_attempts_ended_total",
    "stoker_operator_decisions_total",
    "stoker_preempted_gpus_total",
    "stoker_preempted_gpu_seconds_lost_total",
}
LABELS = {
    **metrics_table.labels_by_name(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "node", "gpu", "project", "job_name"}),
}
COUNTERS = {name for name in LABELS if name.endswith(("_total", "_bucket", "_count", "_sum"))}
LINK = re.compile(r"/d/([a-z-]+)")


def _panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return list(panels(dashboard))


def _queries() -> Iterator[tuple[str, str, bool]]:
    """(whose, the query, whether it makes annotations), variables' selectors too."""
    for uid, dashboard in DASHBOARDS.items():
        for panel in _panels(dashboard):
            for target in panel["targets"]:
                yield f"{uid}: {panel['title']} {target['refId']}", target["expr"], False
        for one in dashboard["annotations"]["list"]:
            yield f"{uid}: {one['name']}", one["expr"], True


def _variables(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, selector, label) of those that ask Prometheus."""
    for one in dashboard["templating"]["list"]:
        if one["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", one["definition"])
            assert found and one["query"]["query"] == one["definition"]
            yield one["name"], found[1], found[2]


QUERIES = list(_queries())
EACH_QUERY = pytest.mark.parametrize(("whose", "query", "annotates"), QUERIES, ids=[whose for whose, *_ in QUERIES])
EACH = pytest.mark.parametrize("uid", list(DASHBOARDS))


def test_there_are_the_four() -> None:
    assert set(DASHBOARDS) == {"stoker-cluster", "stoker-gpu", "stoker-job", "stoker-queue"}
    assert files() == {path.name: path.read_text() for path in FOLDER.iterdir()}, "python -m tools.chart"


@EACH
def test_structure(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    assert dashboard["uid"] == uid and dashboard["title"] and dashboard["description"] and "id" not in dashboard
    assert "__inputs" not in dashboard and not dashboard["editable"]
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    every = [*(row for row in dashboard["panels"] if row["type"] == "row"), *_panels(dashboard)]
    ids = [panel["id"] for panel in every]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in _panels(dashboard)]
    assert len(set(titles)) == len(titles)
    cells = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in every)
    ]
    assert all(x < 24 for place in cells for x, _ in place)
    assert not any(one & other for one, other in combinations(cells, 2))


@EACH
def test_every_panel_says_what_it_shows_and_in_which_unit(uid: str) -> None:
    for panel in _panels(DASHBOARDS[uid]):
        assert panel["type"] in DRAWN, panel["title"]
        assert panel["title"][0].isupper() and panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs)
        if panel["type"] == "table":
            rename = panel["transformations"][1]["options"]["renameByName"]
            values = ["Value"] if len(refs) == 1 else [f"Value #{ref}" for ref in refs]
            for value in values:
                overrides = [
                    one for one in panel["fieldConfig"]["overrides"] if one["matcher"]["options"] == rename[value]
                ]
                assert [part["id"] for one in overrides for part in one["properties"]].count("unit") == 1
        else:
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            instant = panel["type"] not in ("timeseries", "state-timeline")
            assert all(target["instant"] is instant and target["range"] is not instant for target in panel["targets"])


@EACH
def test_names_are_shown_and_never_uuids(uid: str) -> None:
    for panel in _panels(DASHBOARDS[uid]):
        for target in panel["targets"]:
            assert "uid" not in target["legendFormat"], panel["title"]
            several = re.search(r"^(sum|max|avg|count|topk|min)[^(]*\bby\b", target["expr"])
            if panel["type"] == "timeseries" and several:
                assert "{{" in target["legendFormat"], f"{panel['title']}: which is which?"
        if panel["type"] == "table":
            organize = panel["transformations"][1]["options"]
            labels = set().union(*(promql.grouped(target["expr"]) for target in panel["targets"]))
            shown = set(organize["renameByName"]) & labels
            assert shown and not any("uid" in label for label in shown)


@EACH_QUERY
def test_queries_speak_of_series_and_labels_that_there_are(whose: str, query: str, annotates: bool) -> None:
    found = promql.uses(query)
    assert found
    for one in found:
        assert one.name in LABELS, f"{whose}: nothing exports {one.name}"
        assert "cluster" in one.labels, f"{whose}: {one.name} of every cluster"
        missing = one.labels - {"cluster"} - LABELS[one.name]
        assert not missing, f"{whose}: {one.name} has no {missing}"
    known = {"cluster", "instance"}.union(*(LABELS[one.name] for one in found))
    assert promql.grouped(query) <= known, f"{whose}: none has {promql.grouped(query) - known}"


@EACH_QUERY
def test_counters_are_read_as_counters(whose: str, query: str, annotates: bool) -> None:
    """A job's counters begin at 0 and outlive the exporter: their highest is the job's total. Of rare things the first
    rise counts too, though it makes the series: they are compared with themselves a while ago."""
    ago = " offset 1m" if annotates else " offset $__interval"
    for one in promql.uses(query):
        if one.name in COUNTERS:
            total = one.function == "max_over_time" and one.name.startswith("stoker_job_gpu_")
            news = one.name in RARE and ago in query
            assert one.function in RATES or total or news, f"{whose}: {one.name} under {one.function or 'nothing'}"
        else:
            assert one.function not in RATES, f"{whose}: {one.name} is no counter"


@EACH_QUERY
def test_no_range_is_written_down(whose: str, query: str, annotates: bool) -> None:
    if not annotates:
        assert set(re.findall(r"\[([^\]]+)\]", query)) <= {"$__rate_interval", "$__range"}


@EACH
def test_variables_ask_for_what_there_is_and_are_used(uid: str) -> None:
    dashboard, known = DASHBOARDS[uid], set[str]()
    for name, selector, label in _variables(dashboard):
        asked = promql.uses(selector)
        assert len(asked) == 1 and asked[0].labels | {label} <= LABELS[asked[0].name] | {"cluster"}
        assert promql.variables(selector) <= known, f"{name} asks for a variable that comes later"
        known.add(name)
    [cluster] = [one for one in dashboard["templating"]["list"] if one["name"] == "cluster"]
    assert cluster["allValue"] == ".*" and cluster["current"]["value"] == "$__all"
    asked_for = [query for whose, query, _ in QUERIES if whose.startswith(f"{uid}:")]
    selectors = [selector for _, selector, _ in _variables(dashboard)]
    assert set().union(*map(promql.variables, asked_for)) <= known
    assert known == set().union(*map(promql.variables, [*asked_for, *selectors]))


def test_links_lead_to_dashboards_and_variables_that_there_are() -> None:
    for dashboard in DASHBOARDS.values():
        tops = [link for link in dashboard["links"] if link["url"].startswith("/d/")]
        assert {link["url"] for link in tops} == {f"/d/{uid}" for uid in DASHBOARDS if uid != dashboard["uid"]}
        assert all(link["includeVars"] and link["keepTime"] for link in tops)
        for url in re.findall(r'"url": "(/d/[^"]+\?[^"]*)"', json.dumps(dashboard)):
            target = LINK.search(url)
            assert target and "__url_time_range" in url
            variables = {one["name"] for one in DASHBOARDS[target[1]]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", url)) <= variables
            assert set(re.findall(r"\$\{(\w+):queryparam\}", url)) <= variables


def test_cells_lead_by_headings_that_the_table_has() -> None:
    for dashboard in DASHBOARDS.values():
        for panel in (one for one in _panels(dashboard) if one["type"] == "table"):
            headings = set(panel["transformations"][1]["options"]["renameByName"].values())
            assert set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel))) <= headings, panel["title"]


def test_each_reaches_the_cluster_in_a_config_map_of_its_own() -> None:
    found = [
        one
        for one in objects({"monitoring": MONITORING})
        if one["kind"] == "ConfigMap" and "-dashboard-" in one["metadata"]["name"]
    ]
    assert len(found) == len(DASHBOARDS) == len({one["metadata"]["name"] for one in found})
    for one in found:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Stoker"}
        [(name, text)] = one["data"].items()
        assert text == (rendering.CHART / "files" / "dashboards" / name).read_text()
        assert len(json.dumps(one).encode()) < 2**20


def test_the_made_up_cluster_shows_nothing_that_stoker_does_not() -> None:
    """What dashboards are drawn and tried over; labels of scraping (pod, instance) come on top."""
    for name, labels in sample.story(0.0, 3600.0).series:
        assert name in LABELS, name
        assert {label for label, _ in labels} - {"pod", "instance"} <= LABELS[name], name
