"""The body of a bundle's PUT → its manifest, strictly. Called by `routes/code.py`, in a thread: it may be megabytes."""

from __future__ import annotations

from pydantic import ValidationError

from stoker.spec.code import CodeManifest
from stoker_api.faults import invalid_fields
from stoker_api.problems import Problem, invalid
from stoker_api.strict_json import parse_json

MAX_MANIFEST = 8 << 20
"""Units: bytes. 10,000 files whose paths have 600 characters."""


def parse_manifest(body: bytes, digest: str) -> CodeManifest:
    """The manifest that `digest` names. Raises: Problem (400, 422).

    Cost: 0.2 s for 10,000 files of 1.5 MB (busy 2-core build machine).
    """
    data = parse_json(body)
    try:
        manifest = CodeManifest.model_validate_json(body, strict=True)
    except ValidationError as error:
        listed = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(listed, root=CodeManifest, data=data) from None
    found = manifest.digest()
    if found != digest:
        raise invalid("/digest", f"this manifest's digest is {found}: PUT it there", place="path")
    return manifest


def wrong_size(index: int, detail: str) -> Problem:
    return invalid(f"/files/{index}/size", f"{detail}; make the manifest anew from the folder")
