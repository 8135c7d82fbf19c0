"""Owns `lr: find`: the learning rate's peak by a range test. Called by `main` before the first step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from .counter import order
from .distributed import Vote
from .errors import BadConfig
from .measure import Clock
from .save import gathered_state, pack, unpack
from .step import train_step
from .training import Training

FIRST, LAST = 1e-6, 10.0
"""The first and the largest rate of a test."""
_SMOOTH, _DIVERGED = 0.8, 4.0
log = logging.getLogger(__name__)


def range_steps(total_steps: int) -> int:
    """Steps of a range test: 2 % of the training's, from 40 to 100."""
    return max(40, min(100, total_steps // 50))


def find(training: Training, beat: Callable[[], None]) -> float:
    """The peak for `training`'s batch: the rate is raised from step to step, and taken is the one at which the
    smoothed loss falls most steeply. The training is afterwards as it was, in every bit. All ranks call it.

    Raises: BadConfig where no rate makes the loss fall. Cost: `range_steps` steps of `baseBatch` samples.
    Source: Smith 2017, "Cyclical learning rates for training neural networks"; taken is what fastai calls "steep".
    """
    t, config, before = training, training.config, pack(gathered_state(training))
    began, settings, count = time.monotonic(), config.config, range_steps(training.total_steps)
    batch = min(settings.optimizer.base_batch or settings.batch_size, t.train_rows)
    rows = order(t.cursor.seed, 0, t.data.train_rows, t.device)
    rates = [FIRST * (LAST / FIRST) ** (step / (count - 1)) for step in range(count)]
    losses: list[float] = []
    rule = replace(settings.optimizer, schedule="constant", warmup=0.0)
    t.config = replace(config, config=replace(settings, optimizer=rule))
    for step, rate in enumerate(rates):
        t.tuned = replace(t.tuned, learning_rate=rate)
        start = step * batch % (t.train_rows - batch + 1)
        train_step(t, rows[start : start + batch], Vote())
        t.cursor.step += 1
        beat()
        losses.append(t.loss.item())
        if not math.isfinite(losses[-1]) or smoothed(losses)[-1] > _DIVERGED * min(smoothed(losses)):
            losses.pop()
            break
    micro, t.config, t.clock = t.micro_batch, config, Clock(t.device)
    unpack(t, before)
    t.micro_batch = micro  # where memory ran out, that holds for the training too
    t.energy.joules()
    found = steepest(rates, losses)
    if found is None:
        raise BadConfig("config.optimizer.lr: find: no learning rate made the loss fall; give optimizer.learningRate")
    peak = found * settings.rate_factor
    if t.ranks.rank == 0:
        log.info("lr: find: %.3g, by %d steps in %.1f s", peak, len(losses), time.monotonic() - began)
    t.tuned = replace(t.tuned, learning_rate=peak, seconds=t.tuned.seconds + time.monotonic() - began)
    return peak


def smoothed(losses: list[float]) -> list[float]:
    """An exponential average, as if what was before the first had been like it."""
    out: list[float] = []
    for loss in losses:
        out.append(loss if not out else _SMOOTH * out[-1] + (1 - _SMOOTH) * loss)
    return out


def steepest(rates: list[float], losses: list[float]) -> float | None:
    """The rate at which the smoothed loss falls most from one step to the next but one, before its lowest; None: it
    never falls.
    """
    smooth = smoothed(losses)
    if not smooth:
        return None
    lowest = min(range(len(smooth)), key=lambda step: smooth[step])
    falls = {step: smooth[step - 1] - smooth[step + 1] for step in range(1, lowest)}
    best = max(falls, key=lambda step: falls[step], default=None)
    return rates[best] if best is not None and falls[best] > 0 else None
