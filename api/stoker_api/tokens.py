"""Bearer tokens at rest: `tokens.json` (names, hashes, roles, projects) and `token` (the administrator's, in plain).

Owns both files, mode 0600, and the look-up of a presented token. Never keeps a plain token but the administrator's,
which `stoker up` and the CLI on the same machine read. Called by `token_identity.py` and by whoever adds tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from stoker.spec.names import DnsLabel

from .identity import Principal

log = logging.getLogger(__name__)

TOKENS_FILE = "tokens.json"
ADMIN_FILE = "token"
ADMIN_NAME = "admin"
ALL_PROJECTS = "*"
_PREFIX = "stk_"


class Role(StrEnum):
    """What a token may do; each includes what stands before it."""

    READER = "reader"
    USER = "user"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True)
class TokenHolder(Principal):
    """Whose token it is."""

    role: Role
    projects: frozenset[str]


class TokenError(Exception):
    """The token files can't be used; the text says what to do."""


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class _Record(_Model):
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    role: Role
    projects: tuple[DnsLabel | str, ...]
    created_at: datetime


class _File(_Model):
    tokens: tuple[_Record, ...] = ()


@dataclass
class TokenFile:
    """The tokens of one data folder; follows changes other processes make to the file."""

    folder: Path
    _by_prefix: dict[str, list[tuple[str, TokenHolder]]] = field(default_factory=dict)
    _records: tuple[_Record, ...] = ()
    _seen: tuple[int, int, int] | None = None

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """The folder's tokens; none if there is no file yet.

        Raises: TokenError (unreadable, malformed, or open to other users).
        """
        tokens = cls(Path(folder))
        tokens._load()
        return tokens

    def ensure_admin(self) -> Path:
        """Where the administrator's token stands in plain; made if there is none that works."""
        path = self.folder / ADMIN_FILE
        if path.exists():
            _refuse_open_mode(path)
            if self.find(path.read_text().strip()) is not None:
                return path
        self._records = tuple(record for record in self._records if record.name != ADMIN_NAME)
        token = self.add(ADMIN_NAME, Role.ADMIN, [ALL_PROJECTS])
        _write_private(path, token + "\n")
        return path

    def add(self, name: str, role: Role | str, projects: Sequence[str]) -> str:
        """A new token, in plain, for the only time. Raises: TokenError (the name is taken or not valid)."""
        self.refresh()
        if any(record.name == name for record in self._records):
            raise TokenError(f"there is a token named {name!r} already; choose another name")
        if not projects:
            raise TokenError("give at least one project, or '*' for all")
        token = _PREFIX + secrets.token_urlsafe(32)
        try:
            record = _Record(
                name=name,
                sha256=_digest(token),
                role=Role(role),
                projects=tuple(projects),
                created_at=datetime.now(UTC),
            )
        except ValueError as error:
            raise TokenError(f"no such token can be made: {error}") from None
        self._save((*self._records, record))
        return token

    def find(self, token: str) -> TokenHolder | None:
        """Whose token it is. Cost: one hash, whatever the number of tokens; compared in constant time."""
        self.refresh()
        digest = _digest(token)
        found = None
        for known, principal in self._by_prefix.get(digest[:8], ()):
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def refresh(self) -> None:
        """Read the file again if it changed; a malformed one leaves the tokens known so far in force."""
        if self._stamp() == self._seen:
            return
        try:
            self._load()
        except TokenError as error:
            self._seen = self._stamp()
            log.error("tokens are not read again: %s", error)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.folder / TOKENS_FILE)  # noqa: PTH116 (pathlib's takes three times as long)
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> None:
        path, stamp = self.folder / TOKENS_FILE, self._stamp()
        if stamp is None:
            self._take((), None)
            return
        _refuse_open_mode(path)
        try:
            parsed = _File.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise TokenError(f"{path} can't be read: {error}") from None
        self._take(parsed.tokens, stamp)

    def _save(self, records: tuple[_Record, ...]) -> None:
        text = _File(tokens=records).model_dump_json(by_alias=True, indent=2)
        _write_private(self.folder / TOKENS_FILE, text + "\n")
        self._take(records, self._stamp())

    def _take(self, records: tuple[_Record, ...], stamp: tuple[int, int, int] | None) -> None:
        by_prefix: dict[str, list[tuple[str, TokenHolder]]] = {}
        for record in records:
            principal = TokenHolder(record.name, record.role, frozenset(record.projects))
            by_prefix.setdefault(record.sha256[:8], []).append((record.sha256, principal))
        self._records, self._by_prefix, self._seen = records, by_prefix, stamp


def _digest(token: str) -> str:
    # The tokens hold 256 random bits: a plain hash can't be searched, a slow one would only slow requests.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _refuse_open_mode(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise TokenError(f"{path} is open to other users; run: chmod 600 {path}")


def _write_private(path: Path, text: str) -> None:
    """Replace `path` as a whole, readable by its owner alone from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
