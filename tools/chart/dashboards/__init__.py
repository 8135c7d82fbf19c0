"""Grafana's dashboards over Stoker's metrics: four, as the JSON that Grafana imports. Pure. Called by `chart.__main__`.

    model     panels, columns, variables, dashboards: plain data
    queries   the PromQL that panels are made of: selectors, joins that survive restarts and second replicas
    grafana   from the model to Grafana's JSON
    cluster, gpu, job, queue: one dashboard each; health: Stoker itself, a part of `cluster`;
    gpu_holders: which GPUs, and whose, a part of `gpu`; gpu_queries: what both ask

Only panel types that Grafana publishes as components: timeseries, stat, bargauge, table.
"""

from __future__ import annotations

from tools.generate import json_text

from . import cluster, gpu, grafana, job, queue
from .model import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (cluster.DASHBOARD, gpu.DASHBOARD, job.DASHBOARD, queue.DASHBOARD)


def files() -> dict[str, str]:
    """File name → the dashboard's JSON."""
    return {f"{one.uid}.json": json_text.text(grafana.dashboard(one, DASHBOARDS)) + "\n" for one in DASHBOARDS}
