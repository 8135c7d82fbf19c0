"""`stoker up`: options only; `stoker.cli.up` does the work and is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stoker.client.config import data_folder
from stoker.client.errors import BadInput
from stoker.push import flags


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="State is kept here. [STOKER_HOME, else ~/.stoker]"
)
@click.option(
    "--new-store", is_flag=True, help="Start over in a data folder whose stoker.db is lost: its jobs are forgotten."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="Port to listen on; 0: a free one."
)
@click.option("--virtual-gpus", type=click.IntRange(0, 64), default=0, help="Offer N simulated GPUs besides real ones.")
@click.option("--cpus", metavar="CORES", help="Cores that jobs may share. [default: all]")
@click.option("--memory", metavar="QUANTITY", help="Memory that jobs may share, for example 16Gi. [default: most]")
@click.option(
    "--log-bytes",
    type=click.IntRange(1),
    default=1 << 30,
    show_default=True,
    help="The most that one worker's log may hold; past it, its newest MiB is kept too.",
)
@click.option(
    "--keep-results",
    metavar="DURATION",
    default="30d",
    show_default=True,
    help="How long what a job saved (output, checkpoints) stays once the job is deleted; `forever`: for ever.",
)
@click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME[,NAME...]",
    help="Variables of yours that every job gets, as they are now: proxies, certificates, HF_HOME. Repeatable.",
)
@click.option(
    "--idle-after",
    metavar="DURATION",
    default="30m",
    show_default=True,
    help="A running job whose GPUs are all idle for so long is idle, unless it says otherwise (spec.idle).",
)
@click.option(
    "--idle-action",
    type=click.Choice(["Notify", "Suspend", "None"]),
    default="Notify",
    show_default=True,
    help="What follows: an event on the job, that and suspend, or nothing.",
)
@click.option(
    "--usage-half-life",
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="What a queue held so long ago counts half in the order between queues; 0s: only what it holds now counts.",
)
@click.option(
    "--gpu-type",
    "gpu_types",
    multiple=True,
    metavar="MODEL=TYPE",
    help="What queues call GPUs with these words in their model's name, for example 'rtx 4090=rtx4090'. Repeatable.",
)
@click.option(
    "--sick-gpu",
    "sick_gpu",
    multiple=True,
    metavar="CAUSE=MOVE",
    help="When a job whose GPU is sick for that is saved and moved: now, checkpoint or stay. Repeatable.",
)
@click.option(
    "--burn-in/--no-burn-in",
    default=True,
    show_default=True,
    help="Test a sick GPU, once what was wrong is over, before it takes jobs again (docs/gpu-health.md).",
)
@click.option(
    "--burn-in-seconds",
    type=click.FloatRange(0, 3600),
    default=10.0,
    show_default=True,
    help="How long such a test multiplies matrices.",
)
@click.option(
    "--allow-host", "allow_hosts", multiple=True, metavar="NAME", help="A Host name to answer to. Repeatable."
)
@click.option(
    "--exporter/--no-exporter",
    default=True,
    help="Measure GPUs, and which job uses them (docs/monitoring.md). [default: where there are any]",
)
@click.option(
    "--gpu-price",
    "gpu_prices",
    multiple=True,
    metavar="MODEL=PRICE",
    help="What an hour of a GPU costs whose model has MODEL in its name ('*': any). Repeatable.",
)
@click.option("--currency", default="EUR", show_default=True, help="Of the prices: three letters.")
@click.option("--grafana", default="", metavar="URL", help="The Grafana with the dashboards: the web page links to it.")
@click.option(
    "--background", is_flag=True, help="Leave it running, with its output in up.log of the data folder, and return."
)
@click.pass_context
def up(ctx: click.Context, /, background: bool, **given: Any) -> None:
    """Run Stoker on this machine until Ctrl-C: API, operator and node agent in one process.

    Jobs live in processes of their own: they outlast a stop or crash of the server, and the next `stoker up` finds
    them again.
    """
    if background:
        from stoker.cli.background import detach

        if (code := detach(given["data"] or data_folder())) is not None:
            ctx.exit(code)
    try:
        from stoker.cli.up import run_up
        from stoker.cli.up_options import UpOptions
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in {"stoker", "stoker_api", "stoker_worker"}:
            raise
        missing = f"`stoker up` needs {error.name}, which is not installed"
        raise BadInput(f"{missing}: pip install '.[up]' in Stoker's folder, or its wheel with [up]") from None
    push = flags.push_options(given)
    ctx.exit(run_up(UpOptions(**given, push=push)))


up.params += flags.params()
