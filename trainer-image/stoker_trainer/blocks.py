"""Owns what the settings ask for each block of a recipe: that its activations are computed again in backward instead of
kept, and that it is compiled. Called by set-up and the step.

Blocks, not the whole net: blocks of one kind share one compiled graph, so a deep net compiles as fast as a shallow one.
Compiled code serves steps on a whole batch; an epoch's last, smaller batch and evaluations have other shapes and run as
they are. So nothing is compiled after the first step, and which code a step runs depends on the step alone.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import nn

Forward = Callable[..., Any]
log = logging.getLogger(__name__)
_GRAPHS = 64
"""Shapes and kinds of blocks that one function may be compiled for; torch's own limit is 8, a ResNet has more."""


class Blocks:
    """The blocks of one net, from now on called as asked for."""

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device, *, compiled: bool, recomputed: bool) -> None:
        self.whole_batch = False
        """Whether the step under way is on a whole batch; set by the step."""
        self._compiled = compiled
        missing = _missing_compiler(device) if compiled else None
        if missing is not None:
            log.warning("compile: the blocks run as they are, since %s", missing)
            self._compiled = False
        for block in blocks:
            forward: Forward = block.forward
            if self._compiled:
                forward = self._either(block, forward)
            if recomputed:
                forward = _recomputed(block, forward)
            block.forward = forward

    def _either(self, block: nn.Module, forward: Forward) -> Forward:
        import torch._dynamo  # 4 s, and only here

        torch._dynamo.config.recompile_limit = _GRAPHS
        # The compiler looks at `grad` of its stand-ins for parameters, and torch warns of that.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        fast = torch.compile(forward, dynamic=False)

        def either(*args: Any) -> Any:
            if not (self._compiled and self.whole_batch and block.training):
                return forward(*args)
            try:
                return fast(*args)
            except torch._dynamo.exc.TorchDynamoException as error:
                self._compiled = False
                reason = " ".join(str(error).split())[:300]
                log.warning("compile: failed, the blocks run as they are from here on: %s", reason)
                return forward(*args)

        return either


def _recomputed(block: nn.Module, forward: Forward) -> Forward:
    from torch.utils.checkpoint import checkpoint

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _Unchanged(block)

    def run(*args: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts)

    return run


class _Unchanged:
    """A second forward pass of the same batch; BatchNorm's running statistics have counted it already."""

    def __init__(self, block: nn.Module) -> None:
        self._buffers = list(block.buffers())

    def __enter__(self) -> None:
        self._before = [buffer.clone() for buffer in self._buffers]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with torch.no_grad():
            for buffer, before in zip(self._buffers, self._before, strict=True):
                buffer.copy_(before)


def _missing_compiler(device: torch.device) -> str | None:
    """What torch's compiler would need and is not here; none: None."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    variable, names = ("CC", ("cc", "gcc", "clang")) if device.type == "cuda" else ("CXX", ("g++", "clang++"))
    if not any(shutil.which(name) for name in (os.environ.get(variable), *names) if name):
        return f"there is no C compiler ({', '.join(names)}, or the one that {variable} names)"
    return None
