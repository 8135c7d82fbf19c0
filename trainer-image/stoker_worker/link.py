"""One connection to the api, kept alive: posts bytes, gives back the answer.

Owns address, token and TLS settings, which may all change while the worker runs: the token's file is read for every
post, the CA's for every connection, and after a failure the order is read again. Used by one thread; imported only
there (http.client costs more than the rest of the supervisor).
"""

from __future__ import annotations

import http.client
import urllib.parse

from .folder import LAUNCH_FILE, read_launch

MYPY = False
if MYPY:
    from typing import Any

TIMEOUT_S = 5.0
_ANSWER_BYTES = 65_536


class Unreachable(Exception):
    """The api could not be asked, or gave no answer."""


class Refused(Exception):
    """The api answered, but not what was hoped for: try again later."""

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__("the api answered %d" % status)
        self.retry_after_s = retry_after_s


class Answer:
    def __init__(self, status: int, body: bytes, retry_after_s: float) -> None:
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s
        """What the api asks for; 0: nothing."""


class Link:
    def __init__(self, folder: str, target: dict[str, str]) -> None:
        self._launch_path = folder + "/" + LAUNCH_FILE
        self._target = target
        self._connection: http.client.HTTPConnection | None = None
        self._connected_to: tuple[str, ...] = ()

    def post(self, path: str, body: bytes, content_type: str) -> Answer:
        """Raises: Unreachable."""
        try:
            headers = {"Authorization": "Bearer " + self._token(), "Content-Type": content_type}
            reused = self._connection is not None
            try:
                return self._exchange(path, body, headers)
            except (OSError, http.client.HTTPException):
                self.close()
                if not reused:
                    raise
            # The api had closed the idle connection. Every report may be sent twice.
            return self._exchange(path, body, headers)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self.close()
            self._look_again()
            raise Unreachable(str(error)) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        url = urllib.parse.urlsplit(self._target["url"])
        place = (url.scheme, url.netloc)
        if self._connection is None or self._connected_to != place:
            self.close()
            self._connection = self._connect(url)
            self._connected_to = place
        self._connection.request("POST", url.path.rstrip("/") + path, body, headers)
        response = self._connection.getresponse()
        answer = Answer(response.status, response.read(_ANSWER_BYTES), _seconds(response.getheader("Retry-After")))
        if response.will_close or not response.isclosed():
            self.close()
        return answer

    def _connect(self, url: Any) -> http.client.HTTPConnection:
        if url.scheme != "https":
            return http.client.HTTPConnection(url.netloc, timeout=TIMEOUT_S)
        import ssl

        context = ssl.create_default_context(cafile=self._target.get("caFile") or None)
        # Python 3.13's default profile refuses authorities that clusters really have (no key usage).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return http.client.HTTPSConnection(url.netloc, timeout=TIMEOUT_S, context=context)

    def _token(self) -> str:
        path = self._target.get("tokenFile")
        if not path:
            return self._target["token"]
        with open(path, encoding="ascii") as file:
            return file.read().strip()

    def _look_again(self) -> None:
        """The api may have moved (a new port after a restart): the node agent then rewrites launch.json."""
        try:
            self._target = read_launch(self._launch_path).report or self._target
        except (OSError, ValueError, KeyError, TypeError):
            return


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdigit() else 0.0
