"""One remote-write request over HTTP, and what its answer means.

Owns the connection, kept open while requests follow each other, and the credentials, read at each request so that a
replaced file counts. Never retries, never follows a redirect (the token would go with it), knows no proxies. Called by
the sender's thread.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import http.client
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from stoker import __version__
from stoker.push.tls import client_context

from . import snappy

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NOT_TO_BE_SET = ("authorization", "host", "connection", "transfer-encoding", "user-agent")
"""Beside those of the body (content-…) and of the protocol (x-prometheus-remote-write-…)."""
_ANSWER_BYTES = 2048
"""Of an answer's text; it is only told to people."""


class What(Enum):
    TAKEN = "taken"
    REFUSED = "refused"
    """The receiver will never take it."""
    LATER = "later"
    """It may, later: too many requests, its own failure, or no connection."""


@dataclass(frozen=True, slots=True)
class Answer:
    what: What
    code: str
    """HTTP's status, or `transport`."""
    text: str = ""
    after_s: float | None = None
    """As the receiver asks: not before this many seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to push, and as whom. Raises: ValueError for a url that is none, and for what would show a secret."""

    url: str
    token_file: Path | None = None
    """A bearer token."""
    basic_file: Path | None = None
    """`user:password`."""
    ca_file: Path | None = None
    """PEM certificates to trust instead of the system's."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further ones: a tenant's name, say. No secrets: command lines are seen by all."""
    allow_http: bool = False
    """Send the token or password over http:// too."""
    timeout_s: float = 30.0
    """Of each step: connecting, sending, each read."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.url!r} is no address to push to: say http://… or https://…/api/v1/write")
        if parts.username or parts.password:
            raise ValueError("name a file with user:password (--push-basic-auth-file), not the password in the url")
        if self.token_file and self.basic_file:
            raise ValueError("a push has a token or a user and password, not both")
        if parts.scheme == "http" and (self.token_file or self.basic_file) and not self.allow_http:
            raise ValueError(
                "a token or password would cross the network in plain text: use https://, or say --push-allow-http"
            )
        for name, value in self.headers.items():
            known = name.lower()
            if known in _NOT_TO_BE_SET or known.startswith(("content-", "x-prometheus-remote-write-")):
                raise ValueError(f"header {name} is not yours to set (credentials: --push-token-file)")
            if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise ValueError(f"{name!r} with {value!r} is no header")


class Client:
    def __init__(self, target: Target) -> None:
        """Raises: OSError, ssl.SSLError where the CA file can't be used."""
        self._target = target
        parts = urllib.parse.urlsplit(target.url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = client_context(target.ca_file) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def send(self, request: bytes) -> Answer:
        """Sends a WriteRequest. Never raises for what a network or a receiver does."""
        try:
            headers = self._headers()
        except (OSError, ValueError) as error:
            return Answer(What.LATER, "credentials", str(error))
        body = snappy.compress(request)
        try:
            return self._ask(body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer(What.LATER, "transport", repr(error))

    def close(self) -> None:
        """Ends the connection; the next request makes another."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _ask(self, body: bytes, headers: dict[str, str]) -> Answer:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read(_ANSWER_BYTES).decode(errors="replace").strip()
        if answer.will_close or not answer.isclosed():  # the rest of a long answer is not worth waiting for
            self.close()
        if answer.status // 100 == 2:
            return Answer(What.TAKEN, str(answer.status))
        if answer.status == 429 or answer.status >= 500:
            return Answer(What.LATER, str(answer.status), text, _after_s(answer.getheader("Retry-After")))
        return Answer(What.REFUSED, str(answer.status), text)

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = self._target.timeout_s
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
            "User-Agent": f"stoker/{__version__}",
            **self._target.headers,
        }
        if self._target.token_file is not None:
            headers["Authorization"] = f"Bearer {_word(self._target.token_file)}"
        elif self._target.basic_file is not None:
            encoded = base64.b64encode(_word(self._target.basic_file).encode()).decode()
            headers["Authorization"] = f"Basic {encoded}"
        return headers


def _word(file: Path) -> str:
    """Raises: OSError; ValueError where the file holds no single line."""
    word = file.read_text().strip()
    if not word or "\n" in word:
        raise ValueError(f"{file} is to hold one line: a token, or user:password")
    return word


def _after_s(header: str | None) -> float | None:
    """Retry-After: seconds, or a date. None where it says nothing of use."""
    if not header:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    return None
