#!/usr/bin/env bash
# Speed and memory of the parts Stoker exists for; docs/benchmarks/ holds the last recorded runs, docs/benchmarks.md what they say.
# OPENB=<openb_pod_list_default.csv of alibaba/clusterdata> adds that mix of requests.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${VENV:-.venv}/bin/python
[ -z "${OPENB:-}" ] || set -- --openb "$OPENB"
export BENCH_JSON=docs/benchmarks
mkdir -p "$BENCH_JSON"
echo "## sched"; "$python" -m tools.bench.sched "$@"
for bench in cli reclaim store kube cluster metrics exporter followers page trainer batch precision; do echo; echo "## $bench"; "$python" -m "tools.bench.$bench"; done
