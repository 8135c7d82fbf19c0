"""`stoker page`: a link that opens the web page in a browser, signed in as who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from .common import connected
from .names import complete_jobs

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.command()
@click.argument("job", metavar="[JOB]", required=False, shell_complete=complete_jobs)
@click.option("--open", "opens", is_flag=True, help="Open it in this machine's browser too.")
@connected
def page(calls: Calls, job: str | None, opens: bool) -> None:
    """Print a link that opens the web page, signed in with your token; JOB: at this job.

    The link is good once, for a minute.
    """
    view = f"/jobs/{quote(calls.project)}/{quote(calls.job(job)['metadata']['name'])}" if job is not None else "/"
    link = f"{calls.endpoint.url}{view}#ticket={calls.sign_in_ticket()}"
    click.echo(link)
    if opens:
        click.launch(link)
