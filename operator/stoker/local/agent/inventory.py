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

from pydantic import ValidationError

from stoker.spec.meta import StatusModel
from stoker.spec.node import Gpu

from . import driver as nvidia
from . import nvml_child

SIMULATED_MODEL = "Simulated GPU"


class Inventory(Protocol):
    async def read(self, held: Callable[[], Collection[str]], is_ours: Callable[[int], bool]) -> tuple[Gpu, ...]:
        """The GPUs as they are now. `held`: uuids that workers of ours hold; `is_ours`: is this pid one of theirs."""
        ...


class VirtualGpus:
    """`count` slots without devices, marked as simulated wherever they are shown."""

    def __init__(self, count: int, memory_bytes: int = 16 << 30) -> None:
        self._gpus = tuple(
            Gpu(uuid=f"SIM-{i}", index=i, model=SIMULATED_MODEL, memory_bytes=memory_bytes, simulated=True)
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
        driver: Collection[Path] = nvidia.PATHS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`driver`: paths as `driver.PATHS`. `env`: the child's, if not ours."""
        self._timeout_s = timeout_s
        self._driver = tuple(driver)
        self._env = dict(os.environ if env is None else env)
        self._child: asyncio.subprocess.Process | None = None
        self._last: tuple[Gpu, ...] = ()

    async def read(self, held: Callable[[], Collection[str]], is_ours: Callable[[int], bool]) -> tuple[Gpu, ...]:
        if not nvidia.is_here(self._env, self._driver):
            return ()
        held_before = set(held())
        report = await self._ask_child()
        if report is None:
            return tuple(gpu.model_copy(update={"unavailable": "the driver does not answer"}) for gpu in self._last)
        held_meanwhile = held_before | set(held())
        known = {gpu.index: gpu for gpu in self._last}
        self._last = tuple(
            seen.as_gpu(known.get(seen.index), seen.uuid in held_meanwhile, is_ours)
            for seen in report.gpus
            if seen.uuid or seen.index in known
        )
        return self._last

    async def _ask_child(self) -> _Report | None:
        """None if it can't be known now. At most one child: a stuck one is not joined by more."""
        if self._child is not None and self._child.returncode is None:
            return None
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(nvml_child.__file__),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                output, _ = await child.communicate()
            report = _Report.model_validate_json(output)
            return None if report.error else report
        except TimeoutError:
            return None
        except ValidationError:
            return None  # it crashed half-way
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()  # not waited for: a call that hangs in the kernel outlives even this


class _Process(StatusModel):
    pid: int
    name: str | None = None


class _Seen(StatusModel):
    index: int
    uuid: str
    model: str = ""
    memory_bytes: int = 0
    compute_capability: str | None = None
    mig: bool = False
    processes: tuple[_Process, ...] = ()
    lost: str = ""

    def as_gpu(self, known: Gpu | None, held: bool, is_ours: Callable[[int], bool]) -> Gpu:
        if self.lost and known is not None:
            return known.model_copy(update={"unavailable": f"lost ({self.lost})"})
        return Gpu(
            uuid=self.uuid,
            index=self.index,
            model=self.model,
            memory_bytes=self.memory_bytes,
            compute_capability=self.compute_capability,
            unavailable=self._why_not(held, is_ours),
        )

    def _why_not(self, held: bool, is_ours: Callable[[int], bool]) -> str:
        if self.lost:
            return f"lost ({self.lost})"
        if self.mig:
            return "split into MIG devices, which Stoker does not lease yet"
        if held:
            return ""
        for process in self.processes:
            # A name says that the process could be seen; if it can't any more, it has ended since.
            if process.name is not None and (is_ours(process.pid) or not Path(f"/proc/{process.pid}").exists()):
                continue
            return f"in use by foreign process {process.pid} ({process.name or 'of another pid namespace'})"
        return ""


class _Report(StatusModel):
    gpus: tuple[_Seen, ...] = ()
    error: str = ""
