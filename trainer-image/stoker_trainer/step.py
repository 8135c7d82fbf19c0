"""Owns one optimizer step: this rank's share of the global batch, in micro-batches, the exchange, the update. Called by
the loop.

The loss of a step is the mean over all terms of the global batch (a term is an image, or a predicted token), whatever
its size and split: every rank adds sums divided by the global count, so the last, smaller batch of an epoch and uneven
shares (down to none) are exact.
Legend: B samples.
"""

from __future__ import annotations

import torch

from . import optim
from .distributed import Vote
from .errors import OutOfMemory, out_of_memory
from .flat import LOSS, TERMS, buffers
from .graph import Inputs, Outputs, StepGraph
from .precision import autocast
from .recipe import Batch
from .training import Training


def share(rank: int, world: int, count: int) -> slice:
    """The rank's part of `count` samples: contiguous, sizes differ by one at most, all parts together are all."""
    return slice(rank * count // world, (rank + 1) * count // world)


def train_step(training: Training, rows_B: torch.Tensor, wish: Vote) -> Vote:
    """One step on the global batch `rows_B` (training rows); what the ranks agreed on.

    A rank that runs out of memory says so in the vote; all ranks then halve the micro-batch and begin this step again,
    with buffers and generators as before it, so the gradient is of the same samples.
    Raises: OutOfMemory where the micro-batch is one sample already.
    """
    graph = training.graph
    if graph is not None and graph.takes(rows_B) and training.micro_batch >= len(rows_B):
        return _whole_step(training, graph, rows_B, wish)
    mine_B = rows_B[share(training.ranks.rank, training.ranks.world, len(rows_B))]
    training.clock.start()
    training.blocks.whole_batch = len(rows_B) == training.config.config.batch_size
    before = _Before(training)
    expected = len(rows_B) * training.recipe.units
    while True:
        full = not _accumulate(training, mine_B, expected)
        vote = training.exchange.finish(wish._replace(out_of_memory=full))
        training.clock.lap("reduce")
        if not vote.out_of_memory:
            break
        if training.micro_batch == 1:
            raise OutOfMemory("out of memory with a micro-batch of one sample; take a larger GPU or a narrower model")
        training.micro_batch = (training.micro_batch + 1) // 2
        before.restore()
        if training.device.type == "cuda":
            torch.cuda.empty_cache()
    rate, average = step_rate(training), training.average
    apply(training, expected, rate, average.share(training.cursor.step) if average is not None else 0.0)
    training.clock.lap("update")
    return vote


def _whole_step(training: Training, graph: StepGraph, rows_B: torch.Tensor, wish: Vote) -> Vote:
    """The step as one piece; where it can't be recorded, or memory runs out, from then on as any other."""
    average, step, expected = training.average, training.cursor.step, len(rows_B) * training.recipe.units

    def body(inputs: Inputs) -> Outputs:
        training.flat.clear()
        gradient(training, training.data.batch(training.cursor.seed, inputs.epoch, inputs.rows_B), expected)
        apply(training, expected, inputs.rate, inputs.average_share)
        return training.loss, training.gradient_norm

    training.clock.start()
    before = None if graph.recorded else _Before(training)
    share = average.share(step) if average is not None else 0.0
    try:
        outputs = graph.step(body, rows_B, training.cursor.epoch, step_rate(training), share)
    except (RuntimeError, MemoryError) as error:
        if before is None:
            raise
        before.restore()
        graph.give_up(error)
        return train_step(training, rows_B, wish)
    training.loss, training.gradient_norm = outputs
    training.clock.lap("forward_backward")
    return wish


class _Before:
    """What a forward pass changes beside the gradients: buffers and generators, as they were before the step."""

    def __init__(self, training: Training) -> None:
        self._buffers = [(live, live.clone()) for live in buffers(training.net).values()]
        self._cpu = torch.get_rng_state()
        self._device = training.device
        self._cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None

    def restore(self) -> None:
        for live, saved in self._buffers:
            live.copy_(saved)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


def _accumulate(training: Training, mine_B: torch.Tensor, expected: int) -> bool:
    """Adds this rank's gradient and loss into the flat buffers; false where memory ran out."""
    training.flat.clear()
    try:
        for start in range(0, len(mine_B), training.micro_batch):
            if start + training.micro_batch >= len(mine_B):
                training.exchange.arm()
            backward(training, mine_B[start : start + training.micro_batch], expected)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return False
    return True


def backward(training: Training, samples_B: torch.Tensor, expected: int) -> None:
    """Forward and backward of one micro-batch; the loss is divided by the terms expected in the global batch.

    Where the ranks count another number, `apply` corrects the sum.
    """
    batch = training.data.batch(training.cursor.seed, training.cursor.epoch, samples_B)
    training.clock.lap("data")
    gradient(training, batch, expected)
    training.clock.lap("forward_backward")


def gradient(training: Training, batch: Batch, expected: int) -> None:
    """Adds the batch's gradient, loss and terms into the flat buffers."""
    with autocast(training.precision, training.device):
        loss, terms = training.recipe.loss(batch)
    loss = loss / expected
    (loss * training.scaler.scale).backward()
    training.flat.tail[LOSS] += loss.detach()
    training.flat.tail[TERMS] += terms


def step_rate(training: Training) -> float:
    """The learning rate of the step under way; shown too."""
    training.learning_rate = optim.learning_rate(training.rule, training.cursor.step, training.total_steps)
    return training.learning_rate


def apply(training: Training, expected: int, rate: optim.Rate, average_share: optim.Rate) -> None:
    """Unscales, clips and updates. Every rank sees the same numbers, so all update or all skip."""
    flat, scaler, rule = training.flat, training.scaler, training.rule
    counted = flat.tail[TERMS] / expected  # 1 where every sample has as many terms as its recipe says
    divisor = scaler.scale * counted
    norm = flat.gradient.norm() / divisor
    go = torch.isfinite(norm)  # so is no norm of a gradient that is not: neither sum nor square makes one finite again
    if rule.grad_clip > 0:
        divisor = divisor * ((norm + 1e-6) / rule.grad_clip).clamp(min=1.0)
    training.update.step(rate, go, divisor)
    if training.average is not None:
        training.average.update(average_share, go)
    scaler.update(go)
    training.loss, training.gradient_norm = flat.tail[LOSS] / counted, norm
