"""One batch to the api, and what its answer means for each item of it.

Only what the api itself refuses as wrong is given up, item by item: a proxy's 400 or a missing right must not cost a
month of receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stoker.push.link import Response

from .outbox import OutboxItem

_WRONG = (400, 422)
_TOO_LARGE = 413
_APIS = ("application/json", "application/problem+json")
"""Media types of Stoker's api: what answers otherwise stands before it."""
_WHY_CHARS = 300


class Posts(Protocol):
    def post(self, path: str, data: bytes) -> Response:
        """Raises: Unreachable."""
        ...


class NotNow(Exception):
    """The api took nothing of the batch, and may take it later; the text says why."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Delivered:
    taken: list[OutboxItem] = field(default_factory=list)
    refused: list[tuple[OutboxItem, str]] = field(default_factory=list)
    """And why."""


def deliver(posts: Posts, path: str, head: str, name: str, items: Sequence[OutboxItem], done: Delivered) -> None:
    """Posts `{head, "name": [items]}` and notes in `done` what became of each, in parts where it must be.

    Raises: NotNow, Unreachable; what `done` does not name was not taken then.
    """
    body = f'{{{head},"{name}":[{",".join(item.text for item in items)}]}}'
    response = posts.post(path, body.encode())
    if response.status == 200:
        _note(response, items, done)
    elif response.media_type in _APIS and (response.status in _WRONG or response.status == _TOO_LARGE):
        if len(items) > 1:
            middle = len(items) // 2
            deliver(posts, path, head, name, items[:middle], done)
            deliver(posts, path, head, name, items[middle:], done)
        else:
            done.refused += [(item, _detail(response)) for item in items]
    else:
        raise NotNow(f"{response.status} {_detail(response)}".strip(), response.retry_after_s)


def _note(response: Response, items: Sequence[OutboxItem], done: Delivered) -> None:
    try:
        data = response.document()
        int(data["taken"])
        refused = {int(one["index"]): str(one["why"])[:_WHY_CHARS] for one in data.get("refused") or ()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotNow("an answer that is not the api's", 0.0) from None
    for index, item in enumerate(items):
        if index in refused:
            done.refused.append((item, refused[index]))
        else:
            done.taken.append(item)


def _detail(response: Response) -> str:
    try:
        data = response.document()
    except ValueError:
        return ""
    text = data.get("detail") or data.get("title") or ""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_WHY_CHARS])
