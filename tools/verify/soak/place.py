"""What a soak uses, breaks and looks at: one machine or a cluster. Implemented by `one_machine` and `cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tools.verify.soak.day import Planned


@dataclass(frozen=True)
class Harm:
    name: str
    do: Callable[[], Awaitable[None]]
    """Returns when what was harmed is whole again."""
    kills: bool = False
    """A process whose growth is measured."""


class Place(Protocol):
    url: str
    token: str
    pages: list[str]
    """Of metrics."""
    most_gpus: int
    """Of one node."""

    async def start(self) -> None: ...

    def trainer(self, job: Planned) -> dict[str, Any]:
        """What runs there for the job."""

    def processes(self) -> dict[str, int]:
        """Name → pid of those that are measured and live."""

    def sizes(self) -> dict[str, float]:
        """On disk, by a name with its unit."""

    def harms(self) -> list[Harm]: ...

    def ran(self) -> Counter[tuple[str, int, int]]:
        """How often which worker of which attempt of which job was run."""

    async def left(self) -> list[str]:
        """What of ended jobs is still there."""

    async def close(self) -> None: ...


async def frozen(pid: int, length_s: float) -> None:
    """SIGSTOP, and SIGCONT after it. Nothing where the process has ended (pid 0)."""
    if not pid:  # to the kernel that is our own process group
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(length_s)
        finally:
            os.kill(pid, signal.SIGCONT)
