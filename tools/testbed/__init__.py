"""The old name of `tests.support.testbed`, until bench_followers and verify_soak have moved."""

import importlib
import pkgutil
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
import tests.support.testbed as there

sys.modules["testbed"] = there
for one in pkgutil.iter_modules(there.__path__):
    if one.name != "__main__":
        sys.modules[f"testbed.{one.name}"] = importlib.import_module(f"tests.support.testbed.{one.name}")
there.__path__.append(str(Path(__file__).parent))
