"""The way to the api: one connection that is kept alive, posts JSON and gives back the answer.

Owns address, token and TLS settings: the token's file is read for every post, the CA's for every connection, for both
are replaced while we run. A link is used by one thread at a time.
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.push.tls import client_context

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 4 << 20
MAX_PAUSE_S = 300.0


class Unreachable(Exception):
    """The api could not be asked, or gave no answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    media_type: str
    retry_after_s: float
    """What the api asks for; 0: nothing."""

    def document(self) -> dict[str, Any]:
        """The JSON object in it. Raises: ValueError if there is none."""
        try:
            found = json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deep") from None
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found

    @property
    def is_the_apis(self) -> bool:
        """Whether it is Stoker's api that answered, and not something before it."""
        return self.media_type in ("application/json", "application/problem+json")


class ApiLink:
    """Posts to the api at `url`. Raises: ValueError if that is no http(s) url."""

    def __init__(
        self,
        url: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of an api: write http://HOST:PORT or https://HOST")
        if parts.username or parts.password:
            raise ValueError("the api is asked with a token (--api-token-file); take user and password out of the url")
        self._secure, self._netloc, self._path = parts.scheme == "https", parts.netloc, parts.path.rstrip("/")
        self._token_file, self._ca_file, self._timeout_s = token_file, ca_file, timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, data: bytes) -> Answer:
        """Posts JSON. Cost: two time-outs at most while the api is silent. Raises: Unreachable."""
        was_open = self._connection is not None
        try:
            try:
                return self._post(path, data)
            except (http.client.RemoteDisconnected, ConnectionError):
                if not was_open:
                    raise
                self.close()  # it was kept open too long for the api's taste
                return self._post(path, data)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a token that is no header
            self.close()
            raise Unreachable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, path: str, data: bytes) -> Answer:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token_file is not None:
            headers["Authorization"] = "Bearer " + self._token_file.read_text(encoding="ascii").strip()
        if self._connection is None:
            self._connection = self._open()
        self._connection.request("POST", self._path + path, data, headers)
        response = self._connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
        if response.will_close or not response.isclosed():
            self.close()
        media_type = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        return Answer(response.status, body, media_type, _seconds(response.getheader("Retry-After")))

    def _open(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._netloc, timeout=self._timeout_s)
        context = client_context(self._ca_file)
        return http.client.HTTPSConnection(self._netloc, timeout=self._timeout_s, context=context)


def _seconds(header: str | None) -> float:
    try:
        return min(MAX_PAUSE_S, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0  # a date: we don't ask other people's clocks
