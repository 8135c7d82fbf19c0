#!/usr/bin/env bash
# Fetches into .whl/ the packages that `make gpu-check` needs beside torch, numpy, grpcio, httpx, click, rich, prometheus-client,
# scikit-learn and pytest: the versions of constraints.txt, for Python 3.12 on x86-64. .whl/ is not in git.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=(
  pydantic pydantic-core annotated-types typing-extensions typing-inspection # models
  fastapi starlette annotated-doc opentelemetry-api uvicorn httptools websockets pathspec      # `stoker up`
  nvidia-ml-py pytest-asyncio
)
platforms=()
for glibc in 28 27 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
pinned=()
for name in "${packages[@]}"; do pinned+=("$(grep -i "^${name}==" constraints.txt)"); done
rm -rf .whl
"${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
  --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl "${pinned[@]}"
du -sh .whl
