"""Stoker itself: who leads, whether it keeps up, whether api, API server and exporters answer. A part of `cluster`."""

from __future__ import annotations

from .model import BAD_ABOVE_ZERO, NOTHING, Column, Query, Row, series, stat, table
from .queries import eq, happened, most, none_is_zero, of, rate, total

_LEADERS = total(("cluster",), of("stoker_operator_leader"))
ALERTS = of("ALERTS", eq("alertstate", "firing"), 'alertname=~"Stoker.*"')


def _p99(histogram: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) ({rate(f'{histogram}_bucket')}))"


_EACH = ("severity", "alertname", "node", "gpu", "project", "job_name")
_CRITICAL = of("ALERTS", eq("alertstate", "firing"), 'alertname=~"Stoker.*"', eq("severity", "critical"))
_ALERTS = (
    table(
        "Alerts",
        "Firing alerts of Stoker's rules, critical ones first. Each has a runbook.",
        {
            "severity": "Severity",
            "alertname": "Alert",
            "node": "Node",
            "gpu": "GPU",
            "project": "Project",
            "job_name": "Job",
        },
        Column("Pages", none_is_zero(total(_EACH, _CRITICAL), total(_EACH, ALERTS)), "none"),
        colors={"Severity": {"critical": "red", "warning": "orange"}},
        sort="Pages",
    ),
)

_OPERATOR = (
    stat(
        "Leading operators",
        "Must be 1. 0: nothing is scheduled. 2: two installations on one cluster. Of several clusters, one where it is "
        "not 1.",
        "none",
        Query(f"max({_LEADERS} != 1) or min({_LEADERS})"),
        base="red",
        steps=((1, "green"), (2, "red")),
        width=4,
    ),
    stat(
        "Unreadable jobs",
        "Jobs that passed validation but can't be parsed; their status says why.",
        "none",
        Query(f"max({of('stoker_operator_unreadable_jobs')})"),
        steps=BAD_ABOVE_ZERO,
        width=4,
    ),
    stat(
        "Watch staleness",
        "Time since the slowest of the operator's watches received anything.",
        "s",
        Query(f"max({of('stoker_operator_watch_stale_seconds')})"),
        steps=((60, "orange"), (300, "red")),
        width=4,
    ),
    stat(
        "Startable, not started",
        "How long the oldest job has waited that the scheduler would start now. 0: everything that fits runs.",
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
        "Oldest exporter poll",
        "Time since the slowest node last read every GPU.",
        "s",
        Query(f"max(time() - {most(('cluster', 'node'), 'stoker_exporter_last_success_timestamp_seconds')})"),
        steps=((30, "orange"), (120, "red")),
        width=4,
    ),
    series(
        "Jobs by phase",
        "All jobs.",
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
        "Reconcile queue",
        "Depth of the operator's work queue. If it stays high, the operator falls behind.",
        "short",
        Query(f"sum({of('stoker_operator_queue_depth')})", "waiting"),
    ),
    series(
        "Reconcile errors",
        "Unexpected errors per minute; the operator's log names the jobs.",
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
        "API server refusals",
        "Requests answered with 429 or not at all, per second.",
        "reqps",
        Query(f"sum({rate('stoker_operator_api_refusals_total')})", "refused"),
        none=NOTHING,
    ),
    series(
        "Scheduling pass and reconcile, p99",
        "99 % take no longer.",
        "s",
        Query(_p99("stoker_operator_pass_seconds"), "pass"),
        Query(_p99("stoker_operator_reconcile_seconds"), "reconcile"),
    ),
    series(
        "Decisions",
        "Reasons given to jobs per graph step, by code.",
        "short",
        Query(happened(("code",), "stoker_operator_decisions_total"), "{{code}}"),
        bars=True,
        stack=True,
    ),
    series(
        "Cached objects",
        "By kind.",
        "short",
        Query(f"max by (kind) ({of('stoker_operator_cached_objects')})", "{{kind}}"),
    ),
)

_API = (
    series(
        "Api: requests by status",
        "Per second.",
        "reqps",
        Query(f"sum by (code) ({rate('stoker_api_request_seconds_count')})", "{{code}}"),
        stack=True,
    ),
    series(
        "Api: time to first byte, p99",
        "99 % of the responses start within this time.",
        "s",
        Query(f"histogram_quantile(0.99, sum by (le) ({rate('stoker_api_request_seconds_bucket')}))", "p99"),
    ),
    series(
        "Api: open streams",
        "Open log and event streams.",
        "short",
        Query(f"sum by (kind) ({of('stoker_api_streams')})", "{{kind}}"),
        stack=True,
        none=NOTHING,
    ),
    series(
        "Api: log bytes received",
        "From workers, per second.",
        "Bps",
        Query(f"sum({rate('stoker_api_log_bytes_total')})", "logs"),
    ),
    series(
        "Api: progress reports",
        "From workers, per second, by outcome.",
        "reqps",
        Query(f"sum by (outcome) ({rate('stoker_api_progress_reports_total')})", "{{outcome}}"),
    ),
    series(
        "Exporters: poll time",
        "Time to read every GPU of a node.",
        "s",
        Query(most(("cluster", "node"), "stoker_exporter_collect_seconds"), "{{node}}"),
    ),
)

HEALTH = (
    Row("Alerts", _ALERTS),
    Row("Stoker: operator", _OPERATOR, folded=True),
    Row("Stoker: api and exporters", _API, folded=True),
)
