"""What a url names, by fsspec: how large it is, which version, and its bytes. Called by `fetching`.

A scheme is opened by fsspec's own implementation of it: a chained url means nothing here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import fsspec
from fsspec.callbacks import Callback

from .errors import Refused, denied

ANSWER_S = 30
SILENT_S = 60
MOST_FILES = 100_000
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "LastModified", "Last-Modified", "updated", "mtime")
"""What stores say of a file that is another one once it was changed."""
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A file. `path` as fsspec has it; `below`: where it goes."""

    path: str
    below: str
    size_bytes: int | None
    version: tuple[str, ...]


class Source:
    def __init__(self, url: str, file_name: str) -> None:
        """Raises: ImportError where the scheme's package is missing."""
        scheme = url.partition("://")[0]
        self._is_anonymous = scheme == "gs"
        self._files = _google("anon") if self._is_anonymous else fsspec.filesystem(scheme, **_options(scheme))
        self._path = self._files._strip_protocol(url)
        self._is_folder = url.endswith("/")
        self._file_name = file_name

    def look(self) -> list[Found]:
        """The file, or those of the folder. Raises: OSError, what the store's client raises, Refused."""
        return self._asked(self._look)

    def get(self, found: Found, into: Path, moved: Callable[[int], None]) -> None:
        """Write the file below `into`; `moved` is called with bytes that have come."""
        target = into / found.below
        target.parent.mkdir(parents=True, exist_ok=True)
        self._asked(lambda: self._files.get_file(found.path, str(target), callback=_Count(moved)))

    def _asked(self, ask: Callable[[], T]) -> T:
        """Credentials of Google's are looked for once it refuses those who have none: that takes 12 s where there are
        none, and a public bucket needs none."""
        try:
            return ask()
        except Exception as error:
            if not (self._is_anonymous and denied(error)):
                raise
            self._is_anonymous = False
            try:
                self._files = _google("google_default")
            except Exception:  # noqa: BLE001 (there are none, or their server does not answer)
                raise error from None
        return ask()

    def _look(self) -> list[Found]:
        if not self._is_folder:
            info = self._files.info(self._path)
            if info.get("type") == "directory":
                raise Refused("it is a folder; end its url with /")
            return [Found(self._path, self._file_name, _size(info), _version(info))]
        found = [self._below(path, info) for path, info in self._files.find(self._path, detail=True).items()]
        if not found:
            raise FileNotFoundError("nothing is there")
        if len(found) > MOST_FILES:
            raise Refused(f"it holds {len(found)} files, over the limit of {MOST_FILES}; pack them")
        return found

    def _below(self, path: str, info: Mapping[str, Any]) -> Found:
        below = path.removeprefix(self._path.rstrip("/")).lstrip("/")
        parts = PurePosixPath(below).parts
        if not parts or ".." in parts or "\0" in below:
            raise Refused(f"it holds a file with the name {below[:100]!a}")
        return Found(path, below, _size(info), _version(info))


def version_of(url: str, found: list[Found]) -> str:
    """A name for just these contents; '': the store does not say enough."""
    if not all(one.version for one in found):
        return ""
    facts = sorted((one.below, one.size_bytes or 0, one.version) for one in found)
    return hashlib.sha256(json.dumps([url, facts]).encode()).hexdigest()[:32]


class _Count(Callback):  # type: ignore[misc]
    def __init__(self, moved: Callable[[int], None]) -> None:
        super().__init__()
        self._moved = moved

    def relative_update(self, inc: int = 1) -> None:
        self._moved(inc)


def _options(scheme: str) -> dict[str, Any]:
    if scheme in ("http", "https"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=SILENT_S)
        return {"client_kwargs": {"timeout": timeout, "trust_env": True}, "use_listings_cache": False}
    if scheme == "s3":
        times = {"connect_timeout": ANSWER_S, "read_timeout": SILENT_S}
        return {"config_kwargs": times, "anon": not any(name.startswith("AWS_") for name in os.environ)}
    return {}


def _google(token: str) -> Any:
    """Not what fsspec opens: before nearly every call that one asks by gRPC what kind of bucket it is, up to 60 s where
    no answer comes, and looks for credentials for that even if it is to have none."""
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(token=token, timeout=SILENT_S)


def _size(info: Mapping[str, Any]) -> int | None:
    size = info.get("size")
    return size if isinstance(size, int) else None


def _version(info: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}={info[name]}" for name in _VERSIONS if info.get(name))
