"""From the API server's answers to the store port's errors.

Called by `client` for every answer that is no success, and by `watch` for ERROR events, which carry the same Status.
Never decides what to do about them.

Source: Kubernetes API conventions, "Response Status Kind"; apimachinery `api/errors`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from stoker.spec.meta import StatusModel
from stoker.store.port import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotPermitted,
    StoreError,
    Unavailable,
)


class Cause(StatusModel):
    reason: str = ""
    message: str = ""
    field: str = ""


class Details(StatusModel):
    name: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: float = 0.0


class Status(StatusModel):
    """metav1.Status, as far as it says what went wrong."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details = Details()


_STATUS = TypeAdapter(Status)
_AUTHORIZER = re.compile(r'\bUser "[^"]*" cannot ')
"""The authorizer's 403; admission's (quotas, policies) reads otherwise. Source: apiserver `responsewriters`."""
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""etcd's limit, 1.5 MiB an object by default, is answered with 500. Source: etcd `api/v3rpc/rpctypes`, grpc-go."""
_STARTING = "not yet ready to handle request"
"""Admission's 403 until it has read what it decides by. Source: apiserver `admission.Handler.WaitForReady`."""


class Throttled(Unavailable):
    """HTTP 429: the server did nothing yet and asks us to come again after `retry_after_s`."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class OtherObject(Conflict):
    """Another object has that name now: trying again can't help."""


class Absent(Unavailable):
    """The API itself is missing, not an object of it: the CRD is not installed."""


def parse_status(body: bytes, code: int = 0) -> Status:
    """The Status in an answer's body; what is none (a proxy's page) becomes one with the body as message."""
    try:
        status = _STATUS.validate_json(body)
    except ValidationError:
        status = Status(message=body[:300].decode(errors="replace").strip())
    return status if status.code else status.model_copy(update={"code": code})


def without_frames(error: BaseException) -> BaseException:
    """`error`, with its traceback and those of all that led to it cut off.

    For what aiohttp raises when a connection is lost: frames of its own hold the error, whose traceback holds them, the
    answer and the connection's TLS buffers. Only a full collection finds such rings, and Stoker's processes hardly
    ever do one (`process.keep_loaded`). The texts stay.
    """
    seen, rest = set[int](), [error]
    while rest:
        one = rest.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            rest += [other for other in (one.__cause__, one.__context__) if other is not None]
    return error


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Units: seconds; 0 where the answer does not say. A date, which the API server never sends, counts as 1."""
    text = headers.get("Retry-After", "")
    if not text:
        return 0.0
    try:
        return max(0.0, float(text))
    except ValueError:
        return 1.0


def to_error(status: Status, what: str, *, wait_s: float = 0.0) -> StoreError:
    """The error to raise. `what`: the call, for people ("create Pod team-a/x"); `wait_s`: the answer's Retry-After."""
    text = f"{what}: {status.message or f'HTTP {status.code}'}"
    reasons = {cause.reason for cause in status.details.causes}
    match status.code:
        case 400:
            return Invalid([status.message or text])
        case 401:
            return NotPermitted(
                f"{text} (the API server does not accept our credentials: check the kubeconfig or token)"
            )
        case 403 if _AUTHORIZER.search(status.message):
            return NotPermitted(f"{text}; grant it by a Role or ClusterRole")
        case 403 if status.message.endswith(_STARTING):
            return Unavailable(text)
        case 403:
            return Forbidden(text)
        case 404:
            if not status.details.name and not status.details.kind:
                return Absent(f"{what}: the cluster does not serve this API; are Stoker's CRDs installed?")
            return NotFound(text)
        case 409:
            if status.reason == "AlreadyExists":
                return AlreadyExists(text)
            return OtherObject(text) if "UID in precondition" in status.message else Conflict(text)
        case 410:
            return Gone(text)
        case 413 | 422:
            return _invalid(status, text)
        case 500 if any(limit in status.message for limit in _TOO_LARGE):
            return Invalid([f"the object is larger than the store takes: {status.message}"])
        case 429:
            return Throttled(text, wait_s or status.details.retry_after_seconds or 1.0)
        case 504 if "ResourceVersionTooLarge" in reasons or "Too large resource version" in status.message:
            # The store has been set back (restored from a backup): what we hold is of another history.
            return Gone(text)
    if status.reason == "Expired":
        return Gone(text)
    return Unavailable(text)


def _invalid(status: Status, text: str) -> StoreError:
    causes = status.details.causes
    if causes and all(cause.field == "metadata.uid" for cause in causes):
        return OtherObject(f"{text}: it is another object of that name")
    sentences = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    return Invalid(sentences or [status.message or text])
