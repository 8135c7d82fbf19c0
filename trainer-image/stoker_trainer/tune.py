"""Owns `batch: auto`: the micro-batch at the knee of throughput, agreed by all ranks and kept in the cache. Called by
`main` before a training is set up, while the device is empty.

A rank's share of the batch is computed in equal passes. More passes take less memory; the knee is the most passes whose
step takes no longer than the fastest one's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .config import TrainerConfig
from .distributed import Ranks
from .files import replace_json
from .precision import resolve
from .trials import Server, Speed, TrialFailed

TOLERANCE = 0.02
"""A step that takes no more than this longer than the fastest is as fast."""
SHARE_OF_RUN = 0.02
"""Of the training's time: what trials may take. Past it only those go on that look for a batch that fits at all."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found at a training's start; part of its checkpoints."""

    micro_batch: int | None = None
    learning_rate: float | None = None
    """The peak, for the training's own batch."""
    seconds: float = 0.0


def share_of(config: TrainerConfig, world: int) -> int:
    """The most samples of a batch that a rank gets."""
    return math.ceil(config.config.batch_size / world)


def micro_batch(
    config: TrainerConfig,
    text: str,
    env: Mapping[str, str],
    device: torch.device,
    ranks: Ranks,
    cache: Path | None,
    beat: Callable[[], None],
) -> Tuned:
    """Searches, or reads what was found before for this model, GPU and precision. All ranks call it.

    `text` is the config as JSON; `cache` a folder, on rank 0; `beat` is called after each trial.
    """
    began = time.monotonic()
    kept = None if cache is None else cache / f"batch-{_key(config, device, ranks.world)}.json"
    data = ranks.from_first(_read(kept) if ranks.rank == 0 else None)
    if data is not None:
        found = int(json.loads(data)["microBatch"])
        log.info("batch: auto: %d samples at a time, found before", found)
        return Tuned(micro_batch=found, seconds=time.monotonic() - began)
    with Server(text, env) as server:

        def measure(micro: int) -> Timed:
            speed, failed = None, False
            try:
                speed = server.run(micro)
            except TrialFailed as error:
                log.warning("batch: auto: no trial of %d samples: %s", micro, error)
                failed = True
            beat()
            spent = server.cpu_s if device.type == "cpu" else time.monotonic() - began  # as trials are timed
            mine = [*(speed or Speed(math.inf, 0.0, 0)), spent, float(failed)]
            every = torch.stack(ranks.gather(torch.tensor(mine, dtype=torch.float64)))
            of_pass, of_update, steps, spent, broken = every.max(0).values.tolist()
            return Timed(of_pass, of_update, int(steps), spent, bool(broken))

        found = knee(share_of(config, ranks.world), measure)
    if ranks.rank == 0:
        log.info("batch: auto: %d samples at a time, found in %.1f s", found, time.monotonic() - began)
        if kept is not None:
            _write(kept, {"microBatch": found})
    return Tuned(micro_batch=found, seconds=time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Timed:
    """A trial as the slowest rank saw it, in seconds. Equal on all ranks."""

    of_pass: float
    """Infinite: it does not fit."""
    of_update: float
    total_steps: int
    spent: float
    """Since the search began."""
    failed: bool = False


def knee(share: int, measure: Callable[[int], Timed]) -> int:
    """The micro-batch for `share` samples, by trials of micro-batches: halved until two in a row are slower than the
    best; where the largest that fits is the fastest, also between it and the smallest that does not.

    A pure function of what `measure` returns. Where trials fail: the whole share.
    """
    steps: dict[int, float] = {}  # passes → seconds of a step
    spent, too_few, worse = 0.0, 0, 0
    go_on = True

    def try_out(passes: int) -> float:
        nonlocal spent, go_on
        timed = measure(math.ceil(share / passes))
        seconds = passes * timed.of_pass + timed.of_update
        cost, spent = timed.spent - spent, timed.spent
        if math.isfinite(seconds):
            steps[passes] = seconds
        if steps:
            limit = SHARE_OF_RUN * min(steps.values()) * timed.total_steps
            go_on = not math.isfinite(seconds) or spent + cost <= limit
        go_on = go_on and not timed.failed
        return seconds

    passes = 1
    while True:
        best = min(steps.values(), default=math.inf)
        seconds = try_out(passes)
        if not math.isfinite(seconds):
            too_few = passes
        worse = worse + 1 if seconds > best * (1 + TOLERANCE) else 0
        if not go_on or worse == 2 or passes == share:
            break
        passes = min(2 * passes, share)
    while go_on and too_few and steps and min(steps, key=lambda n: steps[n]) == min(steps) > too_few + 1:
        middle = (too_few + min(steps)) // 2
        if not math.isfinite(try_out(middle)):
            too_few = middle
    if not steps:
        return share if not go_on else 1
    best = min(steps.values())
    return math.ceil(share / max(n for n, seconds in steps.items() if seconds <= best * (1 + TOLERANCE)))


def _key(config: TrainerConfig, device: torch.device, world: int) -> str:
    """The same for trainings whose steps are the same work."""
    settings = config.config
    about: dict[str, Any] = {
        "recipe": config.recipe,
        "model": str(getattr(settings, "model", None)),
        "data": settings.data,
        "share": share_of(config, world),
        "optimizer": settings.optimizer.name,
        "recomputed": settings.activation_checkpointing,
        "precision": resolve(config.precision, device),
        "device": _device(device),
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return f"cpu, {torch.get_num_threads()} threads, {os.uname().machine}"
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.total_memory}"


def _read(path: Path | None) -> bytes | None:
    try:
        data = path.read_bytes() if path is not None else None
        return data if data is not None and isinstance(json.loads(data)["microBatch"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, found: dict[str, int]) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        replace_json(path, found, sync=False)
    except OSError as error:
        log.warning("batch: auto: what was found can't be kept: %s", error)
