"""HTTP to one server: authorization, time-outs, repeats, problem documents, streams that can be aborted.

Owns everything about connections; knows no route. Redirects are never followed, so the token can't travel to another
host; a loopback server is never reached through a proxy. Called by `client.py` and `following.py` only.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from stoker import __version__

from .config import START_HINT, Endpoint
from .errors import ApiError, Fault, Unreachable

TRIES = 5
FIRST_PAUSE_S = 0.1
LONGEST_RETRY_AFTER_S = 60.0
NOT_STOKER = "NotStoker"
QUIET_S = 45.0  # three heartbeats of the server's: a stream silent for longer is dead
BUSY = frozenset({429, 503})
BROKEN_OFF = frozenset({500, 502, 504})  # without a problem document: a proxy's, or of a server that is being stopped


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer. `tries` > 1: an earlier try may have been carried out without our hearing of it."""

    status: int
    headers: Mapping[str, str]
    body: Any
    tries: int


class ConnectionLost(Exception):
    """The connection broke or never came about; `why` is for people."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.retry_after_s = retry_after_s


class AnswerStream:
    """One open answer. `abort` may be called from any thread and wakes a reader blocked in `chunks`."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes. Raises: ConnectionLost when it breaks off."""
        try:
            yield from self._response.iter_bytes()
        except (httpx.TransportError, httpx.StreamError, OSError) as error:
            raise ConnectionLost(_words(error)) from None

    def abort(self) -> None:
        network = self._response.extensions.get("network_stream")
        sock = network.get_extra_info("socket") if network is not None else None
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Wire:
    """Calls to one server. Safe to share between threads."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._sleep = sleep
        headers = {"User-Agent": f"stoker/{__version__}", "Accept": "application/json"}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        self._http = httpx.Client(
            base_url=endpoint.url,
            headers=headers,
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=not endpoint.loopback,
            verify=endpoint.url.startswith("https:"),  # reading the CA bundle costs 30 ms; plain HTTP has no use for it
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request that may be carried out twice without harm, repeated until it is answered.

        `body` goes as JSON, `content` as it is; an iterable is read anew for each try.
        Raises: ApiError when the server refuses; Unreachable after the last try.
        """
        tries = 0
        while True:
            tries += 1
            try:
                response = self._http.request(method, path, params=params, json=body, content=content, headers=headers)
                self._check(response)
                return Reply(response.status_code, response.headers, self._json(response), tries)
            except ApiError as error:
                error.tries = tries
                raise
            except httpx.TransportError as error:
                lost = ConnectionLost(_words(error))
            except ConnectionLost as error:
                lost = error
            if tries >= TRIES or (lost.retry_after_s or 0) > LONGEST_RETRY_AFTER_S:
                raise self.unreachable(lost)
            self._sleep(pause_s(tries, lost.retry_after_s))

    @contextlib.contextmanager
    def stream(
        self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str], quiet_s: float = QUIET_S
    ) -> Iterator[AnswerStream]:
        """One streamed GET, tried once. Raises: ApiError; ConnectionLost (also while reading)."""
        timeout = httpx.Timeout(self._timeout_s, read=quiet_s)
        request = self._http.build_request("GET", path, params=params, headers=headers, timeout=timeout)
        try:
            response = self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise ConnectionLost(_words(error)) from None
        with contextlib.closing(response):
            if not response.is_success:
                try:
                    response.read()
                except httpx.TransportError as error:
                    raise ConnectionLost(_words(error)) from None
            self._check(response)
            yield AnswerStream(response)

    def unreachable(self, lost: ConnectionLost) -> Unreachable:
        """`lost` as an error for people."""
        hint = "start it with `stoker up`" if self.endpoint.local else START_HINT
        if lost.retry_after_s is not None:
            hint = f"try again in {lost.retry_after_s:.0f} s"
        return Unreachable(f"can't reach the Stoker server at {self.endpoint.url}: {lost.why}; {hint}")

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        if response.status_code in BUSY:
            problem = self._problem(response)
            raise ConnectionLost(problem.detail or "the server is busy", _retry_after_s(response))
        if response.is_redirect:
            where = response.headers.get("location", "elsewhere")
            raise ApiError(
                response.status_code,
                "Redirected",
                f"{self.endpoint.url} redirects to {where}; if that is your server, name it with --server",
            )
        problem = self._problem(response)
        if response.status_code in BROKEN_OFF and problem.code == NOT_STOKER:
            raise ConnectionLost(f"HTTP {response.status_code} from it or from a proxy before it")
        raise problem

    def _problem(self, response: httpx.Response) -> ApiError:
        return refusal(response.status_code, response.content, self.endpoint.url)

    def _json(self, response: httpx.Response) -> Any:
        if response.status_code == 204 or not response.content:
            return None
        try:
            return response.json()
        except json.JSONDecodeError:
            status = response.status_code
            raise ApiError(status, NOT_STOKER, _not_stoker(status, self.endpoint.url)) from None


def refusal(status: int, content: bytes, url: str) -> ApiError:
    """A refusal as RFC 9457 gives it, or what can be said of an answer that is not a problem document."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return ApiError(status, NOT_STOKER, _not_stoker(status, url))
    errors = found.get("errors")
    faults = tuple(
        Fault(str(error.get("pointer", "")), str(error.get("detail", "")))
        for error in (errors if isinstance(errors, list) else [])
        if isinstance(error, dict)
    )
    detail = str(found.get("detail") or found.get("title") or "")
    return ApiError(status, str(found.get("code") or "Unknown"), detail, faults, found)


def _not_stoker(status: int, url: str) -> str:
    return f"{url} answers HTTP {status}, but not as Stoker does; is it the right address?"


def pause_s(tries: int, retry_after_s: float | None = None) -> float:
    """How long to wait after the `tries`-th failure: what the server asks for, else doubling, with jitter."""
    if retry_after_s is not None:
        return retry_after_s
    return min(5.0, FIRST_PAUSE_S * 2.0 ** (tries - 1)) * random.uniform(0.75, 1.25)


def _retry_after_s(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def _words(error: Exception) -> str:
    match error:
        case httpx.ConnectTimeout() | httpx.ReadTimeout() | httpx.WriteTimeout():
            return "no answer in time"
        case httpx.ConnectError() if "refused" in str(error):
            return "connection refused"
        case httpx.RemoteProtocolError():
            return "it closed the connection"
    return str(error) or type(error).__name__
