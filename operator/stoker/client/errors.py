"""What can go wrong between a person and a server, as types that say what to do next.

Owns the client's errors and the exit codes the command line gives them. Imports nothing heavy: `main.py` reads it
before any command is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_DETACHED = 130


class StokerError(Exception):
    """An error to show to people as it stands; `exit_code` is the command line's."""

    exit_code = EXIT_REFUSED


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request. `pointer` is an RFC 6901 pointer into the body, '' for the whole."""

    pointer: str
    detail: str


class ApiError(StokerError):
    """The server answered and refused. `code` is stable (CamelCase); `detail` says what to do.

    `more`: what else the problem document says, for the few codes that add something.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: tuple[Fault, ...] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, code, detail, errors)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors
        self.more = more or {}
        self.tries = 1  # how often it was sent; more than once: an earlier try may have been carried out

    def __str__(self) -> str:
        return self.detail or f"{self.code} (HTTP {self.status})"


def unreadable(sender: str, what: object) -> ApiError:
    """`sender` answered in a form that is not ours."""
    return ApiError(
        200,
        "NotStoker",
        f"{sender} sent an answer this client can't read ({what}); one of them may be too old: compare "
        "`stoker --version` with GET /version",
    )


class Unreachable(StokerError):
    """No server answered, or it stopped answering for longer than the client waits."""

    exit_code = EXIT_UNREACHABLE


class TimedOut(StokerError):
    """The wait the caller asked for is over; the job goes on."""


class BadInput(StokerError):
    """What the user gave can't be sent: an unreadable file, a bad `--set`, a malformed address."""

    exit_code = EXIT_USAGE
