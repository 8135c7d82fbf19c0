"""What GPUs this node has: simulated ones, or those NVML shows.

Owns the reading and what makes a GPU unavailable. Never leases. Called by the agent every half minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from stoker.nvml import DRIVER_PATHS, has_driver, sees_all_pids
from stoker.nvml.frames import Frame, GpuEvent, GpuReading, Trouble, parse
from stoker.spec.node import Gpu

SIMULATED_MODEL = "Simulated GPU"


class Inventory(Protocol):
    async def read(self, held: Callable[[], Collection[str]], is_ours: Callable[[int], bool]) -> tuple[Gpu, ...]:
        """The GPUs as they are now. `held`: uuids that workers of ours hold; `is_ours`: is this pid one of theirs."""
        ...


class VirtualGpus:
    """`count` slots without devices, marked as simulated wherever they are shown."""

    def __init__(self, count: int) -> None:
        self._gpus = tuple(
            Gpu(uuid=f"SIM-{i}", index=i, model=SIMULATED_MODEL, memory_bytes=16 << 30, simulated=True)
            for i in range(count)
        )

    async def read(self, held: Callable[[], Collection[str]], is_ours: Callable[[int], bool]) -> tuple[Gpu, ...]:
        return self._gpus


class Together:
    """What several inventories show, real GPUs before simulated ones by the order given."""

    def __init__(self, *inventories: Inventory) -> None:
        self._inventories = inventories

    async def read(self, held: Callable[[], Collection[str]], is_ours: Callable[[int], bool]) -> tuple[Gpu, ...]:
        return tuple([gpu for inventory in self._inventories for gpu in await inventory.read(held, is_ours)])


class NvmlGpus:
    """The GPUs that NVML shows, read in a short-lived child; none where no driver is installed."""

    def __init__(
        self,
        *,
        timeout_s: float = 20.0,
        driver: Collection[Path] = DRIVER_PATHS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`driver`: paths as `nvml.DRIVER_PATHS`. `env`: the child's, if not ours."""
        self._timeout_s = timeout_s
        self._driver = tuple(driver)
        self._env = dict(os.environ if env is None else env)
        self._child: asyncio.subprocess.Process | None = None
        self._last: tuple[Gpu, ...] = ()

    async def read(self, held: Callable[[], Collection[str]], is_ours: Callable[[int], bool]) -> tuple[Gpu, ...]:
        if not has_driver(self._env, self._driver):
            return ()
        held_before = set(held())
        poll = await self._run_child()
        if not isinstance(poll, Frame):
            why = "the driver does not answer" + (f" ({poll.code} {poll.text})".replace(" )", ")") if poll else "")
            return tuple(gpu.model_copy(update={"unavailable": why}) for gpu in self._last)
        held_meanwhile = held_before | set(held())
        gpus = {gpu.uuid: gpu.model_copy(update={"unavailable": "lost (NVML does not list it)"}) for gpu in self._last}
        for reading in poll.gpus:
            known = gpus.get(reading.uuid)
            if reading.lost and known is not None:
                gpus[reading.uuid] = known.model_copy(update={"unavailable": f"lost ({reading.lost})"})
            else:
                gpus[reading.uuid] = Gpu(
                    uuid=reading.uuid,
                    index=reading.index,
                    model=reading.info.get("model", ""),
                    memory_bytes=int(reading.values.get("memory_total_bytes", 0)),
                    compute_capability=reading.info.get("compute_capability"),
                    unavailable=_why_not(reading, reading.uuid in held_meanwhile, is_ours),
                )
        self._last = tuple(sorted(gpus.values(), key=lambda gpu: gpu.index))
        return self._last

    async def _run_child(self) -> Frame | Trouble | None:
        """None if it can't be known now. At most one child: a stuck one is not joined by more."""
        if self._child is not None and self._child.returncode is None:
            return None
        self._child = child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "stoker.nvml", "--once", "--collectors", "processes,mig"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                output, _ = await child.communicate()
            polls = [polled for line in output.splitlines() if not isinstance(polled := parse(line), GpuEvent)]
            return polls[-1] if polls else None
        except (TimeoutError, ValueError):  # ValueError: it crashed half-way
            return None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()  # not waited for: a call that hangs in the kernel outlives even this


def _why_not(reading: GpuReading, held: bool, is_ours: Callable[[int], bool]) -> str:
    """Why the GPU can't be leased; empty: it can."""
    if reading.lost:
        return f"lost ({reading.lost})"
    if reading.info.get("mig") == "on":
        return "split into MIG devices, which Stoker does not lease yet"
    if held:
        return ""
    for process in reading.processes or ():
        name = _name(process.pid)
        if is_ours(process.pid) or (name is None and sees_all_pids()):  # the latter has ended since
            continue
        return f"in use by foreign process {process.pid} ({name or 'of another pid namespace'})"
    return ""


def _name(pid: int) -> str | None:
    """None where no such process can be seen from here: it has ended, or lives in another pid namespace."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
