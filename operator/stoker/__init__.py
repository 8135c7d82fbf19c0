"""Stoker keeps GPUs fed: the client, the operator and the command line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.client import Client as Client
    from .client.errors import ApiError as ApiError
    from .client.errors import TimedOut as TimedOut
    from .client.errors import Unreachable as Unreachable
    from .client.job import Job as Job
    from .client.job import JobFailed as JobFailed
    from .client.updates import EventSeen as EventSeen
    from .client.updates import JobChanged as JobChanged
    from .client.updates import JobEnded as JobEnded

__version__ = "0.1.0"

_CLIENT = {
    "Client": "client",
    "ApiError": "errors",
    "TimedOut": "errors",
    "Unreachable": "errors",
    "Job": "job",
    "JobFailed": "job",
    "EventSeen": "updates",
    "JobChanged": "updates",
    "JobEnded": "updates",
}
"""The SDK's public names → modules of `stoker.client`, imported when first used: pydantic takes a while."""


def __getattr__(name: str) -> Any:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"stoker.client.{_CLIENT[name]}"), name)
