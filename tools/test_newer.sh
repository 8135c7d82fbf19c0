#!/usr/bin/env bash
# Runs on one newer Python, in an environment without torch, what can differ there: tests where our code meets the
# standard library and compiled packages. What holds there holds for the control plane's image. A new file that meets
# either in a new way joins the list below. Rules that are pure functions, texts, files and what a real API server says
# are proved on one Python; so is what a table says: of each table one line runs here, of each property a tenth of its
# examples. Says so loudly where no newer Python is installed that can make an environment (Debian's needs its package
# python3.X-venv for that).
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
echo "== what can differ between Pythons, without torch, on $("$newer" -V)"
make_environment() { PYTHON=$newer VENV=.venv-newer EXTRAS=cluster,dev UV_COMPILE_BYTECODE=0 bash tools/setup.sh; }
# By the uv that came with the first environment, a tenth of pip's CPU; by pip where uv can't reach its packages.
PATH="$(cd "$VENV/bin" && pwd):$PATH" make_environment || { rm -rf .venv-newer; make_environment; }
tests=(
  tests/{store,contract,kube} tests/controller/test_{operator,store_writes}.py # asyncio
  tests/{spec,push,nvml} # annotations read by Pydantic; compression and floats; ctypes and pipes
  tests/local # sqlite3
  tests/{agent,worker,job} # processes, signals, descriptors; archives; TLS
  tests/exporter/{allocation,reporting,test_process.py,test_serving.py,test_watch.py,test_ledger_file.py}
  tests/api/test_{main,connections,bad_requests,access,streams,sessions,session_flow}.py # HTTP and WebSockets
  tests/api/test_{code,code_pack,code_store,tokens,usage_store,worker_logs,shipped_logs}.py # archives, sqlite3, files
  tests/cli/test_{process,real_api,code_real_api,code_sending,code_folder,port_forward,wire,connections,habits,up_background}.py # terminals, HTTP, TLS, fork
)
# Collecting costs a process seconds: five keep the cores busy while tests wait.
STOKER_EXAMPLES=0.1 .venv-newer/bin/python -m pytest -q ${AT_ONCE:+-n 5 --max-worker-restart 0} --one-of-each \
  -m "not torch and not slow and not cluster" -p no:cacheprovider "${tests[@]}"
