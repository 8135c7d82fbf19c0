"""`release.json` and `SHA256SUMS`: what a release folder holds. Written by `making`, read by `verifying`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tools.release.errors import Refused
from tools.release.sbom import sha256

FILE = "release.json"
SUMS = "SHA256SUMS"


class Artefact(BaseModel):
    """One file that people take."""

    model_config = ConfigDict(frozen=True)

    file: str
    kind: str
    """wheel, sdist, chart or image."""
    bytes: int
    sha256: str
    sbom: str
    image: str = ""
    """Of an image: its name in the catalogue, such as trainer-cpu."""
    reference: str = ""
    """Of an image: its full name with tag."""
    digest: str = ""
    """Of an image: its manifest's, what a registry will call it."""


class Release(BaseModel):
    """One folder under dist/."""

    model_config = ConfigDict(frozen=True)

    version: str
    chart_version: str
    image_tag: str
    commit: str
    committed_at: str
    artefacts: tuple[Artefact, ...]
    left_out: tuple[str, ...]
    """Parts and images that no one asked for."""

    def of(self, kind: str) -> list[Artefact]:
        return [artefact for artefact in self.artefacts if artefact.kind == kind]


def write(release: Release, folder: Path) -> None:
    """Both files. The sums, in the form `sha256sum --check` reads, cover every other file of the folder."""
    (folder / FILE).write_text(release.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    names = sorted(path.name for path in folder.iterdir() if path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in names))


def read(folder: Path) -> Release:
    """Raises: Refused where it is not there or not ours."""
    try:
        return Release.model_validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        raise Refused(f"{folder} holds no {FILE}: name a folder that `make release` made, such as dist/0.1.0") from None
    except ValueError as error:
        raise Refused(f"{folder / FILE}: {error}") from None


def sums_problems(folder: Path) -> list[str]:
    """What differs between the folder and its SHA256SUMS."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except FileNotFoundError:
        return [f"{SUMS} is missing: make the release again (`make release`)"]
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {path.name for path in folder.iterdir()} - {SUMS}
    found = [f"{name} is in {SUMS} but not here: download or make it again" for name in sorted(wanted.keys() - there)]
    found += [
        f"{name} is not in {SUMS}: it is not of this release, remove it" for name in sorted(there - wanted.keys())
    ]
    changed = [name for name in sorted(there & wanted.keys()) if sha256(folder / name) != wanted[name]]
    return found + [f"{name} is not what was released (SHA-256 differs): download or make it again" for name in changed]
