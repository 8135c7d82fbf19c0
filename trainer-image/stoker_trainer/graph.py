"""Owns `cudaGraph: step`: a step on a whole batch is recorded once, from its rows to its update, and from then on
started as one piece. Small nets are bound by starting kernels, one by one. Made by set-up, called by the step.

What differs from step to step lies in tensors that stay where they are (`Inputs`); they are filled before each start.
The first steps run as they are, on the stream that is recorded later: libraries choose their kernels then. Recording
computes nothing, and what is recorded are the same kernels, so a resume, which begins with such steps, keeps every bit.
Other batches (an epoch's last, smaller one) run as ever.
Source: PyTorch's notes on CUDA graphs, "Whole-network capture".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from .optim import Rate
from .recipe import PrefetchingSource, Source
from .settings import Settings

WARM_UP = 3
"""Steps before the one that is recorded."""
log = logging.getLogger(__name__)


class Inputs(NamedTuple):
    rows_B: torch.Tensor
    epoch: torch.Tensor
    rate: torch.Tensor
    """The learning rate. CUDA's fused kernels read it as float32, the CPU's as float64."""
    average_share: torch.Tensor


Outputs: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""The step's loss, and the norm of its gradient."""
Body = Callable[[Inputs], Outputs]


def reason_against(settings: Settings, device: torch.device, world: int, source: Source) -> str | None:
    """Why no step can be recorded here; None: it can."""
    if device.type != "cuda":
        return "there is no CUDA here"
    if world > 1:
        return f"it works on one rank, and there are {world}"
    if settings.optimizer.name == "muon":
        return "muon's update is none of the fused kernels"
    if settings.compile != "off" or settings.activation_checkpointing:
        return "compile and activationCheckpointing do not go with it"
    if isinstance(source, PrefetchingSource) and source.streamed:
        return "the data is streamed: it does not fit on the GPU"
    return None


class StepGraph:
    """`batch`: rows of a whole batch."""

    def __init__(self, device: torch.device, batch: int) -> None:
        self._inputs = Inputs(
            torch.zeros(batch, dtype=torch.int64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
            torch.zeros((), dtype=torch.float32 if device.type == "cuda" else torch.float64, device=device),
            torch.zeros((), device=device),
        )
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._steps, self._off = 0, False
        self._replay: Callable[[], None] | None = None
        self._outputs: Outputs | None = None

    @property
    def recorded(self) -> bool:
        return self._replay is not None

    def takes(self, rows_B: torch.Tensor) -> bool:
        return not self._off and len(rows_B) == len(self._inputs.rows_B)

    def give_up(self, error: BaseException) -> None:
        self._off = True
        reason = " ".join(str(error).split())[:300]
        log.warning("cudaGraph: steps run kernel by kernel from here on, since one could not be recorded: %s", reason)

    def step(self, body: Body, rows_B: torch.Tensor, epoch: int, rate: float, average_share: Rate) -> Outputs:
        """Runs `body` on these inputs, recorded or not. Raises: RuntimeError where it can't be recorded."""
        inputs = self._inputs
        inputs.rows_B.copy_(rows_B)
        for place, value in ((inputs.epoch, epoch), (inputs.rate, rate), (inputs.average_share, average_share)):
            place.fill_(value)
        if self._steps < WARM_UP:
            self._steps += 1
            return _on_stream(self._stream, body, inputs)
        if self._replay is None:
            self._replay, self._outputs = record(self._stream, body, inputs)
        assert self._outputs is not None
        self._replay()
        return self._outputs


def record(stream: torch.cuda.Stream | None, body: Body, inputs: Inputs) -> tuple[Callable[[], None], Outputs]:
    """What starts the recorded body, and where its outputs will then be."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        outputs = body(inputs)
    return graph.replay, outputs


def _on_stream(stream: torch.cuda.Stream | None, body: Body, inputs: Inputs) -> Outputs:
    if stream is None:
        return body(inputs)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs = body(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    return outputs
