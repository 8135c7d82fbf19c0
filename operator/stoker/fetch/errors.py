"""Why something could not be fetched, for people: without what only the caller may know."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from http.client import responses

CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
)
_QUERY = re.compile(r"([a-z0-9]+://[^\s'\"?#]*)[?#][^\s'\"]*")
_MOST = 300


class Refused(Exception):
    """It can't be had, and trying again would not help."""


def says(error: BaseException, env: Mapping[str, str] = os.environ) -> str:
    """The error in a line: the store's status or message, without queries of URLs and credentials."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
    status = _status(cause)
    if isinstance(cause, Refused):
        text = str(cause)
    elif status is not None:
        text = f"{status} {getattr(cause, 'message', '') or responses.get(status, '')}"
    elif isinstance(cause, FileNotFoundError):
        text = "it is not there"
    else:
        text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    for name in CREDENTIALS:
        if len(env.get(name, "")) > 3:
            text = text.replace(env[name], "***")
    return _printable(masked(text))[:_MOST].strip()


def masked(text: str) -> str:
    """URLs without their queries: a signed one opens what it names."""
    return _QUERY.sub(r"\1?…", text)


def transient(error: BaseException) -> bool:
    """Whether another try may help."""
    if isinstance(error, Refused | PermissionError):
        return False
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
    status = _status(cause)
    if status is not None:
        return status == 429 or status >= 500
    return cause is not None and not isinstance(cause, FileNotFoundError | ValueError | ImportError)


def denied(error: BaseException) -> bool:
    return _status(error) in (401, 403)


def _status(error: BaseException | None) -> int | None:
    """What the store answered: aiohttp, huggingface_hub, botocore and gcsfs each have it elsewhere."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        found = getattr(answer, "status_code", None)
    if type(error) is OSError and str(error).startswith("Forbidden: "):  # gcsfs
        return 403
    places = (getattr(error, "status", None), found, getattr(error, "code", None))
    return next((one for one in places if isinstance(one, int)), None)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)
