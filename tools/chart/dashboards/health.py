"""Stoker itself: who leads, whether it keeps up, whether api, API server and exporters answer. A part of `cluster`."""

from __future__ import annotations

from .model import BAD_ABOVE_ZERO, NOTHING, Column, Query, Row, series, stat, table
from .queries import eq, happened, most, of, rate, total

ALERTS = of("ALERTS", eq("alertstate", "firing"), 'alertname=~"Stoker.*"')


def _p95(histogram: str) -> str:
    return f"histogram_quantile(0.95, sum by (le) ({rate(f'{histogram}_bucket')}))"


_ALERTS = (
    table(
        "Alerts",
        "What fires of Stoker's rules. Each has a runbook page.",
        {"alertname": "Alert", "severity": "Severity", "node": "Node", "project": "Project", "job_name": "Job"},
        Column("Series", f"count by (alertname, severity, node, project, job_name) ({ALERTS})", "none"),
        sort="Series",
    ),
)

_OPERATOR = (
    stat(
        "Operators that lead",
        "One, always. None: nothing is scheduled. Two: two installations on one cluster.",
        "none",
        Query(f"sum({of('stoker_operator_leader')})"),
        base="red",
        steps=((1, "green"), (2, "red")),
        width=4,
    ),
    stat(
        "Jobs that can't be read",
        "They got past validation; their status says what is wrong.",
        "none",
        Query(f"max({of('stoker_operator_unreadable_jobs')})"),
        steps=BAD_ABOVE_ZERO,
        width=4,
    ),
    stat(
        "Oldest news",
        "How long ago the slowest of the operator's watches heard of the store.",
        "s",
        Query(f"max({of('stoker_operator_watch_stale_seconds')})"),
        steps=((60, "orange"), (300, "red")),
        width=4,
    ),
    stat(
        "Startable, not started",
        "How long the oldest job has waited that the scheduler would start. 0: everything that fits runs.",
        "s",
        Query(f"max({of('stoker_queue_startable_seconds')})"),
        steps=((60, "orange"), (300, "red")),
        width=4,
    ),
    stat(
        "Fullest disk",
        "Of the api's folders.",
        "percentunit",
        Query(f"max({of('stoker_api_disk_used_ratio')})"),
        steps=((0.8, "orange"), (0.9, "red")),
        width=4,
    ),
    stat(
        "Exporters' oldest poll",
        "How long ago the slowest node read every GPU.",
        "s",
        Query(f"max(time() - {most(('cluster', 'node'), 'stoker_exporter_last_success_timestamp_seconds')})"),
        steps=((30, "orange"), (120, "red")),
        width=4,
    ),
    series(
        "Jobs by phase",
        "All jobs that there are.",
        "short",
        Query(total(("phase",), most(("cluster", "queue", "phase"), "stoker_queue_jobs")), "{{phase}}"),
        stack=True,
    ),
    series(
        "Attempts started",
        "Per minute.",
        "short",
        Query(f"60 * sum({rate('stoker_operator_starts_total')})", "starts"),
    ),
    series(
        "Jobs to be reconciled",
        "The operator's work queue. It falls behind if this stays high.",
        "short",
        Query(f"sum({of('stoker_operator_queue_depth')})", "waiting"),
    ),
    series(
        "Reconciles that failed",
        "Per minute, for unexpected reasons; the operator's log names the jobs.",
        "short",
        Query(f"60 * sum({rate('stoker_operator_reconcile_errors_total')})", "errors"),
    ),
    series(
        "Requests to the API server",
        "Per second, by verb.",
        "reqps",
        Query(f"sum by (verb) ({rate('stoker_operator_api_requests_total')})", "{{verb}}"),
        stack=True,
        none=NOTHING,
    ),
    series(
        "Refused by the API server",
        "Answers of too many requests, or none, per second.",
        "reqps",
        Query(f"sum({rate('stoker_operator_api_refusals_total')})", "refused"),
        none=NOTHING,
    ),
    series(
        "A pass of the scheduler, a reconcile",
        "95 of 100 take no longer.",
        "s",
        Query(_p95("stoker_operator_pass_seconds"), "pass"),
        Query(_p95("stoker_operator_reconcile_seconds"), "reconcile"),
    ),
    series(
        "Decisions",
        "Reasons that jobs were given; per step of the graph, by code.",
        "short",
        Query(happened(("code",), "stoker_operator_decisions_total"), "{{code}}"),
        bars=True,
        stack=True,
    ),
    series(
        "Objects in the caches",
        "By kind.",
        "short",
        Query(f"max by (kind) ({of('stoker_operator_cached_objects')})", "{{kind}}"),
    ),
)

_API = (
    series(
        "Api: requests by code",
        "Per second.",
        "reqps",
        Query(f"sum by (code) ({rate('stoker_api_request_seconds_count')})", "{{code}}"),
        stack=True,
    ),
    series(
        "Api: time to the answer's start",
        "99 of 100 answers begin within.",
        "s",
        Query(f"histogram_quantile(0.99, sum by (le) ({rate('stoker_api_request_seconds_bucket')}))", "p99"),
    ),
    series(
        "Api: streams followed",
        "Logs and events that somebody watches.",
        "short",
        Query(f"sum by (kind) ({of('stoker_api_streams')})", "{{kind}}"),
        stack=True,
        none=NOTHING,
    ),
    series(
        "Api: bytes of logs taken",
        "From workers, per second.",
        "Bps",
        Query(f"sum({rate('stoker_api_log_bytes_total')})", "logs"),
    ),
    series(
        "Api: progress reports",
        "From workers, per second, by what became of them.",
        "reqps",
        Query(f"sum by (outcome) ({rate('stoker_api_progress_reports_total')})", "{{outcome}}"),
    ),
    series(
        "Exporters: a poll",
        "How long reading every GPU of a node takes.",
        "s",
        Query(most(("cluster", "node"), "stoker_exporter_collect_seconds"), "{{node}}"),
    ),
)

HEALTH = (Row("Alerts", _ALERTS), Row("Stoker: operator", _OPERATOR), Row("Stoker: api and exporters", _API))
