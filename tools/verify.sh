#!/usr/bin/env bash
# The proofs of docs/verify.md, one after the other, on the environment of `make setup`. Figures go to standard output.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${VENV:-.venv}/bin/python
run() { echo; echo "## $*"; time "$@"; }
run "$python" tools/verify_gang.py
run "$python" tools/verify_user_scripts.py
run "$python" tools/verify_sigkill.py --kills 20
run "$python" tools/verify_thousand.py --jobs 1000
run "$python" tools/verify_start.py
run "$python" tools/verify_crash_sweep.py
run "$python" tools/verify_crash_sweep.py --suspended
for workers in 1 2; do for how in suspend sigterm sigkill; do
  run "$python" tools/verify_suspend.py --stops 20 --workers "$workers" --how "$how"
done; done
run "$python" tools/verify_leader.py --rounds 3
run "$python" tools/verify_permissions.py
run "$python" tools/verify_accounting.py
run "$python" tools/verify_dashboards.py --length 300
run "$python" tools/verify_alerts.py
