"""What of a submitted job looks like an oversight, in a line each: several GPUs for one process, no GPU where some are.

Owns the sentences. Never refuses: both can be meant. Called by `stoker run` and `Client.run`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stoker.spec.job import TrainingJob

from .errors import StokerError

if TYPE_CHECKING:
    from .client import Client

_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_STARTS_PROCESSES = ("torch.distributed.", "accelerate.", "deepspeed", "ray")
_WITH_ARGUMENT = ("-m", "-c", "-W", "-X")


def remarks(client: Client, job: TrainingJob, *, gpus_named: bool) -> list[str]:
    """`gpus_named`: how many GPUs it has was said, zero perhaps."""
    found = []
    gpus = job.spec.gpus_per_worker
    if gpus > 1 and _one_process(job.spec.trainer.command or ()):
        found.append(
            f"{gpus} GPUs and one process: python computes on one of them unless the script says otherwise; "
            "a process on each: torchrun train.py"
        )
    if not gpus and not gpus_named and (there := _gpus_there(client)):
        found.append(f"it has no GPU, though the server has {there}: --gpus 1 (or --gpus 0, if none is meant)")
    return found


def _one_process(command: tuple[str, ...]) -> bool:
    """It is plain Python, neither torchrun nor a module that starts processes."""
    if not command or not _PYTHON.fullmatch(command[0].rpartition("/")[2]):
        return False
    options = list(command[1:])
    while options and options[0].startswith("-") and options[0] not in _WITH_ARGUMENT:
        options.pop(0)
    return not (options[:1] == ["-m"] and options[1:2] and options[1].startswith(_STARTS_PROCESSES))


def _gpus_there(client: Client) -> int:
    """0 also where the server does not say."""
    try:
        return sum(len(node.status.gpus) for node in client.nodes())
    except StokerError:
        return 0
