"""Scenarios of our fake NVML (tests/nvml): GPUs, what they do when, faults; the environment of a process with it.

Owns the scenario file and the library's build (gcc, once per source digest, in the cache folder). Used by tests and
tools; never by the product. The library's answers are a function of the file and unix time alone, so a test can
compute from the same `Scenario` what must come out (`Gpu.integral`). How to use it: tests/nvml/README.md.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.testbed import build

SOURCES = Path(__file__).resolve().parent.parent / "nvml"
H200_BYTES = 150_754_820_096
RESERVED_BYTES = 687_865_856
GPU_IS_LOST, NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 15, 3, 4, 999
FOREVER = 1e18

Value = float | None
"""None: the GPU has no such thing (NVML_ERROR_NOT_SUPPORTED)."""


class NoCompiler(Exception):
    """There is no gcc to build the fake library with."""


def library(missing: Iterable[str] = ()) -> Path:
    """The built `libnvidia-ml.so.1`, without the functions in `missing`. Raises: NoCompiler."""
    names = sorted(missing)
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"\0".join([*(path.read_bytes() for path in sources), *(name.encode() for name in names)]))
    folder = build.cache() / "nvml" / digest.hexdigest()[:16]
    built = folder / "libnvidia-ml.so.1"
    if built.exists():
        return built
    compiler = shutil.which("gcc")
    if not compiler:
        raise NoCompiler("the fake NVML is built with gcc, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        hidden, made = Path(scratch) / "hidden.map", Path(scratch) / built.name
        hidden.write_text("{ local: " + " ".join(f"{name};" for name in names) + " };\n" if names else "")
        command = [compiler, "-std=gnu11", "-Wall", "-O1", "-shared", "-fPIC", "-o", str(made)]
        command += [str(path) for path in sources if path.suffix == ".c"] + ["-lm", "-lpthread"]
        command += [f"-Wl,--version-script={hidden}"] if names else []
        subprocess.run(command, check=True, timeout=120)
        made.replace(built)
    return built


@dataclass
class Steps:
    """What a GPU or MIG device does from when on; a step keeps what it does not name. Keys: scenario.h's KEYS."""

    first: dict[str, Value] = field(default_factory=dict)
    later: list[tuple[float, dict[str, Value], tuple[tuple[int, int, float], ...] | None]] = field(default_factory=list)
    processes: tuple[tuple[int, int, float], ...] | None = None
    """(pid, bytes, SM %) at the begin."""

    def step(self, at: float, /, *, processes: Iterable[tuple[int, int, float]] | None = None, **values: Value) -> None:
        """From `at` (unix seconds) on, these values. Steps come in order."""
        self.later.append((at, values, None if processes is None else tuple(processes)))

    def value(self, key: str, at: float, otherwise: float = 0.0) -> Value:
        """As the library answers it."""
        now: Value = self.first.get(key, otherwise)
        for begin, values, _ in self.later:
            if begin <= at and key in values:
                now = values[key]
        return now

    def integral(self, key: str, begin: float, end: float, otherwise: float = 0.0) -> float:
        """Of a value over [begin, end): joules of `watts`, percent-seconds of `busy`."""
        moments = [begin, *(at for at, _, _ in self.later if begin < at < end), end]
        return sum((self.value(key, a, otherwise) or 0.0) * (b - a) for a, b in itertools.pairwise(moments))

    def _lines(self, where: str) -> list[str]:
        return [
            f"step\t{where}\tat={at!r}{_values(values)}{_processes(processes)}" for at, values, processes in self.later
        ]


@dataclass
class Mig(Steps):
    """One MIG device."""

    uuid: str = ""
    gi: int = 1
    ci: int = 0
    slices: int = 1
    memory: int = 18 << 30
    name: str = ""
    begin: float = 0.0
    end: float = FOREVER


@dataclass
class Gpu(Steps):
    """One GPU; an idle H200 unless said otherwise."""

    uuid: str = ""
    name: str = "NVIDIA H200"
    bus: str = ""
    cc: str = "9.0"
    memory: int = H200_BYTES
    reserved: int = RESERVED_BYTES
    gpm: bool = True
    energy: bool = True
    """False: no energy counter (before Volta)."""
    memory_v2: bool = True
    nvlink5: bool = False
    mig: bool | None = None
    """None: it can't; False: it is off."""
    begin: float = 0.0
    """It is there from (unix seconds) …"""
    end: float = FOREVER
    """… until; after that it is gone from the list of a new session, and lost in an old one."""
    energy_since: float = 0.0
    """Unix seconds since when energy and other counters count; 0: an hour before the file was written first."""
    energy_offset_mj: int = 0
    energy_tick_s: float = 0.0
    devices: list[Mig] = field(default_factory=list)

    def add_mig(self, **fields: object) -> Mig:
        """A MIG device; the GPU's MIG mode goes on. `fields` as of `Scenario.add_gpu`."""
        self.mig = True
        gi = len(self.devices) + 1
        device = Mig(uuid=f"MIG-{self.uuid[4:12]}-0000-0000-0000-{gi:012d}", gi=gi)
        _fill(device, fields)
        device.name = device.name or f"{self.name} MIG {device.slices}g.{device.memory >> 30}gb"
        self.devices.append(device)
        return device


def _fill(device: Gpu | Mig, fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        if name in type(device).__dataclass_fields__:
            setattr(device, name, value)
        else:
            device.first[name] = None if value is None else float(value)  # type: ignore[arg-type]


class Scenario:
    """A scenario file and its library. Change it, then `write`: running processes see it at their next call."""

    def __init__(
        self, folder: Path, *, driver: str = "590.44.01", cuda: int = 13010, missing: Iterable[str] = ()
    ) -> None:
        self.path = folder / "scenario.txt"
        self.driver, self.cuda = driver, cuda
        self.sample_s = 0.1
        self.missing = tuple(missing)
        self.gpus: list[Gpu] = []
        self._rest: list[str] = []
        self._born_at = time.time()

    def add_gpu(self, **fields: object) -> Gpu:
        """One more GPU; `fields` are Gpu's, all others its values from the begin (`watts=600`)."""
        index = len(self.gpus)
        gpu = Gpu(uuid=f"GPU-{index:08x}-5afe-4000-8000-000000000000", bus=f"00000000:{0x1B + index:02X}:00.0")
        gpu.energy_since = self._born_at - 3600
        _fill(gpu, fields)
        self.gpus.append(gpu)
        return gpu

    def fault(
        self,
        call: str = "*",
        *,
        gpu: int | None = None,
        code: int = UNKNOWN,
        do: str = "code",
        field: int | None = None,
        begin: float = 0.0,
        end: float = FOREVER,
    ) -> None:
        """A call (`*`: each) on a GPU (None: on each, and calls on none) fails with `code`, or does hang, segv, exit.

        field: only this field id (nvmlDeviceGetFieldValues), metric (nvmlGpmMetricsGet) or kind (nvmlDeviceGetSamples).
        """
        where = "" if gpu is None else f"\tgpu={gpu}"
        which = "" if field is None else f"\tfield={field}"
        self._rest.append(f"fault\tcall={call}{where}{which}\tcode={code}\tdo={do}\tfrom={begin!r}\tuntil={end!r}")

    def xid(self, gpu: int, at: float, code: int) -> None:
        self._rest.append(f"xid\tgpu={gpu}\tat={at!r}\tcode={code}")

    def latency(self, us: int, call: str = "*", *, field: int | None = None, busy: bool = False) -> None:
        """Microseconds that each call takes, or to ask for this field besides (as `fault`'s). busy: Of CPU, as the real
        library's, else slept."""
        which = "" if field is None else f"\tfield={field}"
        self._rest.append(f"latency\tcall={call}\tus={us}\tbusy={int(busy)}{which}")

    def restart(self, at: float, down_s: float) -> None:
        """The driver is gone from `at` for so long; counters begin at 0 after that, sessions must begin anew."""
        self._rest.append(f"restart\tat={at!r}\tdown={down_s!r}")

    def clear_faults(self) -> None:
        self._rest = [line for line in self._rest if not line.startswith("fault")]

    def write(self) -> Scenario:
        """Replaces the file as a whole."""
        lines = [f"driver\tversion={self.driver}\tcuda={self.cuda}\tsample_s={self.sample_s}"]
        for index, gpu in enumerate(self.gpus):
            lines.append(_gpu_line(gpu))
            lines += gpu._lines(f"gpu={index}")
            for number, mig in enumerate(gpu.devices):
                lines.append(
                    f"mig\tgpu={index}\tuuid={mig.uuid}\tname={mig.name}\tgi={mig.gi}\tci={mig.ci}\tslices={mig.slices}"
                    f"\tmemory={mig.memory}\tfrom={mig.begin!r}\tuntil={mig.end!r}"
                    f"{_values(mig.first)}{_processes(mig.processes)}"
                )
                lines += mig._lines(f"gpu={index}\tmig={number}")
        scratch = self.path.with_suffix(".new")
        scratch.write_text("\n".join([*lines, *self._rest, ""]))
        scratch.replace(self.path)
        return self

    def env(self) -> dict[str, str]:
        """What a process needs in its environment to load the library with this scenario. Raises: NoCompiler.

        The library finds the scenario beside itself: this variable is all that must reach a grandchild.
        """
        link = self.path.parent / "libnvidia-ml.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(library(self.missing))
        return {"LD_LIBRARY_PATH": str(self.path.parent)}


def _gpu_line(gpu: Gpu) -> str:
    fields = {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "bus": gpu.bus,
        "cc": gpu.cc,
        "memory": gpu.memory,
        "reserved": gpu.reserved,
        "gpm": int(gpu.gpm),
        "energy": int(gpu.energy),
        "memory_v2": int(gpu.memory_v2),
        "nvlink5": int(gpu.nvlink5),
        "mig": -1 if gpu.mig is None else int(gpu.mig),
        "from": repr(gpu.begin),
        "until": repr(gpu.end),
        "energy_since": repr(gpu.energy_since),
        "energy_offset_mj": gpu.energy_offset_mj,
        "energy_tick_s": gpu.energy_tick_s,
    }
    named = "".join(f"\t{name}={value}" for name, value in fields.items())
    return f"gpu{named}{_values(gpu.first)}{_processes(gpu.processes)}"


def _values(values: Mapping[str, Value]) -> str:
    return "".join(f"\t{key}={'-' if value is None else repr(value)}" for key, value in values.items())


def _processes(processes: Iterable[tuple[int, int, float]] | None) -> str:
    if processes is None:
        return ""
    return "\tprocesses=" + ",".join(f"{pid}:{used}:{sm}" for pid, used, sm in processes)
