"""The page's files as they are sent: packed, under a path that has the digest of them all, with the headers they need.

The files are plain ES modules in `web/`, as they are written: no build step. They import each other by relative paths,
so the digest in the path of the first holds for all, and each may be kept for ever. Called by `routes/page.py`.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WEB = Path(__file__).parent / "web"
FIRST = "js/main.js"
"""What the index begins with."""
_MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}
_IMPORT = re.compile(r'from ?"(\.[^"]+)"')
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    media_type: str
    data: bytes
    packed: bytes
    """The same by gzip."""

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Asset:
        return cls(media_type, data, gzip.compress(data, 9, mtime=0))


@dataclass(frozen=True)
class Assets:
    digest: str
    index: Asset
    files: Mapping[str, Asset]
    """By path below `web/`."""


@functools.cache
def assets() -> Assets:
    """All of them, read and packed once. Cost: 40 ms (first call); not for the event loop."""
    found = {path.relative_to(WEB).as_posix(): path for path in sorted(WEB.rglob("*")) if path.suffix in _MEDIA_TYPES}
    texts = {name: path.read_bytes() for name, path in found.items()}
    whole = hashlib.sha256()
    for name, data in texts.items():
        whole.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    digest = whole.hexdigest()[:16]
    base = f"/page/{digest}"
    preloads = "\n".join(f'<link rel="modulepreload" href="{base}/{name}">' for name in imported(texts))
    index = (WEB / "index.html").read_text().replace("<!-- modules -->", preloads).replace("{base}", base)
    files = {name: Asset.of(_MEDIA_TYPES[found[name].suffix], data) for name, data in texts.items()}
    return Assets(digest, Asset.of("text/html; charset=utf-8", index.encode()), files)


def imported(texts: Mapping[str, bytes]) -> list[str]:
    """The modules that the first view needs: FIRST, what it imports, and what these import. Not those imported late."""
    found, left = [FIRST], [FIRST]
    while left:
        name = left.pop()
        for path in _IMPORT.findall(texts[name].decode()):
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            if other not in found:
                found.append(other)
                left.append(other)
    return found
