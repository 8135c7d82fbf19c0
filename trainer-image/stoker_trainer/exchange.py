"""Owns the sum over ranks within a step: gradient, loss and votes, in buckets that start while backward still runs.
Made by set-up, called by the step.

Buckets are fixed before the first step, about in the order in which backward is done with them, and every rank launches
all of them in that order whatever became of its own backward. So collectives always meet, and a resumed training adds
up in the order of an uninterrupted one. (torch's DDP lays its buckets out again after step one.) A net of less than
`TINY_BYTES` goes in one piece. On the CPU the votes go in the last bucket, so a step has no collective of its own for
them; on CUDA the host would wait for the device to read them, so there they go over gloo beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist

from .distributed import Ranks, Vote, peers_named
from .errors import out_of_memory
from .flat import MEMORY, FlatModel

TINY_BYTES = 1 << 20
BUCKET_BYTES = 4 << 20


class Exchange:
    """One rank's side. A step is `arm` before its last backward (where there is one), then `finish`."""

    def __init__(self, flat: FlatModel, ranks: Ranks) -> None:
        self._flat, self._ranks = flat, ranks
        self.buckets = _buckets(flat, ranks.world)
        # Of two numbers there is one sum, whatever algorithm a backend picks; of three the order counts.
        self.ordered = ranks.deterministic and ranks.world > 2
        self._next = 0
        self._works: list[dist.Work] = []
        self._scattered: deque[tuple[torch.Tensor, torch.Tensor, dist.Work]] = deque()
        self._missing: list[int] | None = None
        """Parameters of each bucket that have no gradient yet; None: backward is not the step's last."""
        self._parameters = [0] * len(self.buckets)
        if ranks.world > 1 and len(self.buckets) > 1:
            for parameter, place in flat.places:
                mine = [i for i, b in enumerate(self.buckets) if b.start < place.stop and place.start < b.stop]
                for i in mine:
                    self._parameters[i] += 1
                parameter.register_post_accumulate_grad_hook(self._hook(mine))

    def arm(self) -> None:
        """The next backward is the last of this step: buckets start as they are ready."""
        self._missing = list(self._parameters)

    def finish(self, wish: Vote) -> Vote:
        """Waits until gradient and tail are the sums over all ranks; the votes joined by "or".

        Where memory runs out here, that becomes this rank's vote. Raises: PeerLost, Stalled.
        """
        self._missing = None
        if self._ranks.world == 1:
            return wish
        self._flat.ballot.copy_(torch.tensor(wish, dtype=torch.float32))
        try:
            self._launch_all()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or self._next == len(self.buckets):
                raise
            wish = wish._replace(out_of_memory=True)
            self._flat.tail[MEMORY] = 1.0
            self._launch_all()
        on_device = self._flat.tail.device.type == "cuda"
        vote = self._ranks.vote(wish) if on_device else None
        with peers_named("adding up gradients"):
            for work in self._works:
                work.wait()
        self._works.clear()
        self._next = 0
        return vote or Vote(*(count > 0 for count in self._flat.ballot.tolist()))

    def _hook(self, mine: list[int]) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            if self._missing is None:
                return
            for i in mine:
                self._missing[i] -= 1
            while self._next < len(self.buckets) - 1 and not self._missing[self._next]:
                self._launch()

        return ready

    def _launch_all(self) -> None:
        while self._next < len(self.buckets):
            self._launch()
        while self._scattered:
            self._gather()

    def _launch(self) -> None:
        """The next bucket sets off. Where memory runs out nothing was sent, and the same call may be made again.

        In order: each rank gets its share of the bucket from all, adds in the order of ranks, and shares the sum out.
        That is an all-reduce's traffic, and the memory of the buckets under way. The second half waits for the bucket
        after it, so that backward does not wait for the first.
        """
        part = self._flat.exchange[self.buckets[self._next]]
        while len(self._scattered) > 1:
            self._gather()
        with peers_named("adding up gradients"):
            if self.ordered:
                shares = torch.empty_like(part)
                self._scattered.append((part, shares, dist.all_to_all_single(shares, part, async_op=True)))
            else:
                self._works.append(dist.all_reduce(part, async_op=True))
        self._next += 1

    def _gather(self) -> None:
        part, shares, work = self._scattered[0]
        with peers_named("adding up gradients"):
            work.wait()
            total, *others = shares.chunk(self._ranks.world)
            for other in others:
                total.add_(other)
            self._works.append(dist.all_gather_into_tensor(part, total, async_op=True))
        self._scattered.popleft()


def _buckets(flat: FlatModel, world: int) -> list[slice]:
    """Slices of the exchange buffer in the order of launching: the matrices from the last layer to the first, then
    norms and biases with the tail. All bounds are multiples of `world`.
    """
    size, end = len(flat.exchange), flat.decayed // world * world
    if size * flat.exchange.element_size() < TINY_BYTES:
        return [slice(0, size)]
    found, high = [], end
    for _, place in reversed(flat.places):
        low = -(-place.start // world) * world  # up: what lies before it is not ready yet
        if (high - low) * flat.exchange.element_size() >= BUCKET_BYTES:
            found.append(slice(low, high))
            high = low
    if high > 0:
        found.append(slice(0, high))
    return [*found, slice(end, size)]
