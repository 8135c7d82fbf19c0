#!/usr/bin/env bash
# Speed and memory of the parts Stoker exists for; docs/benchmarks.md holds the figures of the last recorded run.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${VENV:-.venv}/bin/python
for bench in sched store kube cluster metrics exporter followers trainer; do echo; echo "## $bench"; "$python" -m "tools.bench.$bench"; done
