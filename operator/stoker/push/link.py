"""One server over HTTP: a connection kept open, POSTs and what comes back. For the api and for receivers of pushes.

Owns address, credentials and TLS settings; the files with them are read for every request and every connection, for
they are replaced while we run. Follows no redirect (the token would go with it), knows no proxies. A link is used by
one thread at a time.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4 << 20
MAX_RETRY_AFTER_S = 300.0
"""However long a server asks us to wait."""
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


class NoResponse(Exception):
    """There was no response; the text says why."""


class NoCredentials(NoResponse):
    """Nothing was sent: the file with the token or password can't be used."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    media_type: str
    retry_after_s: float
    """What the server asks for; 0: nothing."""

    def document(self) -> dict[str, Any]:
        """The JSON object in it. Raises: ValueError if there is none."""
        try:
            found = json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deep") from None
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found


class Link:
    def __init__(
        self,
        url: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        basic_file: Path | None = None,
    ) -> None:
        """token_file: holds a bearer token; basic_file: `user:password`; ca_file: PEM certificates to trust instead of
        the system's. timeout_s: of each step: connecting, sending, each read.

        Raises: ValueError if the url is none, or holds a password.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http(s) address: write http://HOST:PORT/… or https://HOST/…")
        if parts.username or parts.password:
            raise ValueError("take user and password out of the url: credentials are read from a file")
        self._secure, self._netloc = parts.scheme == "https", parts.netloc
        self._path, self._query = parts.path, f"?{parts.query}" if parts.query else ""
        self._token_file, self._basic_file, self._ca_file = token_file, basic_file, ca_file
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, data: bytes, headers: Mapping[str, str] = JSON) -> Response:
        """path: below the url's; empty: the url's own. Raises: NoResponse.

        Cost: two time-outs at most while the server is silent.
        """
        was_open = self._connection is not None
        where = self._path.rstrip("/") + path if path else (self._path or "/") + self._query
        try:
            sent = {**headers, **self._authorization()}
            try:
                return self._post(where, data, sent)
            except (http.client.RemoteDisconnected, ConnectionError):
                if not was_open:
                    raise
                self.close()  # the server had closed it meanwhile
                return self._post(where, data, sent)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise NoResponse(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None

    def close(self) -> None:
        """Ends the connection; the next request makes another."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _authorization(self) -> dict[str, str]:
        """Raises: NoCredentials."""
        file = self._token_file or self._basic_file
        if file is None:
            return {}
        try:
            line = file.read_text(encoding="utf-8" if self._basic_file else "ascii").strip()
        except (OSError, ValueError) as error:
            raise NoCredentials(str(error)) from None
        if not line.isprintable() or not line:
            raise NoCredentials(f"{file} must hold one line: a token, or user:password")
        secret = line if self._token_file else base64.b64encode(line.encode()).decode()
        return {"Authorization": f"{'Bearer' if self._token_file else 'Basic'} {secret}"}

    def _post(self, where: str, data: bytes, headers: Mapping[str, str]) -> Response:
        if self._connection is None:
            self._connection = self._open()
        self._connection.request("POST", where, data, dict(headers))
        response = self._connection.getresponse()
        body = response.read(MAX_BODY_BYTES)
        if response.will_close or not response.isclosed():  # the rest of a long response is not worth waiting for
            self.close()
        media_type = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        return Response(response.status, body, media_type, _retry_after_s(response.getheader("Retry-After")))

    def _open(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._netloc, timeout=self._timeout_s)
        context = client_context(self._ca_file)
        return http.client.HTTPSConnection(self._netloc, timeout=self._timeout_s, context=context)


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificates in the file, without one the system's. Raises: OSError, ssl.SSLError."""
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13's default profile refuses authorities that clusters really have (no key usage).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _retry_after_s(header: str | None) -> float:
    """Of Retry-After: seconds, or a date. 0 where it says nothing of use."""
    asked_s = 0.0
    try:
        asked_s = float(header or 0)
    except ValueError:
        with contextlib.suppress(ValueError, TypeError):
            asked_s = email.utils.parsedate_to_datetime(header or "").timestamp() - time.time()
    return min(MAX_RETRY_AFTER_S, max(0.0, asked_s))
