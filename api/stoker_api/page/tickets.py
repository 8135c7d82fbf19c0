"""Tickets: short-lived secrets that stand in a link in place of a token, each good once.

A browser sends no header with a link, and a token may not stand in one: links end up in histories. A sign-in ticket is
exchanged for the token of its maker, a file ticket for one file. They are in this process's memory only, under their
hashes. Called by `routes/tickets.py`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.store.clock import Clock

SIGN_IN_S = 60.0
FILE_S = 30.0
OF_CALLER = 16
"""Tickets of one caller at a time: the oldest goes for a new one."""
TOTAL = 4096
MOST_WRONG = 20
"""Wrong tickets from one address in WRONG_WITHIN_S; further ones are refused unseen."""
WRONG_WITHIN_S = 60.0
_ADDRESSES = 1024
_PREFIX = "stt_"


@dataclass(frozen=True, slots=True)
class WantedFile:
    project: str
    job: str
    path: str


@dataclass(frozen=True, slots=True)
class Ticket:
    caller: str
    token: str
    file: WantedFile | None
    """None: for signing in."""
    until: float


class Tickets:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: OrderedDict[bytes, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def issue(self, caller: str, token: str, file: WantedFile | None = None) -> tuple[str, float]:
        """A new ticket, and for how many seconds it is good."""
        self._drop_old()
        good_s = SIGN_IN_S if file is None else FILE_S
        own = list(self._of(caller))
        if len(own) >= OF_CALLER:
            del self._held[own[0]]
        elif len(self._held) >= TOTAL:
            self._held.popitem(last=False)
        secret = _PREFIX + secrets.token_urlsafe(32)
        self._held[_hash(secret)] = Ticket(caller, token, file, self._clock.monotonic() + good_s)
        return secret, good_s

    def take(self, secret: str, *, file: bool) -> Ticket | None:
        """The ticket, which is used with that; None: it is used, too old, of the other kind or never was."""
        self._drop_old()
        key = _hash(secret)  # looked up by its hash: how long that takes says nothing about the secret
        found = self._held.get(key)
        if found is None or (found.file is not None) != file:
            return None
        del self._held[key]
        return found

    def _of(self, caller: str) -> Iterator[bytes]:
        return (key for key, ticket in self._held.items() if ticket.caller == caller)

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, ticket in self._held.items() if ticket.until <= now]:
            del self._held[key]


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class WrongTickets:
    """How many wrong ones each address has sent of late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str) -> None:
        times = self._of.setdefault(address, deque(maxlen=MOST_WRONG))
        times.append(self._clock.monotonic())
        self._of.move_to_end(address)
        if len(self._of) > _ADDRESSES:
            self._of.popitem(last=False)

    def wait_s(self, address: str) -> float:
        """How long this address is to wait; 0: it need not."""
        times = self._of.get(address)
        if times is None or len(times) < MOST_WRONG:
            return 0.0
        return max(0.0, times[0] + WRONG_WITHIN_S - self._clock.monotonic())
