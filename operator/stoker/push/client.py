"""One remote-write request, and what the receiver's response means. Never retries. Called by the sender's thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from stoker import __version__

from . import snappy
from .link import Link, NoCredentials, NoResponse, client_context

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_RESERVED = ("authorization", "host", "connection", "transfer-encoding", "user-agent")
"""Beside those of the body (content-…) and of the protocol (x-prometheus-remote-write-…)."""


class Outcome(Enum):
    TAKEN = "taken"
    REFUSED = "refused"
    """The receiver will never take it."""
    LATER = "later"
    """It may, later: too many requests, its own failure, or no connection."""


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    code: str
    """HTTP's status, `transport` or `credentials`."""
    text: str = ""
    after_s: float = 0.0
    """As the receiver asks: not before this many seconds."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where to push, with which credentials. Raises: ValueError for a url that is none and what would show a secret."""

    url: str
    token_file: Path | None = None
    """A bearer token."""
    basic_file: Path | None = None
    """`user:password`."""
    ca_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further ones: a tenant's name, say. No secrets: command lines are seen by all."""
    allow_http: bool = False
    """Send the token or password over http:// too."""
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        self.link()
        if self.token_file and self.basic_file:
            raise ValueError("a push has a token or a user and password, not both")
        if urlsplit(self.url).scheme == "http" and (self.token_file or self.basic_file) and not self.allow_http:
            raise ValueError(
                "a token or password would cross the network in plain text: use https://, or say --push-allow-http"
            )
        for name, value in self.headers.items():
            known = name.lower()
            if known in _RESERVED or known.startswith(("content-", "x-prometheus-remote-write-")):
                raise ValueError(f"header {name} is not yours to set (credentials: --push-token-file)")
            if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise ValueError(f"{name!r} with {value!r} is no header")

    def link(self) -> Link:
        return Link(self.url, self.token_file, self.ca_file, self.timeout_s, self.basic_file)


class RemoteWriteClient:
    def __init__(self, receiver: Receiver) -> None:
        """Raises: OSError, ssl.SSLError where the CA file can't be used."""
        if receiver.ca_file is not None:
            client_context(receiver.ca_file)
        self._link = receiver.link()
        self._headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
            "User-Agent": f"stoker/{__version__}",
            **receiver.headers,
        }

    def send(self, request: bytes) -> Result:
        """Sends a WriteRequest. Never raises for what a network or a receiver does."""
        try:
            response = self._link.post("", snappy.compress(request), self._headers)
        except NoCredentials as error:
            return Result(Outcome.LATER, "credentials", str(error))
        except NoResponse as error:
            return Result(Outcome.LATER, "transport", str(error))
        code, text = str(response.status), response.body[:2048].decode(errors="replace").strip()
        if response.status // 100 == 2:
            return Result(Outcome.TAKEN, code)
        if response.status == 429 or response.status >= 500:
            return Result(Outcome.LATER, code, text, response.retry_after_s)
        return Result(Outcome.REFUSED, code, text)

    def close(self) -> None:
        """Ends the connection; the next request makes another."""
        self._link.close()
