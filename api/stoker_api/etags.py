"""If-Match and If-None-Match (RFC 9110 §13.1). ETags here are strong: `"<uid>.<resourceVersion>"`,
of a queue `"<uid>.<generation>"`."""

from __future__ import annotations


def matches(header: str | None, current: str) -> bool:
    """If-Match: no header matches, `*` matches, else one of the list must be the current one."""
    return header is None or current in _listed(header) or header.strip() == "*"


def unchanged(header: str | None, current: str) -> bool:
    """If-None-Match: what the client holds is current. Weak tags compare by their text."""
    if header is None:
        return False
    return header.strip() == "*" or current in [tag.removeprefix("W/") for tag in _listed(header)]


def _listed(header: str) -> list[str]:
    return [part.strip() for part in header.split(",")]
