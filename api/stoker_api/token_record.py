"""One token at rest: whose it is, what it is for, until when, and the hash it is known by. Never the token itself.

Owns the form of `tokens.json`. Reads and writes no file. Called by `tokens.py`, and by `stoker token list`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from stoker.spec.names import DnsLabel

KEPT_EXPIRED = timedelta(days=30)


class Role(StrEnum):
    """What a token may do; each includes what stands before it."""

    READER = "reader"
    USER = "user"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class TokenRecord(_Model):
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    role: Role
    projects: tuple[DnsLabel | str, ...]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    """Absent: never."""

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def forgotten(self, now: datetime) -> bool:
        """Expired for so long that nobody asks any more why it does not work."""
        return self.expires_at is not None and self.expires_at + KEPT_EXPIRED <= now


class TokenList(_Model):
    """The content of `tokens.json`."""

    tokens: tuple[TokenRecord, ...] = ()


def digest(token: str) -> str:
    # The tokens hold 256 random bits: a plain hash can't be searched, a slow one would only slow requests.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
