"""`ensure`: an image by name and as an archive, built only when its inputs changed. The package's entry point."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import building, machine
from .catalogue import RECIPES, REGISTRY, ROOT, Recipe, base_reference

Log = Callable[[str], None]


class BuildFailed(Exception):
    """An image could not be built; the message ends with the builder's output."""


@dataclass(frozen=True)
class Image:
    """An image that exists."""

    name: str
    """With tag: stoker.local/stoker:0123456789ab."""
    archive: Path
    """docker-archive, layers not compressed."""

    def figures(self) -> dict[str, float]:
        """How it came about: `build_s`, `export_s`, `archive_bytes`."""
        found: dict[str, float] = json.loads(_figures_file(self.archive).read_text())
        return found


def ensure(name: str, log: Log = lambda line: None, archive: bool = True) -> Image:
    """The image `name` of the catalogue as the working tree has it now, in buildah's storage and as an archive.

    Needs no builder where the archive of these inputs is there already. Of one name one build at a time; others wait.
    `archive` False: in buildah's storage is enough (writing 5.8 GB takes longer than a change of ours).
    Raises: machine.Missing, machine.NotEnoughDisk, BuildFailed.
    Cost: digest 10 ms. See docs/images.md for builds.
    """
    recipe = RECIPES[name]
    image = _named(recipe)
    if _done(image, archive):
        return image
    folder = machine.cache_folder()
    machine.require("buildah")
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder / f".{name}.lock"), tempfile.TemporaryDirectory(prefix="stoker-context-") as context:
        recipe.snapshot(Path(context))
        image = _named(recipe, Path(context))
        if _done(image, archive):
            return image
        machine.require_disk(name, recipe.disk_bytes, folder, building.STORAGE)
        log(f"{name}: building {image.name}")
        try:
            _make(recipe, image, Path(context), archive, log)
        except building.CommandFailed as error:
            raise BuildFailed(f"{name}: {error}") from None
        _forget_older(recipe, image)
    return image


def _named(recipe: Recipe, root: Path = ROOT) -> Image:
    reference = recipe.reference(root)
    return Image(reference, machine.cache_folder() / f"{recipe.name}-{reference.rpartition(':')[2]}.tar")


def _done(image: Image, archive: bool) -> bool:
    exported = image.archive.is_file() and _figures_file(image.archive).is_file()
    return exported or (not archive and shutil.which("buildah") is not None and building.present(image.name))


def ensure_base(log: Log) -> None:
    """The base in buildah's storage, made where it is not there. Cost: 40 s, once."""
    if not base_reference().startswith(f"{REGISTRY}/"):
        return
    machine.cache_folder().mkdir(parents=True, exist_ok=True)
    with one_at_a_time(machine.cache_folder() / ".base.lock"):
        if not building.present(base_reference()):
            started = time.monotonic()
            building.make_base(base_reference())
            log(f"base: {base_reference()} in {time.monotonic() - started:.0f} s")


def labels(version: str, revision: str) -> dict[str, str]:
    """The labels that an image gets beside those of its Dockerfile."""
    return {"org.opencontainers.image.version": version, "org.opencontainers.image.revision": revision}


def _make(recipe: Recipe, image: Image, context: Path, archive: bool, log: Log) -> None:
    if recipe.on_base:
        ensure_base(log)
    began = time.monotonic()
    if recipe.dockerfile is None:
        building.tag(base_reference(), image.name)
    else:
        args = {"BASE": base_reference()} if recipe.on_base else {}
        about = labels(_version(), _revision()) if recipe.on_base else {}
        if not recipe.on_base:
            building.add_busybox(context)
        building.build(image.name, context / recipe.dockerfile, recipe.target, args, context, about)
    built = time.monotonic()
    log(f"{recipe.name}: built in {built - began:.1f} s")
    if not archive:
        return
    building.export(image.name, image.archive)
    figures = {
        "build_s": round(built - began, 1),
        "export_s": round(time.monotonic() - built, 1),
        "archive_bytes": image.archive.stat().st_size,
    }
    _figures_file(image.archive).write_text(json.dumps(figures))
    log(f"{recipe.name}: {figures['archive_bytes'] / 1e6:,.0f} MB, exported in {figures['export_s']} s")


def _forget_older(recipe: Recipe, image: Image) -> None:
    for old in image.archive.parent.glob(f"{recipe.name}-*.tar"):
        if old != image.archive:
            _figures_file(old).unlink(missing_ok=True)
            old.unlink()
    for reference in building.others(image.name.rpartition(":")[0], image.name):
        building.forget(reference)


def _figures_file(archive: Path) -> Path:
    return archive.with_suffix(".json")


def _version() -> str:
    text = (ROOT / "operator/stoker/__init__.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def _revision() -> str:
    """The commit, "-dirty" where the tree differs from it; "unknown" outside of a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--match="],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    return done.stdout.strip() or "unknown"


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Holds the lock `path`; waits for its holder."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
