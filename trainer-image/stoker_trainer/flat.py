"""Owns the memory of parameters and gradients: one buffer each, of which the model's tensors are views. Made by the
trainer's set-up; used by the step, the optimizer, checkpoints and the trace.

One buffer makes the exchange between ranks one collective, the norm one reduction and the optimizer one kernel
or two; and the order of every sum is fixed, which exact resume needs. A few extra numbers (loss,
terms, votes) ride at the gradient's end through the same collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn

from .recipe import Group

LOSS, TERMS, STOP, MEMORY, SAVE = range(5)  # the tail: loss, its terms, the votes
TAIL = 5
USUAL: Mapping[str, Group] = MappingProxyType({})


def group_of(name: str, parameter: torch.Tensor, groups: Mapping[str, Group]) -> Group:
    return groups.get(name, Group.MATRIX if parameter.ndim >= 2 else Group.PLAIN)


def buffers(net: nn.Module) -> dict[str, torch.Tensor]:
    """What belongs to the state and is no parameter, by name: the running statistics of BatchNorm."""
    parameters = dict(net.named_parameters())
    return {name: tensor for name, tensor in net.state_dict().items() if name not in parameters}


class FlatModel:
    """`module` with its parameters and gradients moved into flat float32 buffers.

    Invariant: `parameters[:matrices]` are of the group MATRIX, those up to `decayed` DECAYED, the rest PLAIN.
    """

    def __init__(self, module: nn.Module, world: int = 1, groups: Mapping[str, Group] = USUAL) -> None:
        self.module = module
        named = sorted(module.named_parameters(), key=lambda item: group_of(item[0], item[1], groups))
        self.names = [name for name, _ in named]
        sizes = [(p.numel(), group_of(name, p, groups)) for name, p in named]
        self.matrices = sum(count for count, group in sizes if group == Group.MATRIX)
        self.decayed = sum(count for count, group in sizes if group != Group.PLAIN)
        size = sum(p.numel() for _, p in named)
        device = named[0][1].device
        self.parameters = torch.empty(size, device=device)
        whole = -(-(size + TAIL) // world) * world  # shared out evenly by `world` ranks
        self.exchange = torch.zeros(whole, device=device)
        self.gradient, self.tail = self.exchange[:size], self.exchange[size : size + TAIL]
        self.ballot = self.tail[STOP:]
        self.places: list[tuple[nn.Parameter, slice]] = []
        offset = 0
        for _, p in named:
            values = p.detach().clone()
            # A view with the parameter's own strides, so a channels-last kernel stays one.
            p.data = self.parameters.as_strided(values.size(), values.stride(), offset)
            p.data.copy_(values)
            p.grad = self.exchange.as_strided(values.size(), values.stride(), offset)
            self.places.append((p, slice(offset, offset + values.numel())))
            offset += values.numel()

    def views(self, vector: torch.Tensor, start: int = 0) -> dict[str, torch.Tensor]:
        """`vector`'s numbers as tensors in the parameters' shapes, by name; they are of the buffers from `start` on."""
        return {
            name: vector.as_strided(p.size(), p.stride(), place.start - start)
            for name, (p, place) in zip(self.names, self.places, strict=True)
            if start <= place.start and place.stop <= start + len(vector)
        }

    def clear(self) -> None:
        """Zero gradients and tail, in place: autograd then adds into the views."""
        self.exchange.zero_()
