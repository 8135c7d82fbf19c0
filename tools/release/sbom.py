"""Bills of materials: syft's SPDX 2.3 of what is really in an artefact, without the accidents of one run.

Needs syft (pinned in tools/modules/syft, built the first time). Nothing is asked of the network: no look-ups of
licences or versions, only what the files themselves say.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.support.testbed import build as testbed_build
from tests.support.testbed.errors import Unavailable
from tools.release.errors import Refused
from tools.release.oci import Installed, normalized

SUFFIX = ".spdx.json"
_SYFT_S = 900
# For a folder syft would also list what lock files ask for. These find what is there.
_FILES_ONLY = ("--override-default-catalogers", "python-installed-package-cataloger,file")


@dataclass(frozen=True)
class Subject:
    """What is described: the artefact, what it is called, and the folder or OCI layout that holds its content."""

    artefact: Path
    name: str
    version: str
    content: Path
    is_image: bool = False


def describe(subject: Subject, epoch: int) -> Path:
    """Write the SBOM beside the artefact. Cost: 3 s for an image of 360 MB.

    Invariant: the same artefact and `epoch` give the same bytes: its namespace is the artefact's SHA-256.
    """
    kind = "oci-dir" if subject.is_image else "dir"
    output = _syft(
        *("scan", f"{kind}:{subject.content}", "--output", "spdx-json"),
        *("--source-name", subject.name, "--source-version", subject.version),
        *(() if subject.is_image else _FILES_ONLY),
        aside=subject.artefact.parent,
        selection="owned-by-package" if subject.is_image else "all",
    )
    document = json.loads(output)
    document["name"] = subject.artefact.name
    document["documentNamespace"] = namespace(subject.artefact)
    document["creationInfo"]["created"] = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    file = sbom_file(subject.artefact)
    file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return file


def sbom_file(artefact: Path) -> Path:
    return artefact.with_name(artefact.name + SUFFIX)


def namespace(artefact: Path) -> str:
    """A name for the document that no other artefact's has."""
    return f"https://stoker.dev/spdx/{artefact.name}/{sha256(artefact)}"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(file: Path) -> dict[str, Any]:
    """Raises: ValueError where it is no SPDX 2.3 document."""
    document: dict[str, Any] = json.loads(file.read_text())
    if document.get("spdxVersion") != "SPDX-2.3" or not document.get("packages"):
        raise ValueError("is no SPDX 2.3 document with packages")
    return document


def listed(document: dict[str, Any]) -> Installed:
    """The packages that a document names by their package URLs."""
    found = Installed()
    for package in document["packages"]:
        for reference in package.get("externalRefs", ()):
            if reference["referenceType"] == "purl":
                name, _, version = reference["referenceLocator"].partition("?")[0].partition("@")
                version = unquote(version)
                if name.startswith("pkg:deb/"):
                    found.debian.add((unquote(name.rpartition("/")[2]), version))
                elif name.startswith("pkg:pypi/"):
                    found.python.add((normalized(unquote(name.rpartition("/")[2])), version))
    return found


def _syft(*args: str, aside: Path, selection: str) -> str:
    try:
        program = testbed_build.build("release")["syft"]
    except Unavailable as error:
        raise Refused(f"SBOMs are written by syft: {error}") from None
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(aside),
        "TMPDIR": str(aside),  # an image is unpacked there: /tmp may be small
        "SYFT_CHECK_FOR_APP_UPDATE": "false",
        "SYFT_CACHE_DIR": "",
        "SYFT_FILE_METADATA_SELECTION": selection,
    }
    done = subprocess.run([program, *args, "--quiet"], capture_output=True, text=True, timeout=_SYFT_S, env=env)
    if done.returncode:
        raise Refused(f"syft {args[1]}: {done.stderr.strip()[-2000:]}")
    return done.stdout
