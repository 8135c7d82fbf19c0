"""`stoker prometheus-config`: the part of Prometheus' configuration that finds Stoker. Asks no server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from stoker.client.config import data_folder, find_server
from stoker.client.errors import BadInput

SCRAPER_FILE = "scrape.token"

_CONFIG = """\
# Stoker at {url}. Merge these jobs into prometheus.yml; what they find: docs/monitoring.md.
scrape_configs:
  - job_name: stoker # the api (on one machine with the operator's metrics) and the exporter
    scrape_interval: {interval}
{scheme}    authorization:
      credentials_file: {token}
{tls}    http_sd_configs:
      - url: {url}/v1/sd/prometheus?role=servers
        refresh_interval: 15s
        authorization:
          credentials_file: {token}
{sd_tls}
  - job_name: stoker-workers # trainers; no token is sent there, for users' code runs in workers
    scrape_interval: {interval}
    sample_limit: 20000
    body_size_limit: 16MB
    http_sd_configs:
      - url: {url}/v1/sd/prometheus?role=workers
        refresh_interval: 15s
        authorization:
          credentials_file: {token}
{sd_tls}    # Users' code runs there: of Stoker's series it has its training's; whose they are is the api's word.
    metric_relabel_configs:
      - {{source_labels: [__name__], regex: "(stoker[_:]|DCGM_|ALERTS).*", target_label: __tmp_ours, replacement: "1"}}
      - {{source_labels: [__name__], regex: "stoker_train_.*", target_label: __tmp_ours, replacement: ""}}
      - {{source_labels: [__tmp_ours], regex: "1", action: drop}}
      - {{regex: "exported_(project|job_name|job_uid|attempt|worker|queue)", action: labeldrop}}
"""


@click.command("prometheus-config")
@click.option("--server", metavar="URL", help="The server, if not the one of STOKER_SERVER or `stoker up`.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="Where Prometheus reads its token. [default: scrape.token in the data folder of `stoker up`]",
)
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path),
    help="Where Prometheus reads the certificates to trust. [default: the system's]",
)
@click.option("--interval", default="15s", show_default=True, metavar="DURATION", help="How often it scrapes.")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="The data folder. [STOKER_HOME, else ~/.stoker]"
)
@click.pass_context
def prometheus_config(
    ctx: click.Context,
    server: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    interval: str,
    data: Path | None,
) -> None:
    """Print what Prometheus needs to find the api, the exporter and running trainers by HTTP service discovery.

    On a cluster Prometheus' own Kubernetes discovery is the way: the chart brings monitors for it (docs/monitoring.md).
    """
    above = ctx.find_root().obj or {}
    folder = (data or data_folder()).expanduser().absolute()
    endpoint = find_server(server or above.get("server"), env={**os.environ, "STOKER_HOME": str(folder)})
    if token_file is None:
        token_file = folder / SCRAPER_FILE
        if not endpoint.local:
            raise BadInput(f"name the file with Prometheus' token for {endpoint.url} by --token-file")
        if not token_file.exists():
            raise BadInput(f"there is no {token_file}: start `stoker up` there, which makes it")
    secure = urlsplit(endpoint.url).scheme == "https"
    tls = f"tls_config:\n%s  ca_file: {_quoted(ca_file)}\n" if secure and ca_file else ""
    text = _CONFIG.format(
        url=endpoint.url,
        interval=interval,
        token=_quoted(token_file),
        scheme="    scheme: https\n" if secure else "",
        tls=tls and "    " + tls % "    ",
        sd_tls=tls and "        " + tls % "        ",
    )
    click.echo(text, nl=False)


def _quoted(path: Path) -> str:
    """As YAML has it."""
    return json.dumps(str(path.absolute()))
