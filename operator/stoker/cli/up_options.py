"""The options of `stoker up`, and what follows from those that were left out. Called by `up.py`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stoker.life.gpu_moves import parse_moves
from stoker.life.step import Settings
from stoker.push.sender import PushOptions
from stoker.spec.fields import EnvName
from stoker.spec.gpu_types import GpuTypes, parse_rows
from stoker.spec.job_parts import IdleAction
from stoker.spec.quantity import cpu_milli, memory_bytes, new_duration
from stoker_api.usage.idle import IdleRule
from stoker_api.usage.prices import CURRENCY

LOG_BYTES = 1 << 30
_ENV_NAMES = TypeAdapter(tuple[EnvName, ...])


@dataclass(frozen=True)
class UpOptions:
    """The options of `stoker up`."""

    data: Path | None = None
    new_store: bool = False
    host: str = "127.0.0.1"
    port: int = 8470
    virtual_gpus: int = 0
    cpus: str | None = None
    memory: str | None = None
    log_bytes: int = LOG_BYTES
    keep_results: str = "30d"
    pass_env: tuple[str, ...] = ()
    idle_after: str = "30m"
    idle_action: str = IdleAction.NOTIFY.value
    usage_half_life: str = "1d"
    gpu_types: tuple[str, ...] = ()
    sick_gpu: tuple[str, ...] = ()
    burn_in: bool = True
    """Sick GPUs are tested before they come back."""
    burn_in_seconds: float = 10.0
    allow_hosts: tuple[str, ...] = ()
    exporter: bool = True
    """Run one, where there is a driver or GPUs are simulated."""
    gpu_prices: tuple[str, ...] = ()
    currency: str = CURRENCY
    grafana: str = ""
    push: PushOptions | None = None

    @property
    def cpu_milli(self) -> int:
        return cpu_milli(self.cpus) if self.cpus else 1000 * len(os.sched_getaffinity(0))

    @property
    def memory_bytes(self) -> int:
        """What workers may share: what was said, else the machine's memory less a tenth for everything else."""
        if self.memory:
            return memory_bytes(self.memory)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 9 // 10

    def settings(self) -> Settings:
        """The operator's. Raises: ValueError."""
        half_life_s = new_duration(self.usage_half_life) or None
        # One node: there is no other to go to, so blame only lets a bad moment pass.
        moves = parse_moves(self.sick_gpu)
        return Settings(start_timeout_s=120.0, blame_s=5.0, usage_half_life_s=half_life_s, moves=moves)

    def types(self) -> GpuTypes:
        """Raises: ValueError."""
        return GpuTypes(parse_rows(self.gpu_types))

    def keep_results_s(self) -> float | None:
        """None: for ever. Raises: ValueError."""
        if self.keep_results == "forever":
            return None
        try:
            return new_duration(self.keep_results)
        except ValueError as error:
            raise ValueError(f"--keep-results: {error}; or write `forever`") from None

    def passed(self) -> tuple[str, ...]:
        """Names of variables that jobs get of this process. Raises: ValueError."""
        names = tuple(name.strip() for given in self.pass_env for name in given.split(","))
        try:
            return _ENV_NAMES.validate_python(names)
        except ValidationError as error:
            fault = error.errors()[0]
            raise ValueError(f"--pass-env {fault['input']}: {fault['ctx']['error']}") from None

    def idle_rule(self) -> IdleRule:
        """Raises: ValueError."""
        after_s = new_duration(self.idle_after)
        if after_s < 60:
            raise ValueError(f"--idle-after {self.idle_after}: must be a minute at least")
        return IdleRule(after_s, IdleAction(self.idle_action))
