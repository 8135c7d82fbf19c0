"""The old name of `tests.support.harness`, until bench_followers and verify_soak have moved."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))
import tests.support.harness

sys.modules["harness"] = tests.support.harness
