"""Bearer tokens of scrapers and the TLS certificate, both from files that may change while we run.

A changed file that can't be used is logged once, and what was good before goes on.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
import threading
from pathlib import Path

log = logging.getLogger("stoker.exporter")


class CredentialsError(Exception):
    """A file can't be used; the text says which and what to do."""


class BearerTokens:
    """One token a line, that the old and the new one hold while they are exchanged."""

    def __init__(self, file: Path) -> None:
        """Raises: CredentialsError."""
        self._file, self._stamp = file, _stamp(file)
        self._tokens = _read_tokens(file)
        self._lock = threading.Lock()

    def admit(self, header: str | None) -> bool:
        """Whether an Authorization header has one of them. Takes the same time for every wrong one."""
        self._follow()
        kind, _, token = (header or "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        right = [hmac.compare_digest(given, known) for known in self._tokens]
        return kind.lower() == "bearer" and any(right)

    def _follow(self) -> None:
        with self._lock:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                self._tokens = _read_tokens(self._file)
                log.info("tokens read anew from %s", self._file)
            except CredentialsError as error:
                log.warning("%s; the tokens before go on", error)


class Certificate:
    """The context for new connections."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises: CredentialsError."""
        self._cert, self._key = cert, key
        self._stamp = _stamp(cert), _stamp(key)
        self._context = self._load()
        self._lock = threading.Lock()

    def context(self) -> ssl.SSLContext:
        with self._lock:
            stamp = _stamp(self._cert), _stamp(self._key)
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._context = self._load()
                    log.info("certificate read anew from %s", self._cert)
                except CredentialsError as error:
                    log.warning("%s; the certificate before goes on", error)
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._cert, self._key)
        except (OSError, ssl.SSLError) as error:
            raise CredentialsError(f"can't use the certificate in {self._cert} with {self._key}: {error}") from None
        return context


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes with the file, through links too (a Secret's files are links)."""
    try:
        found = os.stat(file)  # noqa: PTH116 (once a request)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read_tokens(file: Path) -> list[bytes]:
    try:
        tokens = [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise CredentialsError(f"can't read --auth-token-file {file}: {error.strerror}") from None
    if not tokens:
        raise CredentialsError(f"--auth-token-file {file} is empty: put one token on a line")
    return tokens
