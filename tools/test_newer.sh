#!/usr/bin/env bash
# Runs the quick tests of our own code on one newer Python, in an environment without torch: what holds there holds for
# the control plane's image. What can't differ by Python's version is proved once: chart, release, images, test bed, and
# what a real API server says. Says so loudly where no newer Python is installed that can make an environment (Debian's
# needs its package python3.X-venv for that).
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
PYTHON=$newer VENV=.venv-newer EXTRAS=cluster,dev bash tools/setup.sh
# shellcheck disable=SC2086 # options of pytest-xdist
.venv-newer/bin/python -m pytest -q ${AT_ONCE:-} -m "not torch and not slow and not cluster" -p no:cacheprovider \
  --ignore=tests/chart --ignore=tests/release --ignore=tests/images --ignore=tests/testbed
