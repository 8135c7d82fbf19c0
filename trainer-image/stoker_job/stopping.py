"""`Stop`: a script learns that it is to save and leave, with several ranks all of them at the same step.

Owns the handler of SIGTERM and the ranks' votes. Votes go over gloo, beside whatever the gradients use; each is awaited
one call later, so that a step never waits for the network.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

STOPPED = 75
"""The exit code of a script that stops because it was asked to (docs/worker-contract.md)."""


class Stop:
    """From its making on SIGTERM asks, and no longer ends the process. Made in the main thread."""

    def __init__(self) -> None:
        self._signalled = self._agreed = False
        self._group: Any = None
        self._vote: Any = None
        self.listen()

    def listen(self) -> None:
        """Take SIGTERM (again): frameworks put their own handler in its place."""
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._signalled = True

    def asked(self) -> bool:
        """Whether to save and leave now.

        Where torch.distributed runs, every rank has to call this equally often, at the same places: all get the same
        answer, at most one call after the first of them was asked.
        """
        dist: Any = sys.modules.get("torch.distributed")
        if self._agreed or dist is None or not dist.is_available() or not dist.is_initialized():
            return self._agreed or self._signalled
        if dist.get_world_size() == 1:
            return self._signalled
        if self._group is None:
            if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo asks DNS for this host's name
            self._group = dist.new_group(backend="gloo")
        if self._vote is not None:
            work, ballot = self._vote
            work.wait()
            self._agreed = bool(ballot.item())
        if not self._agreed:
            ballot = sys.modules["torch"].tensor([int(self._signalled)])
            self._vote = dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._group, async_op=True), ballot
        return self._agreed
