"""Tokens that prove what they name with one key: `<prefix>.<name>.<hex hmac-sha256>`. Keeps nothing, asks nobody.

Called by `worker_token.py` and `exporter_token.py`.
"""

from __future__ import annotations

import hashlib
import hmac


def signed_token(key: bytes, prefix: str, name: str, *, domain: str = "") -> str:
    """`domain` goes into the proof before the name: one kind's proof is then none of another's."""
    return f"{prefix}.{name}.{_mac(key, domain + name)}"


def name_in(key: bytes, prefix: str, token: str, *, domain: str = "") -> str | None:
    """What the token proves; None if it is not one made with this key, prefix and domain."""
    found, _, rest = token.partition(".")
    name, _, mac = rest.rpartition(".")
    if found != prefix or not name:
        return None
    expected = _mac(key, domain + name)
    return name if hmac.compare_digest(expected.encode(), mac.encode("utf-8", "surrogateescape")) else None


def _mac(key: bytes, said: str) -> str:
    return hmac.new(key, said.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
