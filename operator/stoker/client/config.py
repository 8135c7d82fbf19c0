"""Which server to talk to, and with which token.

Order: explicit values (`--server`, `--token`), `STOKER_SERVER` and `STOKER_TOKEN`, then what `stoker up` left in its
data folder (`endpoint.json`, `token`). The data folder's token is sent to the data folder's own server and to no other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from .errors import BadInput, Unreachable

ALL_PROJECTS = "-"
"""In place of a project: all that the token may see."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
DEFAULT_SERVER = "http://127.0.0.1:8470"
"""Of `stoker up` without `--host` and `--port`."""
ENDPOINT_FILE = "endpoint.json"
TOKEN_FILE = "token"
START_HINT = "start one with `stoker up`, or name one with --server URL (or STOKER_SERVER)"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and the token for it. `local`: found in the data folder, so `stoker up` is what starts it."""

    url: str
    token: str | None = field(default=None, repr=False)
    local: bool = False

    @property
    def loopback(self) -> bool:
        """The server runs on this machine, so that paths mean the same there."""
        return urlsplit(self.url).hostname in LOOPBACK


def data_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Where `stoker up` keeps its state: $STOKER_HOME, else ~/.stoker."""
    home = env.get("STOKER_HOME")
    return Path(home).expanduser() if home else Path.home() / ".stoker"


def find_server(server: str | None = None, token: str | None = None, env: Mapping[str, str] = os.environ) -> Endpoint:
    """The server meant and the token for it.

    Raises: Unreachable when none is named and none was started here; BadInput for an address that is none.
    """
    folder = data_folder(env)
    named = server or env.get("STOKER_SERVER")
    here = local_server(folder)
    url = _clean(named) if named else here
    if url is None:
        raise Unreachable(f"no Stoker server is running here (no {folder / ENDPOINT_FILE}); {START_HINT}")
    given = token or env.get("STOKER_TOKEN")
    if given is None and url == here:
        given = _read_token(folder)
    if given is not None and (not given.isascii() or not given.isprintable() or " " in given):
        raise BadInput("the token holds characters no token has; copy it again (one line, no blanks)")
    return Endpoint(url, given, local=url == here)


def _clean(url: str) -> str:
    if "://" not in url:
        url = _with_scheme(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"{url!r} is not a server address: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise BadInput(f"{url!r} is not a server address; write for example http://127.0.0.1:8470")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput("a server address is scheme://host:port only; give the token by --token or STOKER_TOKEN")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path.rstrip('/')}"


def _with_scheme(address: str) -> str:
    """An address without one: http on this machine; elsewhere the token would travel in clear. Raises: BadInput."""
    try:
        host = urlsplit(f"//{address}").hostname
    except ValueError:
        host = None
    if host in LOOPBACK:
        return f"http://{address}"
    raise BadInput(
        f"{address!r} is not a server address; write for example http://127.0.0.1:8470"
        + (f" or https://{address}" if host else "")
    )


def local_server(folder: Path) -> str | None:
    """The address of the server that runs in this data folder; None: none does. Raises: BadInput."""
    try:
        found = json.loads((folder / ENDPOINT_FILE).read_text())
    except OSError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("url"), str):
        raise BadInput(f"{folder / ENDPOINT_FILE} can't be read; restart `stoker up` to write it again")
    return _clean(found["url"])


def _read_token(folder: Path) -> str | None:
    try:
        return (folder / TOKEN_FILE).read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"can't read the token in {folder / TOKEN_FILE}: {why}; give one by STOKER_TOKEN") from None
