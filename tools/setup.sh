#!/usr/bin/env bash
# Makes $VENV and installs Stoker with everything the demo and the tests need. Uses uv where it is there (seconds),
# plain venv + pip where not (minutes). Without an NVIDIA driver uv takes PyTorch's own wheels for CPUs where it can
# reach them; UV_TORCH_BACKEND (cpu, auto, cu130 …) decides otherwise.
set -euo pipefail
PYTHON=${PYTHON:-python3} VENV=${VENV:-.venv} EXTRAS=${EXTRAS:-cluster,trainer,demo,dev}
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Stoker needs Python 3.11 or newer; $PYTHON is $("$PYTHON" -V 2>&1). Try: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
start=$(date +%s)
uv=; command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1 && uv=1
if [ -n "$uv" ]; then
  [ -x "$VENV/bin/python" ] || uv venv --quiet --python "$("$PYTHON" -c 'import sys; print(sys.executable)')" "$VENV"
  export UV_HTTP_TIMEOUT=300 UV_COMPILE_BYTECODE=${UV_COMPILE_BYTECODE:-1}
else
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
fi
about=
case ",$EXTRAS," in *,trainer,*)
  if [ -n "$uv" ] && [ -z "${UV_TORCH_BACKEND:-}" ] && [ ! -e /proc/driver/nvidia/version ] &&
    UV_TORCH_BACKEND=cpu UV_HTTP_RETRIES=0 uv pip install --quiet --dry-run --python "$VENV/bin/python" -c constraints.txt torch 2>/dev/null; then
    export UV_TORCH_BACKEND=cpu
  fi
  if [ "${UV_TORCH_BACKEND:-}" = cpu ]; then
    about=" (torch without CUDA)"
  else
    about=" (torch with its CUDA parts is 5 GB; once)"
    free_gb=$(df -Pk . | awk 'NR==2 {print int($4 / 1048576)}')
    [ "$free_gb" -ge 8 ] || { echo "torch needs about 8 GB of free disk here; there are $free_gb GB." >&2; exit 1; }
  fi;;
esac
echo "installing stoker[$EXTRAS] into $VENV$about …"
if [ -n "$uv" ]; then
  uv pip install --python "$VENV/bin/python" -c constraints.txt -e ".[$EXTRAS]"
else
  "$VENV/bin/python" -m pip install --disable-pip-version-check --timeout 300 -c constraints.txt -e ".[$EXTRAS]"
fi
touch "$VENV/.installed"
echo "installed in $(($(date +%s) - start)) s"
