"""What a failed job's user can do: what the retry rules did and why, and a hint by the cause that its last line names.

Pure. The last line is the program's own text: it is searched, and of it only short names are repeated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from stoker.life.ending import retry_rule
from stoker.spec.job import TrainingJob
from stoker.spec.outcome import POLICIES, Category
from stoker.spec.reasons import HintCode, Reason

_MOST_TEXT = 1024


def failure_hints(job: TrainingJob) -> tuple[Reason, ...]:
    """The hints of a job that is Failed; empty: nothing is known of its last attempt."""
    last = job.status.attempts[-1] if job.status.attempts else None
    if last is None or last.category is None:
        return ()
    retried = Reason(code=HintCode.RETRIES, message=_retries(job, last.category))
    text = last.message[:_MOST_TEXT]
    hint = _left_out(job, text) or _of_text(job, text) or _of_category(job, last.category, text)
    return (retried, Reason(code=HintCode.CAUSE, message=hint)) if hint else (retried,)


def _retries(job: TrainingJob, category: Category) -> str:
    limit, _ = retry_rule(job, category)
    if limit:
        so_far = job.status.retries.get(category, 0)
        return f"the category is {category}: {so_far} of {limit} retries were made"
    if not POLICIES[category].raisable:
        return f"the category is {category}: it is never retried, as the same would happen again"
    return f"the category is {category}: not retried; a rule in spec.retry can change that"


def _of_category(job: TrainingJob, category: Category, text: str) -> str:
    if category is Category.KILLED and "out of memory: asked" not in text:
        return f"if memory ran out, ask for more than {job.memory}: --memory"
    if category is Category.OUT_OF_MEMORY:
        return _GPU_MEMORY
    return ""


_GPU_MEMORY = "take a smaller batch, or a GPU with more memory: spec.gpu.minMemory"


def _no_gpu(job: TrainingJob, _: str) -> str:
    if not job.spec.total_gpus:
        return "the job asks for no GPU: --gpus 1"
    return "the program finds no GPU: simulated ones are slots without a device, and an image needs a PyTorch with CUDA"


def _no_module(job: TrainingJob, name: str) -> str:
    where = (
        f"the image {job.spec.trainer.image}" if job.spec.trainer.image else "the environment of the command's Python"
    )
    return f"module {name} is not in {where}, nor in the code that was sent: install it there"


_MISSING = re.compile(r"FileNotFoundError|[Nn]o such file|[Nn]ot found|[Cc](?:annot|an't|ouldn't) (?:open|find)")


def _left_out(job: TrainingJob, text: str) -> str:
    """A path that the text misses and that stayed behind when the folder was sent; names are not trusted."""
    if not _MISSING.search(text):
        return ""
    start = f"/{job.spec.trainer.working_dir or ''}"
    for one in job.spec.trainer.left_out:
        if not (one.path.isprintable() and one.by.isprintable()):
            continue
        seen = (one.path.rstrip("/"), posixpath.relpath(f"/{one.path}", start))  # from the code, from the command
        if re.search(f"{_BEGINS}(?:{'|'.join(map(re.escape, seen))}){_ENDS}", text):
            return (
                f"{one.path} was left out by {one.by}: give it as data (--data NAME=./{one.path}, found at "
                "$STOKER_DATA_NAME), an absolute path, or ship nothing (--no-code)"
            )
    return ""


_BEGINS = r"(?:^|(?<![\w./-])|(?<!\.)\./|/code/)"
"""Of a path within the code: nothing before it, or the folder of the worker's copy."""
_ENDS = r"(?![\w.-])"


def _no_file(job: TrainingJob, path: str) -> str:
    if path.startswith("/"):
        return f"{path} is not there for the worker: on a cluster it must be data of the job (--data)"
    if job.spec.trainer.code is None:
        return f"{path} is looked up in the worker's working folder: give an absolute path"
    return (
        f"{path} is looked up in the job's copy of the code, which lacks what .gitignore and .stokerignore name: "
        "give it as data (--data), an absolute path, or a line !… in .stokerignore"
    )


_NAME = r"([\w.]{1,100})"
_PATH = r"'([^'\n]{1,200})'"
_CAUSES: tuple[tuple[re.Pattern[str], Callable[[TrainingJob, str], str]], ...] = tuple(
    (re.compile(pattern), says)
    for pattern, says in (
        (r"CUDA out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED: Out of memory", lambda job, _: _GPU_MEMORY),
        (rf"No module named '?{_NAME}", _no_module),
        (rf"No such file or directory: {_PATH}", _no_file),
        (
            r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA|No supported gpu backend found"
            r"|Unable to initialize backend 'cuda'|torch\.cuda\.is_available\(\) is False",
            _no_gpu,
        ),
        (
            r"invalid device ordinal|[Ii]nvalid device id",
            lambda job, _: f"a process uses a GPU that its worker has not: it has {job.spec.gpus_per_worker} (--gpus)",
        ),
        (
            r"driver version is insufficient|NVIDIA driver on your system is too old",
            lambda job, _: "the node's driver is older than the program's CUDA: take an older CUDA, or a newer driver",
        ),
        (
            r"no kernel image is available",
            lambda job, _: "the program was not built for this GPU: take a newer PyTorch, or another GPU by spec.gpu",
        ),
        (
            r"NCCL error|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError",
            lambda job, _: "-e NCCL_DEBUG=INFO shows what NCCL met; between nodes also look at NCCL_SOCKET_IFNAME",
        ),
        (r"[Aa]ddress already in use", lambda job, _: "take a free port: MASTER_PORT is the worker's own"),
        (r"No space left on device", lambda job, _: "a disk or /dev/shm is full: write less, or to a larger volume"),
    )
)
"""Of several the first."""


def _of_text(job: TrainingJob, text: str) -> str:
    for pattern, says in _CAUSES:
        if found := pattern.search(text):
            name = found.group(1) if found.groups() else ""
            return says(job, name if name.isprintable() else "what it names")
    return ""
