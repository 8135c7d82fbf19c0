"""Who may call what: every route × every kind of caller in both modes, and the same actions in the cluster.

    python -m tools.verify.permissions [--out FOLDER]

Runs the tests that hold the matrix and prints the tables they made; exits 1 if a cell is not as it must be.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/api/test_permission_matrix.py", "tests/api/test_permission_matrix_cluster.py")


def check(folder: Path) -> int:
    """Fill `folder` with one table per way in; the exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    # As in CI: where there is no Kubernetes to be had, that is a failure and not a shorter table.
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "STOKER_MATRIX": str(folder), "CI": "1"}, check=False)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep the tables in this folder")
    out: Path | None = parser.parse_args().out
    with tempfile.TemporaryDirectory() as made:
        folder = out or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        code = check(folder.resolve())
        for path in sorted(folder.glob("*.md")):
            print("\n" + path.read_text())
    return code


if __name__ == "__main__":
    sys.exit(main())
