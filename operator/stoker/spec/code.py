"""A folder of a user's code as Stoker keeps it: a manifest of files, named by its own digest.

Owns the manifest's form, its digest and the limits; `docs/code.md` has the way from the user's folder to the worker.
Content-addressed per project: a file is sent once, whatever bundles name it, and no project learns of another's.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from .markers import Form
from .meta import SpecModel

MAX_FILES = 10_000
MAX_BYTES = 64 << 20
MAX_PATH = 1024
MAX_NAME = 255
"""Units: bytes of UTF-8, both."""
MAX_LEVELS = 64
"""Names in a path."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's general categories of what a name must not hold: controls, marks of direction and width, line ends."""

PACK_TYPE = "application/vnd.stoker.pack"
"""Files on their way to the server: for each its SHA-256 in hex, a blank, its size in decimal, a line feed, and it."""
BUNDLE_TYPE = "application/vnd.stoker.bundle"
"""A bundle on its way to a worker: the manifest's size in decimal, a line feed, the manifest (the digest's very bytes),
then the bytes of each distinct file, in the order in which the manifest first names its SHA-256."""

DIGEST = Form(re.compile(r"sha256:[0-9a-f]{64}"), "must be the digest of a code bundle: sha256: and 64 hex digits")


def _digest(value: str) -> str:
    if not DIGEST.fits(value):
        raise ValueError(DIGEST.says)
    return value


CodeDigest = Annotated[str, Field(max_length=71), DIGEST, AfterValidator(_digest)]
Sha256 = Annotated[str, Field(min_length=64, max_length=64, pattern=r"^[0-9a-f]{64}$")]


class CodeFile(SpecModel):
    """One file or symbolic link."""

    path: str = Field(min_length=1, max_length=MAX_PATH)
    """Within the folder, with `/`, normalized."""
    sha256: Sha256 | None = None
    """Of its bytes; absent: it is a link."""
    size: int = Field(default=0, ge=0, le=MAX_BYTES)
    """Bytes."""
    executable: bool = False
    """May be run as a program."""
    link: str | None = Field(default=None, min_length=1, max_length=MAX_PATH)
    """Where a symbolic link points: relative, and within the folder."""

    @model_validator(mode="after")
    def _well_formed(self) -> Self:
        parts = self.path.split("/")
        if {"", ".", ".."} & set(parts):
            raise ValueError("path must be relative and normalized, without '..'")
        for path in (self.path, self.link):
            if path is not None and (wrong := bad_path(path)) is not None:
                raise ValueError(wrong)
        if (self.sha256 is None) == (self.link is None):
            raise ValueError("give either sha256 (a file) or link (a symbolic link)")
        if self.link is not None:
            if self.size or self.executable:
                raise ValueError("a link has no size and is not executable")
            if not _stays_inside(parts[:-1], self.link):
                raise ValueError("link must point to something within the folder")
        return self


class CodeManifest(SpecModel):
    """The files of a bundle, by path."""

    files: tuple[CodeFile, ...] = Field(max_length=MAX_FILES)

    @model_validator(mode="after")
    def _a_tree(self) -> Self:
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            raise ValueError("files must be sorted by path, each path once")
        known = set(paths)
        for path in paths:
            above = path
            while "/" in above:
                above = above.rpartition("/")[0]
                if above in known:
                    raise ValueError(f"{above} is a file (or link) and cannot hold {path}")
        sizes: dict[str, int] = {}
        for file in self.files:
            if file.sha256 is not None and sizes.setdefault(file.sha256, file.size) != file.size:
                raise ValueError(f"{file.path} has the SHA-256 of a file of another size")
        if self.total_bytes > MAX_BYTES:
            raise ValueError(f"the files hold {self.total_bytes} bytes, over the limit of {MAX_BYTES}")
        return self

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def canonical(self) -> bytes:
        """The bytes the digest is taken of: JSON, keys sorted, no blanks, what is not set left out."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.canonical()).hexdigest()}"


def bad_path(path: str) -> str | None:
    """What keeps a file's path, or what a link says, out of a bundle; None: nothing. The client asks this too."""
    if not path.isprintable():
        for character in path:
            if unicodedata.category(character) in _UNSEEN:
                name = unicodedata.name(character, "a control character")
                return f"the name holds U+{ord(character):04X} ({name}), which can't be seen"
    parts = path.split("/")
    if len(path.encode()) > MAX_PATH:
        return f"the path is over {MAX_PATH} bytes long"
    if len(parts) > MAX_LEVELS:
        return f"the path has {len(parts)} levels, over the limit of {MAX_LEVELS}"
    if any(len(part.encode()) > MAX_NAME for part in parts):
        return f"no file system holds a name of more than {MAX_NAME} bytes"
    return None


def _stays_inside(folder: list[str], link: str) -> bool:
    """Whether a link in `folder` that says `link` points to something within the bundle, whatever else is a link.

    A `..` stands at the link's beginning only: behind another link it would lead out of that one's target.
    """
    parts = link.split("/")
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    below = parts[up:]
    return up <= len(folder) and bool(below) and not {"", ".", ".."} & set(below)
