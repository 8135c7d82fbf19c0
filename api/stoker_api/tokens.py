"""Bearer tokens at rest: `tokens.json` (names, hashes, roles, projects, expiry) and `token` (the administrator's own).

Owns the files, mode 0600, and the look-up of a presented token. Writers take turns (`tokens.lock`), whatever process
they are in; readers follow. Never keeps a plain token but the administrator's, which `stoker up` and the CLI on the
same machine read, and a reader's for Prometheus (`scrape.token`). Called by `token_identity.py`, `stoker up` and
`stoker token`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from stoker.spec.fields import DnsLabel
from stoker.store.clock import Clock, SystemClock

from .identity import Principal

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
        """Expired so long ago that the reason is not shown any more."""
        return self.expires_at is not None and self.expires_at + KEPT_EXPIRED <= now


class TokenList(_Model):
    """The content of `tokens.json`."""

    tokens: tuple[TokenRecord, ...] = ()


def digest(token: str) -> str:
    # The tokens hold 256 random bits: a plain hash can't be searched, a slow one would only slow requests.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


log = logging.getLogger(__name__)

TOKENS_FILE = "tokens.json"
LOCK_FILE = "tokens.lock"
ADMIN_FILE = "token"
ADMIN_NAME = "admin"
SCRAPER_FILE = "scrape.token"
SCRAPER_NAME = "stoker-scrape"
ALL_PROJECTS = "*"
_PREFIX = "stk_"


@dataclass(frozen=True)
class TokenHolder(Principal):
    """Whose token it is."""

    role: Role
    projects: frozenset[str]


class TokenError(Exception):
    """The token files can't be used; the text says what to do."""


@dataclass
class TokenFile:
    """The tokens of one data folder; follows changes other processes make to the file."""

    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    _by_prefix: dict[str, list[TokenRecord]] = field(default_factory=dict)
    _records: tuple[TokenRecord, ...] = ()
    _seen: tuple[int, int, int] | None = None

    @classmethod
    def open(cls, folder: Path | str, clock: Clock | None = None) -> Self:
        """The folder's tokens; none if there is no file yet.

        Raises: TokenError (unreadable, malformed, or open to other users).
        """
        tokens = cls(Path(folder), clock or SystemClock())
        tokens._load()
        return tokens

    def ensure_admin(self) -> Path:
        """Where the administrator's token stands in plain; made if there is none that works. It does not expire."""
        return self._ensure(ADMIN_FILE, ADMIN_NAME, Role.ADMIN)

    def ensure_scraper(self) -> Path:
        """The same for a reader's, by which Prometheus asks for targets and metrics."""
        return self._ensure(SCRAPER_FILE, SCRAPER_NAME, Role.READER)

    def add(self, name: str, role: Role | str, projects: Sequence[str], lifetime: timedelta | None = None) -> str:
        """A new token, in plain, for the only time. `lifetime` None: it does not expire.

        Raises: TokenError (the name is taken or not valid).
        """
        with self._writing():
            if any(record.name == name for record in self._records):
                raise TokenError(
                    f"there is a token named {name!r} already; choose another name or revoke that one first"
                )
            if not projects:
                raise TokenError("give at least one project, or '*' for all")
            token, record = self._new(name, role, projects, lifetime)
            self._save((*self._records, record))
        return token

    def revoke(self, name: str) -> None:
        """From now on this token is refused. Raises: TokenError (there is none of this name)."""
        with self._writing():
            kept = tuple(record for record in self._records if record.name != name)
            if len(kept) == len(self._records):
                raise TokenError(f"there is no token named {name!r}; `stoker token list` names all")
            self._save(kept)

    def listed(self) -> tuple[TokenRecord, ...]:
        """All of them by name, with those that expired lately."""
        self.refresh()
        now = self.clock.now()
        return tuple(sorted((r for r in self._records if not r.forgotten(now)), key=lambda record: record.name))

    def find(self, token: str) -> TokenHolder | None:
        """Whose token it is; None: it was never one, or has expired, or was revoked.

        Cost: one hash, whatever the number of tokens; compared in constant time.
        """
        self.refresh()
        return self._find(token)

    def refresh(self) -> None:
        """Read the file again if it changed; a malformed one leaves the tokens known so far in force."""
        if self._stamp() == self._seen:
            return
        try:
            self._load()
        except TokenError as error:
            self._seen = self._stamp()
            log.error("tokens are not read again: %s", error)

    def _ensure(self, file: str, name: str, role: Role) -> Path:
        path = self.folder / file
        with self._writing():
            if path.exists():
                _refuse_open_mode(path)
                try:
                    there = path.read_text(encoding="ascii").strip()
                except UnicodeError:
                    raise TokenError(f"{path} holds no token; remove it, and `stoker up` makes a new one") from None
                if self._find(there) is not None:
                    return path
            kept = tuple(record for record in self._records if record.name != name)
            token, record = self._new(name, role, [ALL_PROJECTS], None)
            self._save((*kept, record))
            _write_private(path, token + "\n")
        return path

    def _find(self, token: str) -> TokenHolder | None:
        hashed = digest(token)
        found = None
        for record in self._by_prefix.get(hashed[:8], ()):
            if hmac.compare_digest(record.sha256, hashed):
                found = record
        if found is None or found.expired(self.clock.now()):
            return None
        return TokenHolder(found.name, found.role, frozenset(found.projects))

    def _new(
        self, name: str, role: Role | str, projects: Sequence[str], lifetime: timedelta | None
    ) -> tuple[str, TokenRecord]:
        token, now = _PREFIX + secrets.token_urlsafe(32), self.clock.now()
        try:
            record = TokenRecord(
                name=name,
                sha256=digest(token),
                role=Role(role),
                projects=tuple(projects),
                created_at=now,
                expires_at=None if lifetime is None else now + lifetime,
            )
        except (ValueError, OverflowError) as error:
            raise TokenError(f"no such token can be made: {error}") from None
        return token, record

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Alone among all processes, over what the file holds now, the forgotten left out.

        Raises: TokenError (it can't be read).
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._load()
            now = self.clock.now()
            self._take(tuple(record for record in self._records if not record.forgotten(now)), self._seen)
            yield
        finally:
            os.close(lock)

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
            parsed = TokenList.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise TokenError(f"{path} can't be read: {error}") from None
        self._take(parsed.tokens, stamp)

    def _save(self, records: tuple[TokenRecord, ...]) -> None:
        text = TokenList(tokens=records).model_dump_json(by_alias=True, exclude_none=True, indent=2)
        _write_private(self.folder / TOKENS_FILE, text + "\n")
        self._take(records, self._stamp())

    def _take(self, records: tuple[TokenRecord, ...], stamp: tuple[int, int, int] | None) -> None:
        by_prefix: dict[str, list[TokenRecord]] = {}
        for record in records:
            by_prefix.setdefault(record.sha256[:8], []).append(record)
        self._records, self._by_prefix, self._seen = records, by_prefix, stamp


def _refuse_open_mode(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise TokenError(f"{path} is open to other users; run: chmod 600 {path}")


def _write_private(path: Path, text: str) -> None:
    """Replace `path` as a whole, readable by its owner alone from the first byte on."""
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
