"""An image of another tree than the working tree, under a name of the caller's: a release's. Called by `tools/release`.

Shares its layers with the images of `ensure`, but not its cache of archives, and neither removes the other's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import building, machine
from .catalogue import RECIPES, base_reference
from .ensuring import BuildFailed, Log, ensure_base, labels, one_at_a_time


def build_tagged(name: str, reference: str, root: Path, version: str, revision: str, log: Log) -> None:
    """The image `name` of the catalogue, made of the files below `root`, as `reference` in buildah's storage.

    Older references of the same repository are forgotten.
    Raises: machine.Missing, machine.NotEnoughDisk, BuildFailed.
    Cost: 4 s where `ensure` built the same files, else as there.
    """
    recipe = RECIPES[name]
    machine.require("buildah")
    machine.require_disk(name, recipe.disk_bytes, building.STORAGE)
    assert recipe.dockerfile
    try:
        ensure_base(log)
        lock = machine.cache_folder() / f".{name}.lock"
        with one_at_a_time(lock), tempfile.TemporaryDirectory(prefix="stoker-context-") as context:
            recipe.snapshot(Path(context), root)
            dockerfile, args = Path(context) / recipe.dockerfile, {"BASE": base_reference()}
            building.build(reference, dockerfile, recipe.target, args, Path(context), labels(version, revision))
    except building.CommandFailed as error:
        raise BuildFailed(f"{name}: {error}") from None
    for old in building.others(reference.rpartition(":")[0], reference):
        building.forget(old)
