#!/usr/bin/env bash
# Speed and memory of the parts Stoker exists for; docs/benchmarks.md holds the figures of the last recorded run.
# OPENB=<openb_pod_list_default.csv of alibaba/clusterdata> adds that mix of requests.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${VENV:-.venv}/bin/python
[ -z "${OPENB:-}" ] || set -- --openb "$OPENB"
mkdir -p docs/benchmarks
echo "## sched"; "$python" -m tools.bench.sched "$@" --json docs/benchmarks/sched.json
echo; echo "## reclaim"; "$python" -m tools.bench.reclaim --json docs/benchmarks/reclaim.json
for bench in store kube cluster metrics exporter followers trainer batch precision; do echo; echo "## $bench"; "$python" -m "tools.bench.$bench"; done
