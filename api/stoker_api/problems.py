"""Problem documents (RFC 9457): every error the api answers with, its stable code, and its JSON.

Owns the catalogue of codes and their rendering. Never knows a route. Handlers and middleware raise or send `Problem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from starlette.responses import Response
from starlette.types import Scope

TYPE_BASE = "https://stoker.dev/problems/"
MEDIA_TYPE = "application/problem+json"
MAX_FAULTS = 50
TRACE_ID = "stoker.trace_id"
"""Where the middleware keeps a request's trace id in its ASGI scope."""


class ProblemCode(StrEnum):
    """Stable; clients branch on these. Each with its HTTP status, a summary, and whether the same request may pass
    later."""

    status: int
    summary: str
    retryable: bool

    def __new__(cls, name: str, status: int, summary: str, retryable: bool = False) -> Self:
        code = str.__new__(cls, name)
        code._value_ = name
        code.status, code.summary, code.retryable = status, summary, retryable
        return code

    BAD_REQUEST = "BadRequest", 400, "The request can't be understood"
    INVALID_JSON = "InvalidJson", 400, "The body is no valid JSON"
    INVALID_PACK = "InvalidPack", 400, "The body is no valid pack of files"
    UNAUTHORIZED = "Unauthorized", 401, "A valid token is needed"
    FORBIDDEN = "Forbidden", 403, "This is not allowed"
    FOREIGN_HOST = "ForeignHost", 403, "The Host header names no name of this server"
    FOREIGN_ORIGIN = "ForeignOrigin", 403, "Requests from other origins are refused"
    QUEUE_FORBIDDEN = "QueueForbidden", 403, "The queue is closed to this project or caller"
    RUNTIME_FORBIDDEN = "RuntimeForbidden", 403, "The runtime is closed to this project or caller"
    SECRET_FORBIDDEN = "SecretForbidden", 403, "The caller may not use the secret"
    NOT_FOUND = "NotFound", 404, "There is no such thing here"
    NO_LOG = "NoLog", 404, "There is no such log"
    NO_FILE = "NoFile", 404, "There is no such file"
    METHOD_NOT_ALLOWED = "MethodNotAllowed", 405, "The method does not work here"
    REQUEST_TIMEOUT = "RequestTimeout", 408, "The request took too long to arrive", True
    ALREADY_EXISTS = "AlreadyExists", 409, "The name is taken"
    CONFLICT = "Conflict", 409, "Others changed it at the same time", True
    NOT_ENDED = "NotEnded", 409, "The job can't be retried now"
    NOT_RUNNING = "NotRunning", 409, "The worker is not running"
    TOO_MANY_WORKER_SESSIONS = "TooManyWorkerSessions", 409, "Too many open sessions in the worker"
    LOG_GAP = "LogGap", 409, "The log is held up to an earlier offset", True
    CODE_INCOMPLETE = "CodeIncomplete", 409, "Files of the bundle are missing here"
    QUEUE_PROTECTED = "QueueProtected", 409, "The queue can't be deleted"
    RUNTIME_IN_USE = "RuntimeInUse", 409, "The runtime is in use"
    TICKET_SPENT = "TicketSpent", 410, "The ticket is used or too old"
    PRECONDITION_FAILED = "PreconditionFailed", 412, "The object changed since it was read"
    BODY_TOO_LARGE = "BodyTooLarge", 413, "The body is too large"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType", 415, "The body's media type is not supported"
    RANGE_NOT_SATISFIABLE = "RangeNotSatisfiable", 416, "The range lies behind the file's end"
    INVALID_FIELDS = "InvalidFields", 422, "Some fields are not valid"
    UNKNOWN_QUEUE = "UnknownQueue", 422, "There is no such queue"
    UNKNOWN_RUNTIME = "UnknownRuntime", 422, "There is no such runtime"
    UNKNOWN_CODE = "UnknownCode", 422, "There is no such code bundle"
    CLUSTER_ONLY = "ClusterOnly", 422, "This works on a Kubernetes cluster only"
    PRIORITY_TOO_HIGH = "PriorityTooHigh", 422, "The priority is above the queue's highest"
    NEVER_FITS = "NeverFits", 422, "The job can never start as it is"
    IDEMPOTENCY_KEY_REUSED = "IdempotencyKeyReused", 422, "The Idempotency-Key was used for another request"
    UPGRADE_REQUIRED = "UpgradeRequired", 426, "A WebSocket is needed here"
    TOO_MANY_OWN_BODIES = "TooManyOwnBodies", 429, "Too many incomplete bodies of one caller", True
    TOO_MANY_OWN_STREAMS = "TooManyOwnStreams", 429, "Too many open streams of one caller", True
    TOO_MANY_OWN_SESSIONS = "TooManyOwnSessions", 429, "Too many open sessions of one caller", True
    TOO_MANY_WRONG_TICKETS = "TooManyWrongTickets", 429, "Too many wrong tickets from one address", True
    HEADERS_TOO_LARGE = "HeadersTooLarge", 431, "The request's headers are too large"
    INTERNAL_ERROR = "InternalError", 500, "Internal error", True
    TOO_MANY_STREAMS = "TooManyStreams", 503, "Too many open streams", True
    TOO_MANY_SESSIONS = "TooManySessions", 503, "Too many open sessions", True
    UNAVAILABLE = "Unavailable", 503, "The store can't answer now", True
    LOGS_FULL = "LogsFull", 507, "The log can't be kept now", True
    CODE_FULL = "CodeFull", 507, "The code can't be kept now", True


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong. `pointer` (RFC 6901) leads to it inside of `place`: body, query, header or path."""

    pointer: str
    detail: str
    place: str = "body"


class Problem(Exception):
    """An error as the client sees it. `detail` says what to do."""

    def __init__(
        self,
        code: ProblemCode,
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
        return self.code.status

    def document(self, trace_id: str) -> dict[str, Any]:
        return {
            "type": type_uri(self.code),
            "title": self.code.summary,
            "status": self.code.status,
            "detail": self.detail,
            "code": str(self.code),
            "errors": [
                {"pointer": fault.pointer, "detail": fault.detail, "in": fault.place}
                for fault in self.errors[:MAX_FAULTS]
            ],
            "retryable": self.code.retryable,
            "traceId": trace_id,
            **self.more,
        }

    def response(self, scope: Scope) -> Response:
        body = json.dumps(self.document(scope.get(TRACE_ID, "")), ensure_ascii=True)
        return Response(body, status_code=self.status, media_type=MEDIA_TYPE, headers=self.headers)


def type_uri(code: ProblemCode) -> str:
    """https://stoker.dev/problems/unknown-queue for UnknownQueue."""
    return TYPE_BASE + re.sub(r"(?<!^)(?=[A-Z])", "-", code).lower()


def not_found(what: str) -> Problem:
    """The same answer for what is missing and for what the token may not see."""
    return Problem(ProblemCode.NOT_FOUND, f"There is no {what}, or the token may not see it.")


def invalid(
    pointer: str, detail: str, *, place: str = "body", code: ProblemCode = ProblemCode.INVALID_FIELDS
) -> Problem:
    """One wrong field."""
    return Problem(code, f"{pointer or 'the body'}: {detail}", errors=[FieldError(pointer, detail, place)])
