"""Projects' secrets on one machine: files in the data folder that only its user may read, one for each secret.

Owns their format and their bounds. Written for the api, which never gives a value back; read by the node agent, when it
starts a worker. A value is nowhere else on the disk: a file is replaced as a whole, and a deleted secret's is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from stoker.spec.job_parts import SecretRef
from stoker.spec.meta import StatusModel
from stoker.spec.names import DNS_LABEL
from stoker.spec.project_secrets import no_key, not_found
from stoker.spec.rest import ProjectSecret
from stoker.store.port import Invalid, NotFound, Unavailable

from .datadir import write_private

T = TypeVar("T")

MOST_SECRETS = 1000
"""Of a project."""
MOST_KEYS = 64


class SecretMissing(Exception):
    """A secret that a worker needs does not exist; the message is the kubelet's."""


class _Kept(StatusModel):
    """One secret's file."""

    created_at: datetime
    changed_at: datetime
    values: dict[str, str]

    def shown(self, name: str) -> ProjectSecret:
        return ProjectSecret(
            name=name, keys=tuple(sorted(self.values)), created_at=self.created_at, changed_at=self.changed_at
        )


class LocalSecrets:
    """Implements `stoker_api.ports.Secrets`; the caller's token is of no use here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing = threading.Lock()

    def value(self, ref: SecretRef, project: str) -> str:
        """Raises: SecretMissing, OSError."""
        kept = self._read(project, ref.secret)
        if kept is None:
            raise SecretMissing(not_found(ref))
        if ref.key not in kept.values:
            raise SecretMissing(no_key(ref, project))
        return kept.values[ref.key]

    async def listed(self, _token: str, project: str) -> list[ProjectSecret]:
        """By name. Raises: StoreError."""
        return await _in_thread(self._list, project)

    async def put(self, _token: str, project: str, name: str, key: str, value: str) -> tuple[ProjectSecret, bool]:
        """The secret with one value set; whether it is new. Raises: StoreError."""
        return await _in_thread(self._put, project, name, key, value)

    async def delete(self, _token: str, project: str, name: str, key: str | None) -> None:
        """Delete one value, or with None the whole secret. Raises: NotFound, other StoreErrors."""
        await _in_thread(self._delete, project, name, key)

    def _list(self, project: str) -> list[ProjectSecret]:
        folder = self._folder / project
        names = sorted(path.stem for path in folder.glob("[a-z]*.json")) if DNS_LABEL.fits(project) else []
        found = ((name, self._read(project, name)) for name in names)
        return [kept.shown(name) for name, kept in found if kept is not None]

    def _put(self, project: str, name: str, key: str, value: str) -> tuple[ProjectSecret, bool]:
        now = datetime.now(UTC)
        with self._writing:
            folder = self._of(project)
            for made in (self._folder, folder):
                made.mkdir(mode=0o700, exist_ok=True)
            before = self._read(project, name)
            if before is None and sum(1 for _ in folder.iterdir()) >= MOST_SECRETS:
                raise Invalid([f"project '{project}' has {MOST_SECRETS} secrets, the most there may be; delete one"])
            values = {} if before is None else before.values
            if key not in values and len(values) >= MOST_KEYS:
                raise Invalid([f"secret '{name}' has {MOST_KEYS} keys, the most there may be; delete one"])
            kept = _Kept(
                created_at=now if before is None else before.created_at, changed_at=now, values={**values, key: value}
            )
            write_private(self._path(project, name), kept.model_dump_json(by_alias=True).encode())
        return kept.shown(name), before is None

    def _delete(self, project: str, name: str, key: str | None) -> None:
        with self._writing:
            kept = self._read(project, name)
            if kept is None or (key is not None and key not in kept.values):
                raise NotFound(name if key is None else f"{name}/{key}")
            rest = {one: value for one, value in kept.values.items() if key is not None and one != key}
            if not rest:
                self._path(project, name).unlink()
                return
            left = kept.model_copy(update={"values": rest, "changed_at": datetime.now(UTC)})
            write_private(self._path(project, name), left.model_dump_json(by_alias=True).encode())

    def _read(self, project: str, name: str) -> _Kept | None:
        """Raises: Unavailable where the file is damaged."""
        with contextlib.suppress(FileNotFoundError):
            path = self._path(project, name)
            try:
                return _Kept.model_validate_json(path.read_bytes())
            except ValidationError:  # whose text would hold the values
                raise Unavailable(f"{path} can't be read; delete it and set the secret again") from None
        return None

    def _of(self, project: str) -> Path:
        if not DNS_LABEL.fits(project):
            raise NotFound(project)
        return self._folder / project

    def _path(self, project: str, name: str) -> Path:
        if not DNS_LABEL.fits(name):
            raise NotFound(name)
        return self._of(project) / f"{name}.json"


async def _in_thread(function: Callable[..., T], *arguments: object) -> T:
    try:
        return await asyncio.to_thread(function, *arguments)
    except OSError as error:
        raise Unavailable(f"secrets can't be read or written: {error.strerror or error}") from error
