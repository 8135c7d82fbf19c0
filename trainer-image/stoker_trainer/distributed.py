"""Owns the group of ranks: joining it, votes and sums on the host, and what sets a lost peer apart from a slow one.
Called by set-up, exchange, evaluation and checkpoints.

Votes go over gloo on the CPU even where gradients go over NCCL: the host learns of a stop request or a full memory
without waiting for the device, and a dead peer closes its connection, which gloo sees at once and NCCL does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from .errors import BadConfig, PeerLost, Stalled, out_of_memory

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Place:
    """Which rank this process is, from torchrun's environment."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1

    @staticmethod
    def of(env: Mapping[str, str]) -> Place:
        """Raises: BadConfig where a variable is no number or they contradict each other."""
        try:
            place = Place(
                *(
                    int(env.get(name, default))
                    for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))
                )
            )
        except ValueError as error:
            raise BadConfig(f"RANK, LOCAL_RANK and WORLD_SIZE must be whole numbers: {error}") from None
        if not 0 <= place.rank < place.world:
            raise BadConfig(f"RANK={place.rank} is outside of WORLD_SIZE={place.world}")
        return place


class Vote(NamedTuple):
    """What one rank wants, and what came of it: true if any rank wanted it."""

    stop: bool = False
    out_of_memory: bool = False
    save: bool = False


class Ranks:
    """All ranks of the job. With one rank every call returns at once and no process group exists."""

    def __init__(self, place: Place, device: torch.device, deterministic: bool) -> None:
        self.rank, self.world = place.rank, place.world
        self._device, self.deterministic = device, deterministic

    def join(self, env: Mapping[str, str]) -> None:
        """Waits until all ranks are there.

        Raises: Stalled after the collective time-out, PeerLost where the first rank went away.
        """
        if self.world == 1:
            return
        if env.get("MASTER_ADDR", "127.0.0.1") in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo asks DNS for this host's name
        timeout = timedelta(seconds=float(env.get("STOKER_COLLECTIVE_TIMEOUT_SECONDS", TIMEOUT_S)))
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        with peers_named("waiting for the other ranks"):
            self._init(backend, timeout)
        self.vote(Vote())

    def _init(self, backend: str, timeout: timedelta) -> None:
        try:
            dist.init_process_group(backend, rank=self.rank, world_size=self.world, timeout=timeout)
        except RuntimeError as error:
            if "without libuv" not in str(error):
                raise
            os.environ["USE_LIBUV"] = "0"  # Debian's torch is built so; torch asks for libuv all the same
            dist.init_process_group(backend, rank=self.rank, world_size=self.world, timeout=timeout)

    def leave(self) -> None:
        """After the last collective of a training that ended well: no rank goes before all are done.

        The group is not destroyed; the process ends without destructors anyway (`__main__`). In torch 2.6 destroying
        it can hang for good: it joins gloo's threads while holding the GIL, which such a thread wants if it is the last
        to let go of the ballot.
        """
        self.vote(Vote())

    def vote(self, mine: Vote) -> Vote:
        """The ranks' votes joined by "or".

        Cost: one host-side collective (0.1 ms on one machine); on CUDA the device computes meanwhile.
        """
        if self.world == 1:
            return mine
        ballot = torch.tensor(mine, dtype=torch.int32)
        with peers_named("agreeing on the next step"):
            dist.all_reduce(ballot, op=dist.ReduceOp.MAX, async_op=True).wait()
        return Vote(*(bool(flag) for flag in ballot.tolist()))

    def sum_numbers(self, numbers: list[float]) -> list[float]:
        """Added in the order of ranks; exact for whole numbers below 2**53. Host side."""
        if self.world == 1:
            return numbers
        shares = self.gather(torch.tensor(numbers, dtype=torch.float64))
        return sum(shares[1:], shares[0]).tolist()  # type: ignore[no-any-return]

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's host tensor of one shape, in order of ranks."""
        if self.world == 1:
            return [mine]
        out = [torch.empty_like(mine) for _ in range(self.world)]
        with peers_named("gathering"):
            dist.all_gather(out, mine)
        return out

    def from_first(self, data: bytes | None) -> bytes | None:
        """What rank 0 holds, on every rank."""
        if self.world == 1:
            return data
        with peers_named("sharing the state"):
            size = torch.tensor([-1 if data is None else len(data)])
            dist.broadcast(size, src=0)
            if size.item() < 0:
                return None
            body = torch.empty(int(size.item()), dtype=torch.uint8)
            if data is not None:
                body.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            dist.broadcast(body, src=0)
        return bytes(body.numpy().tobytes())


@contextmanager
def peers_named(doing: str) -> Iterator[None]:
    """torch reports a dead peer as RuntimeError with the backend's message; a time-out likewise."""
    try:
        yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        text = " ".join(str(error).split())[:300]
        if "timed out" in text.lower() or "timeout" in text.lower():
            raise Stalled(f"another rank did not answer in time while {doing}: {text}") from None
        raise PeerLost(f"another rank went away while {doing}: {text}") from None
