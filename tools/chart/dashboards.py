"""Grafana's dashboards over the metrics that operator and api export. Pure. Called by `chart.__main__`.

A modest overview: what is queued, who leads, whether api and API server answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, COLUMNS = 8, 7, 3


@dataclass(frozen=True)
class Panel:
    title: str
    query: str
    legend: str
    unit: str = "short"
    stack: bool = False


OVERVIEW = (
    Panel("Jobs by phase", "sum by (phase) (max by (queue, phase) (stoker_queue_jobs))", "{{phase}}", stack=True),
    Panel("Jobs that wait, by queue", 'max by (queue) (stoker_queue_jobs{phase="Queued"})', "{{queue}}", stack=True),
    Panel("Attempts started", "sum(rate(stoker_operator_starts_total[5m]))", "starts", "ops"),
    Panel("Operators that lead", "sum(stoker_operator_leader)", "leaders"),
    Panel("Jobs to be reconciled", "sum(stoker_operator_queue_depth)", "waiting"),
    Panel("Reconciles that failed", "sum(rate(stoker_operator_reconcile_errors_total[5m]))", "errors", "ops"),
    Panel(
        "Requests to the API server",
        "sum by (verb) (rate(stoker_operator_api_requests_total[5m]))",
        "{{verb}}",
        "reqps",
        stack=True,
    ),
    Panel("Refused by the API server", "sum(rate(stoker_operator_api_refusals_total[5m]))", "refused", "reqps"),
    Panel("Objects in the caches", "max by (kind) (stoker_operator_cached_objects)", "{{kind}}"),
    Panel(
        "Api: requests by code",
        "sum by (code) (rate(stoker_api_request_seconds_count[5m]))",
        "{{code}}",
        "reqps",
        stack=True,
    ),
    Panel(
        "Api: 99 of 100 answers begin within",
        "histogram_quantile(0.99, sum by (le) (rate(stoker_api_request_seconds_bucket[5m])))",
        "p99",
        "s",
    ),
    Panel("Api: streams followed", "sum by (kind) (stoker_api_streams)", "{{kind}}", stack=True),
    Panel("Api: bytes of logs taken", "sum(rate(stoker_api_log_bytes_total[5m]))", "logs", "Bps"),
    Panel(
        "Api: progress reports",
        "sum by (outcome) (rate(stoker_api_progress_reports_total[5m]))",
        "{{outcome}}",
        "reqps",
    ),
)


def files() -> dict[str, str]:
    """File name → the dashboard's JSON."""
    return {"stoker-overview.json": json.dumps(_dashboard("stoker-overview", "Stoker", OVERVIEW), indent=1) + "\n"}


def _dashboard(uid: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    return {
        "uid": uid,
        "title": title,
        "tags": ["stoker"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stack else {}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "targets": [{"refId": "A", "datasource": SOURCE, "expr": panel.query, "legendFormat": panel.legend}],
    }
