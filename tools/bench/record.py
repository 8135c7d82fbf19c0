"""What a bench found, as a file: docs/benchmarks/<bench>.json, with machine, versions, command and the CPU it took.

`BENCH_JSON=<folder>` has every bench write there as it ends (`make bench`); without it nothing is written. Called by
all benches.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import resource
import sys
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("numpy", "pydantic", "torch", "kubernetes", "prometheus_client")
_results: list[dict[str, object]] = []
_load = os.getloadavg()[0]


def record(**figures: object) -> None:
    """One row: what was measured under which conditions. Names end in the unit (`_ms`, `_s`, `_mib`) or in `_ratio`."""
    if not _results:
        atexit.register(_write)
    _results.append({name: round(one, 4) if isinstance(one, float) else one for name, one in figures.items()})


def _write() -> None:
    folder = os.environ.get("BENCH_JSON")
    if not folder:
        return
    module = getattr(sys.modules["__main__"].__spec__, "name", "")
    part = os.environ.get("BENCH_PART", "")
    report = {
        "machine": {"cpu": _cpu_name(), "cores": os.cpu_count(), "system": platform.platform()},
        "load_before_and_after": [round(_load, 1), round(os.getloadavg()[0], 1)],
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in _PACKAGES if name in sys.modules},
        "command": ["python", "-m", module, *(Path(argument).name for argument in sys.argv[1:])],
        "cpu_s": round(sum(_used(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)), 1),
        "results": _results,
    }
    name = "-".join([module.rpartition(".")[2], *([part] if part else [])])
    Path(folder, f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")


def _used(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
