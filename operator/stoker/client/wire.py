"""HTTP to one server: authorization, time-outs, repeats, problem documents, streams that can be aborted.

Owns everything about connections; knows no route. Redirects are never followed, so the token can't travel to another
host; a loopback server is never reached through a proxy. Called by `calls.py`, `following.py` and `code/sending.py`.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from stoker import __version__

from .config import START_HINT, Endpoint
from .connections import Answer, Broken, Connections
from .errors import ApiError, BadInput, Fault, Unreachable

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

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.abort = answer.abort

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes. Raises: ConnectionLost when it breaks off."""
        try:
            yield from self._answer.pieces()
        except Broken as error:
            raise ConnectionLost(_message(error)) from None


class Wire:
    """Calls to one server. Safe to share between threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        tries: int = TRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self._tries = tries
        self._sleep = sleep
        headers = {"User-Agent": f"stoker/{__version__}", "Accept": "application/json"}
        if endpoint.token:
            headers["Authorization"] = f"Bearer {endpoint.token}"
        self._http = Connections(endpoint.url, headers, timeout_s=timeout_s, through_proxy=not endpoint.loopback)

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
        Raises: ApiError when the server refuses; Unreachable after the last try; BadInput if `body` is no JSON.
        """
        if body is not None:
            try:
                content = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            except ValueError as error:  # an infinite number, half a character
                raise BadInput(f"this can't be sent as JSON: {error}") from None
            headers = {"Content-Type": "application/json", **(headers or {})}
        tries = 0
        while True:
            tries += 1
            try:
                with self._http.send(method, path, params=params, content=content, headers=headers) as answer:
                    data = answer.read()
                self._check(answer, data)
                return Reply(answer.status, answer.headers, self._json(answer.status, data), tries)
            except ApiError as error:
                error.tries = tries
                raise
            except ConnectionLost as error:
                lost = error
            except Broken as error:
                lost = ConnectionLost(_message(error))
            if tries >= self._tries or (lost.retry_after_s or 0) > LONGEST_RETRY_AFTER_S:
                raise self.unreachable(lost)
            self._sleep(pause_s(tries, lost.retry_after_s))

    @contextlib.contextmanager
    def stream(
        self, path: str, *, params: Mapping[str, str] | None, headers: Mapping[str, str], quiet_s: float = QUIET_S
    ) -> Iterator[AnswerStream]:
        """One streamed GET, tried once. Raises: ApiError; ConnectionLost (also while reading)."""
        with contextlib.ExitStack() as open_answer:
            try:
                answer = open_answer.enter_context(
                    self._http.send("GET", path, params=params, headers=headers, quiet_s=quiet_s)
                )
                if not _is_success(answer.status):
                    self._check(answer, answer.read())
            except Broken as error:
                raise ConnectionLost(_message(error)) from None
            yield AnswerStream(answer)

    def unreachable(self, lost: ConnectionLost) -> Unreachable:
        """`lost` as an error for people."""
        hint = "start it with `stoker up`" if self.endpoint.local else START_HINT
        if lost.retry_after_s is not None:
            hint = f"try again in {lost.retry_after_s:.0f} s"
        return Unreachable(f"can't reach the Stoker server at {self.endpoint.url}: {lost.why}; {hint}")

    def _check(self, answer: Answer, data: bytes) -> None:
        status, url = answer.status, self.endpoint.url
        if _is_success(status):
            return
        if status in BUSY:
            problem = refusal(status, data, url)
            raise ConnectionLost(problem.detail or "the server is busy", _retry_after_s(answer.headers))
        if 300 <= status < 400 and (where := answer.headers.get("location")):
            raise ApiError(
                status, "Redirected", f"{url} redirects to {where}; if that is your server, name it with --server"
            )
        problem = refusal(status, data, url)
        if status in BROKEN_OFF and problem.code == NOT_STOKER:
            raise ConnectionLost(f"HTTP {status} from it or from a proxy before it")
        raise problem

    def _json(self, status: int, data: bytes) -> Any:
        if status == 204 or not data:
            return None
        try:
            return json.loads(data)
        except ValueError:
            raise ApiError(status, NOT_STOKER, _not_stoker(status, self.endpoint.url)) from None


def _is_success(status: int) -> bool:
    return 200 <= status < 300


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


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def _message(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionError() | HTTPException():  # of HTTP: the answer breaks off, or is none
            return "it closed the connection"
        case OSError(strerror=str(why)) if why:
            return why
    return str(error) or type(error).__name__
