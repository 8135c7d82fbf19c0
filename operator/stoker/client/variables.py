"""Variables for a job as people keep them: files of lines K=V, and which of them look like keys.

Called by `stoker run`; never changes this process's environment.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from stoker.spec.names import ENV_NAME

from .errors import BadInput

_NAMES = re.compile(r"(^|_)(KEY|APIKEY|TOKEN|PAT|PASSWD|PASSPHRASE|CREDENTIALS?)$|SECRET|PASSWORD", re.IGNORECASE)
_RANDOM = re.compile(r"[A-Za-z0-9_.+=-]{20,}")
_SHORTEST = 8
_BITS = 3.5
"""Of entropy a character: words have less, keys and digests more."""


def read_env_file(path: str) -> dict[str, str]:
    """Lines K=V, `export` before them or not, values in quotes or not; empty lines and those with # are passed over.

    Raises: BadInput.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--env-file {path}: {getattr(error, 'strerror', None) or error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not ENV_NAME.fits(name.strip()):
            raise BadInput(f"--env-file {path}:{number}: write NAME=VALUE")  # never the line: it may hold a key
        found[name.strip()] = _unquoted(value.strip())
    return found


def looks_secret(name: str, value: str) -> bool:
    """By its name, or for what it is: long, without words, letters and digits mixed."""
    if len(value) < _SHORTEST:
        return False
    if _NAMES.search(name):
        return True
    mixed = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return mixed and _RANDOM.fullmatch(value) is not None and _entropy(value) >= _BITS


def _unquoted(value: str) -> str:
    for quote in "\"'":
        if len(value) >= 2 and value[0] == value[-1] == quote:
            return value[1:-1]
    return value.partition(" #")[0].rstrip()


def _entropy(text: str) -> float:
    """Units: bits a character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
