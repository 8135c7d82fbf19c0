"""The trainer's own tests in its CPU image, on Debian's torch 2.6, the oldest we support (`images trainer-tests`).

What is tested is the trainer as it is in the image; tests and `stoker.spec` come from the working tree, read-only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import building
from .catalogue import RECIPES, REGISTRY, ROOT, base_reference
from .ensuring import ensure
from .running import run_in

_TESTS_S = 3000


def trainer_tests(options: list[str]) -> int:
    """pytest's exit code. `options` go to pytest, such as -k or -m."""
    image = ensure("trainer-cpu", log=print)  # brings the base and torch's layer
    reference = f"{REGISTRY}/trainer-cpu-test:{image.name.rpartition(':')[2]}"
    recipe = RECIPES["trainer-cpu"]
    with tempfile.TemporaryDirectory(prefix="stoker-context-") as context:
        recipe.snapshot(Path(context))
        dockerfile = Path(context) / (recipe.dockerfile or "")
        building.build(reference, dockerfile, "cpu-test", {"BASE": base_reference()}, Path(context), {})
    for old in building.others(reference.rpartition(":")[0], reference):
        building.forget(old)
    argv = ("python", "-m", "pytest", "-p", "no:cacheprovider", "-c", "/repo/pyproject.toml", "--rootdir", "/repo")
    with building.root_filesystem(reference, image.archive) as (root, config):
        ended = run_in(
            root,
            config,
            (*argv, *(options or ["/repo/tests/trainer"])),
            env=("PYTHONPATH=/opt/stoker/app:/repo/operator", "OMP_NUM_THREADS=1"),
            binds=tuple((ROOT / name, f"/repo/{name}") for name in ("pyproject.toml", "tests", "operator", "tools")),
            timeout_s=_TESTS_S,
        )
    print(ended.output)
    print(f"{image.name}: {ended.wall_s:.0f} s (CPU {ended.cpu_s:.0f} s)")
    return ended.code
