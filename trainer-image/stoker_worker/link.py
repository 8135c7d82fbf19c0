"""The way to the api: connections, and one that is kept alive, posts bytes and gives back the answer.

Owns address, token and TLS settings, which may all change while the worker runs: the token's file is read for every
post, the CA's for every connection, and after a failure the order is read again. Imported only where there is something
to say (http.client costs more than the rest of the supervisor); a `ApiLink` is used by one thread.
"""

from __future__ import annotations

import http.client
import urllib.parse

from .folder import LAUNCH_FILE, read_launch

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


def open_connection(target: dict[str, str], timeout_s: float) -> http.client.HTTPConnection:
    """A connection to the api, not connected yet. Raises: OSError, ValueError, KeyError."""
    url = urllib.parse.urlsplit(target["url"])
    if url.scheme != "https":
        return http.client.HTTPConnection(url.netloc, timeout=timeout_s)
    import ssl

    context = ssl.create_default_context(cafile=target.get("caFile") or None)
    # Python 3.13's default profile refuses authorities that clusters really have (no key usage).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return http.client.HTTPSConnection(url.netloc, timeout=timeout_s, context=context)


def place(target: dict[str, str], path: str) -> str:
    """What is asked for on the connection. Raises: KeyError."""
    return urllib.parse.urlsplit(target["url"]).path.rstrip("/") + path


def bearer(target: dict[str, str]) -> str:
    """The header that says who we are, with the token as it is now. Raises: OSError, ValueError, KeyError."""
    path = target.get("tokenFile")
    if not path:
        return "Bearer " + target["token"]
    with open(path, encoding="ascii") as file:
        return "Bearer " + file.read().strip()


def newest_target(folder: str, target: dict[str, str]) -> dict[str, str]:
    """The api may have moved (a new port after a restart): the node agent then rewrites launch.json."""
    try:
        return read_launch(folder + "/" + LAUNCH_FILE).report or target
    except (OSError, ValueError, KeyError, TypeError):
        return target


class ApiLink:
    def __init__(self, folder: str, target: dict[str, str]) -> None:
        self._folder = folder
        self._target = target
        self._connection: http.client.HTTPConnection | None = None
        self._connected_to = ""

    def post(self, path: str, body: bytes, content_type: str) -> Answer:
        """Raises: Unreachable."""
        try:
            headers = {"Authorization": bearer(self._target), "Content-Type": content_type}
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
            self._target = newest_target(self._folder, self._target)
            raise Unreachable(str(error)) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self._connection is None or self._connected_to != self._target["url"]:
            self.close()
            self._connection = open_connection(self._target, TIMEOUT_S)
            self._connected_to = self._target["url"]
        self._connection.request("POST", place(self._target, path), body, headers)
        response = self._connection.getresponse()
        answer = Answer(response.status, response.read(_ANSWER_BYTES), seconds(response.getheader("Retry-After")))
        if response.will_close or not response.isclosed():
            self.close()
        return answer


def seconds(text: str | None) -> float:
    return float(text) if text and text.isdigit() else 0.0
