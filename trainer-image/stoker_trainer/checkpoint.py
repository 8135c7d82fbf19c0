"""Owns checkpoints as files: written aside, checked, published by one rename, read newest first, pruned. Called by
`save` (rank 0 only).

A checkpoint is a folder `step-<step>-a<attempt>` with `state.pt` and `manifest.json`. The manifest is written last and
holds size and sha256 of every file and of itself: whatever is torn, cut or flipped is found before torch reads it, the
folder is renamed to `….bad`, and the one before is taken. Knows bytes and steps only, nothing of tensors.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BadConfig
from .fence import Fence
from .files import sync_folder, write_synced

FORMAT = 3  # read too: 1, before recipes were seams; 2, whose optimizer state was flat
STATE = "state.pt"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{10})-a(\d{8})")
log = logging.getLogger(__name__)


class Damaged(Exception):
    """A checkpoint that must not be used, and why."""


@dataclass(frozen=True)
class Saved:
    """A published checkpoint whose bytes are what was written."""

    step: int
    attempt: int
    path: Path
    manifest: dict[str, Any]
    state: bytes


class CheckpointFolder:
    def __init__(self, folder: Path, fence: Fence, keep: int) -> None:
        self.path, self._fence, self._keep = folder, fence, keep

    def publish(self, step: int, state: bytes, about: dict[str, Any]) -> Path:
        """Makes `state` the newest checkpoint and prunes old ones. `about` goes into the manifest.

        Raises: Superseded where a newer attempt has the folder; OSError (disk full): the older ones are untouched.
        """
        name = f"step-{step:010d}-a{self._fence.attempt:08d}"
        aside = self.path / f".tmp-a{self._fence.attempt:08d}-{os.getpid()}-{name}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            write_synced(aside / STATE, state)
            write_synced(aside / MANIFEST, _manifest_bytes(step, self._fence.attempt, state, about))
            sync_folder(aside)
            with self._fence.publishing():
                final = self.path / name
                if final.exists():  # saved at this step before, by this same attempt: the same state
                    self._discard(final)
                aside.rename(final)
                sync_folder(self.path)
                self._prune()
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return final

    def newest_first(self) -> Iterator[Saved]:
        """Every checkpoint that is whole, newest first; damaged ones are marked and logged on the way."""
        for path in published(self.path):
            try:
                yield read(path)
            except Damaged as error:
                self.mark_bad(path, str(error))

    def holds_any(self) -> bool:
        """Whether there is a checkpoint, whole or not."""
        return bool(published(self.path))

    def mark_bad(self, path: Path, why: str) -> None:
        """Sets `path` aside: it is never looked at again, but kept until newer ones push it out.

        Raises: Superseded where a newer attempt has the folder.
        """
        log.warning("checkpoint %s is damaged (%s); taking the one before it", path.name, why)
        with self._fence.publishing():
            bad = path.with_name(path.name + ".bad")
            shutil.rmtree(bad, ignore_errors=True)
            path.rename(bad)

    def _prune(self) -> None:
        """Keeps the newest `keep`; takes away older ones, good or bad, and what dead attempts left half done."""
        kept = published(self.path)
        for path in kept[self._keep :]:
            self._discard(path)
        oldest = kept[: self._keep][-1].name
        for path in self.path.iterdir():
            left_behind = re.match(r"\.(tmp|old)-a(\d+)-", path.name)
            if (path.name.endswith(".bad") and path.name < oldest) or (
                left_behind and int(left_behind[2]) < self._fence.attempt
            ):
                shutil.rmtree(path, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        """Renamed first, so that no reader ever sees it half removed."""
        gone = path.with_name(f".old-a{self._fence.attempt:08d}-{os.getpid()}-{path.name}")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def of_another(folder: Path, step: int | None) -> Iterator[Saved]:
    """The whole checkpoints of a folder that is another training's, newest first (or those of `step`); it stays as it
    is.

    Raises: BadConfig where there is none.
    """
    paths = published(folder) if folder.is_dir() else []
    asked = [path for path in paths if step is None or _step(path) == step]
    for path in asked:
        try:
            yield read(path)
        except Damaged as error:
            log.warning("checkpoint %s is damaged (%s)", path, error)
    steps = ", ".join(map(str, sorted({_step(path) for path in paths})))
    what = "checkpoint" if step is None else f"checkpoint of step {step}"
    raise BadConfig(f"{folder} holds no whole {what} to go on from" + (f"; it has those of {steps}" if steps else ""))


def published(folder: Path) -> list[Path]:
    """Newest first, whole or not."""
    found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)]
    return sorted(found, key=lambda p: p.name, reverse=True)


def read(path: Path) -> Saved:
    """The checkpoint at `path`, every byte checked.

    Raises: Damaged; BadConfig where a newer trainer wrote it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        state = (path / STATE).read_bytes()
        seal = manifest.pop("seal")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None
    if seal != _seal(manifest):
        raise Damaged("its manifest's checksum does not fit")
    if not 1 <= manifest["format"] <= FORMAT:
        raise BadConfig(
            f"{path} has format {manifest['format']}, and this trainer reads 1 to {FORMAT}; "
            f"resume with the trainer that wrote it (torch {manifest.get('torch')})"
        )
    entry = manifest["files"][STATE]
    if len(state) != entry["bytes"]:
        raise Damaged(f"{STATE} has {len(state)} bytes, not {entry['bytes']}")
    if hashlib.sha256(state).hexdigest() != entry["sha256"]:
        raise Damaged(f"{STATE}'s checksum does not fit")
    if path.name != f"step-{manifest['step']:010d}-a{manifest['attempt']:08d}":
        raise Damaged(f"it holds step {manifest['step']} of attempt {manifest['attempt']}")
    return Saved(manifest["step"], manifest["attempt"], path, manifest, state)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _manifest_bytes(step: int, attempt: int, state: bytes, about: dict[str, Any]) -> bytes:
    manifest = {
        **about,
        "format": FORMAT,
        "step": step,
        "attempt": attempt,
        "files": {STATE: {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}},
    }
    return json.dumps({**manifest, "seal": _seal(manifest)}, indent=1).encode()


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
