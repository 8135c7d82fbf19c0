"""The server's side of code as docs/code.md describes it, small, strict and in memory."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, field
from typing import Any

from stoker.spec.code import PACK_TYPE, CodeManifest


@dataclass
class CodeStore:
    """Files by hash and bundles by digest. `requests` counts what came, `body_bytes` what it took."""

    files: dict[str, bytes] = field(default_factory=dict)
    bundles: dict[str, CodeManifest] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    body_bytes: int = 0

    def answer(self, request: Any) -> tuple[int, dict[str, Any]]:
        name = request.path.rpartition("/")[2]
        self.requests.append(request.method)
        self.body_bytes += len(request.data)
        match request.method:
            case "GET" if name in self.bundles:
                return 200, {"digest": name}
            case "GET":
                return 404, {"code": "NotFound", "detail": f"There is no code {name}."}
            case "PUT":
                return self._put(name, request.data)
            case "POST" if name == "files":
                return self._take(request)
        return 405, {"code": "MethodNotAllowed"}

    def _put(self, digest: str, data: bytes) -> tuple[int, dict[str, Any]]:
        manifest = CodeManifest.model_validate_json(data)
        assert manifest.digest() == digest and manifest.canonical() == data
        missing = sorted({file.sha256 for file in manifest.files if file.sha256} - self.files.keys())
        if missing:
            return 409, {"code": "CodeIncomplete", "detail": "some files are missing", "missing": missing}
        known = digest in self.bundles
        self.bundles[digest] = manifest
        return (200 if known else 201), {"digest": digest}

    def _take(self, request: Any) -> tuple[int, dict[str, Any]]:
        assert request.headers["content-type"] == PACK_TYPE
        data = gzip.decompress(request.data) if request.headers.get("content-encoding") == "gzip" else request.data
        while data:
            head, _, data = data.partition(b"\n")
            digest, size = head.decode().split(" ")
            content, data = data[: int(size)], data[int(size) :]
            if hashlib.sha256(content).hexdigest() != digest:
                return 422, {"code": "InvalidFields", "detail": f"{digest} is not what it says"}
            self.files[digest] = content
        return 200, {}

    def tree(self, digest: str) -> dict[str, bytes | str]:
        """Path → content, or where a link points, as a worker would unpack it."""
        return {
            file.path: self.files[file.sha256] if file.sha256 else f"-> {file.link}"
            for file in self.bundles[digest].files
        }
