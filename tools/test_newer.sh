#!/usr/bin/env bash
# Runs on one newer Python, in an environment without torch, the quick tests of what can differ there: that is where our
# code meets the standard library and compiled packages (asyncio, subprocess, sqlite3, ssl, archives, annotations read
# by Pydantic). What holds there holds for the control plane's image. Proved on one Python only: sched, life and why,
# pure functions that the operator's and the api's tests run here too; chart, rules, release, images, docs and test bed,
# which are about files; and what a real API server says. Says so loudly where no newer Python is installed that can
# make an environment (Debian's needs its package python3.X-venv for that).
set -euo pipefail
VENV=${VENV:-.venv}
have=$("$VENV/bin/python" -c 'import sys; print(sys.version_info[1])')
newer=""
for minor in 14 13 12; do
  [ "$minor" -gt "$have" ] || continue
  for candidate in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python3."$minor" /usr/local/bin/python3."$minor"; do
    if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then newer=$("$candidate" -c 'import sys; print(sys.executable)'); break 2; fi
  done
done
if [ -z "$newer" ]; then
  echo "SKIPPED: no Python newer than 3.$have (with venv and ensurepip) is installed; the tests ran on one Python only"
  exit 0
fi
echo "== the quick tests without torch on $("$newer" -V)"
make_environment() { PYTHON=$newer VENV=.venv-newer EXTRAS=cluster,dev UV_COMPILE_BYTECODE=0 bash tools/setup.sh; }
# By the uv that came with the first environment, a tenth of pip's CPU; by pip where uv can't reach its packages.
PATH="$(cd "$VENV/bin" && pwd):$PATH" make_environment || { rm -rf .venv-newer; make_environment; }
left_out=()
for room in sched life why chart rules release images docs testbed; do left_out+=("--ignore=tests/$room"); done
# shellcheck disable=SC2086 # options of pytest-xdist
.venv-newer/bin/python -m pytest -q ${AT_ONCE:-} -m "not torch and not slow and not cluster" -p no:cacheprovider "${left_out[@]}"
