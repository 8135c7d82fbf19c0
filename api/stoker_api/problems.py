"""Problem documents (RFC 9457): every error the api answers with, its stable code, and its JSON.

Owns the catalogue of codes and their rendering. Never knows a route. Handlers and middleware raise or send `Problem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Scope

TYPE_BASE = "https://stoker.dev/problems/"
MEDIA_TYPE = "application/problem+json"
MAX_FAULTS = 50
TRACE_ID = "stoker.trace_id"
"""Where the middleware keeps a request's trace id in its ASGI scope."""


class Code(StrEnum):
    """Stable; clients branch on these."""

    INVALID_JSON = "InvalidJson"
    INVALID_PACK = "InvalidPack"
    UNAUTHORIZED = "Unauthorized"
    FORBIDDEN = "Forbidden"
    FOREIGN_HOST = "ForeignHost"
    FOREIGN_ORIGIN = "ForeignOrigin"
    QUEUE_FORBIDDEN = "QueueForbidden"
    RUNTIME_FORBIDDEN = "RuntimeForbidden"
    NOT_FOUND = "NotFound"
    NO_LOG = "NoLog"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    REQUEST_TIMEOUT = "RequestTimeout"
    HEADERS_TOO_LARGE = "HeadersTooLarge"
    ALREADY_EXISTS = "AlreadyExists"
    CONFLICT = "Conflict"
    NOT_ENDED = "NotEnded"
    NOT_RUNNING = "NotRunning"
    TOO_MANY_WORKER_SESSIONS = "TooManyWorkerSessions"
    LOG_GAP = "LogGap"
    CODE_INCOMPLETE = "CodeIncomplete"
    QUEUE_PROTECTED = "QueueProtected"
    RUNTIME_IN_USE = "RuntimeInUse"
    PRECONDITION_FAILED = "PreconditionFailed"
    BODY_TOO_LARGE = "BodyTooLarge"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    UPGRADE_REQUIRED = "UpgradeRequired"
    INVALID_FIELDS = "InvalidFields"
    UNKNOWN_QUEUE = "UnknownQueue"
    UNKNOWN_RUNTIME = "UnknownRuntime"
    UNKNOWN_CODE = "UnknownCode"
    CLUSTER_ONLY = "ClusterOnly"
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    NEVER_FITS = "NeverFits"
    IDEMPOTENCY_KEY_REUSED = "IdempotencyKeyReused"
    INTERNAL_ERROR = "InternalError"
    TOO_MANY_OWN_BODIES = "TooManyOwnBodies"
    TOO_MANY_OWN_STREAMS = "TooManyOwnStreams"
    TOO_MANY_OWN_SESSIONS = "TooManyOwnSessions"
    TOO_MANY_STREAMS = "TooManyStreams"
    TOO_MANY_SESSIONS = "TooManySessions"
    UNAVAILABLE = "Unavailable"
    LOGS_FULL = "LogsFull"
    CODE_FULL = "CodeFull"
    BAD_REQUEST = "BadRequest"


class CatalogueEntry(NamedTuple):
    status: int
    title: str
    retryable: bool = False


CATALOGUE: dict[Code, CatalogueEntry] = {
    Code.BAD_REQUEST: CatalogueEntry(400, "The request can't be understood"),
    Code.INVALID_JSON: CatalogueEntry(400, "The body is no valid JSON"),
    Code.INVALID_PACK: CatalogueEntry(400, "The body is no valid pack of files"),
    Code.UNAUTHORIZED: CatalogueEntry(401, "A valid token is needed"),
    Code.FORBIDDEN: CatalogueEntry(403, "This is not allowed"),
    Code.FOREIGN_HOST: CatalogueEntry(403, "The Host header names no name of this server"),
    Code.FOREIGN_ORIGIN: CatalogueEntry(403, "Requests from other origins are refused"),
    Code.QUEUE_FORBIDDEN: CatalogueEntry(403, "The queue is closed to this project or caller"),
    Code.RUNTIME_FORBIDDEN: CatalogueEntry(403, "The runtime is closed to this project or caller"),
    Code.NOT_FOUND: CatalogueEntry(404, "There is no such thing here"),
    Code.NO_LOG: CatalogueEntry(404, "There is no such log"),
    Code.METHOD_NOT_ALLOWED: CatalogueEntry(405, "The method does not work here"),
    Code.REQUEST_TIMEOUT: CatalogueEntry(408, "The request took too long to arrive", retryable=True),
    Code.ALREADY_EXISTS: CatalogueEntry(409, "The name is taken"),
    Code.CONFLICT: CatalogueEntry(409, "Others changed it at the same time", retryable=True),
    Code.NOT_ENDED: CatalogueEntry(409, "The job can't be retried now"),
    Code.NOT_RUNNING: CatalogueEntry(409, "The worker is not running"),
    Code.TOO_MANY_WORKER_SESSIONS: CatalogueEntry(409, "Too many open sessions in the worker"),
    Code.LOG_GAP: CatalogueEntry(409, "The log is held up to an earlier offset", retryable=True),
    Code.CODE_INCOMPLETE: CatalogueEntry(409, "Files of the bundle are missing here"),
    Code.QUEUE_PROTECTED: CatalogueEntry(409, "The queue can't be deleted"),
    Code.RUNTIME_IN_USE: CatalogueEntry(409, "The runtime is in use"),
    Code.PRECONDITION_FAILED: CatalogueEntry(412, "The object changed since it was read"),
    Code.BODY_TOO_LARGE: CatalogueEntry(413, "The body is too large"),
    Code.UNSUPPORTED_MEDIA_TYPE: CatalogueEntry(415, "The body's media type is not supported"),
    Code.INVALID_FIELDS: CatalogueEntry(422, "Some fields are not valid"),
    Code.UNKNOWN_QUEUE: CatalogueEntry(422, "There is no such queue"),
    Code.UNKNOWN_RUNTIME: CatalogueEntry(422, "There is no such runtime"),
    Code.UNKNOWN_CODE: CatalogueEntry(422, "There is no such code bundle"),
    Code.CLUSTER_ONLY: CatalogueEntry(422, "This works on a Kubernetes cluster only"),
    Code.PRIORITY_TOO_HIGH: CatalogueEntry(422, "The priority is above the queue's highest"),
    Code.NEVER_FITS: CatalogueEntry(422, "The job can never start as it is"),
    Code.IDEMPOTENCY_KEY_REUSED: CatalogueEntry(422, "The Idempotency-Key was used for another request"),
    Code.UPGRADE_REQUIRED: CatalogueEntry(426, "A WebSocket is needed here"),
    Code.TOO_MANY_OWN_BODIES: CatalogueEntry(429, "Too many incomplete bodies of one caller", retryable=True),
    Code.TOO_MANY_OWN_STREAMS: CatalogueEntry(429, "Too many open streams of one caller", retryable=True),
    Code.TOO_MANY_OWN_SESSIONS: CatalogueEntry(429, "Too many open sessions of one caller", retryable=True),
    Code.HEADERS_TOO_LARGE: CatalogueEntry(431, "The request's headers are too large"),
    Code.INTERNAL_ERROR: CatalogueEntry(500, "Internal error", retryable=True),
    Code.TOO_MANY_STREAMS: CatalogueEntry(503, "Too many open streams", retryable=True),
    Code.TOO_MANY_SESSIONS: CatalogueEntry(503, "Too many open sessions", retryable=True),
    Code.UNAVAILABLE: CatalogueEntry(503, "The store can't answer now", retryable=True),
    Code.LOGS_FULL: CatalogueEntry(507, "The log can't be kept now", retryable=True),
    Code.CODE_FULL: CatalogueEntry(507, "The code can't be kept now", retryable=True),
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong. `pointer` (RFC 6901) leads to it inside of `place`: body, query, header or path."""

    pointer: str
    detail: str
    place: str = "body"


class Problem(Exception):
    """An error as the client shall see it. `detail` says what to do."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """`more`: members of this code's own (RFC 9457 §3.2)."""
        super().__init__(f"{code}: {detail}")
        self.more = dict(more or {})
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    @property
    def status(self) -> int:
        return CATALOGUE[self.code].status

    def document(self, trace_id: str) -> dict[str, Any]:
        entry = CATALOGUE[self.code]
        return {
            "type": type_uri(self.code),
            "title": entry.title,
            "status": entry.status,
            "detail": self.detail,
            "code": str(self.code),
            "errors": [
                {"pointer": fault.pointer, "detail": fault.detail, "in": fault.place}
                for fault in self.errors[:MAX_FAULTS]
            ],
            "retryable": entry.retryable,
            "traceId": trace_id,
            **self.more,
        }

    def response(self, scope: Scope) -> Response:
        body = json.dumps(self.document(scope.get(TRACE_ID, "")), ensure_ascii=True)
        return Response(body, status_code=self.status, media_type=MEDIA_TYPE, headers=self.headers)


def type_uri(code: Code) -> str:
    """https://stoker.dev/problems/unknown-queue for UnknownQueue."""
    return TYPE_BASE + re.sub(r"(?<!^)(?=[A-Z])", "-", code).lower()


def not_found(what: str) -> Problem:
    """The same answer for what is missing and for what the token may not see."""
    return Problem(Code.NOT_FOUND, f"There is no {what}, or the token may not see it.")


def invalid(pointer: str, detail: str, *, place: str = "body", code: Code = Code.INVALID_FIELDS) -> Problem:
    """One wrong field."""
    return Problem(code, f"{pointer or 'the body'}: {detail}", errors=[FieldError(pointer, detail, place)])
