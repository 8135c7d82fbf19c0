#!/usr/bin/env bash
# The proofs of docs/verify.md, one after the other, on the environment of `make setup`. Figures go to standard output.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${VENV:-.venv}/bin/python
run() { echo; echo "## $*"; time "$@"; }
run "$python" -m tools.verify.gang
run "$python" -m tools.verify.user_scripts
run "$python" -m tools.verify.sigkill --kills 20
run "$python" -m tools.verify.thousand --jobs 1000
run "$python" -m tools.verify.start
run "$python" -m tools.verify.crash_sweep
run "$python" -m tools.verify.crash_sweep --suspended
for workers in 1 2; do for how in suspend sigterm sigkill; do
  run "$python" -m tools.verify.suspend --stops 20 --workers "$workers" --how "$how"
done; done
run "$python" -m tools.verify.elastic
run "$python" -m tools.verify.leader --rounds 3
run "$python" -m tools.verify.permissions
run "$python" -m tools.verify.accounting
run "$python" -m tools.verify.alerts
